"""Costs that differ by many orders of magnitude: no plan is called optimal that is not."""

from dataclasses import replace

import pytest
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.program import Program, minimise
from poet_host.solver.scaling import Scale, within
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.chains import chain


def with_dear_page_ins(graph: CostGraph, page_in_uj: float) -> CostGraph:
    """The graph in which every third tensor cannot be paged in at a reasonable price."""
    dear = (replace(node, page_in_uj=page_in_uj) for node in graph.nodes[1::3])
    nodes = list(graph.nodes)
    nodes[1::3] = dear
    return replace(graph, nodes=tuple(nodes))


def test_a_price_that_no_plan_pays_hides_no_better_plan() -> None:
    energies = [1.0, 2.0, 5.0, 3.0] * 3
    graph = chain([8, 4, 12, 16] * 3, energies, storage=True, page=4.0, gradients=8)
    ram_bytes = int(0.45 * (graph.keep_everything.peak_bytes or 0)) // 4 * 4
    found = []
    for page_in_uj in (1e3, 1e12):
        problem = Problem(with_dear_page_ins(graph, page_in_uj), ram_bytes)
        plan = solve(problem, Settings(60.0, gap=0.0, counted=True))
        assert plan.status == "optimal"
        found.append(plan.energy_uj)
    assert found == pytest.approx([63.0, 63.0])


def one_or_two(dear: float) -> Program:
    """Take the first variable, or the other two."""
    program = Program()
    columns = [program.binary(cost) for cost in (3.0, 1.0, 1.0, dear)]
    program.row([(columns[0], 1.0), (columns[1], 1.0)], lower=1.0)
    program.row([(columns[0], 1.0), (columns[2], 1.0)], lower=1.0)
    return program


def test_what_costs_more_than_the_worst_solution_of_interest_is_left_out() -> None:
    program = one_or_two(1e12)
    assert within(program, 1e12) is program
    assert list(within(program, 3.0).cost) == [3.0, 1.0, 1.0, 0.0]
    assert list(within(program, 3.0).upper) == [1.0, 1.0, 1.0, 0.0]
    result = minimise(program, 10.0, worst=3.0)
    assert (result.objective, result.bound) == pytest.approx((2.0, 2.0))


def test_a_number_that_may_be_a_small_share_of_one_is_kept() -> None:
    program = Program()
    program.row([(program.number(10.0, 0.0, 1.0), 1.0)], lower=0.1)
    assert minimise(program, 10.0, worst=1.0).objective == pytest.approx(1.0)


@pytest.mark.parametrize("unit_us", [1.0, 1e-5])
def test_deadlines_of_any_size_leave_the_best_plan(unit_us: float) -> None:
    """It computes `k` again, which takes less time than its transfers."""
    costs = {"page_in_us": 9 * unit_us, "page_out_us": 9 * unit_us}
    nodes = [CostNode("k", (), 8, unit_us, **costs), CostNode("a0", (), 8, 0.1 * unit_us, **costs)]
    for i in range(1, 18):
        nodes.append(CostNode(f"a{i}", (i,), 8, 0.1 * unit_us, **costs))
    nodes.append(CostNode("c", (18, 0), 0, 0.1 * unit_us, **costs))
    problem = Problem(CostGraph("again", tuple(nodes)), 16, 50 * unit_us, objective="time")
    plan = solve(problem, Settings(10.0, gap=0.0, counted=True))
    assert plan.value == pytest.approx(3.9 * unit_us)


def test_without_a_solution_of_interest_no_bound_hides_in_the_tolerances() -> None:
    assert minimise(one_or_two(1e12), 10.0).bound == 0.0
    assert minimise(one_or_two(3.0), 10.0).bound == pytest.approx(2.0, rel=1e-9)
    scale = Scale.of(one_or_two(1e12))
    assert scale.bound(0.0) == 0.0
    assert scale.bound(1e3) == pytest.approx(1e12)
