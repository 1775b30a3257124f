"""Signals: Ctrl-C (SIGINT), SIGTERM and SIGHUP end a command, which loses no weights."""

import fcntl
import io
import json
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from poet_host import api
from poet_host.cli.console import say
from poet_host.cli.signals import stop_requests
from poet_host.run import session
from poet_host.run.run import Step, weights_sha256
from support import whole_runs as runs
from support.command import Command, Process, children, spawn


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """A fast schedule: it keeps everything."""
    path = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(path)
    return path


def rows(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """The default handler of SIGTERM, even if the tests ignore the signal."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def interrupted(
    train: Any, monkeypatch: pytest.MonkeyPatch, default_sigterm: None, tmp_path: Path
) -> Any:
    """`interrupted(*steps)` trains with a log, and sends a signal after each of these steps."""

    def call(*at: int, sent: signal.Signals = signal.SIGINT, steps: int = 1000) -> Any:
        on_step = session.Session.on_step

        def send(self: Any, step: Step, last: int) -> None:
            on_step(self, step, last)
            for _ in range(at.count(step.step)):
                os.kill(os.getpid(), sent)

        with monkeypatch.context() as patched:
            patched.setattr(session.Session, "on_step", send)
            return train("--json", "--steps", steps, "--log", tmp_path / "log")

    return call


def test_ctrl_c_ends_training_after_the_step_and_saves_weights(
    interrupted: Any, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    result = interrupted(3)
    assert result.code == 130
    assert "stopping after this step" in result.err
    assert (result.json["ended"], result.json["steps"]) == ("interrupted", 3)
    saved = api.load_weights(tmp_path / "w.safetensors", runs.digits())
    straight = runs.train(runs.schedule(runs.digits()), steps=3)
    assert weights_sha256(saved) == weights_sha256(straight.weights)
    begin, *steps, end = rows(tmp_path / "log")
    assert [begin["event"], *(row["event"] for row in steps)] == ["begin", *["step"] * 3]
    assert (end["event"], end["ended"]) == ("end", "interrupted")
    assert end["weights_sha256"] == weights_sha256(saved)
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_training_after_the_step(interrupted: Any, tmp_path: Path) -> None:
    """Batch systems and `timeout` send it."""
    before = signal.getsignal(signal.SIGTERM)
    result = interrupted(3, sent=signal.SIGTERM)
    assert result.code == 143
    assert (result.json["ended"], result.json["steps"]) == ("interrupted", 3)
    assert api.step_of_weights(tmp_path / "w.safetensors") == 3
    assert signal.getsignal(signal.SIGTERM) is before
    (tmp_path / "w.safetensors").unlink()
    result = interrupted(2, 2, sent=signal.SIGTERM)
    assert result.code == 143
    assert result.json == {"error": "ended by SIGTERM", "exit_code": 143}
    assert not (tmp_path / "w.safetensors").exists()


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_ignored_signals_stay_ignored_except_ctrl_c(interrupted: Any, sent: signal.Signals) -> None:
    """`nohup` has SIGHUP ignored. Scripts have SIGINT ignored in their background jobs."""
    before = signal.signal(sent, signal.SIG_IGN)
    try:
        result = interrupted(2, sent=sent, steps=4)
        assert signal.getsignal(sent) == signal.SIG_IGN
    finally:
        signal.signal(sent, before)
    ended = ("interrupted", 2) if sent == signal.SIGINT else ("done", 4)
    assert (result.json["ended"], result.json["steps"]) == ended


def test_a_second_ctrl_c_stops_at_once(interrupted: Any, tmp_path: Path) -> None:
    result = interrupted(2, 2)
    assert [row["event"] for row in rows(tmp_path / "log")] == ["begin", "step", "step", "end"]
    assert rows(tmp_path / "log")[-1]["ended"] == "stopped"
    assert result.code == 130
    assert result.json == {"error": "interrupted", "exit_code": 130}
    assert not (tmp_path / "w.safetensors").exists()


class Printer(io.StringIO):
    """A stderr that gets Ctrl-C while it prints. No thread enters it twice, as with a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.owner, self.pressed = threading.Lock(), 0, False

    def write(self, text: str) -> int:
        assert self.owner != threading.get_ident(), "reentrant call"
        with self.lock:
            self.owner = threading.get_ident()
            if not self.pressed:
                self.pressed = True
                os.kill(os.getpid(), signal.SIGINT)
            self.owner = 0
            return super().write(text)


def test_ctrl_c_during_a_print(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Printer()
    monkeypatch.setattr(sys, "stderr", stderr)
    with stop_requests("stopping") as asked:
        say("working")
        assert asked()
    assert sorted(stderr.getvalue().split()) == ["stopping", "working"]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM])
def test_an_ended_command_leaves_no_temporary_card(
    sent: signal.Signals, schedule: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "w.safetensors"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with spawn(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 10**6,
        "--log", tmp_path / "log", "--save-weights", weights, env=environment,
    ) as process:  # fmt: skip
        wait_for_a_step(tmp_path / "log")
        cards = [
            Path(os.readlink(link)) for board in children(process.pid) for link in cards_of(board)
        ]
        assert cards
        process.send_signal(sent)
        assert process.wait(timeout=30) == 128 + sent
    assert not any(card.exists() for card in cards)
    assert weights.exists()


@pytest.mark.slow
@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_closed_terminal_loses_no_weights(terminal: str, schedule: Path, tmp_path: Path) -> None:
    """A closed ssh session sends SIGHUP, maybe twice, and then all prints fail."""
    weights, log = tmp_path / "w.safetensors", tmp_path / "log"
    ours, theirs = os.openpty()
    with spawn(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 10**6, "--log", log,
        "--save-weights", weights,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": terminal},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(theirs)
        wait_for_a_step(log)
        assert select.select([ours], [], [], 30)[0]
        assert b"training" in os.read(ours, 1 << 16)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=30) == 129
    *steps, end = rows(log)[1:]
    assert (end["event"], end["ended"]) == ("end", "interrupted")
    assert api.step_of_weights(weights) == len(steps)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM])
def test_an_ended_command_names_the_signal(sent: signal.Signals, tmp_path: Path) -> None:
    options = ("--board", "rpi4b", "--budgets", "30%", "--time-limit", 60, "--json")
    with spawn("compare", "vgg16-cifar", *options, "-o", tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline()
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + sent
    assert err.endswith(f"poet-host: ended by {sent.name}\n")
    assert json.loads(out) == {"error": f"ended by {sent.name}", "exit_code": 128 + sent}


def test_a_signal_while_an_inference_is_planned_keeps_the_plan(
    poet_host: Command, monkeypatch: pytest.MonkeyPatch, default_sigterm: None, tmp_path: Path
) -> None:
    def interrupted(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal comes first")

    monkeypatch.setattr("poet_host.api.planning.with_inference", interrupted)
    path = tmp_path / "m.poet"
    solved = poet_host("solve", "linear", "--board", "native", "--work-limit", 100, "-o", path)
    assert (solved.code, "the best plan so far" in solved.err) == (128 + signal.SIGTERM, True)
    assert api.Schedule.load(path).forward is None


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_processes_of_tests_have_default_handlers(sent: signal.Signals) -> None:
    """Even under `nohup`; or these tests would wait for commands that do not end."""
    script = "import signal, sys; print(signal.getsignal(int(sys.argv[1])) == signal.SIG_IGN)"
    before = signal.signal(sent, signal.SIG_IGN)
    try:
        with Process([sys.executable, "-c", script, int(sent)], stdout=subprocess.PIPE) as process:
            assert process.communicate(timeout=30)[0] == "False\n"
    finally:
        signal.signal(sent, before)


def wait_for_a_step(log: Path) -> None:
    ends_at = time.monotonic() + 30
    while not (log.exists() and b'"step"' in log.read_bytes()):
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def cards_of(board: str) -> list[Path]:
    """The card images that a board has open."""
    links = Path(f"/proc/{board}/fd").iterdir()
    return [link for link in links if "poet-" in os.readlink(link)]
