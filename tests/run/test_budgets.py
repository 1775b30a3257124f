"""Whole training runs: whatever the budget and the method, the weights are the same bits."""

import numpy as np
import poet_host as poet
import pytest
from poet_host import api
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.fitted import fit
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.plan.plan import Plan, Statement
from poet_host.run.run import weights_sha256
from support import whole_runs as runs

STEPS = 6
SMALLEST = "the smallest"
BUDGETS = [("75%", "poet"), ("50%", "poet"), (SMALLEST, "poet"), ("60%", "poet-paging")]


def data_of(graph: Graph) -> Dataset:
    if graph.name == "texts":
        return load_data("tokens:12:40:40")
    rng = np.random.default_rng(1)
    if graph.name == "steps":
        x = rng.standard_normal((8, 150, 4), dtype=np.float32)
        return Dataset("noise", x, rng.standard_normal((8, 2), dtype=np.float32))
    if graph.name != "mixed":
        return load_data("digits")
    x = rng.standard_normal((16, 3, 8, 8), dtype=np.float32)
    return Dataset("noise", x, rng.standard_normal((16, 4), dtype=np.float32))


def budget(graph: Graph, ram: str) -> str | int:
    """`SMALLEST` is what the planner names when it is asked for too little."""
    if ram != SMALLEST:
        return ram
    refused = api.solve(graph, runs.profile(), ram=64)
    assert refused.status == "infeasible"
    assert refused.smallest_ram_bytes is not None
    return refused.smallest_ram_bytes


GRAPHS = {
    "resnet-digits": lambda: runs.digits(),
    "with momentum and decay": lambda: runs.digits(0.9, 0.0005),
    "every other operator": runs.mixed,
    "a transformer by Adam": runs.texts,
    "layers along time": runs.steps,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_keeping_everything_trains_as_the_reference_does(name: str) -> None:
    graph = GRAPHS[name]()
    data = data_of(graph)
    run = runs.train(runs.schedule(graph), data, steps=STEPS)
    wanted = runs.trained_by_reference(graph, start_values(graph, 0), fit(data, graph), STEPS)
    assert run.weights.keys() == wanted.keys()
    assert all(run.weights[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert run.last_step == STEPS
    assert run.peak_bytes == runs.plan(graph, "100%", "keep-everything").peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("ram", "method"), BUDGETS)
@pytest.mark.parametrize("name", ["resnet-digits", "with momentum and decay"])
def test_every_budget_trains_the_same_bits(name: str, ram: str, method: str) -> None:
    graph = GRAPHS[name]()
    schedule = runs.schedule(graph, budget(graph, ram), method)
    run, whole = (runs.train(it, steps=STEPS) for it in (schedule, runs.schedule(graph)))
    assert runs.same(run, whole)
    assert [step.loss for step in run.steps] == [step.loss for step in whole.steps]
    assert run.peak_bytes <= schedule.meta["plan"]["ram_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ram"),
    [
        ("every other operator", "80%"),
        ("every other operator", SMALLEST),
        ("a transformer by Adam", "80%"),
        ("a transformer by Adam", "60%"),
    ],
)
def test_dropout_and_all_other_operators_train_the_same_bits(name: str, ram: str) -> None:
    graph = GRAPHS[name]()
    data = data_of(graph)
    small, whole = runs.schedule(graph, budget(graph, ram), "poet"), runs.schedule(graph)
    assert runs.same(
        runs.train(small, data, steps=STEPS, seed=3), runs.train(whole, data, steps=STEPS, seed=3)
    )


def test_a_sequence_larger_than_the_ram_trains_the_same_bits() -> None:
    graph = runs.steps()
    ram = budget(graph, SMALLEST)
    walks = [node for node in graph if node.op.startswith(("gru", "lstm"))]
    assert sum(node.size_bytes for node in walks) > 4 * int(ram)
    streamed = {s.node for s in runs.plan(graph, ram).statements if s.op == "compute" and s.mode}
    assert streamed >= {node.name for node in walks}
    small, whole = runs.schedule(graph, ram, "poet"), runs.schedule(graph)
    data = data_of(graph)
    assert runs.same(runs.train(small, data, steps=3), runs.train(whole, data, steps=3))


@pytest.mark.slow
def test_recomputation_alone_trains_the_same_bits() -> None:
    graph = runs.digits()
    run = runs.train(runs.schedule(graph, "80%", "poet-remat"), steps=STEPS)
    counts = run.counts()
    assert counts["recomputes"] > 0
    assert counts["activation_page_outs"] == 0
    assert runs.same(run, runs.train(runs.schedule(graph), steps=STEPS))


def test_the_trace_of_the_board_is_the_plan() -> None:
    graph = runs.digits()
    schedule = runs.schedule(graph, 24576, "poet-paging")
    plan = runs.plan(graph, 24576, "poet-paging")
    run = runs.train(schedule, steps=2)
    traced = [(row.op, row.node) for row in run.trace if row.op != "wait"]
    assert traced == [(statement.op, statement.node) for statement in plan.statements]
    counts = run.counts()
    assert counts["computes"] == sum(op == "compute" for op, _ in traced)
    assert counts["recomputes"] == counts["computes"] - sum(not node.stored for node in graph)
    assert counts["activation_page_ins"] > 0
    assert counts["activation_page_outs"] > 0


@pytest.mark.slow
def test_trained_weights_answer_better() -> None:
    graph, digits = runs.digits(), load_data("digits")
    assert digits.x_test is not None
    assert digits.y_test is not None
    schedule = runs.schedule(graph, "50%", "poet")
    before = runs.train(schedule, steps=1)
    after = runs.train(schedule, epochs=1)
    assert after.last_step == len(digits.x) // graph.batch
    first, last = (
        api.accuracy(graph, r.weights, digits.x_test, digits.y_test) for r in (before, after)
    )
    assert last > first + 0.4
    assert weights_sha256(before.weights) != weights_sha256(after.weights)


@pytest.mark.slow
def test_resnet18_trains_a_step_in_less_memory_than_it_needs() -> None:
    graph = api.load_graph("resnet18-cifar")
    keep = runs.plan(graph, "100%", "keep-everything")
    small = runs.schedule(graph, "50%", "poet")
    data = "synthetic:3x32x32:10"
    run = runs.train(small, data, steps=1)
    assert keep.peak_bytes is not None
    assert run.peak_bytes <= keep.peak_bytes // 2
    counts = run.counts()
    assert counts["activation_recomputes"] + counts["activation_page_ins"] > 0
    assert runs.same(run, runs.train(runs.schedule(graph), data, steps=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_recurrent_weights_larger_than_the_ram_train_the_same_bits(kind: str) -> None:
    b = Builder(kind, data=(1, 6, 8))
    x = b.linear(b.reshape(b.data, (6, 1, 8)), (3 + (kind == "lstm")) * 32)
    x = b.gru(x, name="layer") if kind == "gru" else b.lstm(x, backward=True, name="layer")
    x = b.linear(b.reshape(b.slice(x, 0, 0, 6), (1, 6 * 32)), 4)
    graph = training_graph(b.model(b.softmax_xent(x)), Sgd(0.05))
    plan = api.solve(graph, runs.profile(), ram=6_144, work_limit=2_000)
    assert graph["layer.weight"].size_bytes > 6_144
    rows = {it.node for it in plan.statements if "k" in axes_of(plan, it)}
    assert rows >= {node.name for node in graph if node.op.startswith(kind)}
    small, whole = api.encode(graph, plan), runs.schedule(graph)
    assert small.forward is not None
    data = load_data("synthetic:6x8:4")
    run = runs.train(small, data, steps=3)
    assert runs.same(run, runs.train(whole, data, steps=3))
    with runs.board(small) as one, runs.board(whole) as other:
        found, wanted = (
            poet.predict(schedule, data, weights=run.weights, connection=board)
            for schedule, board in ((small, one), (whole, other))
        )
    assert found.outputs.tobytes() == wanted.outputs.tobytes()


def axes_of(plan: Plan, statement: Statement) -> list[str]:
    """The axes of the loops of a statement's nest."""
    assert plan.problem is not None
    assert plan.problem.streaming is not None
    nest = plan.problem.streaming.nests.get((statement.node, statement.mode or 0))
    return [loop.axis for loop in nest.loops] if nest and statement.op == "compute" else []
