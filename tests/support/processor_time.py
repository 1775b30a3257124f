"""Processor time of solves, which other processes of a busy computer do not prolong."""

import resource

from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.workers import POOL


def solve_timed(problem: Problem, settings: Settings) -> tuple[Plan, float]:
    """Return the plan, and the processor time in seconds that all processes of the solve took."""
    POOL.close()  # its workers would add the time of earlier solves
    before_s = _taken_s()
    plan = solve(problem, settings)
    POOL.close()  # the time of a process counts when it has ended
    return plan, _taken_s() - before_s


def _taken_s() -> float:
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
