"""The corpus of file formats, tests/corpus: files that every later version must read or refuse.

- `3`: files of version 3, which this module wrote with today's poet-host. Run `python -m
  support.corpus` in the folder `tests` to write them again. After the release of 0.3.0 they are
  frozen: do not write them again, but add a folder. `SCHEDULES` lists the schedules, each with its
  weights after 3 steps. `card.img` was trained with `small`; `job.img` has a job for `staying`,
  whose end has the weights `job`; `device.img` is the storage of a learner with the package
  `device`, of whose folder only the data are kept.
- `2`: files of version 2, which 0.2.0 wrote.
- `2-other-operators`: files of commit 1c76120b, which has the same formats and other operators.

The latter has the schedule of tiny.onnx (`--loss cross-entropy --lr 0.1 --momentum 0.9`), a card
after 5 steps of `digits`, and the weights that `train` saved.
"""

import json
import lzma
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import poet_host as poet
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.package import folder as package
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem
from poet_host.plan.verify import verify
from poet_host.run.run import Run
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.learner_bench import Device, Kind, Learner, Trace, blocks, packaged

CORPUS = Path(__file__).parents[1] / "corpus"
NOW = CORPUS / "3"
BEFORE = CORPUS / "2"
OLDER = CORPUS / "2-other-operators"
STEPS = 3
JOB_STEPS = 4
JOB = {"steps": JOB_STEPS, "lr_schedule": "cosine", "warmup": 1}
# The data of each schedule of version 3.
SCHEDULES = {
    "small": "digits",  # recomputes and pages, with the ONNX file and momentum
    "streamed": "synthetic:60:10",  # nests and pairs
    "convolutions": "synthetic:6x12x12:4",  # nests with statistics, computed again too
    "staying": "synthetic:6x12x12:4",  # commits every 4 steps; a nest is computed again
    "in-place": "synthetic:24:3",  # overwrites by choice; frozen weights
    "no-card": "synthetic:6x12x12:4",  # for a board without a card, in slices
}
DEVICE = Kind(pages=True, every=3)
DEVICE_STEPS = 17


def tiny() -> Graph:
    return poet.load(
        str(CORPUS / "tiny.onnx"), loss="cross-entropy", learning_rate=0.1, momentum=0.9
    )


def perceptron() -> Graph:
    """A network whose weights exceed the RAM of its schedule, with neighbouring gradients."""
    b = Builder("perceptron", data=(1, 60))
    x = b.relu(b.linear(b.data, 80, name="one"), name="relu")
    x = b.relu(b.linear(x, 70, name="two"), name="relu2")
    return training_graph(b.model(b.softmax_xent(b.linear(x, 10, name="three"))), Sgd(0.05))


def convolutions() -> Graph:
    b = Builder("convolutions", data=(1, 6, 12, 12))
    x = b.relu(b.batchnorm2d(b.conv2d(b.data, 12, 3, padding=1, name="one")))
    x = b.relu(b.batchnorm2d(b.conv2d(x, 12, 3, padding=1, name="two")))
    x = b.linear(b.global_avgpool(x), 4, name="three")
    return training_graph(b.model(b.softmax_xent(x)), Sgd(0.05))


def elementwise() -> Graph:
    b = Builder("elementwise", data=(32, 24))
    x = b.elu(b.linear(b.data, 16, name="one"))
    x = b.softplus(b.add(x, b.linear(x, 16, name="two")))
    x = b.linear(x, 3, name="three")
    return training_graph(b.model(b.softmax_xent(x)), Sgd(0.05, momentum=0.9), "last:2")


@cache
def content(path: Path) -> bytes:
    """A file of the corpus; if its name ends in .xz, what was compressed."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def value(name: str, folder: Path = NOW) -> Any:
    """The object in a JSON file."""
    return json.loads(content(folder / name))


def _write(name: str, data: bytes | dict[str, Any]) -> None:
    if isinstance(data, dict):
        data = (json.dumps(data, allow_nan=False, indent=1) + "\n").encode()
    (NOW / name).write_bytes(lzma.compress(data) if name.endswith(".xz") else data)


def _fused() -> None:
    """A cost graph of version 2 and a plan for it, both from the test of such graphs."""
    from plan.test_fused_modes import GRAPH, PLAN

    problem = Problem(GRAPH, 52)
    plan = Plan("feasible", 52, statements=PLAN, problem=problem)
    _write("fused.graph.json", dump_cost_graph(GRAPH))
    totals = vars(verify(problem, plan))
    del totals["longest_us"]  # no field of a plan
    _write("fused.plan.json", replace(plan, **totals).to_json())


def _solved(graph: Graph, ram: int | str, **limits: Any) -> Schedule:
    objective = "energy" if "storage" in limits else "added-energy"
    problem = poet.problem(graph, runs.profile(), ram=ram, objective=objective, **limits)
    return poet.encode(graph, poet.solve(problem, work_limit=3_000))


def _schedules() -> dict[str, Schedule]:
    board = runs.profile()
    graph = tiny()
    problem = poet.problem(graph, board, ram="60%")
    plan = poet.solve(problem, method="poet-remat", gap=0.1, work_limit=20_000)
    _write("profile.json", board.to_json())
    _write("small.graph.json", dump_cost_graph(problem.graph))
    _write("small.plan.json", plan.to_json())
    made = (
        poet.encode(graph, plan),
        _solved(perceptron(), 8_192),
        _solved(convolutions(), 12_000),
        _solved(convolutions(), 12_000, commit_every=4),
        _solved(elementwise(), "80%"),
        _solved(convolutions(), "100%", storage=False, slice="50us"),
    )
    return dict(zip(SCHEDULES, made, strict=True))


def _save_weights(name: str, schedule: Schedule, weights: Any, steps: int) -> None:
    poet.save_weights(NOW / f"{name}.safetensors", schedule.graph, weights, steps)


def _cards(small: Schedule, staying: Schedule, folder: Path) -> Run:
    data = poet.load_data(SCHEDULES["staying"])
    data = replace(data, x=data.x[:JOB_STEPS], y=data.y[:JOB_STEPS])
    for name in ("card.img", "job.img"):
        poet.prepare_storage(folder / name, 64 * runs.MIB)
    with poet.open_card(folder / "job.img", writable=True) as job:
        poet.write_card(staying, job, data, **JOB)
    _save_weights("job", staying, runs.train(staying, data, **JOB).weights, JOB_STEPS)
    run = runs.train(small, storage=folder / "card.img", steps=STEPS)
    for name in ("card.img", "job.img"):
        _write(f"{name}.xz", (folder / name).read_bytes())
    return run


def _device(folder: Path) -> None:
    """The data of a package, and the storage of its learner, which needs no erase."""
    device, kept = Device(blocks(DEVICE, 0)), ("package.json", "extras")
    learner, trace = Learner(DEVICE, device), Trace(DEVICE)
    for number in range(DEVICE_STEPS):
        while not trace.teach(learner, number % 3):
            learner.run()
        learner.learn(1)
        learner.run()
    learner.save()
    _write("device.img.xz", bytes(device.image))
    np.savez(
        NOW / "device-trace.npz",
        x=np.stack(trace.x),
        y=[it.label for it in trace.taught],
        next_step=[it.next_step for it in trace.taught],
    )
    package.write(packaged(DEVICE), "c", folder / "device")
    for path in (folder / "device").rglob("*"):
        relative = path.relative_to(folder / "device")
        if path.is_file() and relative.parts[0] in kept:
            to = NOW / "device" / relative
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())


def write() -> None:
    """Write the folder NOW again."""
    NOW.mkdir(exist_ok=True)
    _fused()
    made = _schedules()
    for name, schedule in made.items():
        _write(f"{name}.poet.xz", schedule.to_bytes())
        if name != "small":
            run = runs.train(schedule, SCHEDULES[name], steps=STEPS)
            _save_weights(name, schedule, run.weights, STEPS)
    with TemporaryDirectory() as folder:
        run = _cards(made["small"], made["staying"], Path(folder))
        _device(Path(folder))
    _write("run.json", run.to_json())
    _save_weights("small", made["small"], run.weights, STEPS)


if __name__ == "__main__":
    write()
