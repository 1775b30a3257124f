"""stdout or stderr on a full disk, closed, or without a reader: one sentence, and no success."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from poet_host.plan.costgraph import dump_cost_graph
from support import whole_runs as runs
from support.chains import with_parameters

TABLE = ("models",)
OBJECT = ("models", "--json")
LISTING = ("show", "schedules/resnet-digits-mkr1000.poet")  # longer than the buffer of stdout
HELP = ("--help",)
WRONG = ("show", "missing.poet", "--json")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # each runs whole processes


def ended(redirected: str, *command: object) -> subprocess.CompletedProcess[str]:
    """Run `poet-host` in a shell, which redirects its outputs."""
    words = [sys.executable, "-m", "poet_host", *map(str, command)]
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$@" {redirected}', "bash", *words],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", [TABLE, OBJECT, LISTING, HELP])
def test_stdout_on_a_full_disk(command: tuple[str, ...]) -> None:
    done = ended(">/dev/full", *command)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("poet-host: stdout cannot be written (no space left on device)")


@pytest.mark.parametrize("command", [OBJECT, WRONG])
def test_both_on_a_full_disk(command: tuple[str, ...]) -> None:
    done = ended(">/dev/full 2>&1", *command)
    assert (done.returncode, done.stderr) == (2 if command == WRONG else 1, "")


def test_errors_keep_their_exit_code() -> None:
    done = ended(">/dev/full", *WRONG)
    assert done.returncode == 2
    assert "missing.poet" in done.stderr
    assert done.stderr.count("\n") == 1
    done = ended("2>/dev/full", *WRONG)
    assert json.loads(done.stdout)["exit_code"] == done.returncode == 2


def test_work_continues_without_messages(tmp_path: Path) -> None:
    """The command has said less than it should, so it does not report success."""
    schedule, weights = tmp_path / "m.poet", tmp_path / "w.safetensors"
    runs.schedule(runs.digits()).save(schedule)
    command = ("train", schedule, "--port", "native", "--data", "digits", "--steps", 2, "--json")
    done = ended("2>/dev/full", *command, "--save-weights", weights)
    assert done.returncode == 1
    assert json.loads(done.stdout)["steps"] == 2
    assert weights.exists()


@pytest.mark.parametrize(("command", "code"), [(OBJECT, 0), (WRONG, 2)])
def test_closed_outputs(command: tuple[str, ...], code: int) -> None:
    """Nobody wants the text."""
    done = ended(">&-", *command)
    assert (done.returncode, done.stderr.count("\n")) == (code, code // 2)
    assert ended(">&- 2>&-", *command).returncode == code


@pytest.mark.parametrize("command", [OBJECT, HELP])
def test_nobody_reads(command: tuple[str, ...]) -> None:
    done = ended("> >(exec true) 2> >(cat >&2); sleep 0.1", *command)
    assert done.stderr == ""


def test_letters_that_stdout_lacks_are_escaped(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(dump_cost_graph(replace(with_parameters(), name="модель"))))
    words = [sys.executable, "-m", "poet_host", "compare", graph, "--methods", "checkpoint-all"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*words, *more], capture_output=True, text=True, timeout=100, check=False,
            env=ascii_only,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["points"][0]["model"] == "модель"
