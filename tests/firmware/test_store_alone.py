"""Training alone by the job on a card: the bits of training with a host, power cuts, damage."""

import struct
import zlib
from functools import cache

import pytest
from poet_host import isa
from poet_host.card.job import Job
from poet_host.data.fitted import batch_of_step
from poet_host.device.device import JOB, TENSOR
from support import toy
from support.card_image import BLOCK, DATA_BLOCK, CardImage
from support.memory_board import (
    GUARD,
    NO_STEP,
    PARTITION,
    SURVIVE,
    MemoryBoard,
    Refused,
    card,
    refusal,
)
from support.serial_server import Server, request, status_of
from support.toy_boards import load, trained, weights
from support.toy_job import NAME_BYTES, STEPS, data, job, put, written

CRC_AT = isa.record_size("poet_job") - 4


@cache
def truth(steps: int = STEPS) -> tuple[list[tuple[bytes, bytes]], list[float]]:
    """Return weights before and after each step of the same training with a host, and losses."""
    board, losses = trained(card()), []
    found = [weights(board)]
    for step in range(steps):
        x, y = batch_of_step(data(), toy.N, 7, step)
        board.write(TENSOR, toy.X, 0, x.tobytes())
        board.write(TENSOR, toy.T, 0, y.tobytes())
        losses.append(board.step(step + 1)["loss"])
        found.append(weights(board))
    assert len(set(found)) == steps + 1
    return found, losses


def power_up(board: MemoryBoard) -> Server:
    """Do what `main` does without a host."""
    server = Server(board)
    board.lib.poet_serve_alone(server.server)
    return server


def noted(board: MemoryBoard, one: Job) -> list[float]:
    raw = board.read(JOB, 0, one.loss_block * BLOCK, NAME_BYTES + 4 * one.steps)
    assert raw[:NAME_BYTES] == b"memory".ljust(NAME_BYTES, b"\0")
    return list(struct.unpack(f"<{one.steps}f", raw[NAME_BYTES:]))


def test_alone_it_trains_as_with_a_host() -> None:
    board = MemoryBoard(written().copy())
    power_up(board)
    assert board.hello()["committed_step"] == STEPS
    load(board)
    assert weights(board) == truth()[0][STEPS]
    assert noted(board, job()) == truth()[1]
    # The job is done, so the card does not change when the board is switched on again.
    again = MemoryBoard(board.storage.copy())
    before = again.storage.copy()
    power_up(again)
    assert again.storage.copy() == before


def test_a_board_writes_its_name_once() -> None:
    power_up(board := MemoryBoard(written().copy(), cut_at=20, survive=SURVIVE["all"]))
    image = board.after_the_cut()
    power_up(same := MemoryBoard(image.copy()))
    image[image.find(b"memory".ljust(NAME_BYTES, b"\0"))] ^= 1
    power_up(other := MemoryBoard(image.copy()))
    assert other.writes == same.writes + 1
    load(other)
    assert noted(other, job()) == truth()[1]


def test_a_job_may_follow_steps_that_a_host_has_trained() -> None:
    board = trained(card())
    x, y = batch_of_step(data(), toy.N, 7, 0)
    board.write(TENSOR, toy.X, 0, x.tobytes())
    board.write(TENSOR, toy.T, 0, y.tobytes())
    board.step(1)
    put(board, job(1, STEPS - 1))
    power_up(again := MemoryBoard(board.storage))
    load(again)
    assert weights(again) == truth()[0][STEPS]
    assert noted(again, job(1, STEPS - 1)) == truth()[1][1:]


@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write_goes_on_from_the_committed_step(survive: str) -> None:
    probe = MemoryBoard(written().copy())
    power_up(probe)
    seen = set()
    for cut_at in range(probe.writes + 1):
        board = MemoryBoard(written().copy(), cut_at=cut_at, survive=SURVIVE[survive])
        power_up(board)
        again = MemoryBoard(board.after_the_cut())
        seen.add(again.hello()["committed_step"])
        power_up(again)
        assert again.hello()["committed_step"] == STEPS, f"cut at write {cut_at}"
        load(again)
        assert weights(again) == truth()[0][STEPS], f"cut at write {cut_at}"
        *losses, last = noted(again, job())
        assert losses == truth()[1][:-1], f"cut at write {cut_at}"
        # A cut between the last commit and the log of its loss: the commit has the loss too.
        assert last == truth()[1][-1] or cut_at >= probe.writes - 1
        assert again.step(STEPS)["loss"] == truth()[1][-1]
    assert seen == set(range(STEPS + 1))


@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_while_a_card_is_written_leaves_the_whole_job_or_none(survive: str) -> None:
    probe = trained(card())
    start, before = probe.storage.copy(), probe.writes
    put(probe, job())
    for cut_at in range(probe.writes - before + 1):
        board = MemoryBoard(start.copy(), survive=SURVIVE[survive])
        load(board)
        board.cut_at = board.writes + cut_at
        try:
            put(board, job())
            assert cut_at == probe.writes - before
        except Refused:
            pass
        again = MemoryBoard(board.after_the_cut())
        power_up(again)
        step = again.hello()["committed_step"]
        load(again)
        assert weights(again) == truth()[0][step]


def restarted(board: MemoryBoard) -> int:
    again = MemoryBoard(board.storage)
    power_up(again)
    return int(again.hello()["committed_step"])


def test_new_weights_end_a_job_and_an_empty_card_has_none() -> None:
    board = MemoryBoard(written().copy())
    load(board)
    board.write(TENSOR, toy.W, 0, toy.values(2)[toy.W])
    board.begin(0)
    assert restarted(board) == 0
    board = MemoryBoard(written().copy())
    board.format()
    assert restarted(board) == NO_STEP
    assert restarted(trained(card())) == 0
    power_up(empty := MemoryBoard(card()))
    assert empty.hello()["committed_step"] == NO_STEP
    blank = MemoryBoard(CardImage(BLOCK))
    power_up(blank)
    assert blank.hello()["storage_status"] < 0


def test_a_card_without_room_after_the_tensors_trains_with_a_host() -> None:
    blocks = PARTITION + DATA_BLOCK + toy.schedule().model.data_blocks
    board = trained(card(blocks))
    assert refusal(board.write, JOB, 0, 0, bytes(4)) == ("bad_object", 0)
    assert restarted(board) == 0
    board.step(1)


def job_at(image: CardImage) -> int:
    """Return the offset of the job's record."""
    return image.find(job().record)


@pytest.mark.parametrize("what", ["record", "order", "sample", "last sample"])
def test_damage_stops_the_training(what: str) -> None:
    image, one = written().copy(), job()
    at = {
        "record": 8,
        "order": BLOCK + 1,
        "sample": one.sample_block * BLOCK + 11,
        "last sample": one.sample_block * BLOCK + len(one.samples) - 2,
    }[what]
    image[job_at(image) + at] ^= 4
    board = MemoryBoard(image)
    power_up(board)
    step = board.hello()["committed_step"]
    assert step < STEPS if what == "last sample" else step <= 1
    load(board)
    assert weights(board) == truth()[0][step]


def with_job(change: dict[str, int]) -> CardImage:
    """Return a card whose job has other fields, and right CRCs."""
    fields = isa.unpack("poet_job", job().record) | change
    if "batch" in change:
        fields["order_crc"] = zlib.crc32(job().order[: 4 * STEPS * (change["batch"] % 3)])
    record = isa.pack("poet_job", **fields)[:CRC_AT]
    image = written().copy()
    at = job_at(image)
    image[at : at + CRC_AT + 4] = record + struct.pack("<I", zlib.crc32(record))
    return image


@pytest.mark.parametrize(
    "change",
    [
        {"data_bytes": 4092}, {"label_bytes": 4092}, {"data_bytes": 0xFFFFFFF0},
        {"label_bytes": 0xFFFFFFF0}, {"data_bytes": 8}, {"data": 400},
        {"label": toy.X}, {"steps": 0}, {"first": 1}, {"model_bytes": 3}, {"plan_bytes": 1 << 30},
        {"sample_block": 0xFFFFFF00}, {"loss_block": 0xFFFFFF00}, {"batch": 1}, {"batch": 0},
        {"batch": 0xFFFFFFFF}, {"batch": 1, "data_bytes": 4092, "label_bytes": 3},
        {"steps": 0x1FFFFFFF},
    ],
    ids=str,
)  # fmt: skip
def test_jobs_with_wrong_fields_are_ignored(change: dict[str, int]) -> None:
    image = with_job(change)
    board = MemoryBoard(image)
    power_up(board)
    assert board.hello()["committed_step"] == 0
    assert weights_on(image) == truth()[0][0]
    assert not board.strayed
    assert board.arena[len(board.arena) - 1] == GUARD


def test_a_host_can_stop_a_board_that_reads_a_long_order() -> None:
    """The order of this job has 4 GiB."""
    reads = []
    for requests in (b"", b"".join(request(name) for name in ("status", "reset"))):
        board = MemoryBoard(with_job({"steps": 0x1FFFFFFF}))
        board.line_in += requests
        server = power_up(board)
        reads.append(board.reads)
        assert not board.strayed
    status, reset = (status_of(reply) for reply in server.answers())
    assert isa.unpack("poet_status", status[2])["running"] == 1
    assert (status[0], reset[0]) == ("ok", "ok")
    assert reads[1] < reads[0] - 1000
    assert server.ask("hello")[0] == "ok"


def weights_on(image: CardImage) -> tuple[bytes, bytes]:
    board = MemoryBoard(image.copy())
    load(board)
    return weights(board)


# With a host that connects during the training.


def test_a_host_can_read_the_status_and_stop_it() -> None:
    board = MemoryBoard(written().copy())
    board.line_in += b"".join(request(name) for name in ("status", "hello", "reset"))
    server = power_up(board)
    status, hello, reset = (status_of(reply) for reply in server.answers())
    assert status[0] == "ok"
    assert isa.unpack("poet_status", status[2])["running"] == 1
    assert isa.unpack("poet_status", status[2])["step"] == 1
    assert (hello[0], reset[0]) == ("busy", "ok")
    assert server.ask("hello")[0] == "ok"
    assert board.hello()["committed_step"] == 0
    load(board)
    assert weights(board) == truth()[0][0]
    # The job is whole: it begins again when the board is switched on.
    assert restarted(board) == STEPS


def test_without_a_host_nothing_is_sent() -> None:
    board = MemoryBoard(written().copy())
    power_up(board)
    assert board.line_out == b""


def test_a_job_whose_steps_commit_nothing_is_refused() -> None:
    board, schedule = trained(card(), kind="in RAM"), toy.schedule("in RAM")
    sizes = {"model_bytes": len(schedule.model_part), "plan_bytes": len(schedule.plan_part)}
    fields = isa.unpack("poet_job", job().record[: CRC_AT + 4]) | sizes
    record = isa.pack("poet_job", **fields)[:CRC_AT]
    put(board, job())
    board.write(JOB, 0, 0, record + zlib.crc32(record).to_bytes(4, "little"))
    alone = MemoryBoard(board.storage)
    assert refusal(alone.call, "job_open", alone.ffi.new("struct poet_job *")).name == "no_schedule"
