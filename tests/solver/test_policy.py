"""One changed field of the policy changes what the searches do, in the worker processes too."""

from dataclasses import replace

import pytest
from poet_host.solver.policy import DEFAULT_POLICY
from poet_host.solver.primal_search import PHASES
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.cost_graphs import random_problem

PRIMAL = frozenset(name for name, *_ in PHASES)
LAST = {"last resort"}
PROBLEM = random_problem(9)  # which has a plan


@pytest.mark.parametrize(
    ("skipped", "status"),
    [
        (set(), "optimal"),
        (PRIMAL | LAST, "unknown"),
        (PRIMAL, "feasible"),
        (LAST | PRIMAL - {"greedy plans"}, "feasible"),
        (LAST | PRIMAL - {"exact"}, "optimal"),
    ],
)
def test_a_phase_can_be_skipped(skipped: set[str], status: str) -> None:
    policy = replace(DEFAULT_POLICY, skipped=skipped)
    assert solve(PROBLEM, Settings(20.0, counted=True, policy=policy)).status == status
