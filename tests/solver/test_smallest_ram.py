"""The smallest budget that an infeasible plan names is where plans begin: by exhaustive search."""

import pytest
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.oracle import smallest_ram_bytes
from support.placed_oracle import placed_energy, smallest_placed_ram_bytes
from support.small_graphs import small_graph

SEEDS = 60
SLOW_SEEDS = 15  # placed, with storage: many states


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False], ids=["placed", "unplaced"])
@pytest.mark.parametrize("storage", [True, False], ids=["storage", "no storage"])
def test_the_smallest_budget_is_named_and_works(placed: bool, storage: bool) -> None:
    for seed in range(SLOW_SEEDS if placed and storage else SEEDS):
        graph = small_graph(seed, storage)
        least = smallest_placed_ram_bytes(graph) if placed else smallest_ram_bytes(graph)
        if least is None:
            lost = solve(Problem(graph, 10_000), Settings(placed=placed))
            assert (lost.status, lost.smallest_ram_bytes) == ("infeasible", None), seed
            continue
        if least > 0:
            below = solve(Problem(graph, least - 1), Settings(placed=placed))
            assert (below.status, below.smallest_ram_bytes) == ("infeasible", least), seed
        problem = Problem(graph, least)
        plan = solve(problem, Settings(placed=placed))
        assert plan.energy_uj is not None, seed
        verify(problem, plan, placed=placed)
        if placed:
            best_uj = placed_energy(problem)
            assert best_uj is not None
            assert best_uj <= plan.energy_uj * (1 + 1e-9) + 1e-9, seed


def test_no_budget_is_named_that_works_only_if_results_are_paged() -> None:
    """A node overwrites `old`, which a later node reads: without paging, no budget is enough."""
    nodes = (
        CostNode("old", (), 16, once=True),
        CostNode("new", (0,), 16, overwrites=0, once=True, keep=True),
        CostNode("both", (0, 1), 4, keep=True),
    )
    problem = Problem(CostGraph("overwritten", nodes), 36)
    assert solve(problem).status == "optimal"
    lost = solve(problem, method="poet-remat")
    assert (lost.status, lost.smallest_ram_bytes) == ("infeasible", None)


def test_what_may_stay_makes_no_larger_budget_the_smallest() -> None:
    nodes = (
        CostNode("s", (), 1, stored=True, stays=True),
        CostNode("a", (0,), 12),
        CostNode("b", (1,), 4),
        CostNode("c", (0, 2), 1, keep=True),
    )
    lost = solve(Problem(CostGraph("staying", nodes), 10), method="poet-remat")
    assert (lost.status, lost.smallest_ram_bytes) == ("infeasible", 16)
