"""Whole training runs on native boards, shared by the tests of run, command line and demo."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
from poet_host import api
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import batch_of_step
from poet_host.graph.autodiff import Adam, Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.plan.plan import Plan
from poet_host.profile.profile import Profile, estimate_profile
from poet_host.reference.rates import Rate, factor_of
from poet_host.reference.step import run_step
from poet_host.run.run import Run
from poet_host.schedule.schedule import Schedule

MIB = 1 << 20
IMAGES = "synthetic:3x32x32:10"
# The weights of resnet18 after 3 steps on IMAGES, under every plan.
RESNET18_SHA256 = "92ee030fc35c2b095598527d51325df92a3fa771b39053f084cd382b85f60328"


@cache
def profile() -> Profile:
    """Estimated, so that the same plans come out every time."""
    return estimate_profile(api.load_board("native"))


@cache
def digits(momentum: float = 0.0, weight_decay: float = 0.0, learning_rate: float = 0.02) -> Graph:
    return api.load(
        "resnet-digits", momentum=momentum, weight_decay=weight_decay, learning_rate=learning_rate
    )


@cache
def mixed() -> Graph:
    """What resnet-digits does not have: depthwise, relu6, dropout, averages, mean squared error."""
    b = Builder("mixed", data=(2, 3, 8, 8))
    x = b.relu6(b.conv2d(b.data, 6, 3, stride=2, padding=1, name="conv"), name="relu6")
    x = b.relu(b.conv2d(x, 6, 3, padding=1, groups=6, name="depthwise"), name="relu")
    x = b.dropout(b.avgpool2d(x, 2, name="pool"), 0.25, name="dropout")
    x = b.linear(b.global_avgpool(x, name="mean"), 4, name="fc")
    model = b.model(b.mse(x, name="loss"))
    return training_graph(model, Sgd(0.05, momentum=0.9, weight_decay=0.001), "all")


@cache
def texts() -> Graph:
    """A small transformer with dropout, a row for padding and tables used twice, by Adam."""
    b = Builder("texts", data=(2, 12), dtype="int32")
    table = b.parameter((40, 8), start="normal:0.5", name="word")
    x = b.add(
        b.gather(b.data, table, padding=0), b.parameter((12, 8), start="normal:0.5", name="place")
    )
    x = b.layernorm(b.dropout(x, 0.1), name="norm")
    scores = b.attention_scores(b.linear(x, 8, name="q"), b.linear(x, 8, name="k"), 2)
    weights = b.masked_softmax(scores, b.data, causal=True)
    x = b.add(x, b.attention_context(weights, b.linear(x, 8, name="v")))
    x = b.add(x, b.linear(b.gelu(b.linear(x, 16, name="wide")), 8, name="narrow"))
    x = b.matmul(b.mean(x, 1), table, transpose_b=True)
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Adam(0.01, weight_decay=0.01))


@cache
def one_image() -> Graph:
    """Convolutions of a single sample: slices cut their channels and rows."""
    b = Builder("one-image", data=(1, 6, 13, 13))
    x = b.relu(b.conv2d(b.data, 10, 3, padding=1, name="conv1"), name="relu1")
    x = b.relu(b.conv2d(x, 12, 3, stride=2, padding=1, name="conv2"), name="relu2")
    x = b.linear(b.global_avgpool(x, name="mean"), 4, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05), "all")


@cache
def steps() -> Graph:
    """Layers along 150 steps, in both directions."""
    b = Builder("steps", data=(1, 150, 4))
    x = b.reshape(b.data, (150, 1, 4))
    x = b.gru(b.linear(x, 18, name="in1"), name="gru")
    first = b.reshape(b.slice(x, 0, 149, 150, name="last"), (1, 6))
    x = b.lstm_from(b.linear(x, 24, name="in2"), first, first, backward=True, name="lstm")
    x = b.linear(b.reshape(b.slice(x, 0, 0, 1, name="end"), (1, 6)), 2, name="fc")
    return training_graph(b.model(b.mse(x, name="loss")), Sgd(0.05, momentum=0.5), "all")


_plans: dict[tuple[int, str | int, str], tuple[Graph, Plan]] = {}  # graphs have no hash


def plan(graph: Graph, ram: str | int, method: str = "poet") -> Plan:
    """Solved once for each graph object, budget and method."""
    key = (id(graph), ram, method)
    if key not in _plans:
        _plans[key] = graph, _solved(graph, ram, method)
    return _plans[key][1]


def _solved(graph: Graph, ram: str | int, method: str) -> Plan:
    found = api.solve(graph, profile(), ram=ram, method=method, work_limit=20_000, gap=0.1)
    assert found.statements, f"{graph.name} in {ram} by {method}: {found.status}"
    return found


def schedule(graph: Graph, ram: str | int = "100%", method: str = "keep-everything") -> Schedule:
    return api.encode(graph, profile(), plan(graph, ram, method))


@cache
def in_columns(samples: int = 1, ram_bytes: int = 4_096) -> tuple[Schedule, Dataset]:
    """A layer that streams columns of its tensors, which are not in row-major order."""
    b = Builder("columns", data=(samples, 16, 64))
    model = b.model(b.mse(b.linear(b.data, 24, name="fc"), name="loss"))
    graph = training_graph(model, Sgd(0.05), "all")
    problem = api.problem(graph, profile(), ram=ram_bytes)
    plan = api.solve(problem, work_limit=3_000, gap=0.5)
    made = api.encode(graph, plan, forward=samples == 1)
    names = (graph.data, graph.label, graph.logits, "fc.weight")
    assert not any(made.model.tensors[made.numbers[it]].cut.is_row_major for it in names)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(5, 16, 64)), rng.normal(size=(5, 16, 24))
    return made, Dataset("drawn", x.astype("<f4"), y.astype("<f4"))


def small() -> Schedule:
    """resnet-digits in 60 % of the RAM that keeping everything takes."""
    return schedule(digits(), "60%", "poet")


@contextmanager
def board(
    schedule: Schedule, storage: Path | None = None, **options: Any
) -> Iterator[poet.Connection]:
    """A native board with as much RAM as the schedule was solved for, and no more."""
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with poet.connect("native", storage=storage, arena_bytes=arena_bytes, **options) as found:
        yield found


def train(
    schedule: Schedule, data: Any = "digits", *, storage: Path | None = None, **how: Any
) -> Run:
    with board(schedule, storage) as connection:
        return poet.train(schedule, connection, data, **how)


def trained_by_reference(
    graph: Graph, values: Any, data: Any, steps: int, rates: Sequence[Rate] = ()
) -> dict[str, Any]:
    """The tensors after the same training in NumPy, from the given ones."""
    values = dict(values)
    for step in range(steps):
        x, y = batch_of_step(data, graph.batch, 0, step)
        stored = {**values, graph.data: x, graph.label: y}
        found = run_step(graph, stored, step + 1, factor_of(rates, step + 1))
        values |= {node.updates: found[node.name] for node in graph if node.updates}
    return values


def same(one: Run, other: Run) -> bool:
    """Are all weights the same bits?"""
    assert one.weights.keys() == other.weights.keys()
    return all(one.weights[name].tobytes() == other.weights[name].tobytes() for name in one.weights)


def unknown() -> Graph:
    """Kernels that the profiled models have, in shapes that they do not."""
    b = Builder("unknown", data=(3, 2, 9, 9))
    x = b.relu(b.conv2d(b.data, 5, 3, padding=1, name="conv1"), name="relu1")
    x = b.relu(b.batchnorm2d(b.conv2d(x, 10, 3, stride=2, padding=1, name="conv2"), name="bn"))
    x = b.linear(b.global_avgpool(x, name="mean"), 7, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05, momentum=0.9), "all")
