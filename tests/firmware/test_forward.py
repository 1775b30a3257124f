"""Inferences between steps: their bits, and those of the steps after them."""

import random
from collections.abc import Iterator

import pytest
from poet_host import isa
from poet_host.schedule.model import with_crc
from support import toy, toy_forward
from support.card_image import CardImage
from support.memory_board import SURVIVE, FalseWrite, MemoryBoard, Refused, card, refusal
from support.toy_boards import give_batch, load, trained, truth, weights
from support.toy_forward import OUTPUT_BYTES, SAMPLE, parts, sample

KINDS = (
    "frugal", "lavish", "cut", "small frugal", "in RAM", "stays xwv every 3", "stays wv every 1",
    "cut stays xwv every 3",
)  # fmt: skip
STAYING = ("stays wv every 3", "stays xwv every 3", "stays w every 3", "stays wv every 3 paging")
STEPS = 4
MODEL, PLAN, TENSOR, ARENA = range(4)


def ready(kind: str, storage: CardImage | None = None, **how: object) -> MemoryBoard:
    """A board with the toy's tensors of seed 1 and its forward program."""
    board = trained(card() if storage is None else storage, kind=kind)
    board.load_forward(*parts(kind))
    return board


def infer(board: MemoryBoard, kind: str, seed: int) -> bytes:
    return board.infer(sample(kind, seed), OUTPUT_BYTES)


def expected(kind: str, step: int, seed: int) -> bytes:
    """The outputs after a step, by the reference kernels."""
    return toy_forward.truth(truth(kind, steps=STEPS)[step][0], sample(kind, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_inferences_have_the_bits_of_the_reference_and_leave_steps_as_they_are(kind: str) -> None:
    board, rng = ready(kind), random.Random(kind)
    for step in range(1, STEPS + 1):
        for _ in range(rng.randint(0, 3)):
            seed = rng.randint(0, 99)
            assert infer(board, kind, seed) == expected(kind, step - 1, seed)
        if kind == "in RAM":
            give_batch(board, kind)
        else:
            board.send_batch()
        assert infer(board, kind, step) == expected(kind, step - 1, step)
        result = board.ffi.new("struct poet_step_result *")
        board.call("step", step, 0, 0, result)  # with the batch from before the inference
        last = bytes(board.ffi.buffer(result))
        infer(board, kind, step)
        board.call("step", step, 0, 0, result)
        assert bytes(board.ffi.buffer(result)) == last  # the same request again
    board.save()
    assert weights(board, kind) == truth(kind)[STEPS]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kind", STAYING)
def test_a_commit_after_an_inference_has_all_that_stays_in_memory(kind: str, batch: bool) -> None:
    board = ready(kind)
    for step in (1, 2):
        board.step(step)
        if batch:
            give_batch(board, kind)  # of the next step
        infer(board, kind, step)
        if step == 2:
            board.load_forward(*parts(kind))
        board.save()
        after = MemoryBoard(board.after_the_cut())
        load(after, kind)
        assert after.state.committed.now.step == step
        assert weights(after, kind) == truth(kind)[step]


def test_an_inference_writes_pages_only_and_without_pages_nothing() -> None:
    for pages in (False, True):
        board = trained(card(), kind="frugal")
        board.load_forward(*parts("frugal", pages=pages))
        before, writes = board.storage.copy(), board.writes
        assert infer(board, "frugal", 1) == expected("frugal", 0, 1)
        assert (board.writes > writes) == pages
        changed = [i for i in range(1 << 18) if block_of(before, i) != block_of(board.storage, i)]
        first = min(t.block for t in toy.schedule().model.tensors if t.place == 1)
        assert len(changed) == pages
        assert all(block >= 8 + 24576 + first for block in changed)


def block_of(image: CardImage, number: int) -> bytes:
    return image[512 * number : 512 * number + 512]


@pytest.mark.parametrize("kind", ["frugal", "stays xwv every 3"])
def test_a_page_that_the_card_lost_is_not_the_page_of_another_inference(kind: str) -> None:
    board = ready(kind)
    infer(board, kind, 1)
    for number in range(3):
        board.false_writes = {board.writes: FalseWrite(kept=0)}
        assert refusal(infer, board, kind, 2).name == "page_damaged"
        assert infer(board, kind, number) == expected(kind, 0, number)
    board.send_batch()
    board.step(1)
    assert weights(board, kind) == truth(kind)[1]


@pytest.mark.parametrize("survive", SURVIVE)
@pytest.mark.parametrize("kind", ["frugal", "cut", "stays xwv every 3"])
def test_a_power_cut_in_an_inference_leaves_the_weights(kind: str, survive: str) -> None:
    writes = 0
    for cut in range(20):
        board = ready(kind)
        board.step(1)
        saved = weights(board, kind)
        board.survive = SURVIVE[survive]
        board.cut_at = board.writes + cut
        try:
            infer(board, kind, 1)
        except Refused:
            writes = cut + 1
        after = MemoryBoard(board.after_the_cut())
        load(after, kind)
        assert weights(after, kind) == saved == truth(kind)[1]
        after.load_forward(*parts(kind))
        assert infer(after, kind, 2) == expected(kind, 1, 2)
        after.step(2)
        assert weights(after, kind) == truth(kind)[2]
        if writes == cut:
            break
    assert 0 < writes < 20


@pytest.mark.parametrize("kind", ["frugal", "in RAM", "stays xwv every 3"])
def test_a_failed_inference_changes_no_step(kind: str) -> None:
    board = ready(kind)
    stop = board.ffi.callback("int(void *)", lambda _: True)
    for step in (1, 2):
        give_batch(board, kind)
        board.state.poll = stop
        assert refusal(infer, board, kind, 1).name == "stopped"
        board.state.poll = board.ffi.NULL
        give_batch(board, kind)
        board.step(step)
    board.save()
    assert weights(board, kind) == truth(kind)[2]


def test_a_batch_that_is_not_complete_must_be_written_again() -> None:
    kind = "stays xwv every 3"
    board = ready(kind)
    give_batch(board, kind)
    board.write(TENSOR, toy.X, 0, toy.values(1)[toy.X][:4])
    infer(board, kind, 1)
    result = board.ffi.new("struct poet_step_result *")
    assert refusal(board.call, "step", 1, 0, 0, result).name == "page_damaged"
    board.step(1)
    board.save()
    assert weights(board, kind) == truth(kind)[1]


def test_without_weights_or_program_or_while_weights_are_written_there_is_no_inference() -> None:
    kind = "frugal"
    board = trained(card(), kind=kind)
    assert refusal(infer, board, kind, 1).name == "no_schedule"
    board.load_forward(*parts(kind))
    board.write(TENSOR, toy.W, 0, toy.values(2)[toy.W])
    assert refusal(infer, board, kind, 1).name == "busy"
    assert refusal(board.load_forward, *parts(kind)).name == "busy"
    board.step(1)  # forgets what was written
    assert infer(board, kind, 1) == expected(kind, 1, 1)
    load(board, kind)
    assert refusal(infer, board, kind, 1).name == "no_schedule"
    blank = MemoryBoard(card())
    blank.format()
    load(blank, kind)
    blank.load_forward(*parts(kind))
    assert refusal(infer, blank, kind, 1).name == "wrong_step"


@pytest.mark.parametrize("other", ["lavish", "cut", "in RAM", "small frugal", "stays wv every 1"])
def test_the_forward_program_of_another_schedule_is_refused(other: str) -> None:
    board = trained(card(), kind="stays xwv every 3")
    assert refusal(board.load_forward, *parts(other)).name == "bad_table"
    assert refusal(infer, board, "frugal", 1).name == "no_schedule"
    board.step(1)


def mutations(kind: str) -> Iterator[tuple[bytes, bytes]]:
    """Forward programs with wrong bytes and right CRCs."""
    model, plan = parts(kind)
    crc_of_model = isa.ffi().offsetof("struct poet_plan_header", "model_crc")
    rng = random.Random(kind)
    for number in range(600):
        changed = [bytearray(model), bytearray(plan)]
        for _ in range(rng.choice((1, 1, 2, 5))):
            part = changed[number % 2]
            part[rng.randrange(8, len(part))] = rng.choice((0, 1, 2, 0xFF, rng.randrange(256)))
        first = with_crc(bytes(changed[0]))
        changed[1][crc_of_model : crc_of_model + 4] = first[4:8]
        yield first, with_crc(bytes(changed[1]))


@pytest.mark.parametrize("kind", ["frugal", "cut", "in RAM", "stays xwv every 3"])
def test_a_hostile_forward_program_harms_neither_memory_nor_weights(kind: str) -> None:
    board = trained(card(), kind=kind)
    accepted, refused = 0, set()
    for program in mutations(kind):
        try:
            board.load_forward(*program)
            accepted += 1
            infer(board, kind, 1)
        except Refused as error:
            refused.add(error.name)
        assert not board.strayed
        assert board.arena[1024] == 0x5AFE5AFE
    for step in (1, 2):
        give_batch(board, kind)
        board.step(step)
    board.save()
    assert weights(board, kind) == truth(kind)[2]
    assert accepted > 5
    assert refused >= {"bad_table", "bad_plan"}


# A board whose only schedule is the forward program, as `evaluate` uses it.


def run_alone(board: MemoryBoard, kind: str, number: int, seed: int) -> bytes:
    board.write(TENSOR, SAMPLE, 0, sample(kind, seed))
    board.step(number)
    return output(board, OUTPUT_BYTES)


def output(board: MemoryBoard, size_bytes: int) -> bytes:
    residents, count = board.memory.residents, board.state.decoder.resident_count
    last = board.state.model.tensor_count - 1
    (at,) = (residents[i].offset for i in range(count) if residents[i].tensor == last)
    return board.read(ARENA, 0, at, size_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_program_alone_uses_the_committed_weights(kind: str) -> None:
    board = trained(card(), kind=kind)
    for step in (1, 2):
        give_batch(board, kind)
        board.step(step)
    board.save()
    stored = board.storage.copy()
    alone = MemoryBoard(stored)
    alone.load(*parts(kind))
    for number in range(3):
        assert run_alone(alone, kind, number, number) == expected(kind, 2, number)
    assert refusal(alone.begin, 0).name == "no_schedule"
    assert refusal(alone.save).name == "no_schedule"
    load(alone, kind)
    give_batch(alone, kind)
    alone.step(3)
    alone.save()
    assert weights(alone, kind) == truth(kind)[3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_program_alone_uses_weights_that_are_written_and_commits_none(kind: str) -> None:
    board = trained(card(), kind=kind)
    alone = MemoryBoard(board.storage.copy())
    alone.load(*parts(kind))
    for seed in (2, 3):
        w = toy.values(seed, kind)[toy.W]
        alone.write(TENSOR, toy.W, 0, w)
        for number in range(2):
            found = run_alone(alone, kind, 10 * seed + number, number)
            assert found == toy_forward.truth(w, sample(kind, number))
    load(alone, kind)
    assert weights(alone, kind) == truth(kind)[0]
    blank = MemoryBoard(card())
    blank.format()
    blank.load(*parts(kind))
    assert refusal(run_alone, blank, kind, 1, 1).name == "wrong_step"
    blank.write(TENSOR, toy.W, 0, w)
    assert run_alone(blank, kind, 1, 1) == toy_forward.truth(w, sample(kind, 1))


def test_a_repeated_request_does_not_run_again() -> None:
    alone = MemoryBoard(trained(card()).storage)
    alone.load(*parts("frugal"))
    found = run_alone(alone, "frugal", 5, 1)
    ticks = alone.now
    assert (alone.step(5)["step"], alone.now) == (5, ticks)
    assert found == run_alone(alone, "frugal", 6, 1)


def test_the_input_is_never_on_storage() -> None:
    alone = MemoryBoard(trained(card()).storage)
    alone.load(*parts("frugal"))
    writes = alone.writes
    alone.write(TENSOR, SAMPLE, 0, sample("frugal", 1))
    assert alone.writes == writes
    assert refusal(alone.tensor, SAMPLE + 1, 4).name == "bad_object"


def test_an_input_on_storage_cannot_be_written_while_an_inference_runs() -> None:
    kind = "frugal"
    alone = MemoryBoard(trained(card(), kind=kind).storage)
    alone.load(*toy_forward.of_batch(kind))
    first, other = (toy.values(seed, kind)[toy.X] for seed in (3, 4))
    alone.write(TENSOR, toy.X, 0, first)
    codes: list[int] = []

    def poll(_: object) -> int:
        codes.append(alone.lib.poet_write(alone.state, TENSOR, toy.X, 0, other, len(other)))
        return len(codes) > 1000

    alone.state.poll = callback = alone.ffi.callback("int(void *)", poll)
    rows = first[: len(first) // toy.N], first[len(first) // toy.N :]
    wanted = b"".join(toy_forward.truth(truth(kind)[0][0], row) for row in rows)
    for number in (5, 6):
        alone.step(number)
        assert output(alone, len(wanted)) == wanted
    assert callback
    assert {*codes} == {isa.by_name("ERROR")["busy"].code}
