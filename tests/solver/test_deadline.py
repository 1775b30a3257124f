"""With deadlines too, the solver's energy is that of an exhaustive search."""

import pytest
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.cost_graphs import timed_problems
from support.oracle import cheapest

GRAPHS = 120
BLOCK = 12


@pytest.mark.slow
@pytest.mark.parametrize("block", range(GRAPHS // BLOCK))
def test_energy_under_a_deadline_equals_exhaustive_search(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        for problem in timed_problems(seed):
            best = cheapest(problem)
            plan = solve(problem, Settings(placed=False, time_limit_s=20))
            case = f"seed {seed}, deadline {problem.deadline_us}"
            if best is None:
                assert plan.status == "infeasible", case
                continue
            assert plan.status == "optimal", case
            assert plan.energy_uj == pytest.approx(best.energy_uj, rel=1e-9, abs=1e-9), case
            verify(problem, plan, placed=False)
