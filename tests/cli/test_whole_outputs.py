"""A full disk, or SIGKILL, at every write of every output: no file is ever half written.

`fault_writes.c` counts what each command does to files in the folder of its outputs. Each of these
events is once the one from which on the disk is full, and once the one that kills the command.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import poet_host as poet
import pytest
import torch
from poet_host.files import read_json
from poet_host.graph.weights import start_values
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import Process
from support.onnx_judge import imported
from support.onnx_models import legacy

SUPPORT = Path(__file__).parents[1] / "support"
COUNT, DISK_IS_FULL, KILL = range(3)  # of fault_writes.c
KILLED = -9
MOST_EVENTS = 40  # of a command that are tried: of the many writes to a card, some
OLD = b"the old file"
Check = Callable[[Path], object]


class Commands:
    """Runs commands in a process that lets their writes to the folder `out` fail."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.out, self.printed, state = folder / "out", folder / "printed", folder / "state"
        self.out.mkdir()
        state.write_bytes(bytes(16))
        self._process = Process(
            [sys.executable, SUPPORT / "fault_driver.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env=os.environ
            | {"LD_PRELOAD": str(library), "POET_FAULT_STATE": str(state)}
            | {"POET_FAULT_FOLDER": str(self.out), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def run(self, command: Sequence[object], kind: int = COUNT, at: int = 0) -> tuple[int, int]:
        """Return the exit code, and the number of events."""
        assert self._process.stdin
        assert self._process.stdout
        case = {"command": [str(word) for word in command], "kind": kind, "at": at}
        print(json.dumps({**case, "output": str(self.printed)}), file=self._process.stdin)
        self._process.stdin.flush()
        code, events = json.loads(self._process.stdout.readline())
        assert "Traceback" not in self.printed.read_text()
        return code, events

    def fill(self, before: Mapping[str, bytes]) -> None:
        """Make these the only files in the folder, apart from what killed commands have left."""
        for name in self.files():
            if ".poet-" not in name:
                (self.out / name).unlink()
        for name, data in before.items():
            (self.out / name).write_bytes(data)

    def files(self) -> list[str]:
        """The names of all files in the folder and in its folders."""
        found = (path.relative_to(self.out) for path in self.out.rglob("*") if path.is_file())
        return sorted(str(path) for path in found)

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("library") / "faults.so"
    source = SUPPORT / "fault_writes.c"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, source, "-o", built, "-ldl"], check=True)
    return built


@pytest.fixture
def commands(tmp_path: Path, library: Path) -> Iterator[Commands]:
    found = Commands(tmp_path, library)
    yield found
    found.close()


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder, not that of the outputs, with a schedule, weights and a run."""
    schedule = runs.schedule(runs.digits())
    schedule.save(tmp_path / "m.poet")
    with poet.connect("native", arena_bytes=schedule.meta["plan"]["ram_bytes"]) as board:
        run = poet.train(schedule, board, "digits", steps=2)
    poet.save_weights(tmp_path / "w.safetensors", schedule.graph, run.weights, 2)
    return tmp_path


def log(path: Path) -> None:
    """All lines but the last one are whole. The last one may be a part of a line."""
    *lines, _ = path.read_bytes().split(b"\n")
    assert all(json.loads(line) for line in lines)


def card(path: Path) -> None:
    """It has a store and, unless it is from `prepare`, a job."""
    with poet.connect("native", storage=path) as board:
        assert board.device.info.storage_status == 0


def ending(text: bytes) -> Check:
    def check(path: Path) -> None:
        assert path.read_bytes().rstrip().endswith(text)

    return check


def same(made: Mapping[str, bytes]) -> Check:
    """The file has the bytes that it has without a fault."""

    def check(path: Path) -> None:
        assert path.read_bytes() in made.values()

    return check


def walk(
    commands: Commands,
    command: Sequence[object],
    outputs: Mapping[str, Check | None],
    old: bytes = OLD,
    *,
    most: int = 0,
) -> None:
    """Let `command` fail at each event.

    `outputs`: their names, and what checks that one is whole. None: it always has the same bytes.
    They are absent before the command, and then once more files with the content `old`. `most`:
    for a slow command, the number of events to try, with old files only.
    """
    for before in ({}, dict.fromkeys(outputs, old))[bool(most) :]:
        commands.fill(before)
        code, events = commands.run(command)
        assert code == 0, commands.printed.read_text()
        made = {name: (commands.out / name).read_bytes() for name in outputs}
        assert commands.files() == sorted(outputs)
        step = -(-events // (most or MOST_EVENTS))
        for kind in (DISK_IS_FULL, KILL):
            for at in {*range(1, events + 1, step), *range(max(1, events - 3), events + 1)}:
                commands.fill(before)
                code, _ = commands.run(command, kind, at)
                assert code == KILLED if kind == KILL else code in (0, 1, 2)
                for name, check in outputs.items():
                    path = commands.out / name
                    if not path.exists():
                        assert name not in before
                    elif path.read_bytes() != before.get(name):
                        (check or same(made))(path)
    commands.fill({})
    assert commands.run(command)[0] == 0
    assert commands.files() == sorted(outputs)  # nothing of the killed commands is left


@pytest.mark.slow  # 30 s
def test_training(commands: Commands, inputs: Path) -> None:
    out = commands.out
    command = (
        "train", inputs / "m.poet", "--port", "native", "--data", "digits", "--steps", 2,
        "--save-every", 1, "--save-weights", out / "w.safetensors", "--run", out / "run.json",
        "--log", out / "log",
    )  # fmt: skip
    walk(commands, command, {"w.safetensors": poet_weights, "run.json": read_json, "log": log})


def poet_weights(path: Path) -> None:
    assert poet.step_of_weights(path) in (1, 2)
    poet.load_weights(path, runs.digits())


@pytest.mark.slow  # 30 s
def test_profiling(commands: Commands) -> None:
    command = ("profile", "lenet-digits", "--port", "native", "--no-validate")
    walk(commands, (*command, "-o", commands.out / "p"), {"p": read_json}, most=10)


@pytest.mark.slow  # 40 s
def test_solving(commands: Commands) -> None:
    command = ("solve", "resnet-digits", "--board", "native", "--ram", "100%")
    command += ("--method", "checkpoint-all")
    files = ("-o", commands.out / "m.poet", "--plan", commands.out / "plan.json")
    walk(commands, (*command, *files), {"m.poet": Schedule.load, "plan.json": read_json})


@pytest.mark.slow  # 20 s
def test_pictures(commands: Commands, inputs: Path) -> None:
    command = ("show", inputs / "m.poet", "--png", commands.out / "m.png")
    walk(commands, command, {"m.png": ending(b"IEND\xaeB`\x82")}, most=10)


@pytest.mark.slow
def test_pages(commands: Commands, inputs: Path) -> None:
    out = commands.out
    command: tuple[object, ...] = ("show", inputs / "m.poet", "--html", out / "m.html")
    command += ("--trace", out / "t.json")
    walk(commands, command, {"m.html": ending(b"</html>"), "t.json": read_json})


@pytest.mark.slow
def test_models(commands: Commands, tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    content = legacy(layers, torch.zeros(1, 3, 4))
    graph = imported(content, loss="cross-entropy")
    runs.schedule(graph).save(tmp_path / "m.poet")
    poet.save_weights(tmp_path / "w.safetensors", graph, start_values(graph, 0))
    model = commands.out / "m.onnx"
    command = ("export", tmp_path / "m.poet", "-w", tmp_path / "w.safetensors", "-o", model)
    walk(commands, command, {"m.onnx": lambda path: onnx.checker.check_model(str(path))})


@pytest.mark.slow
@pytest.mark.parametrize("board", ["mkr1000", "rpi4b"])
def test_firmware(commands: Commands, board: str) -> None:
    compiler = {"mkr1000": "arm-none-eabi-gcc", "rpi4b": "aarch64-linux-gnu-gcc"}[board]
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is missing")
    walk(commands, ("build", board, "-o", commands.out / "firmware"), {"firmware": None})


@pytest.mark.slow  # 40 s
def test_comparisons(commands: Commands) -> None:
    command = ("compare", "lenet-digits", "--board", "native", "--methods", "checkpoint-all")
    command += ("--budgets", "100%", "-o", str(commands.out))
    commands.run(command)
    names = commands.files()
    assert {"table.csv", "table.json"} < set(names)
    outputs = {name: read_json if name.endswith(".json") else ending(b"") for name in names}
    walk(commands, command, outputs, most=4)


@pytest.mark.slow  # 30 s
def test_cards(commands: Commands, inputs: Path) -> None:
    out = commands.out
    prepare = ("storage", "prepare", out / "c.img", "--size", "64MiB", "--force")
    walk(commands, prepare, {"c.img": card})
    write = ("card", "write", inputs / "m.poet", "--data", "digits", "-o", out / "c.img")
    write += ("--steps", "2", "--erase-card")
    commands.fill({})
    poet.prepare_storage(out / "c.img", "64MiB")
    walk(commands, write, {"c.img": card}, (out / "c.img").read_bytes(), most=20)
    image = inputs / "c.img"
    commands.run((*write[:5], "-o", image, "--steps", 2))
    read = ("card", "read", inputs / "m.poet", "--storage", image)
    files = ("--save-weights", out / "w.safetensors", "--log", out / "log")
    walk(commands, (*read, *files), {"w.safetensors": None, "log": log})
