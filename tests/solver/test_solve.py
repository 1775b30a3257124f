"""The solver against exhaustive search: energies, proofs, limits and honesty."""

import math
from dataclasses import replace

import pytest
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan
from poet_host.plan.problem import OBJECTIVES, CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.unavoidable import least_time_us
from support.cost_graphs import COUNTER_EXAMPLES, random_problem
from support.oracle import cheapest, fastest, smallest_energy, smallest_value
from support.processor_time import solve_timed

SMALL = 500  # graphs of up to 9 nodes; a block of them is one test


def honest(plan: Plan, problem: Problem, best_uj: float | None) -> None:
    """Whatever the solver says holds against the true optimum of the unplaced problem."""
    if plan.status == "infeasible":
        assert best_uj is None
    if plan.status == "optimal":
        assert best_uj is not None
        assert plan.energy_uj == pytest.approx(best_uj, rel=1e-9, abs=1e-9)
    if plan.statements:
        assert best_uj is not None
        assert plan.energy_uj is not None
        assert plan.bound is not None
        assert plan.bound <= best_uj * (1 + 1e-9) + 1e-9
        assert best_uj <= plan.energy_uj * (1 + 1e-9) + 1e-9
        verify(problem, plan, placed=False)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_energy_equals_exhaustive_search(block: int) -> None:
    for seed in range(block * SMALL // 10, (block + 1) * SMALL // 10):
        problem = random_problem(seed)
        best_uj = smallest_energy(problem)
        plan = solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
        honest(plan, problem, best_uj)
        if best_uj is not None:
            assert plan.energy_uj == pytest.approx(best_uj, rel=1e-9, abs=1e-9), seed


OBJECTIVE_GRAPHS = 200
QUICK_BLOCKS = 2  # the others are slow


@pytest.mark.parametrize(
    "block",
    [pytest.param(i, marks=[pytest.mark.slow] * (i >= QUICK_BLOCKS)) for i in range(10)],
)
def test_every_objective_equals_exhaustive_search(block: int) -> None:
    compared = 0
    for seed in range(block * OBJECTIVE_GRAPHS // 10, (block + 1) * OBJECTIVE_GRAPHS // 10):
        free = random_problem(seed, most_nodes=6)
        # As much energy is spent by waiting as by computing.
        power_uw = (
            1e6
            * sum(n.energy_uj for n in free.graph.nodes)
            / max(sum(n.time_us for n in free.graph.nodes), 1.0)
        )
        free = replace(free, graph=replace(free.graph, base_power_uw=power_uw))
        quickest = fastest(free)
        limits = [None] if quickest is None else [None, 1.2 * (quickest.time_us or 0.0)]
        for objective in OBJECTIVES:
            for limit_us in limits:
                problem = replace(free, objective=objective, deadline_us=limit_us)
                best = smallest_value(problem)
                plan = solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
                if best is None:
                    assert plan.status == "infeasible"
                    continue
                assert plan.status == "optimal", (seed, objective, limit_us)
                assert plan.value == pytest.approx(best, rel=1e-9, abs=1e-9)
                assert plan.bound == pytest.approx(best, rel=1e-9, abs=1e-9)
                verify(problem, plan, placed=False)
                compared += 1
    assert compared > 60


def test_a_plan_exactly_at_the_wanted_gap_ends_the_search() -> None:
    costs = {"page_in_us": 1.0, "page_in_uj": 5.0, "page_out_us": 1.0, "page_out_uj": 5.0}
    nodes = [CostNode("k", (), 8, 1.0, 10.0, **costs), CostNode("a0", (), 8, 1.0, **costs)]
    for i in range(1, 18):
        nodes.append(CostNode(f"a{i}", (i,), 8, 1.0, **costs))
    nodes.append(CostNode("c", (18, 0), 0, 1.0, **costs))
    problem = Problem(CostGraph("half", tuple(nodes)), 16, objective="added-energy")
    plan = solve(problem, Settings(10.0, gap=0.5, counted=True))
    assert plan.stopped_by in ("gap", "proof")
    assert plan.is_within(0.5)


def test_without_storage_an_unplaced_plan_names_what_begins_in_ram() -> None:
    nodes = (CostNode("w", (), 4, stored=True), CostNode("a", (0,), 4, keep=True))
    plan = solve(Problem(CostGraph("bare", nodes, storage=False), 8), Settings(placed=False))
    assert plan.to_json()["initial_offsets"] == {"w": None}


@pytest.mark.parametrize("make", COUNTER_EXAMPLES, ids=lambda make: make.__name__)
def test_restricted_searches_miss_these_optima(make: object) -> None:
    problem, best_uj = make()  # type: ignore[operator]
    plan = solve(problem, Settings(placed=False))
    assert plan.energy_uj == pytest.approx(best_uj)


@pytest.mark.parametrize("seed", range(40))
def test_deadlines_are_kept_and_never_called_impossible_when_they_are_not(seed: int) -> None:
    problem = random_problem(seed, most_nodes=6)
    free = cheapest(problem)
    if free is None:
        pytest.skip("no plan fits this budget")
    plan = solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
    assert plan.time_us is not None
    tight = replace(problem, deadline_us=max(plan.time_us * 0.9, 1e-6))
    best_uj = smallest_energy(tight)
    honest(solve(tight, Settings(placed=False, time_limit_s=20, counted=True)), tight, best_uj)
    if best_uj is not None:
        assert least_time_us(problem.graph) <= (tight.deadline_us or 0) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_placed_plans_fit_and_cost_no_less(seed: int) -> None:
    problem = random_problem(seed)
    plan = solve(problem, Settings(time_limit_s=20, counted=True))
    if plan.statements:
        totals = verify(problem, plan)
        assert totals.peak_bytes <= problem.ram_bytes
        best_uj = smallest_energy(problem)
        assert best_uj is not None
        assert totals.energy_uj >= best_uj * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(1, 25, 4))
def test_methods_restrict_one_model(seed: int) -> None:
    problem = random_problem(seed)
    free = solve(problem, Settings(placed=False))
    for method, recompute, page in (("poet-paging", False, True), ("poet-remat", True, False)):
        plan = solve(problem, Settings(placed=False), method=method)
        best_uj = smallest_energy(problem, recompute=recompute, page=page)
        honest(plan, problem, best_uj) if plan.status == "optimal" else None
        if plan.energy_uj is not None:
            assert free.energy_uj is not None
            assert free.energy_uj <= plan.energy_uj * (1 + 1e-9) + 1e-9


@pytest.mark.slow
def test_same_input_same_plan() -> None:
    for seed in (0, 7, 14, 21):
        problem = random_problem(seed)
        first, second = (replace(solve(problem), solve_s=0.0) for _ in range(2))
        assert first == second


def chain(storage: bool = True) -> CostGraph:
    costs = {"page_in_us": 1.0, "page_in_uj": 1.0, "page_out_us": 1.0, "page_out_uj": 1.0}
    inputs = ((), (0,), (1,), (0, 2))
    nodes = [CostNode(f"n{i}", inputs[i], 64, time_us=10, energy_uj=10, **costs) for i in range(4)]
    return CostGraph("chain", tuple(nodes), storage=storage)


def test_an_infeasible_budget_names_the_smallest_that_works() -> None:
    for storage in (True, False):
        plan = solve(Problem(chain(storage), 100))
        assert plan.status == "infeasible"
        assert plan.smallest_ram_bytes is not None
        assert solve(Problem(chain(storage), plan.smallest_ram_bytes)).statements
        assert solve(Problem(chain(storage), plan.smallest_ram_bytes - 4)).status == "infeasible"


def test_an_impossible_deadline_is_proved_and_one_that_works_is_named() -> None:
    graph = chain()
    assert least_time_us(graph) == 40
    plan = solve(Problem(graph, 256, deadline_us=39.9))
    assert plan.status == "infeasible"
    assert plan.smallest_deadline_us is not None
    again = solve(Problem(graph, 256, deadline_us=plan.smallest_deadline_us))
    assert again.status == "optimal"


def test_the_least_time_counts_what_must_come_and_go() -> None:
    w = CostNode("w", (), 4, page_in_us=9, page_out_us=5, stored=True)
    y = CostNode("y", (0,), 4, time_us=50, page_in_us=1, page_out_us=8, keep=True)
    assert least_time_us(CostGraph("g", (w, y))) == 9 + 50 + 8
    assert least_time_us(CostGraph("g", (w, y), storage=False)) == 50


@pytest.mark.parametrize("ram_bytes", [2**31, 2**53])
def test_huge_budgets_keep_everything_that_pays(ram_bytes: int) -> None:
    plan = solve(Problem(chain(), ram_bytes))
    assert plan.status == "optimal"
    assert plan.energy_uj == keep_everything(chain()).energy_uj


def test_zero_costs_and_a_single_node() -> None:
    one = CostGraph("one", (CostNode("only", (), 12),))
    plan = solve(Problem(one, 12))
    assert (plan.status, plan.energy_uj, plan.gap) == ("optimal", 0.0, 0.0)
    assert solve(Problem(one, 0)).smallest_ram_bytes == 12


@pytest.mark.slow
def test_two_thousand_nodes_are_answered_in_time() -> None:
    costs = {"page_in_us": 5.0, "page_in_uj": 5.0, "page_out_us": 5.0, "page_out_uj": 5.0}
    nodes = [CostNode("n0", (), 64, 10, 10, **costs)]
    for i in range(1, 1000):
        nodes.append(CostNode(f"n{i}", (i - 1,), 64, 10, 10, **costs))
    for i in range(999, -1, -1):
        nodes.append(CostNode(f"g{i}", (len(nodes) - 1, i), 64, 10, 10, **costs))
    problem = Problem(CostGraph("long", tuple(nodes)), 64 * 300)
    plan, taken_s = solve_timed(problem, Settings(time_limit_s=10))
    assert taken_s < 2 * 12  # of two workers
    assert plan.energy_uj is not None
    assert plan.bound is not None
    assert 20_000 * (1 - 1e-6) <= plan.bound <= plan.energy_uj < math.inf
    verify(problem, plan)
