"""checkpoint-all: every node once, in order; no computed tensor is dropped early or paged.

Frameworks do this by default. It is the "checkpoint all" of Jain et al., Checkmate (MLSys 2020,
arXiv 1910.02653): the least time and energy, and the most RAM.
"""

from collections.abc import Sequence

from ..plan.problem import CostGraph
from .method import Draft


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """The only schedule of the method."""
    return [Draft([("compute", i) for i, node in enumerate(graph.nodes) if not node.stored])]
