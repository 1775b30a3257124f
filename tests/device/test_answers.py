"""Boards with wrong answers: each field of each answer is refused by name, and nothing hangs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st
from poet_host import isa
from poet_host.device.answers import MAX_ROWS_BYTES, reply_fields
from poet_host.device.device import ARENA, MODEL, TENSOR, Device, connect
from poet_host.device.wire import REPLY, WireError, frame, messages, size_of, unpack
from poet_host.errors import BoardError, LinkBroken, PoetError
from support.fake_board import FakeBoard

NAN, U16, U32, U64 = float("nan"), 2**16 - 1, 2**32 - 1, 2**64 - 1
OP = isa.pack("poet_op", kernel=1)


def refused(call: Callable[[], object], *named: str) -> None:
    """Assert that the link is given up with an error that names message and field."""
    with pytest.raises(LinkBroken) as caught:
        call()
    assert caught.value.exit_code == 4
    assert all(name in str(caught.value) for name in ("invalid answer", *named))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("frame_bytes", value) for value in (0, 1, 13, 17)),
        *(("storage_status", value) for value in (-999, min(isa.by_code("ERROR")) - 1, 1)),
        *(("board", value) for value in (b"\xff\xfe", b"\x1b]0;x\x07", b"a\nb")),
        ("unique_id", b"\x1b[2J\x1b[31mX"),
        ("tick_hz", 0),
    ],
)
def test_a_wrong_hello(field: str, value: object) -> None:
    with FakeBoard.trainable(**{field: value}) as board:
        refused(lambda: connect(board.port), "hello", f"{field} is")
    with FakeBoard.trainable() as board, connect(board.port) as device:
        wrong = board.handlers["hello"]()["hello"] | {field: value}  # type: ignore[index,operator]
        board.handlers["hello"] = lambda: {"hello": wrong}
        refused(device.hello, "hello", f"{field} is")


@pytest.mark.parametrize(("field", "value"), [("version", 9), ("fingerprint", 1)])
def test_another_firmware_is_refused_at_each_hello(field: str, value: int) -> None:
    """The other fields of another version may mean anything."""
    with FakeBoard.trainable() as board, connect(board.port) as device:
        other = board.handlers["hello"]()["hello"] | {field: value}  # type: ignore[index,operator]
        if field == "version":
            other |= {"tick_hz": 0, "storage_status": 99}
        board.handlers["hello"] = lambda: {"hello": other}
        with pytest.raises(BoardError) as caught:
            device.hello()
    assert caught.value.name == f"bad_{field}"


def _saved(device: Device) -> None:
    device.step(5)
    device.save()


def _traced(device: Device) -> None:
    device.step(1, 10, 20)
    device.trace()


def _trace(*, count: int = 1, spoiled: bytes = b"", **fields: int) -> dict[str, bytes]:
    record = isa.pack("poet_trace", **{"statement": 10, "kind": 1} | fields)
    return {"bytes": record * count + spoiled}


def _load(device: Device) -> None:
    device.load(bytes(600), bytes(600))


# Message and field, the method, what the board answers.
WRONG: list[tuple[str, str, Callable[[Device], object], dict[str, Any]]] = [
    *(
        ("write", "next", lambda device: device.write(ARENA, 0, bytes(64), start=100), {"next": n})
        for n in (0, 99, 100, 165, U32)
    ),
    *(
        ("read", "bytes", partial(Device.read, object=kind, tensor=0, size_bytes=64), {
            "bytes": bytes(n),
        })
        for kind in (MODEL, TENSOR, ARENA)
        for n in (0, 63, 65, 2000)
    ),
    ("load", "peak_bytes", _load, {"facts": {"peak_bytes": 24_577}}),
    ("load", "resident_max", _load, {"facts": {"resident_max": 65}}),
    ("load", "queue_max", _load, {"facts": {"queue_max": 9}}),
    *(
        ("step", field, lambda device: device.step(3, 0, 4), {"result": {"step": 3, field: value}})
        for field, value in (
            ("step", 0), ("step", 4), ("loss", NAN), ("loss", float("inf")),
            ("peak_bytes", 24_577), ("trace_records", 65),
        )
    ),
    ("trace", "bytes", _traced, _trace(count=21)),
    ("trace", "bytes", _traced, _trace(spoiled=bytes(5))),
    ("trace", "statement", _traced, _trace(count=2)),
    ("trace", "statement", _traced, _trace(statement=U16)),
    ("trace", "kind", _traced, _trace(kind=99)),
    ("status", "running", Device.status, {"status": {"running": 2}}),
    ("status", "error", Device.status, {"status": {"error": -999}}),
    ("health", "reset", Device.health, {"health": {"reset": 99}}),
    *(
        ("card", field, Device.card, {"card": {field: 2}})
        for field in ("is_ready", "supply_is_low", "version2", "high_capacity")
    ),
    *(("save", "step", _saved, {"saved": {"step": step}}) for step in (6, U32)),
    ("probe_transfer", "ticks", lambda device: device.probe_transfer(True, 4), {
        "ticks": 0, "cpu_ticks": 0,
    }),
    ("probe_commit", "ticks", Device.probe_commit, {"ticks": 0}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "field", "call", "answer"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG]
)
def test_a_wrong_field(
    message: str, field: str, call: Callable[[Device], object], answer: dict[str, Any]
) -> None:
    with FakeBoard.trainable() as board, connect(board.port) as device:
        call_of: Callable[..., dict[str, Any]] = lambda **_: answer  # noqa: E731
        board.handlers[message] = call_of
        refused(lambda: call(device), message, field)


@pytest.mark.parametrize("name", messages())
@given(payload=st.binary(max_size=300), data=st.data())
def test_random_payloads_are_values_or_wire_errors(
    name: str, payload: bytes, data: st.DataObject
) -> None:
    """Every field of a request, and every hello before, may have any value of its type."""
    message, info = messages()["hello"], None
    if name not in ("hello", "rows", "status"):
        size = size_of(message.reply)
        raw = data.draw(st.binary(min_size=size, max_size=size))
        info = unpack(message.reply, raw)["hello"]
    size = size_of(messages()[name].request)
    asked = unpack(messages()[name].request, data.draw(st.binary(min_size=size, max_size=size)))
    asked |= {"traced": range(5, 70_000), "saved": range(1, 9), "first": 0, "bytes": b"abc"}
    if data.draw(st.booleans()):
        payload = payload.ljust(size_of(messages()[name].reply), b"\0")
    try:
        fields = reply_fields(name, payload, asked, info)
    except WireError:
        return
    assert fields.keys() == {field.name for field in messages()[name].reply}


def test_a_board_that_accepts_every_read_has_no_room_for_jobs() -> None:
    with FakeBoard.trainable() as board, connect(board.port) as device:
        board.handlers["read"] = lambda count, **_: {"bytes": bytes(count)}
        refused(device.job_room, "read")


# Answers without an end.


@pytest.mark.parametrize("piece", [60, 1])
def test_endless_rows(piece: int) -> None:
    with FakeBoard(rows=b"other rows") as board:
        board.handlers["rows"] = lambda offset: {"bytes": b"A" * (900 * piece)}
        refused(lambda: connect(board.port), "rows", "bytes")
        assert len(board.requests) < 3 + MAX_ROWS_BYTES // (900 * piece)


@pytest.mark.parametrize(("capacity", "asked"), [(64, 1000), (64, 7), (0, 100), (U16, 100)])
def test_an_endless_trace(capacity: int, asked: int) -> None:
    """The board has no more records than it was asked for, or has room for."""

    def trace(first: int) -> dict[str, bytes]:
        return {"bytes": isa.pack("poet_trace", statement=10 + first, kind=1)}

    with FakeBoard.trainable(trace_capacity=capacity) as board, connect(board.port) as device:
        board.handlers["step"] = lambda step, **_: {"result": {"step": step}}
        board.handlers["trace"] = trace
        device.step(1, 10, asked)
        refused(device.trace, "trace", "bytes")
        assert board.names().count("trace") == min(capacity, asked) + 1


def test_a_step_that_never_starts() -> None:
    """The board answers each ping, so that it is not silent."""
    with FakeBoard.trainable() as board:
        board.handlers["step"] = lambda **_: None
        with (
            connect(board.port, timeout_s=0.02, patience_s=0.2) as device,
            pytest.raises(LinkBroken, match="no step"),
        ):
            device.step(1)
        assert board.names().count("step") > 1


@pytest.mark.parametrize("noise", [b"\x01\x02\0" * 300, b"\x01" * 900, b"\0" * 900, b"valid"])
def test_noise_after_the_first_answer(noise: bytes) -> None:
    noise = frame(77, 2 | REPLY, bytes(6) + b"hi") * 30 if noise == b"valid" else noise
    with (
        FakeBoard.trainable() as board,
        connect(board.port, timeout_s=0.05, patience_s=0.2) as device,
    ):
        board.spoil = lambda index, reply: noise
        with pytest.raises(LinkBroken):
            device.health()


def test_a_busy_board_is_given_up() -> None:
    handlers = {"hello": lambda: -2, "reset": dict, "status": lambda: {"status": {"running": 1}}}
    with FakeBoard(handlers) as board, pytest.raises(BoardError) as caught:  # type: ignore[arg-type]
        connect(board.port, patience_s=0.2)
    assert caught.value.name == "busy"


@pytest.mark.parametrize("status", [-15, -999, 5])
def test_a_refused_hello(status: int) -> None:
    with FakeBoard({"hello": lambda: status}) as board, pytest.raises(PoetError):
        connect(board.port)


# Numbers that are absurd, but may be right.


def test_the_largest_numbers() -> None:
    huge = {"arena_bytes": U32, "storage_blocks": U32, "committed_step": U32 - 1}
    ticks = dict.fromkeys(("ticks", "compute_ticks", "transfer_ticks", "asleep_ticks"), U64)
    counts = dict.fromkeys(("peak_bytes", "storage_retries", "restarts", "readback_every"), U32)
    with FakeBoard.trainable(**huge, tick_hz=1) as board, connect(board.port) as device:
        board.handlers["step"] = lambda step, **_: {"result": {"step": step} | ticks | counts}
        assert device.info.arena_bytes == U32
        result = device.step(U32)
        assert device.us(result.ticks) == pytest.approx(1e6 * 2.0**64)
        assert device.committed_loss() == 0.0
        for name, fields in (("probe_op", {"ticks": U32}), ("probe_commit", {"ticks": U32})):
            board.handlers[name] = lambda fields=fields, **_: fields
        assert device.probe_op(OP, []) == device.probe_commit() == U32
