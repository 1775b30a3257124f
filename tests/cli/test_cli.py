"""The command line: the whole path by hand, and what each command prints where."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from poet_host import api
from poet_host.cli import session
from poet_host.cli.console import say
from poet_host.cli.signals import interrupts
from poet_host.device.board import names as board_names
from poet_host.graph.models import MODELS
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.run.run import Step, weights_sha256
from safetensors.numpy import load_file
from support import whole_runs as runs
from support.command import Command, Process, spawn

SMALL = CostGraph(
    "small",
    (
        CostNode("x", (), 8, 1.0, 1.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("a", (0,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("b", (1,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("c", (2,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("d", (3, 1), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("e", (4, 0), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0, keep=True),
    ),
)


@pytest.fixture
def poet_host(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "small.graph.json"
    path.write_text(json.dumps(dump_cost_graph(SMALL)))
    return path


# Looking.


def test_help_is_there_for_every_command(poet_host: Command) -> None:
    top = poet_host("--help")
    assert top.code == 0
    for name in (
        "boards", "models", "doctor", "simulate", "build", "flash", "storage", "profile", "solve",
        "train", "card", "evaluate", "export", "show", "compare", "demo",
    ):  # fmt: skip
        assert f"\n  {name} " in top.out
        assert poet_host(name, "--help").code == 0
    assert "7 none found in time" in top.out
    assert poet_host().out == top.out
    assert poet_host("--version").out.startswith("poet-host, version ")


def test_boards_and_models_are_listed(poet_host: Command) -> None:
    boards, models = poet_host("boards", "--json"), poet_host("models", "--json")
    assert [board["name"] for board in boards.json["boards"]] == board_names()
    assert [model["name"] for model in models.json["models"]] == list(MODELS)
    assert boards.err == models.err == ""
    assert "mkr1000" in poet_host("boards").out
    table = poet_host("models").out
    assert all(name in table for name in MODELS)


# Solving.


def test_cost_graphs_are_solved(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    out, schedule = tmp_path / "plan.json", tmp_path / "small.poet"
    solved = poet_host(
        "solve", costs, "--ram", 24, "--deadline-us", 60, "--plan", out, "-o", schedule, "--json"
    )
    assert solved.code == 0
    plan = plan_from_json(json.loads(out.read_text()))
    totals = verify(Problem(SMALL, 24, 60.0), plan)
    told = solved.json
    assert told["status"] == "optimal"
    assert "statements" not in told
    assert (told["energy_uj"], told["time_us"]) == (totals.energy_uj, totals.time_us)
    assert (told["ram_bytes"], told["deadline_us"], told["gap"]) == (24, 60.0, 0.0)
    assert poet_host("show", schedule).out.startswith("small")


def test_an_unplaced_plan_has_no_offsets(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert poet_host("solve", costs, "--ram", 24, "--plan", out, "--unplaced").code == 0
    statements = json.loads(out.read_text())["statements"]
    assert not any("offset" in statement for statement in statements)


def test_without_json_the_result_is_a_table(poet_host: Command, costs: Path) -> None:
    solved = poet_host("solve", costs, "--ram", "80%")
    assert solved.code == 0
    assert "optimal" in solved.out
    assert "solving small" in solved.err


@pytest.mark.parametrize("method", api.ALL_METHODS)
def test_every_method_can_be_chosen(poet_host: Command, costs: Path, method: str) -> None:
    solved = poet_host("solve", costs, "--ram", "100%", "--method", method, "--json")
    assert solved.code == 0
    assert solved.json["method"] == method


def test_keeping_everything_does_not_fit_less(poet_host: Command, costs: Path) -> None:
    solve = ("solve", costs, "--method", "keep-everything", "--json", "--ram")
    needed = poet_host(*solve, "100%").json["peak_bytes"]
    refused = poet_host(*solve, needed - 1)
    assert refused.code == 5
    assert refused.json["smallest_ram_bytes"] == needed
    late = poet_host(*solve, needed, "--deadline", "0.9x")
    assert late.code == 5
    assert late.json["smallest_deadline_us"] > late.json["deadline_us"]


def test_the_papers_figures_can_be_chosen(poet_host: Command) -> None:
    solve = ("solve", "linear", "--ram", "100%", "--gap", "0.5", "--method", "keep-everything")
    ours, papers = (
        poet_host(*solve, "--board", "mkr1000", "--json", "--profile", kind).json
        for kind in ("estimate", "paper")
    )
    assert ours["peak_bytes"] == papers["peak_bytes"]
    assert ours["energy_uj"] != papers["energy_uj"]
    assert poet_host(*solve, "--board", "native", "--profile", "paper").code == 2
    both = poet_host(*solve, "--board", "mkr1000", "--profile", "p.json")
    assert "leave out --board" in both.err
    assert "--board NAME" in poet_host(*solve, "--profile", "paper").err


def test_options_of_models_are_not_for_cost_graphs(poet_host: Command, costs: Path) -> None:
    assert "batch is for built-in" in poet_host("solve", costs, "--ram", 24, "--batch", 2).err
    assert "leave out --board" in poet_host("solve", costs, "--ram", 24, "--board", "native").err


@pytest.mark.parametrize(
    ("change", "code", "words", "written"),
    [
        ({"status": "feasible", "gap": 0.25}, 6, "its gap is 25.00%, not within 10.00%", True),
        ({"status": "feasible", "gap": 0.05}, 0, "", True),
        ({"status": "unknown", "statements": ()}, 7, "nor proved not to exist", False),
    ],
)
def test_what_was_not_reached_has_a_code_of_its_own(
    poet_host: Command, costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any], code: int, words: str, written: bool,
) -> None:  # fmt: skip
    from dataclasses import replace

    plan = replace(api.solve(SMALL, ram=24), **change)
    monkeypatch.setattr(api, "solve", lambda *arguments, **more: plan)
    out = tmp_path / "small.poet"
    solved = poet_host("solve", costs, "--ram", 24, "--gap", 0.1, "-o", out, "--json")
    assert solved.code == code
    assert words in solved.err
    assert solved.json["status"] == change["status"]
    assert out.exists() == written


# Training.


def test_the_whole_path_by_hand(poet_host: Command, tmp_path: Path) -> None:
    card, measured, schedule, weights, told = (
        tmp_path / name
        for name in ("card.img", "profile.json", "digits.poet", "w.safetensors", "run.json")
    )
    assert poet_host("storage", "prepare", card, "--size", "8MiB", "--json").json["size_bytes"] == (
        8 * runs.MIB
    )
    profiled = poet_host("profile", "resnet-digits", "-p", "native", "-o", measured, "--json")
    assert profiled.json["board"] == "native"
    solved = poet_host(
        "solve", "resnet-digits", "--profile", measured, "--ram", "60%", "--deadline", "3x",
        "--gap", "0.1", "-o", schedule, "--json",
    )  # fmt: skip
    assert solved.code == 0
    shown = poet_host("show", schedule, "--json").json
    assert shown["plan_bytes"] < 700
    assert shown["graph"]["name"] == "resnet-digits"
    train = (
        "train", schedule, "--port", "native", "--storage", card, "--data", "digits",
        "--save-weights", weights, "--run", told, "--json",
    )  # fmt: skip
    first = poet_host(*train, "--steps", 4)
    assert first.code == 0
    assert first.json["steps"] == 4
    assert first.json["peak_bytes"] <= solved.json["ram_bytes"]
    assert 0 <= first.json["accuracy"] <= 1
    resumed = poet_host(*train, "--steps", 6, "--resume")
    assert [step["step"] for step in json.loads(told.read_text())["steps"]] == [5, 6]
    graph = api.load_graph("resnet-digits")
    straight = runs.train(runs.schedule(graph), steps=6)
    assert resumed.json["weights_sha256"] == weights_sha256(straight.weights)
    named = load_file(weights)
    assert {"conv1.weight", "bn1.running_mean", "bn1.running_var", "fc.bias"} <= named.keys()
    more = ("--steps", 1, "--load-weights", weights, "--seed", 5)
    before = card.read_bytes()
    assert poet_host(*train, *more).code == 2
    assert card.read_bytes() == before
    again = poet_host(*train, *more, "--erase-card")
    assert again.code == 0
    assert again.json["loss_first"] != first.json["loss_first"]


def test_without_json_training_prints_a_table(poet_host: Command, tmp_path: Path) -> None:
    schedule = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(schedule)
    result = poet_host(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 2,
        "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert result.code == 0
    assert "accuracy on held-out data" in result.out
    assert "high-water mark" in result.out
    assert "wrote" in result.err


@pytest.fixture
def heeded() -> Iterator[None]:
    """SIGTERM has its default, also where the tests were started with it ignored."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def interrupted(
    poet_host: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heeded: None
) -> Any:
    """Trains with Ctrl-C pressed at some steps."""
    schedule = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(schedule)

    def call(*at: int, sent: signal.Signals = signal.SIGINT, steps: int = 1000) -> Any:
        on_step = session.Session.on_step

        def press(self: Any, step: Step, last: int) -> None:
            on_step(self, step, last)
            for _ in range(at.count(step.step)):
                os.kill(os.getpid(), sent)

        monkeypatch.setattr(session.Session, "on_step", press)
        return poet_host(
            "train", schedule, "-p", "native", "--data", "digits", "--json", "--steps", steps,
            "--save-weights", tmp_path / "w.safetensors",
        )  # fmt: skip

    return call


def test_ctrl_c_ends_after_the_step_with_the_weights_saved(
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
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_after_the_step_too(interrupted: Any, tmp_path: Path) -> None:
    """As batch systems and `timeout` send it."""
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
def test_a_hangup_that_is_ignored_stays_ignored_and_ctrl_c_does_not(
    interrupted: Any, sent: signal.Signals
) -> None:
    """As `nohup` has the one, and a script the other for what it runs in the background."""
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
    assert result.code == 130
    assert result.json == {"error": "interrupted", "exit_code": 130}
    assert not (tmp_path / "w.safetensors").exists()


class Printer(io.StringIO):
    """A stderr at which Ctrl-C comes while it prints; as a real one, no thread enters it twice."""

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


def test_ctrl_c_may_come_while_something_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Printer()
    monkeypatch.setattr(sys, "stderr", stderr)
    with interrupts("stopping") as asked:
        say("working")
        assert asked()
    assert sorted(stderr.getvalue().split()) == ["stopping", "working"]


# Boards.


def test_a_simulated_board_runs_until_interrupted() -> None:
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


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM])
def test_a_command_that_is_ended_leaves_no_card(sent: signal.Signals, tmp_path: Path) -> None:
    schedule = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(schedule)
    weights = tmp_path / "w.safetensors"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with spawn(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 10**6,
        "--log", tmp_path / "log", "--save-weights", weights, env=environment,
    ) as process:  # fmt: skip
        ends_at = time.monotonic() + 30
        while not ((tmp_path / "log").exists() and b'"step"' in (tmp_path / "log").read_bytes()):
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        boards = children(process.pid)
        cards = [Path(os.readlink(link)) for one in boards for link in cards_of(one)]
        assert cards
        process.send_signal(sent)
        assert process.wait(timeout=30) == 128 + sent
    assert not any(card.exists() for card in cards)
    assert weights.exists()


def test_the_end_of_the_terminal_loses_no_weights(tmp_path: Path) -> None:
    """As a closed ssh session: SIGHUP, maybe twice, and nothing can be printed any more."""
    schedule, weights, log = (tmp_path / name for name in ("s.poet", "w.safetensors", "log"))
    runs.schedule(runs.digits()).save(schedule)
    ours, theirs = os.openpty()
    with spawn(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 10**6, "--log", log,
        "--save-weights", weights,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(theirs)
        ends_at = time.monotonic() + 30
        while not (log.exists() and b'"step"' in log.read_bytes()):
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        assert b"training" in os.read(ours, 1 << 16)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=30) == 129
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["ended"]) == ("end", "interrupted")
    steps = log.read_text().count('"event": "step"')
    assert api.step_of_weights(weights) == steps


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGTERM])
def test_what_is_ended_says_so(sent: signal.Signals, tmp_path: Path) -> None:
    options = ("--board", "rpi4b", "--budgets", "30%", "--time-limit", 60, "--json")
    with spawn("compare", "vgg16-cifar", *options, "-o", tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline()
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + sent
    assert err.endswith(f"poet-host: ended by {sent.name}\n")
    assert json.loads(out) == {"error": f"ended by {sent.name}", "exit_code": 128 + sent}


@pytest.mark.parametrize("sent", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_what_tests_start_heeds_signals_that_they_ignore(sent: signal.Signals) -> None:
    """As under `nohup`; or these tests would wait for commands that do not end."""
    script = "import signal, sys; print(signal.getsignal(int(sys.argv[1])) == signal.SIG_IGN)"
    before = signal.signal(sent, signal.SIG_IGN)
    try:
        with Process([sys.executable, "-c", script, int(sent)], stdout=subprocess.PIPE) as process:
            assert process.communicate(timeout=30)[0] == "False\n"
    finally:
        signal.signal(sent, before)


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def cards_of(board: str) -> list[Path]:
    """Its open files that are card images."""
    links = Path(f"/proc/{board}/fd").iterdir()
    return [link for link in links if "poet-" in os.readlink(link)]


def test_a_simulated_board_tells_its_port_as_json(tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    poet.prepare_storage(card, 4 * runs.MIB)
    with spawn("simulate", "native", "--storage", card, "--json") as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        with poet.connect(port) as connection:
            assert connection.device.info.storage_status == 0
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def test_a_board_that_ends_by_itself_leaves_the_port_the_one_object(tmp_path: Path) -> None:
    with spawn("simulate", "native", "--json") as process:
        assert process.stdout is not None
        assert "port" in json.loads(process.stdout.readline())
        for board in children(process.pid):
            os.kill(int(board), signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert "the board native ended by itself" in err


# Output.


def test_pictures_are_drawn(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    schedule, png, html = (tmp_path / name for name in ("s.poet", "s.png", "s.html"))
    assert poet_host("solve", costs, "--ram", 24, "-o", schedule).code == 0
    shown = poet_host("show", schedule, "--png", png, "--html", html)
    assert shown.code == 0
    assert shown.out == ""
    assert png.read_bytes().startswith(b"\x89PNG")
    assert html.read_text().startswith("<!doctype html>")


def test_a_reader_that_goes_away_is_no_error(
    poet_host: Command, costs: Path, tmp_path: Path
) -> None:
    schedule = tmp_path / "s.poet"
    assert poet_host("solve", costs, "--ram", 24, "-o", schedule).code == 0
    process = spawn("show", schedule)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=20)


def test_a_folder_that_takes_no_files_is_an_error_of_one_line(
    poet_host: Command, costs: Path, tmp_path: Path
) -> None:
    result = poet_host("solve", costs, "--ram", 24, "-o", tmp_path / "none" / "s.poet")
    assert result.code == 2
    assert "cannot be written" in result.err


def test_a_graph_that_nobody_can_keep_whole_is_solved(poet_host: Command, tmp_path: Path) -> None:
    """Without storage, an overwritten tensor that is needed again can only be computed again."""
    node = {"bytes": 8, "time_us": 1, "energy_uj": 1}
    nodes = [
        {"name": "a", "inputs": [], **node},
        {"name": "b", "inputs": ["a"], "overwrites": "a", **node},
        {"name": "c", "inputs": ["a", "b"], **node},
    ]
    graph = {"format": "poet-cost-graph", "version": 1, "name": "x", "nodes": nodes}
    path = tmp_path / "x.graph.json"
    path.write_text(json.dumps({**graph, "storage": False}))
    found = poet_host("solve", path, "--ram", 24, "--json", "-o", tmp_path / "x.poet")
    assert (found.code, found.json["status"], found.json["energy_uj"]) == (0, "optimal", 4.0)
    assert poet_host("solve", path, "--ram", 23, "--json").json["smallest_ram_bytes"] == 24
    assert poet_host("solve", path, "--ram", "50%").code == 2
