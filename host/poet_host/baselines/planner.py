"""poet, poet-paging, poet-remat: this planner, whole and with one hand tied.

S. G. Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated
Rematerialization and Paging*, ICML 2022, arXiv 2207.07697; the two ablations are those of its
Figure 4.
"""

from typing import Any

from ..plan.plan import Plan
from ..plan.problem import Problem
from ..solver.solve import solve
from .method import Settings
from .seed_plans import STARTS


def poet(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy among all; none of STARTS that is asked has one of less."""
    return solve(problem, method="poet", starts=STARTS, **_given(settings))


def poet_paging(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy that computes everything once."""
    return solve(problem, method="poet-paging", **_given(settings))


def poet_remat(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy that pages nothing it has computed, but what is kept."""
    return solve(problem, method="poet-remat", **_given(settings))


def _given(settings: Settings) -> dict[str, Any]:
    return {
        "time_limit_s": settings.time_limit_s,
        "gap": settings.gap,
        "placed": settings.placed,
        "progress": settings.progress,
    }
