"""Segments: the schedules of Chen et al., which keep only some outputs of a chain."""

from collections.abc import Sequence

from .chain import Chain, Walk
from .method import Draft


def segmented(chain: Chain, ends: Sequence[int]) -> Draft:
    """Make the schedule of a chain in segments. A segment ends after each block in `ends`.

    In the forward pass, RAM keeps the output of each segment, and the tape of the last segment.
    In the backward pass, every other segment is recomputed, with its tape, from the output of the
    previous segment.
    """
    starts = [0, *(end + 1 for end in ends)]
    walk = Walk(chain)
    for block in range(len(chain)):
        walk.forward(block, tape=block >= starts[-1])
        if block not in starts and block <= starts[-1]:  # 0 is one of them
            walk.drop([chain.outputs[block - 1]])
    following = [*starts[1:], len(chain)]
    for start, end in reversed(list(zip(starts, following, strict=True))):
        if end < len(chain):
            for block in range(start, end):
                walk.forward(block, tape=True)
        for block in reversed(range(start, end)):
            walk.backward(block)
    return Draft(walk.events, chain.note)
