"""poet, poet-paging, poet-remat: this planner, whole and with one hand tied.

S. G. Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated
Rematerialization and Paging*, ICML 2022, arXiv 2207.07697; the two ablations are those of its
Figure 4.
"""

from ..plan.plan import Plan
from ..plan.problem import Problem
from ..solver.settings import Settings
from ..solver.solve import solve
from .seed_plans import STARTS


def poet(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy among all; none of STARTS that is asked has one of less."""
    return solve(problem, settings, method="poet", seed_plans=STARTS)


def poet_paging(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy that computes everything once."""
    return solve(problem, settings, method="poet-paging")


def poet_remat(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy that pages nothing it has computed, but what is kept."""
    return solve(problem, settings, method="poet-remat")
