"""Samples that a device keeps (samples.c): which ones a step draws, and what a power cut leaves."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from poet_host.data.taught import Taught, drawn
from support import toy
from support.card_image import BLOCK, CardImage
from support.memory_board import SURVIVE, MemoryBoard, Refused

CLASSES, SLOTS, SIZE, SEED = 3, 4, 700, 12345  # a sample takes two blocks
BUSY = 1


@dataclass
class Store:
    """Samples on storage of a board in memory, or in RAM."""

    unit: int = 0  # blocks of an erase unit; 0: no flash
    in_ram: bool = False
    image: CardImage | None = None
    slots: int = SLOTS
    cut: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.image is None:
            self.image = CardImage(1000 * BLOCK)
        flash = {"is_flash": True, "unit": self.unit} if self.unit else {"unit": 1}
        self.board = MemoryBoard(self.image, left_out=["submit"], cache=1, **flash, **self.cut)
        ffi, self.lib = self.board.ffi, self.board.lib
        kind = toy.schedule("in RAM")
        self.board.keep_program(kind.model_part, kind.plan_part)
        self.unit = self.unit or 1
        self.board.program.own_blocks = self.lib.poet_samples_blocks(
            CLASSES, self.slots, SIZE, self.unit
        )
        facts = ffi.new("struct poet_facts *")
        self.board.call("load_program", self.board.program, facts)
        places = CLASSES * self.lib.poet_samples_places(self.slots, not self.in_ram)
        self._keep = (
            ffi.new("uint32_t[]", places),
            ffi.new("uint32_t[]", CLASSES),
            ffi.new("uint8_t[]", places * SIZE),
        )
        self.state = ffi.new("struct poet_samples *", {
            "p": self.board.state, "sample_bytes": SIZE, "classes": CLASSES, "slots": self.slots,
            "erase_blocks": self.unit, "from": self._keep[0], "next": self._keep[1],
            "ram": self._keep[2] if self.in_ram else ffi.NULL,
        })  # fmt: skip

    def open(self, is_new: bool = False) -> None:
        self._check(self.lib.poet_samples_open(self.state, is_new))

    def _check(self, code: int) -> None:
        if code:
            raise Refused(code, 0)

    def add(self, sample: bytes, label: int, step: int, first: int) -> bool:
        """Return False if the sample that it would replace is in use."""
        code = self.lib.poet_samples_add(self.state, label, step, first, sample)
        if code != BUSY:
            self._check(code)
        return bool(code != BUSY)

    def forget(self) -> None:
        self._check(self.lib.poet_samples_mark(self.state, self.state.record.epoch + 1, 0))
        self.lib.poet_samples_forget(self.state)

    def count(self, label: int, step: int = 2**32 - 1) -> int:
        return int(self.lib.poet_samples_count(self.state, label, step))

    def draw(self, step: int, batch: int) -> list[tuple[int, bytes]] | None:
        """Labels and samples of a step's batch."""
        ffi = self.board.ffi
        found = []
        for i in range(batch):
            label = ffi.new("uint32_t *")
            reader = ffi.new("struct poet_sample_reader *")
            if not self.lib.poet_samples_draw(self.state, SEED, step, batch, i, label, reader):
                return None
            data = ffi.new("uint8_t[]", SIZE)
            for at in range(0, SIZE, 256):
                part = min(256, SIZE - at)
                self._check(self.lib.poet_samples_read(self.state, reader, data + at, part))
            found.append((label[0], bytes(data)))
        return found


def sample(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


@dataclass
class History:
    """What was taught, in order; the last one may have been lost in a power cut."""

    taught: list[Taught] = field(default_factory=list)

    def expected(self, step: int, batch: int, slots: int = SLOTS) -> Any:
        chosen = drawn(self.taught, SEED, step, batch, slots)
        return None if chosen is None else [(self.taught[i].label, sample(i)) for i in chosen]

    def teach(self, store: Store, label: int, step: int, first: int) -> bool:
        number = len(self.taught)
        self.taught.append(Taught(label, step))
        if store.add(sample(number), label, step, first):
            return True
        self.taught.pop()
        return False


@pytest.mark.parametrize("store", [{}, {"unit": 1}, {"unit": 8}, {"in_ram": True}], ids=str)
def test_a_step_draws_what_the_rule_says(store: dict[str, Any]) -> None:
    rng, history, kept = random.Random(1), History(), Store(**store)
    kept.open(True)
    committed = step = 0
    for _ in range(150):
        if kept.in_ram or rng.random() < 0.3:
            committed = step
        if not history.teach(kept, rng.randrange(CLASSES), step + 1, committed + 1):
            committed = step  # a commit makes room
        step += rng.randrange(3)
        for again in range(committed + 1, step + 2):
            assert kept.draw(again, 3) == history.expected(again, 3)
    assert [kept.count(label) for label in range(CLASSES)] == [SLOTS] * CLASSES
    if kept.in_ram:
        return
    opened = Store(**store, image=kept.image)
    opened.open()
    for again in range(committed + 1, step + 2):
        assert opened.draw(again, 3) == history.expected(again, 3)


def test_classes_take_turns_and_each_sample_has_its_share() -> None:
    taught = [Taught(label, 1) for label in (0, 2, 2) for _ in range(2)]
    drawn_ones = Counter(
        i for step in range(1, 4001) for i in drawn(taught, SEED, step, 1, 8) or ()
    )
    assert sum(drawn_ones[i] for i in (0, 1)) == 2000
    assert min(drawn_ones[i] for i in (0, 1)) > 900
    assert min(drawn_ones[i] for i in (2, 3, 4, 5)) > 430
    assert drawn(taught, SEED, 0, 1, 8) is None


def test_no_sample_that_an_uncommitted_step_can_have_drawn_is_replaced() -> None:
    history, kept = History(), Store()
    kept.open(True)
    for _ in range(SLOTS):
        assert history.teach(kept, 0, 1, 1)
    assert history.teach(kept, 0, 6, 1)  # five steps are not committed; one place is free
    before = kept.draw(3, 2)
    assert not history.teach(kept, 0, 6, 1)
    assert kept.draw(3, 2) == before == history.expected(3, 2)
    assert history.teach(kept, 1, 6, 1)  # another class has room
    assert history.teach(kept, 0, 6, 6)  # the steps are committed now


@pytest.mark.parametrize(
    ("unit", "survive"), [*((0, name) for name in SURVIVE), (1, "all"), (8, "all")]
)
def test_a_cut_leaves_whole_samples(unit: int, survive: str) -> None:
    start = Store(unit)
    start.open(True)
    history = History()
    for number in range(20):
        assert history.teach(start, number % CLASSES, number + 1, number + 1)
    assert start.image is not None
    cut_at = 0
    while True:
        how = {"cut_at": cut_at, "survive": SURVIVE[survive]}
        store = Store(unit, image=start.image.copy(), cut=how)
        store.open()
        tried = History([*history.taught])
        try:
            for number in range(3):
                assert tried.teach(store, number % 2, 21, 21)
            break
        except Refused:
            assert store.board.writes <= cut_at
        later = Store(unit, image=store.board.after_the_cut())
        later.open()
        found = later.draw(21, 6)
        before = History(tried.taught[:-1])
        assert found in (tried.expected(21, 6), before.expected(21, 6))
        if found != tried.expected(21, 6):
            tried = before
        for number in range(9):  # and the next ones find their places
            assert tried.teach(later, number % CLASSES, 22, 22)
            assert later.draw(22, 6) == tried.expected(22, 6)
        cut_at += 1
    assert cut_at >= 6


@pytest.mark.parametrize("unit", [0, 1, 8])
def test_forgetting_is_done_or_not(unit: int) -> None:
    start = Store(unit)
    start.open(True)
    for number in range(9):
        assert start.add(sample(number), number % CLASSES, 1, 1)
    assert start.image is not None
    seen = set()
    for cut_at in range(3):
        store = Store(unit, image=start.image.copy(), cut={"cut_at": cut_at})
        store.open()
        try:
            store.forget()
        except Refused:
            pass
        else:
            assert not any(store.count(label) for label in range(CLASSES))
        later = Store(unit, image=store.board.after_the_cut())
        later.open()
        seen.add(tuple(later.count(label) for label in range(CLASSES)))
        assert later.add(sample(99), 1, 1, 1)
    assert seen == {(0, 0, 0), (3, 3, 3)}


def test_other_numbers_of_slots_begin_without_samples() -> None:
    kept = Store()
    kept.open(True)
    assert kept.add(sample(0), 0, 1, 1)
    for slots in (SLOTS + 1, SLOTS):
        again = Store(image=kept.image, slots=slots)
        again.open()
        assert again.count(0) == 0


def test_a_damaged_sample_is_refused_or_not_found() -> None:
    kept = Store()
    kept.open(True)
    assert kept.add(sample(0), 0, 1, 1)
    assert kept.image is not None
    at = kept.image.find(b"POTX")
    kept.image[at + 600 : at + 601] = b"\0" if kept.image[at + 600] else b"\1"
    kept.lib.poet_forget(kept.board.state, 0)
    with pytest.raises(Refused, match="page_damaged"):
        kept.draw(1, 1)
    again = Store(image=kept.image)
    again.open()
    assert again.count(0) == 0
