"""Typed requests: messages of wire.def, refusals with meaning and advice, the fingerprint."""

import zlib
from typing import Any

import pytest
from poet_host import isa
from poet_host.device.answers import board_error
from poet_host.device.device import MODEL, PLAN, Device, connect
from poet_host.device.wire import messages
from poet_host.errors import BoardError, LinkBroken, NoDevice
from support.fake_board import FakeBoard


def test_a_step_that_was_left_running_is_stopped() -> None:
    with FakeBoard({"reset": dict}) as board:

        def hello() -> dict[str, Any] | int:
            return -2 if board.names().count("status") < 3 else {"hello": board.hello_fields()}

        def status() -> dict[str, Any]:
            return {"status": {"running": board.names().count("status") < 3}}

        board.handlers |= {"hello": hello, "status": status}
        assert connect(board.port).info.board == "fake"
        assert board.names() == ["hello", "reset", "status", "status", "status", "hello"]


def test_every_message_has_a_method() -> None:
    for name in messages():
        assert callable(getattr(Device, name)), name


def test_hello_and_ticks() -> None:
    with FakeBoard() as board, connect(board.port) as device:
        assert device.info.arena_bytes == 4096
        assert device.hello() == device.info
        assert device.us(3) == 1.5
        assert device.rows() == isa.fingerprint_text().decode()


def test_objects_travel_in_pieces_with_progress() -> None:
    data = bytes(range(256)) * 9
    for frame_bytes in (30, 600, 4096):
        with FakeBoard().with_store() as board, connect(board.port) as device:
            device.info = device.info._replace(frame_bytes=frame_bytes)
            seen: list[tuple[int, int]] = []
            device.write(2, 1, data, lambda done, total, seen=seen: seen.append((done, total)))
            assert seen[-1] == (len(data), len(data))
            assert seen == sorted(set(seen))
            assert device.read(2, 1, len(data)) == data
            assert device.checksum(2, 1, 100) == zlib.crc32(data[:100])
            assert device.holds(2, 1, data)
            assert not device.holds(2, 1, data[:-1] + b"?")
            assert not device.holds(2, 9, data)
            sizes = {len(f["bytes"]) for name, f in board.requests if name == "write"}
            assert max(sizes) + 7 <= frame_bytes
            if frame_bytes >= 519:
                assert all(f["offset"] % 512 == 0 for name, f in board.requests if name == "write")


def test_the_board_decides_where_writing_continues() -> None:
    """If a board takes only a part of a piece, only the rest is sent."""
    data = bytes(range(100))
    with FakeBoard().with_store() as board:

        def write(object: int, tensor: int, offset: int, bytes: bytes) -> dict[str, Any]:
            return board._write(object, tensor, offset, bytes[:5])

        board.handlers["write"] = write
        with connect(board.port) as device:
            device.write(0, 0, data)
        assert bytes(board.store[0, 0]) == data
        offsets = [f["offset"] for name, f in board.requests if name == "write"]
        assert offsets == list(range(0, 100, 5))


@pytest.mark.parametrize("following", [0, 1000])
def test_a_board_that_makes_no_progress_is_given_up(following: int) -> None:
    handlers = {"write": lambda **_: {"next": following}}
    with (
        FakeBoard(handlers) as board,
        connect(board.port) as device,
        pytest.raises(LinkBroken, match=f"next is {following:,}"),
    ):
        device.write(0, 0, bytes(10))


def test_load_sends_only_parts_that_are_not_there() -> None:
    model, plan = b"model part" * 20, b"plan part" * 20
    facts = {"statement_count": 3, "peak_bytes": 64}
    with FakeBoard({"load": lambda **_: {"facts": facts}}).with_store() as board:
        with connect(board.port) as device:
            seen: list[int] = []
            assert device.load(model, plan, lambda done, total: seen.append(done)).peak_bytes == 64
            assert seen[-1] == len(model) + len(plan)
            assert (bytes(board.store[MODEL, 0]), bytes(board.store[PLAN, 0])) == (model, plan)
            board.requests.clear()
            device.load(model, plan[:-1] + b"!")
        written = {f["object"] for name, f in board.requests if name == "write"}
        assert written == {PLAN}
        assert board.requests[-1] == (
            "load",
            {"model_bytes": len(model), "plan_bytes": len(plan)},
        )


def test_trace_is_read_to_its_end() -> None:
    records = [isa.pack("poet_trace", statement=i, kind=1, begin=i, end=i + 1) for i in range(20)]

    def trace(first: int) -> dict[str, bytes]:
        return {"bytes": b"".join(records[first : first + 7])}

    with FakeBoard.trainable() as board, connect(board.port) as device:
        board.handlers["trace"] = trace
        device.step(1, 0, len(records))
        found = device.trace()
    assert [(r.statement, r.kind, r.end) for r in found] == [(i, 1, i + 1) for i in range(20)]


def test_probes() -> None:
    handlers = {
        "write": lambda offset, bytes, **_: {"next": offset + len(bytes)},
        "read": lambda offset, count, **_: {"bytes": bytes(range(offset, offset + count))},
        "probe_op": lambda **_: {"ticks": 11},
        "probe_transfer": lambda **_: {"ticks": 12, "cpu_ticks": 3},
        "probe_commit": lambda **_: {"ticks": 13},
    }
    op = isa.pack("poet_op", kernel=1, input_count=2)
    with FakeBoard(handlers) as board, connect(board.port) as device:
        device.probe_write(64, bytes(200))
        assert device.probe_read(30, 200) == bytes(range(30, 230))
        assert device.probe_op(op, [0, 64, 128, 0], repeat=7) == 11
        assert device.probe_transfer(True, 512, repeat=2) == (12, 3)
        assert device.probe_commit(repeat=4) == 13
    arena = isa.constants()["POET_OBJECT_ARENA"]
    moved = [f for name, f in board.requests if name in ("write", "read")]
    assert {f["object"] for f in moved} == {arena}
    assert moved[0]["offset"] == 64
    probe = dict(board.requests)["probe_op"]
    assert (probe["step"], probe["repeat"], probe["op"].input_count) == (1, 7, 2)
    assert probe["bytes"] == b"".join(n.to_bytes(4, "little") for n in (0, 64, 128, 0))


@pytest.mark.parametrize("row", isa.rows("ERROR")[1:], ids=lambda row: row.name)
def test_every_refusal_is_explained(row: isa.Row) -> None:
    error = board_error(row.code, 3, "load")
    assert error.name == row.name
    assert error.detail == 3
    what, advice, place = row.columns
    assert what in str(error)
    assert advice in str(error)
    shown = isa.by_code("KERNEL")[3].name if "kernel" in place else 3
    assert (f"({place.format(shown)})" in str(error)) == bool(place)
    assert "(tensor fc)" in str(board_error(-8, 3, "step", ("data", "conv", "relu", "fc")))


def test_refusals_of_newer_firmware() -> None:
    assert "unknown status -99" in str(board_error(-99, 0, "load"))


def test_another_fingerprint_is_refused_with_the_rows() -> None:
    mine = isa.fingerprint_text()
    theirs = mine.replace(b"\n15 relu x\n", b"\n15 relu x y\n")
    assert theirs != mine
    with FakeBoard(rows=theirs) as board, pytest.raises(BoardError) as caught:
        connect(board.port)
    assert caught.value.name == "bad_fingerprint"
    assert "the board has '15 relu x y'" in str(caught.value)
    assert "this program has '15 relu x'" in str(caught.value)


def test_another_version_is_refused() -> None:
    with FakeBoard() as board:
        newer = {**board.hello_fields(), "version": 99}
        board.handlers["hello"] = lambda: {"hello": newer}
        with pytest.raises(BoardError, match="version 99"):
            connect(board.port)


def test_a_reply_of_the_wrong_size_is_an_error() -> None:
    with FakeBoard({"checksum": lambda **_: {"crc": 1}}) as board, connect(board.port) as device:
        board.handlers["status"] = lambda: {"status": bytes(3)}
        with pytest.raises(LinkBroken, match="status"):
            device.status()


def test_auto_names_what_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeBoard() as board:
        monkeypatch.setattr(
            "poet_host.device.device.candidate_ports", lambda: ["/dev/ttyNOWHERE", board.port]
        )
        with connect("auto") as device:
            assert device.link.port == board.port
    monkeypatch.setattr("poet_host.device.device.candidate_ports", lambda: ["/dev/ttyNOWHERE"])
    with pytest.raises(NoDevice, match="ttyNOWHERE"):
        connect("auto")
    monkeypatch.setattr("poet_host.device.device.candidate_ports", list)
    with pytest.raises(NoDevice, match="no board"):
        connect("auto")
