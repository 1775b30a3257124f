"""The serial application: frames, damaged frames, and requests during a step."""

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from cobs import cobs
from hypothesis import given, settings, strategies as st
from poet_host import isa
from poet_host.device import wire
from support import toy
from support.card_image import DATA_BLOCK, ZEROS
from support.memory_board import PARTITION, MemoryBoard, card, library
from support.serial_server import CODE, FRAME_BYTES, Server, cobs_bytes, request, status_of
from support.toy_boards import load

ARENA, JOB = (isa.constants()[f"POET_OBJECT_{name}"] for name in ("ARENA", "JOB"))


def trained() -> Server:
    """A server whose board is ready for step 1, prepared by requests."""
    server = Server()
    schedule = toy.schedule()
    assert server.ask("format", struct.pack("<I", 0))[0] == "ok"
    for number, part in enumerate((schedule.model_part, schedule.plan_part)):
        upload(server, number, 0, part)
    sizes = struct.pack("<II", len(schedule.model_part), len(schedule.plan_part))
    assert server.ask("load", sizes)[0] == "ok"
    for number, data in enumerate(toy.values(1)):
        upload(server, 2, number, data)
    assert server.ask("begin", struct.pack("<I", 0))[0] == "ok"
    return server


def upload(server: Server, object: int, tensor: int, data: bytes) -> None:
    for at in range(0, len(data), 512):
        piece = data[at : at + 512]
        status, _, reply = server.ask("write", struct.pack("<BHI", object, tensor, at) + piece)
        assert (status, reply) == ("ok", struct.pack("<I", at + len(piece)))


def step(number: int, count: int = 0) -> bytes:
    return struct.pack("<IHH", number, 0, count)


# Codes.


@given(st.binary(max_size=1000))
@settings(max_examples=300, deadline=None)
def test_cobs_is_the_standard_encoding(data: bytes) -> None:
    ffi, lib = library()
    most = cobs_bytes(len(data))
    buffer = bytearray(data.ljust(most, b"?") + b"guard")
    size = lib.poet_cobs_encode(ffi.from_buffer(buffer), len(data))
    assert bytes(buffer[:size]) == bytes(cobs.encode(data)) + b"\0"
    assert (size <= most, buffer[most:]) == (True, b"guard")
    size = lib.poet_cobs_decode(ffi.from_buffer(buffer), size - 1)
    assert bytes(buffer[:size]) == data


@pytest.mark.parametrize("run", [253, 254, 255, 508, 509])
@pytest.mark.parametrize("tail", [b"", b"\0", b"\1", b"\0\0"])
def test_cobs_at_full_runs(run: int, tail: bytes) -> None:
    test_cobs_is_the_standard_encoding.hypothesis.inner_test(b"x" * run + tail)


@given(st.binary(max_size=700))
@settings(max_examples=300, deadline=None)
def test_cobs_decodes_any_bytes(data: bytes) -> None:
    ffi, lib = library()
    data = data.replace(b"\0", b"\1")  # a zero ends the frame before it is decoded
    coded = bytearray(data)
    size = lib.poet_cobs_decode(ffi.from_buffer(coded), len(coded))
    try:
        assert bytes(coded[:size]) == bytes(cobs.decode(data))
    except cobs.DecodeError:
        assert size == 0xFFFFFFFF


@given(st.binary(max_size=300), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_crc_is_zlibs_in_any_pieces(data: bytes, cut: int) -> None:
    _, lib = library()
    head, tail = data[:cut], data[cut:]
    assert lib.poet_crc(lib.poet_crc(0, head, len(head)), tail, len(tail)) == zlib.crc32(data)


# Requests.


def test_a_whole_training_over_the_line() -> None:
    server = trained()
    status, _, reply = server.ask("step", step(1, 100))
    result = isa.unpack("poet_step_result", reply)
    assert (status, result["step"], result["trace_records"]) == ("ok", 1, 40)
    records, piece = b"", b"x"
    while piece:
        _, _, piece = server.ask("trace", struct.pack("<H", len(records) // 12))
        assert len(piece) % 12 == 0
        records += piece
    assert len(records) == 40 * 12
    status, _, reply = server.ask("read", struct.pack("<BHIH", 2, toy.W, 500, 400))
    assert (status, reply) == ("ok", server.board.tensor(toy.W, 900)[500:])
    crc = zlib.crc32(server.board.tensor(toy.W, 900)[:777])
    assert server.ask("checksum", struct.pack("<BHI", 2, toy.W, 777)) == (
        "ok", 0, struct.pack("<I", crc),
    )  # fmt: skip
    hello = isa.unpack("poet_hello", server.ask("hello")[2])
    assert (hello["committed_step"], hello["frame_bytes"]) == (1, FRAME_BYTES)
    assert hello["loaded_plan"] == toy.schedule().header.crc
    assert (hello["board"], hello["unique_id"], hello["tick_hz"]) == ("memory", "memory", 1000)
    assert server.ask("reset") == ("ok", 0, b"")
    assert server.ask("step", step(2))[0] == "no_schedule"


def test_rows_come_in_pieces() -> None:
    server = Server()
    text, piece = b"", b"x"
    while piece:
        _, _, piece = server.ask("rows", struct.pack("<I", len(text)))
        text += piece
    # A call of `send` for each frame: on a computer, a call costs as much as many bytes.
    assert server.board.sends == -(-len(text) // (FRAME_BYTES - 6)) + 1
    assert text == isa.fingerprint_text()
    assert server.ask("rows", struct.pack("<I", len(text) + 1))[0] == "bad_message"


# While a step runs.


COMMIT_WRITES = 1  # this board counts each write as a tick of writing


def piece(tensor: int, data: bytes, start: int = 0, object: int = 2) -> bytes:
    return struct.pack("<BHI", object, tensor, start) + data


def batches(count: int) -> list[tuple[bytes, bytes]]:
    return [tuple(toy.values(seed)[:2]) for seed in range(2, 2 + count)]  # type: ignore[misc]


def with_batches(ahead: bool, cut: int = toy.SIZES[toy.X]) -> tuple[list[float], bytes, bytes]:
    """Train three steps with a batch each; return losses, weights and momentum.

    A batch is written before its step, or (`ahead`) during the step before, except its data from
    byte `cut` on.
    """
    server, losses = trained(), []
    given = batches(3)
    for number, (x, t) in enumerate(given, 1):
        if not ahead or number == 1:
            upload(server, 2, toy.X, x)
            upload(server, 2, toy.T, t)
        line = request("step", step(number), 200)
        if ahead and number < 3:
            x, t = given[number]
            line += request("write", piece(toy.T, t), 201)
            for at in range(0, cut, 512):
                line += request("write", piece(toy.X, x[at : min(at + 512, cut)], at), 202)
        replies = {reply[0]: status_of(reply) for reply in server.feed(line)}
        result = isa.unpack("poet_step_result", replies[200][2])
        losses.append(result["loss"])
        if ahead and number < 3:
            assert list(replies) == [201, 202, 200]  # the step ended last
            assert [replies[n][0] for n in (201, 202)] == ["ok"] * 2
            assert result["serving_ticks"] > 0
            assert COMMIT_WRITES < result["overhead_writing_ticks"] < result["writing_ticks"]
            for at in range(cut, len(x), 512):
                assert server.ask("write", piece(toy.X, x[at : at + 512], at))[0] == "ok"
        else:
            assert result["serving_ticks"] == 0
            assert result["overhead_writing_ticks"] == COMMIT_WRITES
    return losses, server.board.tensor(toy.W, 900), server.board.tensor(toy.V, 900)


@pytest.mark.parametrize("cut", [4, 512, toy.SIZES[toy.X]])
def test_the_next_batch_may_be_written_while_a_step_runs(cut: int) -> None:
    between = with_batches(ahead=False)
    assert len(set(between[0])) == 3  # the losses differ by batch
    assert with_batches(ahead=True, cut=cut) == between


def test_a_step_that_fails_leaves_its_own_batch_to_be_written_again() -> None:
    """What comes meanwhile for the next step does not replace it."""
    server, quiet = trained(), trained()
    (good, next_one), endless = batches(2), np.full(toy.SIZES[toy.X] // 4, 1e38, "<f4").tobytes()
    upload(server, 2, toy.X, endless)
    line = request("step", step(1), 200) + request("write", piece(toy.T, next_one[1]), 201)
    replies = {reply[0]: status_of(reply)[0] for reply in server.feed(line)}
    assert replies == {201: "ok", 200: "not_finite"}
    for number, data in enumerate(good):
        upload(server, 2, number, data)
        upload(quiet, 2, number, data)
    assert server.ask("step", step(1))[0] == quiet.ask("step", step(1))[0] == "ok"
    assert server.board.tensor(toy.W, 900) == quiet.board.tensor(toy.W, 900)


def test_nothing_else_may_be_written_while_a_step_runs() -> None:
    server, quiet = trained(), trained()
    others = [(0, 0), (1, 0), (ARENA, 0), (JOB, 0)]
    others += [(2, toy.W), (2, toy.V)]
    line = request("step", step(1), 200)
    for sequence, (object, tensor) in enumerate(others, 1):
        line += request("write", piece(tensor, bytes(4), 0, object), sequence)
    replies = {reply[0]: status_of(reply)[0] for reply in server.feed(line)}
    assert replies == {**dict.fromkeys(range(1, len(others) + 1), "busy"), 200: "ok"}
    quiet.ask("step", step(1))
    assert server.board.tensor(toy.W, 900) == quiet.board.tensor(toy.W, 900)
    strange = request("write", piece(9, bytes(4)), 9)
    for tensor, data in zip((toy.X, toy.T), toy.values(1), strict=False):
        server.board.write(2, tensor, 0, data)
    answers = server.feed(request("step", step(2), 200) + strange)
    assert {reply[0]: status_of(reply)[0] for reply in answers} == {9: "bad_object", 200: "ok"}


def test_a_card_that_fails_during_the_next_batch_does_not_lose_the_step() -> None:
    server, quiet = trained(), trained()
    x, t = batches(1)[0]
    model = toy.schedule().model
    first = PARTITION + DATA_BLOCK + model.tensors[toy.X].block + model.slot_stride
    server.board.bad_blocks = range(first, first + model.tensors[toy.X].blocks)
    line = request("step", step(1), 200) + request("write", piece(toy.X, x[:512]), 1)
    line += request("write", piece(toy.T, t), 2)  # the store is not looked at again in a step
    replies = {reply[0]: status_of(reply)[0] for reply in server.feed(line)}
    assert replies == {1: "storage_failed", 2: "storage_failed", 200: "ok"}
    quiet.ask("step", step(1))
    server.board.bad_blocks = range(0)
    load(server.board)  # as after any failure of the card
    assert server.board.hello()["committed_step"] == 1
    assert server.board.tensor(toy.W, 900) == quiet.board.tensor(toy.W, 900)


def test_an_error_carries_status_and_detail_alone() -> None:
    server = trained()
    assert server.ask("step", step(7)) == ("wrong_step", 0, b"")
    assert server.ask("read", struct.pack("<BHIH", 2, 9, 0, 4)) == ("bad_object", 9, b"")
    assert server.ask("hello")[1] == 0  # the next detail is its own


def test_requests_of_another_shape_are_refused() -> None:
    server = trained()
    before = server.board.storage.copy()
    for name in CODE:
        longest = {"write": b"\2", "probe_op": b"\2"}.get(name, b"\0" * 99)
        assert server.ask(name, longest)[0] == "bad_message", name
    (reply,) = server.feed(wire.frame(5, 99, b""))
    assert (reply[:2], status_of(reply)[0]) == (bytes([5, 99 | 0x80]), "bad_message")
    (reply,) = server.feed(wire.frame(5, 0, b""))
    assert status_of(reply)[0] == "bad_message"
    # More than a reply can hold.
    assert server.ask("read", struct.pack("<BHIH", 0, 0, 0, FRAME_BYTES - 5))[0] == "bad_message"
    assert len(server.ask("read", struct.pack("<BHIH", 0, 0, 0, FRAME_BYTES - 6))[2]) == 570
    assert server.board.storage.copy() == before


def test_the_largest_frame_is_accepted_and_a_larger_one_dropped() -> None:
    server = trained()
    head = struct.pack("<BHI", 1, 0, 0)
    room = FRAME_BYTES - len(head)
    assert server.ask("write", head + b"\xff" * room)[0] == "ok"
    assert server.board.read(1, 0, 0, room) == b"\xff" * room
    for more in (1, 2, 100, 5000):
        assert server.feed(request("write", head + b"\1" * (room + more))) == []
    assert server.board.read(1, 0, 0, room) == b"\xff" * room
    assert server.ask("hello")[0] == "ok"


# Damaged and foreign bytes.


def test_a_damaged_frame_is_dropped_and_the_next_one_answered() -> None:
    server = Server()
    good = request("rows", struct.pack("<I", 3), 9)
    rng = random.Random(2)
    for at in range(len(good) - 1):
        for _ in range(8):
            flip = rng.randint(1, 255)
            bad = good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            replies = server.feed(bad + request("status", sequence=77))
            assert [r[0] for r in replies] == [77]


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_frame_may_come_in_pieces_but_not_cut_short(cut: int) -> None:
    server = Server()
    whole = request("rows", struct.pack("<I", 3), 9)
    assert server.feed(whole[:cut]) == []
    assert [r[0] for r in server.feed(whole[cut:])] == [9]
    assert server.feed(whole[:cut] + b"\0") == []
    assert [r[0] for r in server.feed(whole)] == [9]


def test_several_frames_at_once_are_answered_in_order() -> None:
    server = Server()
    line = b"".join(request("status", sequence=i) for i in range(20))
    assert [r[0] for r in server.feed(b"\0\0" + line + b"\0")] == list(range(20))


def test_replies_are_not_requests() -> None:
    server = Server()
    assert server.feed(wire.frame(1, CODE["reset"] | 0x80, b"")) == []


@given(st.lists(st.binary(max_size=80), max_size=6))
@settings(max_examples=150, deadline=None)
def test_noise_never_gets_an_answer(noise: list[bytes]) -> None:
    server = Server()
    assert server.feed(b"".join(piece + b"\0" for piece in noise)) == []
    assert server.ask("hello")[0] == "ok"


_BODY = {
    "hello": st.just(b""),
    "write": st.binary(max_size=60),
    "read": st.binary(min_size=9, max_size=9),
    "load": st.binary(min_size=8, max_size=8),
    "begin": st.binary(min_size=4, max_size=4),
    "step": st.binary(min_size=8, max_size=8),
    "probe_op": st.binary(min_size=94, max_size=134),
    "probe_transfer": st.tuples(
        st.integers(0, 1), st.integers(0, 1 << 32 - 1), st.integers(0, 3)
    ).map(lambda f: struct.pack("<BIH", f[0], f[1] & 0xFFFFFFFF, f[2])),
    "probe_commit": st.integers(0, 3).map(lambda n: struct.pack("<H", n)),
}  # fmt: skip
_ANY = st.sampled_from(sorted(CODE)).flatmap(
    lambda name: st.tuples(st.just(name), _BODY.get(name, st.binary(max_size=24)))
)


@given(st.lists(_ANY, max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_valid_frames_is_answered(requests: list[tuple[str, bytes]]) -> None:
    server = Server()
    server.ask("format", struct.pack("<I", 0))
    for name, payload in requests:
        status, _, body = server.ask(name, payload)
        assert status == "ok" or body == b""


# While a step runs.


class Interrupting(MemoryBoard):
    """Bytes arrive at the given calls of the port's receive function, counted from `arm`."""

    def arm(self, at: dict[int, bytes]) -> None:
        self.arrivals, self.calls = at, 0

    def _receive(self, context: Any, data: Any, size: int, wait_ms: int) -> int:
        if hasattr(self, "arrivals"):
            self.line_in += self.arrivals.get(self.calls, b"")
            self.calls += 1
        return super()._receive(context, data, size, wait_ms)


def stepping(during: bytes, at: int = 6) -> tuple[list[bytes], Server]:
    """Return the replies while step 1 (sequence 50) runs and `during` arrives."""
    prepared = trained()
    board = Interrupting(prepared.board.storage)
    load(board)
    server = Server(board)
    board.arm({0: request("step", step(1), 50), at: during})
    return server.feed(b""), server


def test_status_is_answered_during_a_step() -> None:
    (during, after), server = stepping(request("status", sequence=51))
    assert (during[0], after[0]) == (51, 50)
    status = isa.unpack("poet_status", status_of(during)[2])
    assert (status["running"], status["step"]) == (1, 1)
    assert 0 < status["statement"] < 40
    assert status_of(after)[0] == "ok"
    status = isa.unpack("poet_status", server.ask("status")[2])
    assert (status["running"], status["error"], status["step"]) == (0, 0, 1)


@pytest.mark.parametrize("name", sorted(set(CODE) - {"status", "reset", "step"}))
def test_the_board_is_busy_for_other_requests(name: str) -> None:
    (during, after), server = stepping(request(name, b"\0" * 20, 51))
    assert (during[0], status_of(during)[0]) == (51, "busy")
    assert (after[0], status_of(after)[0]) == (50, "ok")
    assert server.board.state.committed.now.step == 1


def test_reset_stops_a_step() -> None:
    (during, after), server = stepping(request("reset", sequence=51))
    assert (during[0], status_of(during)[0]) == (51, "ok")
    assert (after[0], status_of(after)[0]) == (50, "stopped")
    assert server.board.state.committed.now.step == 0
    assert server.ask("step", step(1))[0] == "no_schedule"
    status = isa.unpack("poet_status", server.ask("status")[2])
    assert (status["running"], status["error"]) == (0, -20)


def test_the_reply_to_a_repeated_step_goes_to_the_latest_request() -> None:
    (after,), server = stepping(request("step", step(1), 52))
    assert (after[0], status_of(after)[0]) == (52, "ok")
    assert server.board.state.committed.now.step == 1
    (during, after), _ = stepping(request("step", step(2), 52))
    assert (during[0], status_of(during)[0]) == (52, "busy")
    assert (after[0], status_of(after)[0]) == (50, "ok")


def test_half_a_frame_at_the_end_of_a_step_is_not_lost() -> None:
    whole = request("rows", struct.pack("<I", 3), 9)
    (after,), server = stepping(whole[:7], at=30)
    assert after[0] == 50
    assert [r[0] for r in server.feed(whole[7:])] == [9]


# Probes.


def test_probes_run_operators_in_the_arena() -> None:
    server = Server()
    op = isa.pack(
        "poet_op", kernel=isa.by_name("KERNEL")["add"].code, input_count=2,
        overwrites=0xFFFF, n=1, c=3, h=1, w=1,
    )  # fmt: skip
    values = struct.pack("<6f", 1, 2, 3, 10, 20, 30)
    assert server.ask("write", struct.pack("<BHI", ARENA, 0, 8) + values) == (
        "ok", 0, struct.pack("<I", 32),
    )  # fmt: skip
    places = struct.pack("<4I", 8, 20, 40, 0)
    status, _, reply = server.ask("probe_op", struct.pack("<IH", 1, 5) + op + places)
    assert (status, struct.unpack("<I", reply)[0]) == ("ok", 1)
    arena = bytes(server.board.ffi.buffer(server.board.arena))
    assert struct.unpack_from("<3f", arena, 40) == (11, 22, 33)
    for wrong in ((9, 20, 40), (4092, 20, 40), (8, 20, 4086), (8, 20, 0xFFFFFFFC)):
        places = struct.pack("<4I", *wrong, 0)
        status, _, _ = server.ask("probe_op", struct.pack("<IH", 1, 5) + op + places)
        assert status == "bad_table"
    read = struct.pack("<BHIH", ARENA, 0, 40, 12)
    assert server.ask("read", read) == ("ok", 0, struct.pack("<3f", 11, 22, 33))
    for outside in (4085, 0xFFFFFFFC):
        read = struct.pack("<BHIH", ARENA, 0, outside, 12)
        assert server.ask("read", read)[0] == "bad_object"
        write = struct.pack("<BHI", ARENA, 0, outside) + values[:12]
        assert server.ask("write", write)[0] == "bad_object"


def test_probes_of_storage_stay_after_what_models_use() -> None:
    server = trained()
    server.ask("step", step(1))
    before = dict(server.board.storage.blocks)
    weights = server.board.tensor(toy.W, 900)
    for write in (1, 0):
        status, _, reply = server.ask("probe_transfer", struct.pack("<BIH", write, 4096, 3))
        ticks, cpu_ticks = struct.unpack("<II", reply)
        assert (status, cpu_ticks > 0, ticks > 0) == ("ok", True, True)
    assert server.ask("probe_commit", struct.pack("<H", 3))[0] == "ok"
    after = server.board.storage
    changed = [block for block in after.blocks if after.blocks[block] != before.get(block, ZEROS)]
    assert changed
    end = len(after) // 512
    assert end - 27 <= min(changed) < end - 18  # three transfers, each in a place of its own
    assert server.board.tensor(toy.W, 900) == weights
    assert server.ask("probe_transfer", struct.pack("<BIH", 1, 4097, 1))[0] == "bad_object"


def test_probes_refuse_blocks_that_a_committed_model_uses() -> None:
    data_blocks = toy.schedule().model.data_blocks
    server = Server(MemoryBoard(card(PARTITION + DATA_BLOCK + data_blocks + 3)))
    assert server.ask("format", struct.pack("<I", 0))[0] == "ok"
    ask = struct.pack("<BIH", 1, 3 * 512 - 8, 1)
    assert server.ask("probe_transfer", ask)[0] == "ok"
    load(server.board)
    assert server.ask("probe_transfer", ask)[0] == "ok"
    assert server.ask("probe_transfer", struct.pack("<BIH", 1, 3 * 512, 1))[0] == "storage_small"
    for number, data in enumerate(toy.values(1)):
        upload(server, 2, number, data)
    server.ask("begin", struct.pack("<I", 0))
    server.ask("reset")
    assert server.ask("probe_transfer", struct.pack("<BIH", 1, 3 * 512, 1))[0] == "storage_small"
    assert server.ask("probe_commit", struct.pack("<H", 1))[0] == "ok"
