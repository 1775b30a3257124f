"""chen-greedy: segments of limited size, with the limit that is best for the RAM budget.

T. Chen et al., *Training Deep Nets with Sublinear Memory Cost*, arXiv 1604.06174 (2016),
Algorithm 3 (memory planning with budget b), and the paper's search for the best b. A segment ends
at the first possible output after the segment's tensors exceed b bytes. The paper tries values of b
around sqrt(xy), where x is the bytes of outputs, and y the bytes of the largest segment. This
module tries at most MAX_FIRST_SIZES + 2 values of b. If no schedule fits RAM, it tries every b that
gives other segments, as Jain et al. do for Checkmate (arXiv 1910.02653).
"""

from collections.abc import Sequence

from ..plan.completion import complete
from ..plan.problem import CostGraph
from .chain import Chain, chain_of, segmented
from .method import Draft

MAX_FIRST_SIZES = 48


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return the schedules for some segment sizes, or for all sizes if none of those fits RAM."""
    chain = chain_of(graph)
    every = sizes(chain)
    few = {*every[:: max(1, len(every) // MAX_FIRST_SIZES)], every[-1]}
    some = _of_sizes(chain, sorted(few))
    if any(complete(graph, draft.events, ram_bytes).statements is not None for draft in some):
        return some
    return _of_sizes(chain, every)


def _of_sizes(chain: Chain, tried: Sequence[int]) -> list[Draft]:
    """Return the schedules for some segment sizes, each schedule once."""
    every_ends = dict.fromkeys(tuple(segment_ends(chain, size)) for size in tried)
    return [segmented(chain, ends) for ends in every_ends]


def block_bytes(chain: Chain, block: int) -> int:
    """Return the bytes of a block's output, and of its tensors that the backward pass needs.

    Algorithm 3 adds these bytes to `temp`.
    """
    output = chain.outputs[block]
    dropped = chain.tapes[block] | ({output} if output is not None else set())
    return sum(chain.graph.nodes[i].bytes for i in dropped)


def segment_ends(chain: Chain, size_bytes: int) -> list[int]:
    """Return the blocks after which a new segment begins, by Algorithm 3.

    `size_bytes`: b in the paper. A segment ends when its tensors exceed this size.
    """
    ends: list[int] = []
    collected = 0
    for block in range(len(chain) - 1):
        collected += block_bytes(chain, block)
        if collected > size_bytes:
            ends.append(block)
            collected = 0
    return ends


def sizes(chain: Chain) -> list[int]:
    """Return the values of b (in bytes) at which the segments may change.

    With b = 0, every block is a segment, so every output is kept.
    """
    blocks = [block_bytes(chain, block) for block in range(len(chain) - 1)]
    sums = {0}
    for first in range(len(blocks)):
        collected = 0
        for block in blocks[first:]:
            collected += block
            sums.add(collected)
    return sorted(sums)
