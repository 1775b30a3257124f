"""checkpoint-all: compute every node once, in order; keep every result in RAM to its last use.

Frameworks do this by default. This method is the "checkpoint all" of Jain et al., Checkmate (MLSys
2020, arXiv 1910.02653). The method needs the least time and energy, and the most RAM.
"""

from collections.abc import Sequence

from ..plan.events import Event
from ..plan.problem import CostGraph
from .method import Draft


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return the only schedule of the method."""
    return [Draft([Event("compute", i) for i, node in enumerate(graph.nodes) if not node.stored])]
