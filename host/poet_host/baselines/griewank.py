"""griewank: the binomial schedule of Revolve.

A. Griewank, A. Walther, *Algorithm 799: Revolve*, ACM TOMS 26(1), 2000, 19-45. A chain of l steps
with c checkpoints (the start counts as one) needs at least

    t(l, c) = r l - beta(c + 1, r - 1),   beta(c, r) = (c + r choose c),

forward steps besides those that a reversal computes itself; r is the least repetition
number with beta(c, r) >= l. The theory is of equal steps and
states; here a step is a block of the chain, and c is chosen for the budget.
"""

from collections.abc import Sequence
from math import comb

from ..plan.plan import Plan
from ..plan.problem import CostGraph, Problem
from ..solver.settings import Settings
from .chain import Chain, Walk, chain_of
from .method import Draft, realise

NAME = "griewank"


def griewank(problem: Problem, settings: Settings) -> Plan:
    """The cheapest schedule over all numbers of checkpoints that fits."""
    return realise(problem, NAME, drafts, settings)


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    chain = chain_of(graph, NAME)
    return [Draft(revolve(chain, c).events, chain.note) for c in range(1, len(chain) + 1)]


def least_advances(steps: int, checkpoints: int) -> int:
    """t(l, c): forward steps of a reversal of `steps` steps, its own ones apart."""
    repetitions = 0
    while comb(checkpoints + repetitions, checkpoints) < steps:
        repetitions += 1
    if repetitions == 0:
        return 0
    return repetitions * steps - comb(checkpoints + repetitions, checkpoints + 1)


def revolve(chain: Chain, checkpoints: int) -> Walk:
    """The walk that reverses the chain with so many checkpoints, its start being one."""
    walk = Walk(chain)
    todo = [(0, len(chain), checkpoints, False)]
    while todo:
        first, end, left, release = todo.pop()
        if release:  # the checkpoint before `first` has served
            before = chain.outputs[first - 1]
            walk.drop([before] if before is not None else [])
            continue
        if end - first == 1:
            walk.forward(first, tape=True)
            walk.backward(first)
            continue
        middle = first + _split(end - first, left)
        _advance(walk, first, middle)
        fewer = max(left - 1, 1) if left > 1 else 1
        todo.append((first, middle, left, False))
        todo.append((middle, end, 0, True))
        todo.append((middle, end, fewer, False))
    return walk


def _split(steps: int, checkpoints: int) -> int:
    """Where the next checkpoint goes: min over m of m + t(l - m, c - 1) + t(m, c)."""
    if checkpoints == 1:
        return steps - 1
    return min(
        range(1, steps),
        key=lambda m: m + least_advances(steps - m, checkpoints - 1)
        + least_advances(m, checkpoints),
    )  # fmt: skip


def _advance(walk: Walk, first: int, end: int) -> None:
    """From the output before block `first` to that of block end - 1; nothing between stays."""
    for block in range(first, end):
        walk.forward(block, tape=False)
        between = walk.chain.outputs[block - 1] if block > first else None
        if between is not None:
            walk.drop([between])
