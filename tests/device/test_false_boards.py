"""Commands with false boards at their port: each ends with a sentence, and none for ever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from poet_host import isa
from poet_host.schedule.schedule import Schedule
from support.command import Command
from support.fake_board import FakeBoard

SCHEDULE = Path("schedules/resnet-digits-mkr1000.poet")
U32, U64 = 2**32 - 1, 2**64 - 1
TICKS = ("ticks", "compute_ticks", "transfer_ticks", "asleep_ticks", "reading_ticks")


def endless_trace(board: FakeBoard) -> None:
    board.handlers["trace"] = lambda first: {"bytes": isa.pack("poet_trace") * 5}


def no_ticks(board: FakeBoard) -> None:
    board.handlers["step"] = lambda step, **_: {"result": {"step": step}}
    board.handlers["trace"] = lambda first: {"bytes": b""}
    board.handlers["probe_op"] = lambda **_: {"ticks": 0}


def huge(board: FakeBoard) -> None:
    known = {"loss": 1.0, "peak_bytes": 24_576} | dict.fromkeys(TICKS, U64)
    board.handlers["step"] = lambda step, **_: {"result": known | {"step": step}}
    board.handlers["trace"] = lambda first: {"bytes": b""}
    board.handlers["probe_op"] = lambda **_: {"ticks": U32}
    board.handlers["probe_transfer"] = lambda **_: {"ticks": U32, "cpu_ticks": U32}
    board.handlers["probe_commit"] = lambda **_: {"ticks": U32}


Spoil = Callable[[FakeBoard], None]


@pytest.fixture
def command(poet_host: Command, tmp_path: Path) -> Callable[..., Any]:
    """Run one of three commands with a board. Assert the exit code and what stderr names."""

    def run(board: FakeBoard, name: str, code: int, *named: str) -> None:
        weights = tmp_path / "w.safetensors"
        train = ["train", SCHEDULE, "--data", "digits", "--save-weights", weights, "--steps"]
        with board:
            words = {
                "train": [*train, 2, "--port", board.port],
                "resume": [*train, U32 - 1, "--port", board.port, "--resume"],
                "too many steps": [*train, U32, "--port", board.port],
                "doctor": ["doctor", "--port", board.port],
                "profile": ["profile", "resnet-digits", "-o", tmp_path / "p.json", "--port",
                            board.port],
            }  # fmt: skip
            found = poet_host(*words[name])
        text = found.out + found.err
        assert found.code == code, text
        assert all(word in text for word in named), text
        assert not any(escape in text for escape in ("\x1b]", "\x1b[2J", "\x07"))

    return run


@pytest.mark.parametrize(("name", "code"), [("train", 0), ("doctor", 1), ("profile", 0)])
def test_a_fake_board_does_all_that_a_command_asks(
    command: Callable[..., Any], name: str, code: int
) -> None:
    """It computes nothing, which `doctor` finds."""
    command(FakeBoard.trainable(), name, code)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *((name, "tick_hz", 0) for name in ("train", "doctor", "profile")),
        *((name, "frame_bytes", 0) for name in ("train", "doctor", "profile")),
        ("train", "frame_bytes", 1),
        ("train", "frame_bytes", 13),
        ("doctor", "storage_status", -999),
        ("doctor", "board", b"\x1b]0;x\x07\x1b[31m"),
        ("profile", "unique_id", b"\x1b[2J\x1b[31mX"),
    ],
)
def test_a_wrong_hello(command: Callable[..., Any], name: str, field: str, value: object) -> None:
    command(FakeBoard.trainable(**{field: value}), name, 4, "hello", field)


@pytest.mark.parametrize(
    ("hello", "name", "code"),
    [
        ({"arena_bytes": U32, "storage_blocks": U32}, "train", 0),
        ({"arena_bytes": U32, "storage_blocks": U32}, "doctor", 1),
        ({"arena_bytes": U32, "storage_blocks": U32}, "profile", 0),
        ({"arena_bytes": 0}, "doctor", 1),
        ({"arena_bytes": 0}, "profile", 0),
        ({"arena_bytes": 4, "queue_capacity": 0, "trace_capacity": 0}, "profile", 0),
        ({"trace_capacity": 0}, "train", 0),
        ({"queue_capacity": 0, "resident_capacity": 0}, "train", 2),
        ({"trace_capacity": 65_535, "frame_bytes": 18}, "doctor", 1),
        ({"board": b"../../../etc/a"}, "train", 2),
        ({"board": b"native"}, "doctor", 1),
        ({"tick_hz": 1}, "profile", 0),
        ({"tick_hz": U32}, "train", 0),
    ],
)
def test_numbers_that_are_absurd_but_possible(
    command: Callable[..., Any], hello: dict[str, Any], name: str, code: int
) -> None:
    command(FakeBoard.trainable(**hello), name, code)


@pytest.mark.parametrize("name", ["train", "doctor", "profile"])
@pytest.mark.parametrize(
    ("spoil", "tick_hz", "codes"),
    [(huge, 1, (0, 1, 0)), (no_ticks, 1000, (0, 1, 1)), (endless_trace, 1000, (4, 1, 4))],
)  # fmt: skip
def test_false_measurements(
    command: Callable[..., Any], name: str, spoil: Spoil, tick_hz: int, codes: tuple[int, int, int]
) -> None:
    board = FakeBoard.trainable(tick_hz=tick_hz)
    spoil(board)
    command(board, name, codes[("train", "doctor", "profile").index(name)])


def test_endless_rows(command: Callable[..., Any]) -> None:
    board = FakeBoard(rows=b"others")
    board.handlers["rows"] = lambda offset: {"bytes": b"A" * 5000}
    command(board, "train", 4, "rows")


def test_the_last_step(command: Callable[..., Any]) -> None:
    """The number after it means that nothing is committed."""
    crc = Schedule.load(SCHEDULE).model.crc
    known = {"committed_step": U32 - 1, "committed_model": crc, "loaded_plan": 1}
    command(FakeBoard.trainable(**known), "resume", 0)
    known["committed_step"] = U32 - 2
    command(FakeBoard.trainable(**known), "resume", 0)
    command(FakeBoard.trainable(), "too many steps", 2, f"{U32:,}")


@pytest.mark.parametrize("times", [2, 50])
def test_repeated_answers(command: Callable[..., Any], times: int) -> None:
    board = FakeBoard.trainable()
    board.spoil = lambda index, reply: reply * times
    command(board, "train", 0)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_damaged_answers(
    command: Callable[..., Any], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a whole frame, nothing at the port is a board of ours."""
    monkeypatch.setattr("poet_host.device.device.CONNECT_PATIENCE_S", 0.3)
    damages: list[Callable[[bytes], bytes]] = [
        lambda reply: reply[: len(reply) // 2],
        lambda reply: bytes([reply[0], reply[1] ^ 1 or 2]) + reply[2:],
        lambda reply: b"\x01\x02\0" * 100,
    ]
    board = FakeBoard.trainable()
    board.spoil = lambda index, reply: damages[cut](reply)
    command(board, "train", 3, board.port)
