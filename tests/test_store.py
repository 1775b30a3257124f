"""The store: formats and mounts, uploads, commits, and power cuts at every write."""

import random
import struct
from collections.abc import Callable
from functools import cache

import pytest
import toy
from memory_board import BLOCK, DATA_BLOCK, NO_STEP, PARTITION, MemoryBoard, Refused, card
from poet_host import isa
from poet_host.schedule.model import CURRENT, model_bytes, with_crc
from poet_host.schedule.schedule import Schedule

COMMIT_BLOCKS = (64, 128)
SUPERBLOCK = 0


def in_partition(block: int) -> slice:
    at = (PARTITION + block) * BLOCK
    return slice(at, at + BLOCK)


def trained(storage: bytearray, steps: int = 0, kind: str = "frugal", seed: int = 1) -> MemoryBoard:
    """A board with the toy's tensors of `seed`, after so many steps."""
    board = MemoryBoard(storage)
    board.format()
    load(board, kind)
    for number, data in enumerate(toy.values(seed)):
        board.write(2, number, 0, data)
    board.begin(0)
    for step in range(1, steps + 1):
        board.step(step)
    return board


def load(board: MemoryBoard, kind: str = "frugal") -> Schedule:
    schedule = toy.schedule(kind)
    board.load(schedule.model_part, schedule.plan_part)
    return schedule


def weights(board: MemoryBoard) -> tuple[bytes, bytes]:
    return board.tensor(toy.W, toy.SIZES[toy.W]), board.tensor(toy.V, toy.SIZES[toy.V])


@cache
def truth(seed: int = 1, steps: int = 4) -> list[tuple[bytes, bytes]]:
    """Weights after 0, 1, ... steps of an undisturbed run."""
    board = trained(card(), kind="lavish", seed=seed)
    found = [weights(board)]
    for step in range(1, steps + 1):
        board.step(step)
        found.append(weights(board))
    assert len(set(found)) == steps + 1  # each step moves them
    return found


# Finding the partition.


def test_a_new_card_is_foreign_until_it_is_formatted() -> None:
    board = MemoryBoard(card(4096))
    hello = board.hello()
    assert (hello["storage_status"], hello["storage_blocks"]) == (-5, 4096 - PARTITION)
    assert hello["committed_step"] == NO_STEP
    board.format()
    hello = board.hello()
    assert (hello["storage_status"], hello["committed_step"]) == (0, NO_STEP)


def test_no_card() -> None:
    board = MemoryBoard(bytearray())
    assert board.hello()["storage_status"] == -4
    for refused in (
        lambda: board.format(),
        lambda: board.write(0, 0, 0, b"x"),
        lambda: board.read(0, 0, 0, 1),
        lambda: board.begin(0),
        lambda: board.step(1),
    ):
        with pytest.raises(Refused, match="no_storage"):
            refused()


def test_a_card_put_in_later_is_found() -> None:
    board = MemoryBoard(bytearray())
    assert board.hello()["storage_status"] == -4
    board.storage = trained(card(), 2).storage
    hello = board.hello()
    assert (hello["storage_status"], hello["committed_step"]) == (0, 2)


@pytest.mark.parametrize("kind", [0x0C, 0x83, 0x00])
def test_other_peoples_partitions_are_left_alone(kind: int) -> None:
    storage = card(partition_type=kind)
    before = bytes(storage)
    board = MemoryBoard(storage)
    assert board.hello()["storage_status"] == -5
    with pytest.raises(Refused, match="foreign_storage"):
        board.format()
    assert bytes(storage) == before


def test_a_card_without_partition_table_is_foreign() -> None:
    storage = card()
    storage[510] = 0
    board = MemoryBoard(storage)
    with pytest.raises(Refused, match="foreign_storage"):
        board.format()


def test_a_card_that_ends_before_its_partition() -> None:
    board = MemoryBoard(card()[: 2000 * BLOCK])
    assert board.hello()["storage_status"] == -6
    with pytest.raises(Refused) as found:
        board.format()
    assert (found.value.name, found.value.detail) == ("storage_small", 4096 - 2000)


def test_a_partition_without_room_for_data() -> None:
    board = MemoryBoard(card(PARTITION + DATA_BLOCK))
    with pytest.raises(Refused, match="storage_small"):
        board.format()
    assert board.hello()["storage_status"] == -6


def test_format_takes_part_of_the_partition_if_asked() -> None:
    board = MemoryBoard(card(4096))
    with pytest.raises(Refused, match="storage_small"):
        board.format(4096 - PARTITION + 1)
    with pytest.raises(Refused, match="storage_small"):
        board.format(DATA_BLOCK)
    board.format(DATA_BLOCK + 132)
    with pytest.raises(Refused, match="storage_small"):
        load(board)  # its data area is larger
    board.format(4096 - PARTITION)
    load(board)


def test_nothing_is_written_outside_the_partition() -> None:
    storage = card(4096)
    before = bytes(storage[: PARTITION * BLOCK])
    struct.pack_into("<I", storage, 446 + 12, 3000)  # a partition that ends before the card
    tail = (PARTITION + 3000) * BLOCK
    storage[tail:] = b"\xa5" * (len(storage) - tail)
    trained(storage, 3)
    assert storage[:446] == before[:446]
    assert storage[446 + 16 : PARTITION * BLOCK] == before[446 + 16 :]
    assert set(storage[tail:]) == {0xA5}


def test_format_forgets_what_was_committed() -> None:
    board = trained(card(), 3)
    board.format()
    assert board.hello()["committed_step"] == NO_STEP
    load(board)
    with pytest.raises(Refused, match="wrong_step"):
        board.step(4)


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16])
def test_a_damaged_superblock_is_foreign(at: int) -> None:
    board = trained(card(), 1)
    board.storage[in_partition(SUPERBLOCK).start + at] ^= 1
    assert MemoryBoard(board.storage).hello()["storage_status"] == -5


# Objects.


def test_parts_and_tensors_read_back_as_written() -> None:
    board = trained(card())
    schedule = toy.schedule()
    assert board.read(0, 0, 0, len(schedule.model_part)) == schedule.model_part
    assert board.read(1, 0, 0, len(schedule.plan_part)) == schedule.plan_part
    assert [board.tensor(i, toy.SIZES[i]) for i in range(4)] == toy.values(1)
    assert board.read(2, toy.W, 511, 3) == toy.values(1)[toy.W][511:514]


def test_tensors_may_arrive_in_any_pieces() -> None:
    board = trained(card())
    new = toy.values(2)
    rng = random.Random(5)
    for number, data in enumerate(new):
        at = 0
        while at < len(data):
            piece = rng.randint(1, 300)
            board.write(2, number, at, data[at : at + piece])
            board.write(2, number, at, data[at : at + piece])  # a repeated request
            at += piece
    board.begin(0)
    assert [board.tensor(i, toy.SIZES[i]) for i in range(4)] == new


@pytest.mark.parametrize(
    ("object", "tensor", "offset", "size"),
    [
        (2, 0, 601, 0),
        (2, 0, 600, 1),
        (2, 0, 0, 601),
        (2, 0, 0xFFFFFFFF, 4),
        (2, 4, 0, 1),
        (2, 0xFFFF, 0, 1),
        (3, 0, 0, 1),
    ],
)
def test_ranges_outside_an_object_are_refused(
    object: int, tensor: int, offset: int, size: int
) -> None:
    board = trained(card())
    assert toy.SIZES[0] == 600
    before = bytes(board.storage)
    for refused in (
        lambda: board.write(object, tensor, offset, b"x" * size),
        lambda: board.read(object, tensor, offset, size),
    ):
        with pytest.raises(Refused, match="bad_object"):
            refused()
    assert bytes(board.storage) == before


def test_tensors_need_a_schedule() -> None:
    board = MemoryBoard(card())
    board.format()
    for refused in (
        lambda: board.write(2, 0, 0, b"x"),
        lambda: board.tensor(0, 1),
        lambda: board.begin(0),
        lambda: board.step(1),
    ):
        with pytest.raises(Refused, match="no_schedule"):
            refused()


def test_writing_a_part_unloads_the_schedule() -> None:
    board = trained(card())
    board.write(1, 0, 0, toy.schedule().plan_part)
    assert board.hello()["loaded_plan"] == 0
    with pytest.raises(Refused, match="no_schedule"):
        board.step(1)


def test_begin_needs_every_current_tensor() -> None:
    board = MemoryBoard(card())
    board.format()
    load(board)
    for number in (toy.X, toy.T, toy.W):
        board.write(2, number, 0, toy.values(1)[number])
    with pytest.raises(Refused) as found:
        board.begin(0)
    assert (found.value.name, found.value.detail) == ("bad_object", toy.V)
    with pytest.raises(Refused, match="wrong_step"):
        board.step(1)
    with pytest.raises(Refused, match="bad_object"):
        board.tensor(toy.V, 4)  # there is no value of it yet
    board.write(2, toy.V, 0, toy.values(1)[toy.V])
    board.begin(0)
    board.step(1)


def test_begin_refuses_a_tensor_that_is_half_written() -> None:
    board = trained(card(), 1)
    board.write(2, toy.W, 0, b"\1" * 700)
    with pytest.raises(Refused) as found:
        board.begin(7)
    assert (found.value.name, found.value.detail) == ("page_damaged", toy.W)
    assert board.hello()["committed_step"] == 1


def test_begin_may_be_repeated_and_may_rename_the_step() -> None:
    board = trained(card(), 2)
    writes = board.writes
    board.begin(2)
    assert board.writes == writes  # nothing was new
    board.begin(40)
    assert weights(board) == truth()[2]
    board.step(41)
    assert weights(board) == truth()[3]


def test_uploads_count_only_after_begin() -> None:
    board = trained(card(), 2)
    board.write(2, toy.W, 0, toy.values(2)[toy.W])
    assert board.tensor(toy.W, 900) == toy.values(2)[toy.W]  # what was written last
    again = MemoryBoard(board.storage)  # but the power goes before begin
    load(again)
    assert weights(again) == truth()[2]
    again.step(3)
    assert weights(again) == truth()[3]


def test_begin_keeps_what_was_not_written() -> None:
    board = trained(card(), 2)
    board.write(2, toy.W, 0, toy.values(2)[toy.W])
    board.begin(0)
    assert weights(board) == (toy.values(2)[toy.W], truth()[2][1])


def test_another_model_gives_up_the_commit_of_the_first() -> None:
    board = trained(card(), 2)
    model = toy.schedule().model
    bigger = model_bytes(type(model)(model.tensors, model.operators, 128, model.data_blocks + 64))
    header = isa.unpack("poet_plan_header", toy.schedule().plan_part[:28])
    header["model_crc"] = isa.unpack("poet_model", bigger[:28])["crc"]
    plan = with_crc(isa.pack("poet_plan_header", **header) + toy.schedule().plan_part[28:])
    board.load(bigger, plan)
    with pytest.raises(Refused, match="wrong_step"):
        board.step(3)
    assert board.hello()["committed_step"] == 2  # loading alone destroys nothing
    board.write(2, toy.W, 0, b"\0" * 4)
    assert board.hello()["committed_step"] == NO_STEP
    again = MemoryBoard(board.storage)
    assert again.hello()["committed_step"] == NO_STEP


def test_damage_on_storage_is_noticed() -> None:
    board = trained(card(), 1)
    tensors = toy.schedule().model.tensors
    assert tensors[toy.W].place == CURRENT
    slot = tensors[toy.W].block + toy.schedule().model.slot_stride  # of step 1
    board.storage[in_partition(DATA_BLOCK + slot).start + 77] ^= 1
    again = MemoryBoard(board.storage)
    load(again)
    with pytest.raises(Refused) as found:
        again.tensor(toy.W, 900)
    assert (found.value.name, found.value.detail) == ("page_damaged", toy.W)
    with pytest.raises(Refused) as found:
        again.step(2)
    assert (found.value.name, found.value.detail) == ("page_damaged", toy.W)
    assert again.hello()["committed_step"] == 1


def test_a_block_written_to_the_wrong_place_is_noticed() -> None:
    board = trained(card())
    tensors = toy.schedule().model.tensors
    w, v = (in_partition(DATA_BLOCK + tensors[i].block).start for i in (toy.W, toy.V))
    size = 2 * BLOCK
    board.storage[w : w + size] = board.storage[v : v + size]  # the CRC is right, the owner is not
    again = MemoryBoard(board.storage)
    load(again)
    with pytest.raises(Refused, match="page_damaged"):
        again.tensor(toy.W, 900)


def test_a_card_that_fails_is_looked_at_afresh() -> None:
    board = trained(card(), 1)
    board.failing = True
    with pytest.raises(Refused, match="storage_failed"):
        board.step(2)
    assert board.hello()["storage_status"] == -7
    board.failing = False
    assert board.hello()["storage_status"] == 0
    with pytest.raises(Refused, match="no_schedule"):
        board.step(2)  # it might be another card
    load(board)
    board.step(2)
    assert weights(board) == truth()[2]


# Commit records.


def test_commits_alternate_between_two_erase_groups() -> None:
    board = trained(card())
    for step in range(1, 5):
        before = [bytes(board.storage[in_partition(block)]) for block in COMMIT_BLOCKS]
        board.step(step)
        after = [bytes(board.storage[in_partition(block)]) for block in COMMIT_BLOCKS]
        changed = [a != b for a, b in zip(before, after, strict=True)]
        assert changed == [step % 2 == 1, step % 2 == 0]
        newest = isa.unpack("poet_commit", after[changed.index(True)][:32])
        assert (newest["step"], newest["parity"]) == (step, step % 2)


@pytest.mark.parametrize("at", range(0, 32, 4))
def test_a_torn_commit_record_leaves_the_step_before(at: int) -> None:
    board = trained(card(), 3)
    newest = in_partition(COMMIT_BLOCKS[0]).start  # begin was the first commit
    board.storage[newest + at] ^= 0x10
    again = MemoryBoard(board.storage)
    assert again.hello()["committed_step"] == 2
    load(again)
    assert weights(again) == truth()[2]
    again.step(3)
    assert weights(again) == truth()[3]


# Power cuts.

SURVIVE: dict[str, Callable[[int], list[int]]] = {
    "all": lambda count: list(range(count)),
    "none": lambda count: [],
    "last torn": lambda count: [*range(count - 1), -count] if count else [],
    "only last": lambda count: [count - 1] if count else [],
    "every other": lambda count: list(range(0, count, 2)),
}


def run_until_cut(storage: bytearray, cut_at: int, survive: str, steps: int) -> bytearray:
    """Continue training on this card until the power goes; the card as it is then."""
    board = MemoryBoard(storage, cut_at=cut_at, survive=SURVIVE[survive])
    try:
        load(board)
        for _ in range(steps):
            board.step(board.state.committed.step + 1)
    except Refused:
        pass
    return board.after_the_cut()


@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write_of_a_run(survive: str) -> None:
    start = bytes(trained(card()).storage)
    probe = MemoryBoard(bytearray(start))
    load(probe)
    loaded = probe.writes
    for step in (1, 2, 3):
        probe.step(step)
    seen = set()
    for cut_at in range(loaded, probe.writes + 2):  # the last one is never reached
        image = run_until_cut(bytearray(start), cut_at, survive, 3)
        again = MemoryBoard(image)
        step = again.hello()["committed_step"]
        seen.add(step)
        load(again)
        assert weights(again) == truth()[step], f"cut at write {cut_at}"
        again.step(step + 1)  # and training goes on as if nothing had been
        assert weights(again) == truth()[step + 1], f"cut at write {cut_at}"
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write_of_an_upload(survive: str) -> None:
    start = bytes(trained(card(), 2).storage)
    new = toy.values(2)

    def upload(board: MemoryBoard) -> None:
        load(board)
        for number in (toy.W, toy.V):
            for at in range(0, len(new[number]), 400):
                board.write(2, number, at, new[number][at : at + 400])
        board.begin(0)

    probe = MemoryBoard(bytearray(start))
    upload(probe)
    expected = {2: truth()[2], 0: (new[toy.W], new[toy.V])}
    seen = set()
    for cut_at in range(probe.writes + 1):
        board = MemoryBoard(bytearray(start), cut_at=cut_at, survive=SURVIVE[survive])
        if cut_at == probe.writes:
            board.cut_at = None
            upload(board)
        else:
            with pytest.raises(Refused):
                upload(board)
        again = MemoryBoard(board.after_the_cut())
        step = again.hello()["committed_step"]
        seen.add(step)
        load(again)
        assert weights(again) == expected[step], f"cut at write {cut_at}"
    assert seen == {0, 2}


def test_power_cut_while_formatting_leaves_the_old_store_or_none() -> None:
    start = bytes(trained(card(), 2).storage)
    probe = MemoryBoard(bytearray(start))
    probe.format()
    for cut_at in range(probe.writes):
        for survive in SURVIVE.values():
            board = MemoryBoard(bytearray(start), cut_at=cut_at, survive=survive)
            with pytest.raises(Refused):
                board.format()
            hello = MemoryBoard(board.after_the_cut()).hello()
            assert hello["committed_step"] in (1, 2, NO_STEP)
            assert hello["storage_status"] in (0, -5)
