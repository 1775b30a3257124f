"""The serial link: frames as in the format, lost and damaged frames, and errors."""

import array
import errno
import fcntl
import os
import random
import re
import termios
import threading
import time
import tty
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import serial
from hypothesis import given, settings, strategies as st
from poet_host import isa
from poet_host.device.device import connect
from poet_host.device.link import Link
from poet_host.device.wire import REPLY, WireError, frame, messages, pack, unframe, unpack
from poet_host.errors import BoardError, LinkBroken, NoDevice
from serial import serialposix
from support.fake_board import FakeBoard

HELLO = messages()["hello"].code
STEP = messages()["step"].code


# Frames and payloads.


def test_a_frame_byte_by_byte() -> None:
    body = bytes([5, 1, 0])  # sequence, code, one zero of payload
    crc = bytes.fromhex("b82a91e0")  # CRC-32 of 05 01 00
    assert frame(5, 1, b"\0") == bytes([3, 5, 1, 5]) + crc + b"\0"
    assert unframe(bytes([3, 5, 1, 5]) + crc) == (5, 1, body[2:])


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=600))
def test_frames_are_read_as_written(sequence: int, code: int, payload: bytes) -> None:
    raw = frame(sequence, code, payload)
    assert raw.count(0) == 1
    assert raw.endswith(b"\0")
    assert unframe(raw[:-1]) == (sequence, code, payload)


@settings(max_examples=300)
@given(st.binary(max_size=80), st.data())
def test_damaged_frames_are_dropped(payload: bytes, data: st.DataObject) -> None:
    raw = bytearray(frame(1, 2, payload)[:-1])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        unframe(bytes(raw))


@given(st.binary(max_size=100))
def test_garbage_is_not_a_frame(raw: bytes) -> None:
    with pytest.raises(WireError):
        unframe(raw)


@pytest.mark.parametrize("message", messages().values(), ids=lambda message: message.name)
def test_payloads_of_every_row_are_read_as_written(message) -> None:  # type: ignore[no-untyped-def]
    for fields in (message.request, message.reply):
        values = {}
        for i, field in enumerate(fields):
            if field.type == "bytes":
                values[field.name] = b"rest"
            elif field.type.startswith("poet_"):
                values[field.name] = bytes(isa.record_size(field.type))
            else:
                values[field.name] = i + 1
        payload = pack(fields, values)
        again = unpack(fields, payload)
        assert pack(fields, again) == payload
        if fields and fields[-1].type != "bytes":
            with pytest.raises(WireError):
                unpack(fields, payload[:-1])
            with pytest.raises(WireError):
                unpack(fields, payload + b"\0")


def test_fields_of_other_rows_are_refused() -> None:
    with pytest.raises(WireError, match="speed"):
        pack(messages()["begin"].request, {"step": 1, "speed": 2})


# A line that loses and damages.


@pytest.mark.slow
@pytest.mark.parametrize("frame_bytes", [40, 65535])
@pytest.mark.parametrize("damage", ["lost", "flipped", "cut", "garbage before", "twice"])
def test_requests_are_repeated_after_damaged_replies(damage: str, frame_bytes: int) -> None:
    def spoil(index: int, reply: bytes) -> bytes:
        if index % 2 == 0:  # hello's first, and every other one
            return reply + reply if damage == "twice" else reply
        return {
            "lost": b"",
            "flipped": bytes([reply[0], reply[1] ^ 0x10]) + reply[2:],
            "cut": reply[: len(reply) // 2] + b"\0",
            "garbage before": b"\x07noise\0" + reply,
            "twice": reply + reply,
        }[damage]

    with FakeBoard().with_store() as board:
        board.frame_bytes = frame_bytes
        board.spoil = spoil
        data = random.Random(1).randbytes(7 * frame_bytes)  # eight frames
        with connect(board.port, timeout_s=0.1 if damage == "lost" else 10) as device:
            device.write(2, 3, data)
            assert device.read(2, 3, len(data)) == data
            resent = device.link.resent
        assert bytes(board.store[2, 3]) == data
        # A repeated request keeps its sequence number. On a slow computer, late replies cause
        # repeated requests too, and the line may close before the board reads the last one.
        repeats = [a for a, b in zip(board.sequences, board.sequences[1:], strict=False) if a == b]
        assert len(repeats) <= resent
        assert resent == 0 if damage == "twice" else len(repeats) >= 15


def test_frames_of_full_length_are_not_garbage() -> None:
    """Their length in COBS encoding exceeds 16 bits."""
    text = bytes(range(1, 256)) * 257
    with FakeBoard(rows=text) as board:
        board.handlers["rows"] = lambda offset: {"bytes": text[offset : offset + 65535 - 6]}
        with Link(board.port) as link:
            reply = link.request(messages()["rows"].code, bytes(4))
        assert reply[6:] == text[: 65535 - 6]


def test_lost_requests_are_sent_again() -> None:
    asked = []

    def begin(step: int) -> dict[str, int] | None:
        asked.append(step)
        return None if len(asked) < 3 else {}

    with (
        FakeBoard({"begin": begin}) as board,
        connect(board.port, timeout_s=0.02) as device,
    ):
        device.begin(9)
        assert asked == [9, 9, 9]


def test_the_first_frame_is_separate_from_earlier_bytes() -> None:
    with FakeBoard() as board:
        with open(board.port, "wb", buffering=0) as stray:
            stray.write(b"half a frame")
        assert connect(board.port).info.board == "fake"


# Long work.


def answer_step(board: FakeBoard) -> None:
    """Send the reply to the request of a step."""
    sequence = board.sequences[board.names().index("step")]
    body = bytes(6) + isa.pack("poet_step_result", step=4, loss=0.5)
    board.say(frame(sequence, STEP | 0x80, body))


def test_the_link_pings_a_board_during_a_long_step() -> None:
    running = threading.Event()

    def status() -> dict[str, object]:
        if board.names().count("status") == 3:
            answer_step(board)
        return {"status": {"running": 1}}

    def step(**fields: int) -> None:
        running.set()

    with FakeBoard({"status": status, "step": step}) as board:
        with connect(board.port, timeout_s=0.2) as device:
            result = device.step(4, 1, 2)
        assert running.is_set()
        assert (result.step, result.loss) == (4, 0.5)
        assert board.names().count("step") == 1
        assert board.requests[1] == ("step", {"step": 4, "trace_first": 1, "trace_count": 2})


def test_other_requests_may_be_made_while_a_step_runs() -> None:
    """The reply to the step may arrive before theirs."""

    def write(**fields: Any) -> dict[str, int]:
        if fields["offset"] > 0:
            answer_step(board)
        return {"next": fields["offset"] + len(fields["bytes"])}

    handlers = {
        "status": lambda: {"status": {"running": 1}},
        "step": lambda **fields: None,
        "write": write,
    }
    written: list[int] = []
    with FakeBoard(handlers) as board:
        with connect(board.port, timeout_s=10) as device:

            def meanwhile() -> None:
                device.write(2, 3, bytes(150))
                written.append(150)

            result = device.step(4, meanwhile=meanwhile)
        assert (result.step, result.loss, written) == (4, 0.5, [150])
        assert board.names()[1:] == ["step", "status", "write", "write"]


@pytest.mark.parametrize("has_next", [False, True])
def test_a_step_without_a_reply_is_requested_again_if_it_does_not_run(has_next: bool) -> None:
    """The request or the reply was lost. The next batch, if written now, would replace this one."""
    asked: list[str] = []

    def step(**fields: int) -> dict[str, object] | None:
        asked.append("step")
        return {"result": {"step": 4}} if len(asked) == 2 else None

    handlers = {"status": lambda: {"status": {"running": 0}}, "step": step}
    with FakeBoard(handlers) as board, connect(board.port, timeout_s=0.2) as device:
        meanwhile = (lambda: asked.append("written")) if has_next else None
        assert device.step(4, meanwhile=meanwhile).step == 4
        assert asked == ["step", "step"]


def test_a_silent_board_in_a_step_is_an_error() -> None:
    with FakeBoard({"status": lambda: None, "step": lambda **_: None}) as board:
        device = connect(board.port, timeout_s=0.02, patience_s=0.2)
        with pytest.raises(LinkBroken, match=r"0\.2 s"):
            device.step(1)
        assert board.names().count("status") >= 2


def test_a_failed_step_says_why() -> None:
    with FakeBoard({"step": lambda **_: -19}) as board, connect(board.port) as device:
        with pytest.raises(BoardError, match="loss") as caught:
            device.step(1)
        assert (caught.value.name, caught.value.detail, caught.value.exit_code) == (
            "not_finite",
            7,
            1,
        )
        assert "learning rate" in str(caught.value)


# Ports that are missing, or of other devices.


def test_a_plain_file_is_not_a_port(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(NoDevice, match=str(path)):
        Link(str(path))


def test_an_error_says_how_to_get_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("poet_host.device.link.serial.serial_for_url", refuse)
    with pytest.raises(NoDevice, match=r"dialout.*udev"):
        Link("/dev/ttyACM0")


@pytest.mark.parametrize(
    ("port", "meant"), [("nativ", "native"), ("Auto", "auto"), ("sim_mkr1000", "sim:mkr1000")]
)
def test_an_error_names_the_port_that_is_spelled_alike(port: str, meant: str) -> None:
    with pytest.raises(NoDevice, match=meant):
        connect(port)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("socket://127.0.0.1:1", "connection refused"),
        ("socket://none.invalid:7", "name of the"),
        ("socket://127.0.0.1", "port number"),
        ("socket://127.0.0.1:99999", "port number"),
    ],
)
def test_an_error_says_why_a_socket_cannot_be_reached(url: str, reason: str) -> None:
    with pytest.raises(NoDevice, match=reason) as refused:
        connect(url)
    assert url in str(refused.value)
    assert "plug" not in str(refused.value)


@pytest.mark.parametrize(
    "port",
    [
        "/dev/ttyNOWHERE",
        "socket://127.0.0.1:1",
        "nonsense://x",
        "socket://",
        "hwgrep://(",
        "loop://?logging=x",
    ],
)
def test_an_error_names_the_port_that_cannot_be_opened(port: str) -> None:
    with pytest.raises(NoDevice, match=re.escape(port)):
        Link(port)


def test_a_port_in_use_is_not_shared() -> None:
    with FakeBoard() as board, connect(board.port), pytest.raises(NoDevice, match="in use"):
        Link(board.port)


@pytest.mark.parametrize("refused", [errno.ENOTTY, errno.EIO])
def test_a_pty_that_knows_only_standard_rates_is_opened(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where termios lacks our rate, and pyserial sets it with an ioctl of IOKit."""

    def set_rate(port: Any, rate: int) -> None:
        if refused == errno.EIO:
            raise OSError(refused, "the adapter is broken")
        fcntl.ioctl(port.fd, 0x80045402, array.array("i", [rate]), True)  # IOSSIOSPEED

    monkeypatch.delattr(termios, "B1000000")
    monkeypatch.delattr(serialposix, "BOTHER")
    monkeypatch.delitem(serial.Serial.BAUDRATE_CONSTANTS, 1_000_000)
    monkeypatch.setattr(serial.Serial, "_set_special_baudrate", set_rate)
    with FakeBoard() as board:
        if refused == errno.ENOTTY:
            with connect(board.port) as device:
                assert device.info.board == "fake"
        else:
            with pytest.raises(NoDevice, match="the adapter is broken"):
                connect(board.port)


def test_nothing_answers() -> None:
    with FakeBoard({"hello": lambda: None}) as board:
        link = Link(board.port, timeout_s=0.02, patience_s=0.1)
        with pytest.raises(NoDevice, match="nothing"):
            link.request(HELLO, b"", 0.1)
        link.close()


@pytest.mark.parametrize(
    ("talk", "pause_s"),
    [
        (b"$GPGGA,123519,4807.038,N*47\r\n", 0.01),
        (b"\0\0\0", 0.01),
        (b"login: \0hello\0world\0", 0.01),
        (b"x" * 9, 0.01),
        (b"ab\0" * 1000, 0),
        (frame(77, 2 | REPLY, b"hi") * 100, 0),
    ],
)
def test_something_else_is_on_the_port(
    talk: bytes, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poet_host.device.device.CONNECT_PATIENCE_S", 0.3)
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    stop = threading.Event()

    def chatter() -> None:
        while not stop.wait(pause_s):
            with suppress(BlockingIOError):
                os.write(master, talk)

    thread = threading.Thread(target=chatter)
    silence = threading.Timer(20, stop.set)
    thread.start()
    silence.start()
    try:
        with pytest.raises(NoDevice, match="answers there"):
            connect(os.ttyname(slave), timeout_s=0.05)
        assert not stop.is_set()  # without waiting until the port is silent
    finally:
        silence.cancel()
        stop.set()
        thread.join()
        os.close(slave)
        os.close(master)


def test_the_board_is_unplugged_during_a_request() -> None:
    board = FakeBoard({"begin": lambda step: None})
    device = connect(board.port, timeout_s=60)
    timer = threading.Timer(0.1, board.unplug)
    timer.start()
    began = time.monotonic()
    with pytest.raises(LinkBroken, match="went away"):
        device.begin(1)
    assert time.monotonic() - began < 60 / 2  # without waiting for a reply
    with pytest.raises(LinkBroken):
        device.hello()
    device.close()
