"""The hardware suite on a port, as on a bench: which tests run, and what to look at."""

import subprocess
import sys
from pathlib import Path

from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.start_board import start_board
from support.sim_helper import needs_compiler

SUITE = Path(__file__).parents[1] / "hardware"


def suite(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", str(SUITE), "-x", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)


@needs_compiler
def test_it_runs_on_the_named_port() -> None:
    with start_board("nrf52840_dk") as board:
        on = ("--board", "nrf52840_dk", "--port", board.port, "--no-flash")
        done = suite(*on, "-k", "what_was_built or wire or lost or found")
        assert done.returncode == 0, done.stdout
        assert "3 passed" in done.stdout
        other = suite("--board", "mkr1000", *on[2:], "-k", "who_it_is")
    assert other.returncode == 1
    assert ">>> look at: which board is on this port" in other.stdout


@needs_compiler
def test_a_missing_card_is_named() -> None:
    with SimulatedBoard("mkr1000", build_firmware("mkr1000"), None) as board:
        done = suite("--board", "mkr1000", "--port", board.port, "--no-flash", "-k", "found")
    assert done.returncode == 1
    assert "there is no storage; insert the card" in done.stdout
    assert ">>> look at: the card: is it in" in done.stdout


def test_a_dead_port_is_named(tmp_path: Path) -> None:
    port = str(tmp_path / "ttyACM9")
    done = suite("--board", "mkr1000", "--port", port, "--no-flash", "-k", "who_it_is")
    assert done.returncode == 1
    assert port in done.stdout
    assert ">>> look at: the port's name" in done.stdout
    assert "Traceback" not in done.stdout


def test_board_and_port_belong_together() -> None:
    done = suite("--board", "mkr1000")
    assert done.returncode == 4
    assert "--board and --port belong together" in done.stderr + done.stdout
