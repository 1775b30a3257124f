"""Commands that need no board on this computer work without all that Windows lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from poet_host import api
from poet_host.cli.main import commands
from poet_host.run.run import weights_sha256
from poet_host.sim.native import NativeBoard
from support import whole_runs as runs
from support.onnx_models import Depthwise

# Runs first in every process, also in those of the planner. pyserial and subprocess stay Linux'.
WINDOWS = """
import multiprocessing, os, select, shutil, signal, subprocess, sys, tempfile
import serial, serial.tools.list_ports
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
subprocess.Popen.kill = lambda process: process.send_signal(9)
multiprocessing.set_start_method("spawn", force=True)
for name in (
    "SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP",
    "SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm", "pause", "pthread_kill",
    "pthread_sigmask", "setitimer", "sigwait",
):
    delattr(signal, name)
for name in (
    "chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups",
    "getpgid", "getuid", "killpg", "mkfifo", "nice", "openpty", "pread", "pwrite",
    "register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sync", "ttyname",
    "wait3", "wait4",
):
    delattr(os, name)
del select.poll, select.epoll
# Windows has another system call for it.
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windows")
    (path / "sitecustomize.py").write_text(WINDOWS)
    return path


def poet_host(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a command in `folder`, without what Windows lacks."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "poet_host", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def succeed(folder: Path, *arguments: object) -> str:
    done = poet_host(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_processes_of_these_tests_lack_what_windows_lacks(folder: Path) -> None:
    """Otherwise the other tests would prove nothing."""
    script = "import signal, sys, os; print(hasattr(signal, 'SIGHUP'), sys.modules['termios'])"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False None\n", done.stderr


@pytest.mark.slow
def test_all_commands_can_be_imported(folder: Path) -> None:
    assert "poet-host" in succeed(folder, "--version")
    for name in commands.commands:
        assert succeed(folder, name, "--help").startswith("Usage: poet-host")
    assert "resnet-digits" in succeed(folder, "models")
    assert "mkr1000" in succeed(folder, "boards")


@pytest.mark.slow
def test_the_doctor_finds_all_that_real_boards_need(folder: Path) -> None:
    found = json.loads(succeed(folder, "doctor", "--json"))
    assert found["ok"]
    missing = {check["check"]: check["found"] for check in found["checks"] if not check["ok"]}
    assert "WSL" in missing["native board"]


@pytest.mark.slow
def test_a_model_is_planned_and_shown(folder: Path) -> None:
    plan = json.loads(
        succeed(
            folder, "solve", "resnet-digits", "--board", "mkr1000", "--ram", "24KiB", "--gap", 0.5,
            "-o", "m.poet", "--json",
        )
    )  # fmt: skip
    assert plan["status"] in ("optimal", "feasible")
    assert "statements in" in succeed(folder, "show", "m.poet")
    succeed(folder, "show", "m.poet", "--html", "m.html")
    assert (folder / "m.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_board_trains_and_its_weights_are_read(folder: Path, card: Path) -> None:
    """A native board at a socket stands for a board at a serial port."""
    graph = api.load_graph(Depthwise(), torch.zeros(4, 1, 8, 8))
    schedule = runs.schedule(graph, "60%", "poet")
    schedule.save(folder / "digits.poet")
    straight = runs.train(schedule, steps=3)
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with NativeBoard(card, arena_bytes, listen="127.0.0.1:0") as board:
        at = ("digits.poet", "--port", board.port, "--data", "digits")
        trained = json.loads(
            succeed(
                folder, "train", *at, "--steps", 3, "--save-weights", "w.safetensors",
                "--log", "log.jsonl", "--run", "run.json", "--json",
            )
        )  # fmt: skip
        assert trained["weights_sha256"] == weights_sha256(straight.weights)
        found = json.loads(succeed(folder, "evaluate", *at, "--weights", "w.safetensors", "--json"))
        assert 0 <= found["accuracy"] <= 1
        assert found["time_us"] > 0
        succeed(folder, "export", "digits.poet", "--weights", "w.safetensors", "-o", "digits.onnx")
        assert (folder / "digits.onnx").stat().st_size > 1000
        succeed(folder, "card", "write", *at, "--steps", 2, "--erase-card")
        assert "2" in succeed(folder, "card", "read", "digits.poet", "--port", board.port)
        succeed(folder, "profile", "linear", "--port", board.port, "-o", "profile.json")


SAVED = ("--save-weights", "w2.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "digits.poet", "--data", "digits", "-p", "native", *SAVED),
        ("train", "digits.poet", "--data", "digits", "-p", "sim:mkr1000", *SAVED),
        ("card", "write", "digits.poet", "--data", "digits", "-o", "new.img"),
        ("storage", "prepare", "new.img"),
        ("simulate", "native"),
        ("demo",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_boards_on_this_computer_are_refused(arguments: tuple[str, ...], folder: Path) -> None:
    runs.small().save(folder / "digits.poet")
    done = poet_host(folder, *arguments)
    assert done.returncode == 2
    assert "need Linux, macOS or WSL" in done.stderr
    assert not (folder / "new.img").exists()
