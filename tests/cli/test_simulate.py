"""`poet-host simulate`."""

import json
import os
import signal
import time
from pathlib import Path

import poet_host as poet
from support.command import children, spawn


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
