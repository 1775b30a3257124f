"""Every command of poet-host, and every function of its API, that writes files."""

import json
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import onnx
import poet_host as poet
import torch
from poet_host.files import read_json
from poet_host.graph.weights import start_values
from poet_host.schedule.schedule import Schedule

from . import whole_runs as runs
from .onnx_judge import imported
from .onnx_models import legacy
from .output_walk import RAM, TMP, Case, Check, Commands, patient, write_sparse

STEPS = 2
LAST = 4  # of the job on a card

# The board trains alone; then, or once it writes no more, Ctrl-C ends the command.
SIMULATE = """
import os, signal, threading, time
from poet_host.cli.main import run
def end():
    before = 0
    while before != (before := os.stat({card!r}).st_mtime_ns) or time.time_ns() - before < 7e8:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=end, daemon=True).start()
run(["simulate", "native", "--storage", {card!r}, "--arena", "1MiB"])
"""
SAVE = """
import poet_host as poet
schedule = poet.Schedule.load({schedule!r})
schedule.save({out!r} + "/m.poet")
weights = poet.load_weights({weights!r}, schedule.graph)
poet.save_weights({out!r} + "/w.safetensors", schedule.graph, weights, 2)
poet.estimate_profile(poet.load_board("native")).save({out!r} + "/p.json")
poet.prepare_storage({out!r} + "/c.img", "64MiB")
poet.export_card({card!r}, {out!r} + "/e.safetensors")
"""
# Another batch size is another layout: the weights of the card are kept in a file meanwhile.
BACKUP = """
import os, subprocess
import poet_host as poet
if os.path.exists({copy!r}):
    os.unlink({copy!r})  # the board of a killed run may still use it
subprocess.run(["cp", "--sparse=always", {card!r}, {copy!r}], check=True)
schedule = poet.Schedule.load({schedule!r})
with poet.connect("native", storage={copy!r}, arena_bytes=1 << 20) as board:
    poet.train(schedule, board, "digits", steps=4, resume=True)
"""
COMPILE = """
import os
from pathlib import Path
from poet_host.firmware_build.compile import compiled
os.environ["XDG_CACHE_HOME"] = {tmp!r}
for old in Path({tmp!r}, "poet-host").glob("*-one.o"):
    old.unlink()
found = compiled("one.o", ["cc", "-c"], [Path({source!r})], missing="no cc")
assert b"first" in found.read_bytes()
found.unlink()
found.parent.rmdir()
"""


def log(path: Path) -> None:
    """All lines but the last one are whole. The last one may be a part of a line."""
    first, *lines = path.read_bytes().split(b"\n")
    assert json.loads(first)["event"] == "begin"
    assert all(json.loads(line) for line in lines[:-1])


def whole_card(path: Path) -> None:
    problems = poet.check_card(path).problems
    assert not problems, problems


def poet_weights(path: Path) -> None:
    assert poet.step_of_weights(path) in range(1, LAST + 1)
    poet.load_weights(path, runs.digits())


def whole_zip(path: Path) -> None:
    assert ZipFile(path).testzip() is None


def whole_model(path: Path) -> None:
    onnx.checker.check_model(str(path))


def ending(text: bytes) -> Check:
    def check(path: Path) -> None:
        assert path.read_bytes().rstrip().endswith(text)

    return check


card = patient(whole_card)
png, html = ending(b"IEND\xaeB`\x82"), ending(b"</html>")
SUFFIXES: dict[str, Check] = {
    ".json": read_json, ".csv": ending(b""), ".poet": Schedule.load, ".safetensors": poet_weights,
    ".png": png,
}  # fmt: skip


def cases(inputs: Path, commands: Commands, names: tuple[str, ...] = ()) -> Iterator[Case]:
    """Yield the cases with these names, or all. `inputs`: a folder for the files that they read."""
    made = _Inputs(inputs, commands.out)
    for name, function in CASES.items():
        if not names or name in names:
            case = function(made, commands)
            assert case.name == name
            yield case


class _Inputs:
    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.schedule, self.weights = folder / "m.poet", folder / "w.safetensors"
        self.trained, self.job, self.empty = folder / "c.img", folder / "j.img", folder / "e.img"
        self.run = folder / "run.json"
        if self.schedule.exists():
            self.prepared = self.empty.read_bytes()
            return
        schedule = runs.schedule(runs.digits())
        schedule.save(self.schedule)
        poet.prepare_storage(self.empty, "64MiB")
        self.prepared = self.empty.read_bytes()
        write_sparse(self.trained, self.prepared)
        with runs.board(schedule, self.trained) as board:
            run = poet.train(schedule, board, "digits", steps=STEPS)
        self.run.write_text(json.dumps(run.to_json()))
        poet.save_weights(self.weights, schedule.graph, run.weights, STEPS)
        write_sparse(self.job, self.prepared)
        with poet.open_card(self.job, writable=True) as one:
            poet.write_card(schedule, one, "digits", steps=LAST)


def _train(made: _Inputs, commands: Commands) -> Case:
    out = made.out
    command = (
        "train", made.schedule, "--port", "native", "--data", "digits", "--steps", STEPS,
        "--save-every", 1, "--save-weights", out / "w.safetensors", "--run", out / "run.json",
        "--log", out / "log",
    )  # fmt: skip
    outputs = {"w.safetensors": poet_weights, "run.json": read_json, "log": log}
    return Case("train", command, outputs)


def _train_card(made: _Inputs, commands: Commands) -> Case:
    """The board writes the card in place."""
    out = made.out
    command = (
        "train", made.schedule, "--port", "native", "--data", "digits", "--steps", STEPS,
        "--save-weights", out / "w.safetensors", "--storage", out / "c.img",
    )  # fmt: skip
    outputs = {"c.img": card, "w.safetensors": poet_weights}
    return Case("train --storage", command, outputs, [{"c.img": made.prepared}], few=8)


def _temporary(made: _Inputs, commands: Commands) -> Case:
    """The temporary card, in RAM or on a disk."""
    command = ("evaluate", made.schedule, "--port", "native", "--data", "digits", "--samples", "4")
    command += ("--weights", str(made.weights))
    return Case("evaluate, temporary card", command, {}, [{}], watched=(RAM, TMP), few=8)


def _simulate(made: _Inputs, commands: Commands) -> Case:
    path = commands.out / "c.img"
    program = SIMULATE.format(card=str(path))
    before = {"c.img": made.job.read_bytes()}
    return Case("simulate --storage", ("python", program), {"c.img": card}, [before], few=3)


def _profile(made: _Inputs, commands: Commands) -> Case:
    command = ("profile", "lenet-digits", "--port", "native", "--no-validate", "-o")
    return Case("profile", (*command, made.out / "p"), {"p": read_json}, few=3)


def _solve(made: _Inputs, commands: Commands) -> Case:
    command = ("solve", "resnet-digits", "--board", "native", "--ram", "100%")
    command += ("--method", "checkpoint-all", "--plan", str(made.out / "plan.json"))
    outputs = {"m.poet": Schedule.load, "plan.json": read_json}
    return Case("solve", (*command, "-o", made.out / "m.poet"), outputs)


def _predict(made: _Inputs, commands: Commands) -> Case:
    command = ("predict", made.schedule, "--data", "digits", "--samples", "4", "--weights")
    outputs = {"p.csv": ending(b"\n")}
    return Case("predict", (*command, str(made.weights), "-o", made.out / "p.csv"), outputs, few=3)


def _show(made: _Inputs, commands: Commands) -> Case:
    out = made.out
    command = ("show", made.schedule, "--run", made.run, "--html", out / "m.html")
    command += ("--trace", out / "t.json", "--png", out / "m.png")
    return Case("show", command, {"m.html": html, "t.json": read_json, "m.png": png}, few=5)


def _export(made: _Inputs, commands: Commands) -> Case:
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    graph = imported(legacy(layers, torch.zeros(1, 3, 4)), loss="cross-entropy")
    schedule, weights = made.folder / "onnx.poet", made.folder / "onnx.safetensors"
    runs.schedule(graph).save(schedule)
    poet.save_weights(weights, graph, start_values(graph, 0))
    command = ("export", schedule, "-w", weights, "-o", made.out / "m.onnx")
    return Case("export", command, {"m.onnx": whole_model})


def _build(made: _Inputs, commands: Commands) -> Case:
    return Case("build", ("build", "mkr1000", "-o", made.out / "firmware"), {"firmware": None})


def _compile(made: _Inputs, commands: Commands) -> Case:
    source = made.folder / "one.c"
    source.write_text("int first(void) { return 1; }\n")
    program = COMPILE.format(tmp=str(commands.tmp), source=str(source))
    return Case("compiler's cache", ("python", program), {}, [{}], watched=(TMP,))


def _compare(made: _Inputs, commands: Commands) -> Case:
    command = ("compare", "lenet-digits", "--board", "native", "--methods", "checkpoint-all")
    command += ("--budgets", "100%", "--jobs", "1", "-o", str(made.out))
    return _folder("compare", command, commands)


def _demo(made: _Inputs, commands: Commands) -> Case:
    return _folder("demo", ("demo", "--port", "native", "--out", str(made.out)), commands)


def _folder(name: str, command: tuple[str, ...], commands: Commands) -> Case:
    """A command that writes files of many names into a folder."""
    commands.fill({})
    code, _ = commands.run(Case(name, command, {}))
    assert code == 0, commands.printed.read_text()
    files = [path.relative_to(commands.out) for path in commands.paths() if path.is_file()]
    outputs = {str(path): SUFFIXES[path.suffix] for path in files}
    return Case(name, command, outputs, [{}], few=2)


def _prepare(made: _Inputs, commands: Commands) -> Case:
    command = ("storage", "prepare", made.out / "c.img", "--size", "64MiB", "--force")
    return Case("storage prepare", command, {"c.img": card})


def _write(made: _Inputs, commands: Commands) -> Case:
    command = ("card", "write", made.schedule, "--data", "digits", "-o", made.out / "c.img")
    command += ("--steps", str(LAST), "--erase-card")
    befores = ({}, {"c.img": made.trained.read_bytes()})
    return Case("card write", command, {"c.img": card}, befores, few=8)


def _resume(made: _Inputs, commands: Commands) -> Case:
    command = ("card", "write", made.schedule, "--data", "digits", "-o", made.out / "c.img")
    command += ("--steps", str(LAST), "--resume")
    before = {"c.img": made.trained.read_bytes()}
    return Case("card write --resume", command, {"c.img": card}, [before], few=5)


def _read(made: _Inputs, commands: Commands) -> Case:
    out = made.out
    command = ("card", "read", made.schedule, "--storage", made.job)
    command += ("--save-weights", out / "w.safetensors", "--log", out / "log")
    return Case("card read", command, {"w.safetensors": None, "log": whole_log})


def whole_log(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[-1]["event"] == "end"


def _export_card(made: _Inputs, commands: Commands) -> Case:
    command = ("card", "export", made.trained, made.out / "w.safetensors")
    return Case("card export", command, {"w.safetensors": None})


def _check(made: _Inputs, commands: Commands) -> Case:
    return Case("card check", ("card", "check", made.trained), {}, [{}])


def _save(made: _Inputs, commands: Commands) -> Case:
    program = SAVE.format(
        schedule=str(made.schedule), out=str(made.out), weights=str(made.weights),
        card=str(made.trained),
    )  # fmt: skip
    outputs = dict.fromkeys(("m.poet", "w.safetensors", "p.json", "e.safetensors"))
    return Case("Python: save", ("python", program), {**outputs, "c.img": card})


def _backup(made: _Inputs, commands: Commands) -> Case:
    schedule, copy = made.folder / "batch.poet", made.folder / "copy.img"
    runs.schedule(poet.load("resnet-digits", learning_rate=0.02, batch=2)).save(schedule)
    program = BACKUP.format(card=str(made.trained), copy=str(copy), schedule=str(schedule))
    return Case("Python: train in another layout", ("python", program), {}, [{}], watched=(TMP,))


def _bundle(made: _Inputs, commands: Commands) -> Case:
    command = ("doctor", "--port", "native", "--bundle", made.out / "b.zip")
    return Case("doctor --bundle", command, {"b.zip": whole_zip})


CASES = {
    "train": _train, "train --storage": _train_card, "evaluate, temporary card": _temporary,
    "simulate --storage": _simulate, "profile": _profile, "solve": _solve, "show": _show,
    "predict": _predict, "export": _export, "build": _build, "compiler's cache": _compile,
    "compare": _compare, "demo": _demo, "storage prepare": _prepare, "card write": _write,
    "card write --resume": _resume, "card read": _read, "card export": _export_card,
    "card check": _check, "doctor --bundle": _bundle, "Python: save": _save,
    "Python: train in another layout": _backup,
}  # fmt: skip
