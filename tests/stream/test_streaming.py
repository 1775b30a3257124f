"""Modes that stream: models whose operators exceed the RAM have plans."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from poet_host.device.board import load_board
from poet_host.graph.graph import Graph
from poet_host.graph.models import MODELS, load
from poet_host.graph.operands import operator_of
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.work import work_of
from poet_host.plan.events import Event, events_of, fits
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.nests import NestedOperator
from poet_host.plan.parts import parts_of
from poet_host.plan.plan import moved_bytes
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import CostGraph, Problem, Streaming
from poet_host.plan.verify import verify
from poet_host.profile.profile import estimate_profile
from poet_host.solver.settings import Settings
from poet_host.solver.solve import for_streaming, solve
from poet_host.stream.cutting import choose_cuts
from poet_host.stream.pairs import in_pair_order, pairs_of
from poet_host.stream.streaming import SMALL_PART_BYTES, with_streaming
from poet_host.stream.traffic import least_moved_bytes
from poet_host.stream.used_modes import with_used_modes
from support.in_place import everything_paged, in_place_problem

RAM_BYTES = 24_576
BUFFER_BYTES = 12_288


def problem_of(graph: Graph, ram_bytes: int, board: str = "mkr1000") -> tuple[Problem, Streaming]:
    profile = estimate_profile(board)
    plain = Problem(cost_graph(graph, profile), ram_bytes, profile=profile)
    problem = with_streaming(plain, graph)
    assert problem.streaming is not None
    return problem, problem.streaming


def nested(
    graph: Graph, found: Streaming, name: str, mode: int, table_slabs: int = 0
) -> NestedOperator:
    """A nest, checked against the laws."""
    node, nest, nodes = graph[name], found.nests[name, mode], list(in_pair_order(graph))
    also = [name] if nest.also else [nodes[nodes.index(node) + 1].name] if nest.statistics else []
    node = nodes[nodes.index(node) + 1] if nest.also else node
    cuts = tuple(found.cuts.get(graph[n].updates or n) for n in (*node.inputs, node.name, *also))
    return NestedOperator(operator_of(node), cuts, nest, table_slabs)


# `matmul` with a transposed first operand of 512 rows, see docs/reference/models-and-operators.md
LARGE_BUFFERS = {"transformer": {"block1.value:grad", "block1.key:grad"}}
LARGE_MODELS = ("bert-base", "mobilenet-vww", "resnet18", "vgg16-cifar")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE_MODELS)) for name in MODELS],
)
def test_every_operator_streams_its_large_operands_through_12_kib(name: str) -> None:
    costs = problem_of(load(name), SMALL_PART_BYTES)[0].graph
    large = {i for i, node in enumerate(costs.nodes) if node.bytes > BUFFER_BYTES}
    unfit = set()
    for i, node in enumerate(costs.nodes):
        needs = [
            mode.workspace_bytes
            for mode in node.all_modes
            if large.intersection(node.inputs) <= set(mode.streamed_inputs)
            and (mode.streamed_output or i not in large)
        ]
        if not node.stored and min(needs, default=inf) > BUFFER_BYTES:
            unfit.add(node.name)
    assert unfit == LARGE_BUFFERS.get(name, set())


@pytest.mark.slow
def test_resnet8_has_a_plan_in_an_eighth_of_its_largest_operator() -> None:
    graph = load("resnet8-cifar")
    problem, found = problem_of(graph, RAM_BYTES)
    for i, (name, number) in enumerate(found.nests):
        one = nested(graph, found, name, number)
        mode = problem.graph.nodes[problem.graph.index[name]].mode(number)
        assert mode.workspace_bytes == one.workspace_bytes <= RAM_BYTES
        if number and i % 50 == 0:  # walks take long
            assert (mode.moved_in_bytes, mode.moved_out_bytes) == (
                sum(one.loads.elements()), sum(one.stores.elements())
            )  # fmt: skip
    plan = solve(problem, Settings(time_limit_s=20, counted=True, gap=0.05))
    assert sum(statement.mode > 0 for statement in plan.statements) > 50
    least = least_moved_bytes(graph, RAM_BYTES)
    assert sum(moved_bytes(problem.graph, plan)) < 2 * least

    # The same plan of a problem that has only the modes that the plan uses:
    smaller, same = with_used_modes(problem, plan)
    assert smaller.streaming is not None
    assert len(smaller.streaming.nests) < len(plan.statements) < len(found.nests)
    assert vars(verify(smaller, same)) == vars(verify(problem, plan))
    for mine, other in zip(same.statements, plan.statements, strict=True):
        assert replace(mine, mode=other.mode) == other
        if (mine.node, mine.mode) in smaller.streaming.nests and mine.op == "compute":
            nest = smaller.streaming.nests[mine.node, mine.mode]
            assert nest == found.nests[other.node, other.mode]


@pytest.mark.parametrize(
    ("model", "table_slabs"),
    [("resnet18", 0), ("vgg16-cifar", 0), ("bert-tiny", 0), ("bert-tiny", 6144)],
)
def test_cuts_are_along_axes_of_all_operators(model: str, table_slabs: int) -> None:
    graph = load(model)
    cuts = choose_cuts(graph, 4096, table_slabs)
    assert max(graph[name].size_bytes for name in cuts) > 100 * 4096
    for name, cut in cuts.items():
        assert cut.size_bytes == graph[name].size_bytes
        assert graph[name].updates is None
    for node in graph:
        if not node.stored:
            names = [graph[name].updates or name for name in (*node.inputs, node.name)]
            operator = operator_of(node)
            for i, name in enumerate(names):
                parts_of(operator.operand(i), cuts.get(name))  # raises LawError


@pytest.mark.slow
def test_a_step_of_plain_sgd_writes_at_most_three_slabs_a_token() -> None:
    """A board that keeps no slabs, weight decay and momentum write the whole table."""
    name, table, row = "word.weight:new", 30_522 * 128 * 4, 128 * 4
    plain = TrainingOptions()
    for board, options, is_kept in (
        ("nrf52840_dk", plain, True),
        ("mkr1000", plain, False),
        ("nrf52840_dk", TrainingOptions(weight_decay=0.01), False),
        ("nrf52840_dk", TrainingOptions(momentum=0.9), False),
    ):
        graph, slabs = load("bert-tiny", options), load_board(board).table_slabs
        problem, found = problem_of(graph, 65_536, board)
        node = problem.graph.nodes[problem.graph.index[name]]
        written = {mode.moved_out_bytes for mode in node.modes if mode.streamed_output}
        if not is_kept:
            assert written == {table}
            continue
        for number, mode in enumerate(node.modes, 1):
            one = nested(graph, found, name, number, slabs)
            assert (mode.moved_in_bytes, mode.moved_out_bytes) == (
                sum(one.loads.elements()), sum(one.stores.elements())
            )  # fmt: skip
        word = problem.graph.nodes[problem.graph.index["word"]]
        read = [mode.moved_in_bytes for mode in word.modes if mode.streamed_inputs]
        rows = next(loop.step for loop in one.nest.loops if loop.axis == "k")
        assert min(read) == 129 * rows * row  # a slab for each token, and the first one
        assert -(-30_522 // rows) <= slabs
        assert written == {3 * 128 * rows * row}
        assert max(written) < table / 9


@pytest.mark.slow
def test_the_smallest_ram_of_streaming_is_the_same_from_every_budget() -> None:
    graph = load("resnet-digits")
    needs = [largest_operator_bytes(problem_of(graph, ram)[0].graph, 4) for ram in (64, 1024, 2048)]
    assert len(set(needs)) == 1
    assert largest_operator_bytes(problem_of(graph, needs[0])[0].graph, 4) <= needs[0]
    assert needs[0] < largest_operator_bytes(cost_graph(graph, estimate_profile("mkr1000"))) / 3


@pytest.mark.slow
def test_a_large_transformer_needs_20_kib() -> None:
    graph = load("bert-base", TrainingOptions(sequence_length=128))
    assert largest_operator_bytes(problem_of(graph, 1024)[0].graph, 4) <= 20_480


def test_what_may_stay_is_the_same_where_operators_stream() -> None:
    graph, profile = load("resnet-digits"), estimate_profile("mkr1000")
    whole = Problem(cost_graph(graph, profile, commit_every=10), 8192, profile=profile)
    costs = with_streaming(whole, graph).graph
    assert costs.commit_every == 10
    names = [{node.name for node in it.nodes if node.stays} for it in (whole.graph, costs)]
    assert names[0] == names[1]
    assert names[0]
    assert all(costs.nodes[heir].keep for heir in costs.heirs.values())


def test_operators_move_at_least_their_operands() -> None:
    graph = load("resnet18")
    operands = sum(work_of(node, graph).bytes for node in graph if not node.stored)
    bounds = [least_moved_bytes(graph, ram) for ram in (4096, RAM_BYTES, 1 << 30)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1] == operands


def test_gradients_of_a_layer_are_neighbours_where_operators_stream() -> None:
    graph = load("resnet18")
    ordered = in_pair_order(graph)
    assert sorted(node.name for node in ordered) == sorted(node.name for node in graph)
    counts = [len(list(pairs_of(it))) for it in (graph, ordered)]
    assert counts == [12, 20]
    first, second = list(pairs_of(ordered))[-1]
    assert second.inputs[1:] == first.inputs
    weight, last = second.inputs[2], [node.name for node in ordered].index(second.name)
    assert all(weight not in node.inputs for node in list(ordered)[last + 1 :])


@pytest.mark.parametrize("name", ["resnet-digits", "resnet8-cifar"])
def test_a_plan_with_whole_operators_is_one_where_they_stream_too(name: str) -> None:
    """It is in another order, since gradients of a layer are neighbours there."""
    graph, ram_bytes = load(name), 220 * 1024
    whole = in_place_problem(graph)
    given = events_of(whole.graph, everything_paged(whole.graph).statements)
    profile = estimate_profile("nrf52840_dk")
    costs = with_streaming(replace(whole, ram_bytes=ram_bytes, profile=profile), graph).graph
    events = for_streaming(whole.graph, given, costs)

    def in_place(graph: CostGraph, events: Sequence[Event]) -> set[tuple[str, str]]:
        nodes, runs = graph.nodes, [it for it in events if it.op == "compute"]
        pairs = [(nodes[it.node], nodes[it.node].mode(it.mode).overwrites) for it in runs]
        return {(node.name, nodes[over].name) for node, over in pairs if over is not None}

    assert fits(costs, events, 1 << 30)
    computed = [it.node for it in events if it.op == "compute"]
    assert computed == sorted(computed)
    assert [nodes.name for nodes in costs.nodes] != [node.name for node in whole.graph.nodes]
    both = {name for name, _ in in_place(whole.graph, given)}
    assert in_place(costs, events) <= in_place(whole.graph, given)
    assert len(in_place(costs, events)) > len(both) // 2
