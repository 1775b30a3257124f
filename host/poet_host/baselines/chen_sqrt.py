"""chen-sqrt: about sqrt(n) segments of equal length.

T. Chen, B. Xu, C. Zhang, C. Guestrin, *Training Deep Nets with Sublinear Memory Cost*, arXiv
1604.06174 (2016): n layers in k = sqrt(n) segments need O(n / k) + O(k) memory and one more forward
pass. On graphs with branches, the segments end at tensors that cut the graph in two. Jain et al.,
Checkmate (arXiv 1910.02653), call such tensors articulation points.
"""

from collections.abc import Sequence
from math import isqrt

from ..plan.problem import CostGraph
from .chain import chain_of, segmented
from .method import Draft


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return the only schedule of the method."""
    chain = chain_of(graph)
    return [segmented(chain, segment_ends(len(chain)))]


def segment_ends(blocks: int) -> list[int]:
    """Return the blocks after which a new segment begins: every sqrt(n)-th block."""
    length = isqrt(blocks - 1) + 1  # sqrt(n), rounded up
    return list(range(length - 1, blocks - 1, length))
