"""Starts: what the cheap methods plan, for `poet` to begin from.

So `poet` needs no more energy than they do, where it asks them. They have no search, and each is
asked only about graphs that it is soon done with: the work of some grows with the cube of their
size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ..plan.plan import Plan
from ..plan.problem import Problem
from ..solver.settings import Settings
from .capuchin import capuchin
from .chain import chain_of
from .checkpoint_all import checkpoint_all
from .chen_greedy import chen_greedy
from .chen_sqrt import chen_sqrt
from .dtr import dtr
from .griewank import griewank
from .method import DoesNotApply
from .pofo import pofo


@dataclass(frozen=True)
class Cheap:
    """A method, and the nodes, or links of a chain, for which it takes half a second or two."""

    run: Callable[[Problem, Settings], Plan]
    most_nodes: float = inf
    most_links: float = inf

    def __call__(
        self, problem: Problem, placed: bool, below_uj: float, time_limit_s: float
    ) -> Plan | None:
        """The method's plan if it needs less than `below_uj`; None otherwise."""
        settings = Settings(time_limit_s, placed=placed, below_uj=below_uj)
        try:
            if len(problem.graph.nodes) > self.most_nodes:
                return None
            if self.most_links < inf:
                links = len(chain_of(problem.graph, self.run.__name__))
                if links > self.most_links:
                    return None
            plan = self.run(problem, settings)
        except DoesNotApply:
            return None
        return plan if plan.statements else None


STARTS = (
    Cheap(checkpoint_all),
    Cheap(dtr, most_nodes=1000),
    Cheap(chen_sqrt),
    Cheap(chen_greedy, most_nodes=2000),
    Cheap(pofo, most_links=64),
    Cheap(griewank, most_links=128),
    Cheap(capuchin, most_nodes=500),
)
