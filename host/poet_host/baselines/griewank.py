"""griewank: the binomial schedule of Revolve, which recomputes the fewest steps of a chain.

A. Griewank, A. Walther, *Algorithm 799: Revolve*, ACM TOMS 26(1), 2000, 19-45. A chain of l steps
runs forward, then backward. Each backward step needs the state before its forward step. RAM keeps c
of these states, the checkpoints (the start of the chain is one of them). The other states are
recomputed from the checkpoints. In addition to the l forward steps, every schedule recomputes at
least

    t(l, c) = r l - beta(c + 1, r - 1),   beta(c, r) = (c + r choose c),

forward steps, where r is the smallest number of repetitions with beta(c, r) >= l. The theory
assumes steps of equal cost and states of equal size. In this module a step is a block of the chain,
and c is chosen for the RAM budget.
"""

from collections.abc import Sequence
from math import comb

from ..plan.problem import CostGraph
from .chain import Chain, Walk, chain_of
from .method import Draft


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return one schedule for each number of checkpoints."""
    chain = chain_of(graph)
    return [Draft(revolve(chain, c).events, chain.note) for c in range(1, len(chain) + 1)]


def least_advances(steps: int, checkpoints: int) -> int:
    """Return t(l, c), the additional forward steps, for l = `steps` and c = `checkpoints`."""
    repetitions = 0
    while comb(checkpoints + repetitions, checkpoints) < steps:
        repetitions += 1
    if repetitions == 0:
        return 0
    return repetitions * steps - comb(checkpoints + repetitions, checkpoints + 1)


def revolve(chain: Chain, checkpoints: int) -> Walk:
    """Return the events (a `Walk`) that compute the chain forward and backward.

    `checkpoints`: most states in RAM at the same time. The start of the chain is one of them.
    """
    walk = Walk(chain)
    todo = [(0, len(chain), checkpoints, False)]
    while todo:
        first, end, left, release = todo.pop()
        if release:  # the checkpoint before `first` is not needed any more
            walk.drop([chain.outputs[first - 1]])
            continue
        if end - first == 1:
            walk.forward(first, tape=True)
            walk.backward(first)
            continue
        middle = first + _split(end - first, left)
        _advance(walk, first, middle)
        todo.append((first, middle, left, False))
        todo.append((middle, end, 0, True))
        todo.append((middle, end, max(left - 1, 1), False))
    return walk


def _split(steps: int, checkpoints: int) -> int:
    """Return m, the number of steps to the next checkpoint, for l = `steps` and c = `checkpoints`.

    m minimises m + t(l - m, c - 1) + t(m, c).
    """
    if checkpoints == 1:
        return steps - 1
    return min(
        range(1, steps),
        key=lambda m: m + least_advances(steps - m, checkpoints - 1)
        + least_advances(m, checkpoints),
    )  # fmt: skip


def _advance(walk: Walk, first: int, end: int) -> None:
    """Compute blocks `first` to `end` - 1. Keep only the output of block `end` - 1."""
    for block in range(first, end):
        walk.forward(block, tape=False)
        if block > first:
            walk.drop([walk.chain.outputs[block - 1]])
