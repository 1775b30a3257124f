"""Keep-everything: the plan that budgets and deadlines are measured against."""

from dataclasses import replace

import pytest
from poet_host.errors import BadInput
from poet_host.packing.blocks import live_peak
from poet_host.plan.keepall import METHOD, keep_everything
from poet_host.plan.placement import lives_of
from poet_host.plan.plan import Statement
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify
from support.cost_graphs import random_cost_graph
from support.plans import node_with

node = node_with(
    energy_uj=8.0, time_us=10.0, page_in_us=4.0, page_in_uj=2.0, page_out_us=5.0, page_out_uj=3.0
)


def text(graph: CostGraph) -> str:
    return " ".join(f"{it.op}:{it.node}" for it in keep_everything(graph).statements)


W, X = node("w", 8, stored=True), node("x", 4, stored=True)
A, B = node("a", 4, 0, 1), node("b", 4, 2)


def test_statements_in_order() -> None:
    update = node("u", 8, 3, 0, overwrites=0, keep=True)
    graph = CostGraph("step", (W, X, A, B, update, node("loss", 4, 3)))
    assert text(graph) == (
        "page_in:w page_in:x compute:a free:x compute:b free:a "
        "compute:u page_out:u compute:loss free:b free:loss free:u"
    )
    plan = keep_everything(graph)
    assert (plan.status, plan.method, plan.bound, plan.gap) == ("feasible", METHOD, None, None)
    # a with both parameters in RAM, or b, its input and w.
    assert (plan.peak_bytes, plan.ram_bytes) == (16, 16)
    assert plan.energy_uj == 4 * 8 + 2 * 2 + 3
    # w, x arrive at 8; a 18, b 28, u 38, loss 48; u is written at 43.
    assert plan.time_us == 48


@pytest.mark.parametrize(("size", "time_us"), [(4, 28), (12, 24)])
def test_a_page_in_runs_during_a_computation_if_no_more_ram_is_needed(
    size: int, time_us: float
) -> None:
    """w arrives at 4, a ends at 14. While a is computed, w, a and v need 20 bytes."""
    later = replace(W, name="v")
    graph = CostGraph("two", (W, later, node("a", 4, 0), node("b", size, 1, 2)))
    plan = keep_everything(graph)
    assert (plan.peak_bytes, plan.time_us) == (8 + 4 + size, time_us)


def test_what_nobody_uses_is_freed_at_once_and_never_paged_in() -> None:
    graph = CostGraph("step", (W, X, node("a", 4), node("b", 4, keep=True)))
    assert text(graph) == "compute:a free:a compute:b page_out:b free:b"


def test_a_tensor_overwritten_too_early_is_paged_in_again() -> None:
    update = node("u", 8, 0, overwrites=0)
    assert text(CostGraph("step", (W, update, node("b", 4, 0)))) == (
        "page_in:w compute:u free:u page_in:w compute:b free:w free:b"
    )
    graph = CostGraph("step", (node("a", 8), update, node("b", 4, 0)))
    assert text(graph) == (
        "compute:a page_out:a compute:u free:u page_in:a compute:b free:a free:b"
    )


def test_without_storage_nothing_is_paged() -> None:
    update = node("u", 8, 3, 0, overwrites=0, keep=True)
    unused = node("z", 64, stored=True)
    graph = CostGraph("step", (W, X, A, B, update, unused), storage=False)
    plan = keep_everything(graph)
    assert text(graph) == "free:z compute:a free:x compute:b free:a compute:u free:b"
    assert plan.peak_bytes == 8 + 4 + 64
    assert {name for name, _ in plan.initial_offsets} == {"w", "x", "z"}
    verify(Problem(graph, 76), plan)


@pytest.mark.parametrize("later", ["use", "keep"])
def test_without_storage_an_overwritten_tensor_cannot_come_back(later: str) -> None:
    update = node("u", 8, 0, overwrites=0)
    first = replace(W, keep=later == "keep")
    last = node("b", 4, 0 if later == "use" else 1)
    graph = CostGraph("step", (first, update, last), storage=False)
    with pytest.raises(BadInput, match=r'step, node "u": .* overwrites "w"'):
        keep_everything(graph)


def test_on_random_graphs() -> None:
    """Once each and in order, legal, as low as the live bytes, and the same every time."""
    checked = 0
    for seed in range(120):
        graph = random_cost_graph(seed)
        try:
            plan = keep_everything(graph)
        except BadInput:
            continue
        checked += 1
        computed = [it.node for it in plan.statements if it.op == "compute"]
        assert computed == [n.name for n in graph.nodes if not n.stored]
        totals = verify(Problem(graph, plan.ram_bytes, plan.time_us), plan)
        assert totals.energy_uj == plan.energy_uj
        assert plan.peak_bytes == live_peak(
            [life.block for life in lives_of(graph, plan.statements)]
        )
        assert keep_everything(graph) == plan
    assert checked > 80


def test_pages_nothing_that_it_need_not() -> None:
    for seed in range(60):
        graph = random_cost_graph(seed)
        if not graph.storage or any(n.overwrites is not None for n in graph.nodes):
            continue
        plan = keep_everything(graph)
        used = {i for n in graph.nodes for i in n.inputs}
        paged = {
            Statement("page_in", n.name)
            for i, n in enumerate(graph.nodes)
            if n.stored and i in used
        } | {Statement("page_out", n.name) for n in graph.nodes if n.keep and not n.stored}
        found = [replace(it, offset=None) for it in plan.statements if it.op.startswith("page")]
        assert (len(found), set(found)) == (len(paged), paged)
