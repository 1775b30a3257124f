"""The corpus of file formats, tests/corpus: files that every later version must read or refuse.

- `3`: files of version 3, which this module wrote with today's poet-host. Run `python -m
  support.corpus` in the folder `tests` to write them again. After the release of 0.3.0 they are
  frozen: do not write them again, but add a folder.
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

import poet_host as poet
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem
from poet_host.plan.verify import verify
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs

CORPUS = Path(__file__).parents[1] / "corpus"
NOW = CORPUS / "3"
BEFORE = CORPUS / "2"
OLDER = CORPUS / "2-other-operators"
STEPS = 3
STREAMED_DATA = "synthetic:60:10"


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


def _schedules() -> tuple[Schedule, Schedule]:
    board = runs.profile()
    graph = tiny()
    problem = poet.problem(graph, board, ram="60%")
    plan = poet.solve(problem, method="poet-remat", gap=0.1)
    _write("profile.json", board.to_json())
    _write("small.graph.json", dump_cost_graph(problem.graph))
    _write("small.plan.json", plan.to_json())
    wide = poet.problem(perceptron(), board, ram=8_192, objective="added-energy")
    return poet.encode(graph, plan), poet.encode(perceptron(), poet.solve(wide))


def write() -> None:
    """Write the folder NOW again."""
    NOW.mkdir(exist_ok=True)
    _fused()
    small, streamed = _schedules()
    _write("small.poet.xz", small.to_bytes())
    _write("streamed.poet.xz", streamed.to_bytes())
    run = runs.train(streamed, poet.load_data(STREAMED_DATA), steps=STEPS)
    poet.save_weights(NOW / "streamed.safetensors", streamed.graph, run.weights, STEPS)
    with TemporaryDirectory() as folder:
        card = Path(folder) / "card.img"
        poet.prepare_storage(card, 64 * runs.MIB)
        run = runs.train(small, storage=card, steps=STEPS)
        _write("card.img.xz", card.read_bytes())
    _write("run.json", run.to_json())
    poet.save_weights(NOW / "small.safetensors", small.graph, run.weights, STEPS)


if __name__ == "__main__":
    write()
