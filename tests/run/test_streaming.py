"""Operators that stream: a network trains in less RAM than one of its operators has, same bits."""

from collections.abc import Callable
from functools import cache

import pytest
from poet_host import api
from poet_host.data.datasets import Dataset
from poet_host.firmware_build.native import build_native
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.bert import bert
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import Plan
from poet_host.run.run import weights_sha256
from poet_host.sim import native
from support import whole_runs as runs
from support.corpus import perceptron

RAM_BYTES = 24_576


def residual() -> Graph:
    """A small network with the operators of resnet18, and a depthwise convolution."""
    b = Builder("residual", data=(1, 3, 12, 12))
    x = b.relu(
        b.batchnorm2d(b.conv2d(b.data, 12, 3, padding=1, name="conv"), name="bn"), name="relu"
    )
    y = b.conv2d(x, 20, 3, stride=2, padding=1, name="conv1")
    y = b.relu(b.batchnorm2d(y, name="bn1"), name="relu1")
    y = b.batchnorm2d(b.conv2d(y, 20, 3, padding=1, groups=20, name="conv2"), name="bn2")
    short = b.batchnorm2d(b.conv2d(x, 20, 1, stride=2, name="short"), name="short.bn")
    x = b.relu(b.add(y, short, name="add"), name="relu2")
    x = b.linear(b.global_avgpool(x, name="pool"), 10, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05, momentum=0.9))


def attention() -> Graph:
    """A small transformer whose weights are larger than its tokens."""
    sizes = {"words": 40, "width": 32, "blocks": 1, "heads": 2, "classes": 10}
    return training_graph(bert(Builder("attention", (1, 16), "int32"), **sizes), Sgd(0.05))


def words() -> Graph:
    """A small transformer whose texts have few of the rows of its table."""
    sizes = {"words": 600, "width": 32, "blocks": 1, "heads": 2, "classes": 10}
    return training_graph(bert(Builder("words", (1, 4), "int32"), **sizes), Sgd(0.05))


def pooled() -> Graph:
    """A network with the operators of resnet18's stem, whose planes exceed its RAM."""
    b = Builder("pooled", data=(1, 3, 96, 96))
    x = b.batchnorm2d(b.conv2d(b.data, 8, 7, stride=2, padding=3, name="stem"), name="bn")
    x = b.maxpool2d(b.relu(x, name="relu"), 3, stride=2, padding=1, name="pool")
    x = b.avgpool2d(b.conv2d(x, 8, 3, padding=1, name="conv"), 2, name="mean")
    x = b.linear(b.global_avgpool(x, name="average"), 10, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05))


def separable() -> Graph:
    """A network with the operators of mobilenet, whose planes exceed its RAM."""
    b = Builder("separable", data=(1, 3, 96, 96))
    x = b.batchnorm2d(b.conv2d(b.data, 8, 3, stride=2, padding=1, name="stem"), name="bn")
    x = b.relu6(x, name="relu")
    x = b.conv2d(x, 8, 3, stride=2, padding=1, groups=8, name="depth")
    x = b.conv2d(b.relu6(x, name="relu1"), 16, 1, name="point")
    x = b.linear(b.global_avgpool(x, name="average"), 10, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05))


def streamed(graph: Graph, ram_bytes: int) -> Plan:
    """A plan for less RAM than an operator needs, with nests."""
    problem = api.problem(graph, runs.profile(), ram=ram_bytes)
    assert problem.streaming is not None
    plan = api.solve(problem, work_limit=20_000, gap=0.5)
    assert sum(statement.mode > 0 for statement in plan.statements) > 3
    return plan


def test_pairs_train_to_the_same_weights() -> None:
    """Both gradients of a layer are one statement, and its weight is read once for them."""
    graph = perceptron()
    problem = api.problem(graph, runs.profile(), ram=8_192, objective="added-energy")
    plan = api.solve(problem, work_limit=20_000)
    nodes, index = problem.graph.nodes, problem.graph.index
    modes = [nodes[index[s.node]].mode(s.mode) for s in plan.statements if s.op == "compute"]
    assert any(mode.also for mode in modes)
    data = api.load_data("synthetic:60:10")
    run = runs.train(api.encode(graph, plan), data, steps=3)
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=3))


def test_statistics_of_a_convolution_train_to_the_same_weights() -> None:
    """The output of the convolution streams, and its statistics do not read it from storage."""
    graph = residual()
    problem = api.problem(graph, runs.profile(), ram=5_120, objective="added-energy")
    plan = api.solve(problem, work_limit=20_000)
    assert problem.streaming is not None
    used = [problem.streaming.nests.get((s.node, s.mode)) for s in plan.statements]
    assert any(nest and nest.statistics and nest.operands[-1] for nest in used)
    data = api.load_data("synthetic:3x12x12:10")
    run = runs.train(api.encode(graph, plan), data, steps=2)
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=2))


@cache
def with_smallest_ram(model: Callable[[], Graph]) -> tuple[Graph, int]:
    """A network, and the least RAM in which it trains."""
    graph = model()
    least = api.solve(graph, runs.profile(), ram=64).smallest_ram_bytes
    assert least is not None
    return graph, least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "part"),
    [
        (residual, "synthetic:3x12x12:10", 1.0),
        (residual, "synthetic:3x12x12:10", 2.0),
        (attention, "tokens:16:40:10", 1.0),
        (words, "tokens:4:600:10", 1.0),
    ],
)
def test_a_small_network_trains_the_same_bits(
    model: Callable[[], Graph], data: str, part: float
) -> None:
    graph, least = with_smallest_ram(model)
    assert least < largest_operator_bytes(api.costs_of(graph, runs.profile())) / 3
    ram_bytes = int(least * part) // 4 * 4
    schedule = api.encode(graph, streamed(graph, ram_bytes))
    run = runs.train(schedule, data, steps=6)  # on a board with this RAM and no more
    assert run.peak_bytes <= ram_bytes
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=6))


@pytest.mark.slow
@pytest.mark.parametrize("model", [pooled, separable])
def test_planes_that_exceed_the_ram_are_cut_into_bands_of_rows(
    model: Callable[[], Graph],
) -> None:
    graph, data = model(), "synthetic:3x96x96:10"
    assert graph[graph.data].size_bytes > 3 * RAM_BYTES  # of three planes
    run = runs.train(api.encode(graph, streamed(graph, RAM_BYTES)), data, steps=2)
    assert run.peak_bytes <= RAM_BYTES
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dscnn-speech", "autoencoder-toyadmos"])
def test_models_of_mlperf_tiny_train_in_24_kib(name: str) -> None:
    graph = api.load_graph(name)
    is_coder = graph[graph.label].shape == graph[graph.data].shape
    data = api.load_data("synthetic:640:10" if is_coder else "synthetic:1x49x10:12")
    data = Dataset("spectra", data.x, data.x) if is_coder else data
    schedule = api.encode(graph, streamed(graph, RAM_BYTES))
    run = runs.train(schedule, data, steps=2)
    assert run.peak_bytes <= RAM_BYTES < largest_operator_bytes(api.costs_of(graph, "native")) / 3
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=2))


@pytest.mark.slow
def test_resnet18_trains_in_24_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fused nests: statistics of batchnorm, and gradients in one pass over a weight.

    The board has sanitizers. Its tables outside the arena are as small as those of the MKR1000.
    """
    monkeypatch.setattr(native, "build_native", lambda *_: build_native(sanitize=True))
    graph = api.load("resnet18")
    problem = api.problem(graph, runs.profile(), ram=RAM_BYTES, objective="added-energy")
    plan = api.solve(problem, work_limit=60_000, gap=0.01)
    nodes = problem.graph.nodes
    modes = [nodes[problem.graph.index[it.node]].mode(it.mode) for it in plan.statements]
    fused = [nodes[also.node].name for mode in modes for also in mode.also]
    for role in (":stats", ":new"):
        assert sum(name.endswith(role) for name in fused) > 5
    schedule = api.encode(graph, plan)
    assert len(schedule.plan_part) < 4096
    with runs.board(schedule) as board:
        info = board.device.hello()
        assert (info.resident_capacity, info.tensor_capacity, info.queue_capacity) == (40, 512, 8)
        run = api.train(schedule, board, runs.IMAGES, steps=3)
    assert run.peak_bytes <= RAM_BYTES < largest_operator_bytes(api.costs_of(graph, "native")) / 300
    assert weights_sha256(run.weights) == runs.RESNET18_SHA256
    assert run.weights.keys() == start_values(graph, 0).keys()
