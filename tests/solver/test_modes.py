"""`solve` on graphs with modes: each claim holds for the plans of all modes."""

import pytest
from poet_host.baselines.registry import CHAIN, PAGED_CHAIN, SCHEDULERS, plan_by
from poet_host.plan.problem import TOLERANCE, CostGraph, Mode, Problem
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from support.mode_graphs import mode_problem, timed_mode_problems
from support.oracle import cheapest
from support.plans import node_with

node = node_with(
    time_us=10.0, energy_uj=8.0, page_in_us=4.0, page_in_uj=2.0, page_out_us=5.0, page_out_uj=3.0
)
# A parameter w of 64 bytes, a result, and the update of w. With modes, 16 bytes are enough.
MODES = (
    Mode((0,), False, 8, 6.0, 6.0, 7.0, 5.0),
    Mode((0,), True, 8, 6.0, 6.0, 7.0, 5.0, overwrites=0),
)
GRAPH = CostGraph(
    "step",
    (
        node("w", 64, stored=True),
        node("a", 8, 0, modes=MODES[:1]),
        node("u", 64, 0, 1, overwrites=0, keep=True, once=True, modes=MODES[1:]),
    ),
)
CHAINS = (CHAIN, PAGED_CHAIN)
QUICK = Settings(time_limit_s=5.0)


@pytest.mark.parametrize(
    "method", [m for m, it in SCHEDULERS.items() if it.applies_to not in CHAINS]
)
def test_no_claim_is_wrong_for_the_plans_with_modes(method: str) -> None:
    """The best plan streams both times: 10 uJ in 14 us and 16 bytes. In mode 0: 21 uJ in 29 us."""
    for limits in ((72, None), (72, 14.0), (16, None)):
        for objective, best in (("added-energy", 10.0), ("time", 14.0)):
            plan = plan_by(method, Problem(GRAPH, *limits, objective=objective), QUICK)
            assert plan.status != "infeasible" or not SCHEDULERS[method].knows_modes
            if plan.statements:
                verify(Problem(GRAPH, *limits), plan)
            if SCHEDULERS[method].knows_modes:
                assert plan.bound is not None
                assert plan.bound <= best
            else:
                assert not any(statement.mode for statement in plan.statements)


def test_the_smallest_ram_is_that_of_the_modes() -> None:
    plan = plan_by("poet", Problem(GRAPH, 12), QUICK)
    assert (plan.status, plan.smallest_ram_bytes) == ("infeasible", 16)


def test_no_mode_meets_a_deadline_below_the_least_time() -> None:
    assert plan_by("poet", Problem(GRAPH, 72, 13.9), QUICK).status == "infeasible"


PROBLEMS = [
    *(mode_problem(seed, 6) for seed in range(30)),
    *(problem for seed in range(30, 40) for problem in timed_mode_problems(seed, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS, ids=range(len(PROBLEMS)))
def test_claims_agree_with_the_exhaustive_search(problem: Problem) -> None:
    best = cheapest(problem)
    plan = plan_by("poet", problem, Settings(time_limit_s=5.0, placed=False))
    if best is None:
        assert plan.status in ("infeasible", "unknown")
        return
    assert plan.status != "infeasible"
    value = best.value(problem)
    if plan.bound is not None:
        assert plan.bound <= value * (1 + TOLERANCE)
    if plan.statements:
        verify(problem, plan, placed=False)
        assert plan.value is not None
        assert plan.value >= value * (1 - TOLERANCE)
