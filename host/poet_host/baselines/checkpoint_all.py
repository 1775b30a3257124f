"""checkpoint-all: every node once, in order; nothing that was computed is dropped or paged.

What frameworks do by default, and the "checkpoint all" of Jain et al., Checkmate (MLSys 2020,
arXiv 1910.02653): the ideal of time and energy, and the most RAM.
"""

from collections.abc import Sequence

from ..plan.plan import Plan
from ..plan.problem import CostGraph, Problem
from ..solver.settings import Settings
from .method import Draft, realise

NAME = "checkpoint-all"


def checkpoint_all(problem: Problem, settings: Settings) -> Plan:
    """The one schedule of keeping everything, if it fits."""
    return realise(problem, NAME, drafts, settings)


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    return [Draft([("compute", i) for i, node in enumerate(graph.nodes) if not node.stored])]
