"""The last stage computes k small results of k large sources again, in reversed order: k passes."""

import pytest
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.oracle import cheapest


def reversed_order(k: int) -> Problem:
    """Source f_i fits while at most k - i results are held; b sweeps RAM; t reads f0, g1 .. gk."""
    ram_bytes = k + 3
    nodes = [CostNode("f0", (), ram_bytes - k - 1, 1.0, 1.0)]
    results = [0]
    for i in range(1, k + 1):
        nodes.append(CostNode(f"f{i}", (), ram_bytes - 1 - (k - i), 1.0, 1.0))
        nodes.append(CostNode(f"g{i}", (len(nodes) - 1,), 1, 1.0, 1.0))
        results.append(len(nodes) - 1)
    nodes.append(CostNode("b", (), ram_bytes, 1.0, 1.0))
    nodes.append(CostNode("t", tuple(results), 1, 1.0, 1.0))
    return Problem(CostGraph(f"reversed {k}", tuple(nodes), storage=False), ram_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_any_order_within_a_stage_is_found(k: int) -> None:
    problem = reversed_order(k)
    best = cheapest(problem)
    assert best is not None
    assert best.energy_uj == 4.0 * (k + 1)
    plan = solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
    assert (plan.status, plan.energy_uj) == ("optimal", best.energy_uj)
