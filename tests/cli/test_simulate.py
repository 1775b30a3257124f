"""`poet-host simulate`."""

import json
import os
import signal
import time
from pathlib import Path

import poet_host as poet
import pytest
from support.command import Command, children, spawn
from support.sim_helper import build_with_sensor, needs_compiler


def test_a_board_runs_until_ctrl_c() -> None:
    with spawn("simulate", "native", "--arena", "16KiB") as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        with poet.connect(port) as connection:
            assert connection.board.name == "native"
            assert connection.device.info.arena_bytes == 16 * 1024
        # Not the port's name: the next board of another test may get it at once.
        boards = children(process.pid)
        assert boards
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    ends_at = time.monotonic() + 10
    while any(Path(f"/proc/{board}").exists() for board in boards):
        assert time.monotonic() < ends_at, "the board outlives the command"
        time.sleep(0.01)


def test_the_port_is_one_json_object(card: Path) -> None:
    with spawn("simulate", "native", "--storage", card, "--json") as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        with poet.connect(port) as connection:
            assert connection.device.info.storage_status == 0
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def test_after_a_board_stopped_stdout_has_only_its_port() -> None:
    with spawn("simulate", "native", "--json") as process:
        assert process.stdout is not None
        assert "port" in json.loads(process.stdout.readline())
        for board in children(process.pid):
            os.kill(int(board), signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "native" in err


@needs_compiler
def test_a_program_sees_the_motion_and_the_button(poet_host: Command, tmp_path: Path) -> None:
    elf, motion = build_with_sensor("motion.c", tmp_path), tmp_path / "motion.csv"
    motion.write_text("time_s,ax,ay,az\n0,0,0,1\n")
    arguments = ("simulate", "nano_33_iot", "--image", elf, "--sensor", motion)
    presses = ("--button", "100ms:50ms", "--button", "0.2s:10ms", "--for", "300ms")
    done = poet_host(*arguments, *presses)
    port, *changes = done.out.splitlines()
    assert done.code == 0
    assert port.startswith("/dev/")
    assert [line.split()[2:] for line in changes] == [["LED", "on"], ["LED", "off"]] * 2
    times_s = [float(line.split()[0]) for line in changes]
    assert times_s == pytest.approx([0.1, 0.15, 0.2, 0.21], abs=0.001)
    assert "300 ms simulated" in done.err
    with_json = poet_host(*arguments, *presses, "--json")
    assert list(json.loads(with_json.out)) == ["port"]
    assert changes[0] in with_json.err


@needs_compiler
def test_a_board_without_a_card_slot_has_a_card_if_one_is_named(card: Path) -> None:
    for options, status in (((), None), (("--storage", card, "--card", "strict"), 0)):
        with spawn("simulate", "nano_33_iot", *options) as process:
            assert process.stdout is not None
            with poet.connect(process.stdout.readline().strip()) as connection:
                assert (connection.device.info.storage_status == status) is (status == 0)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)


@pytest.mark.parametrize(
    ("board", "option", "value", "named"),
    [
        ("mkr1000", "--button", "1s:1s", "mkr1000"),
        ("native", "--for", "1s", "native"),
        ("mkr1000", "--image", "none.elf", "none.elf"),
        ("nano_33_iot", "--sensor", "none.csv", "none.csv"),
        ("nano_33_iot", "--button", "1:1s", "1"),
        ("nano_33_iot", "--for", "ever", "ever"),
        ("mkr1000", "--for", "0s", "is 0"),
    ],
)
def test_wrong_input_is_refused(
    poet_host: Command, board: str, option: str, value: str, named: str
) -> None:
    done = poet_host("simulate", board, option, value)
    assert done.code == 2
    assert named in done.err
