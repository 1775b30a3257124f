"""The orders of the loops of a nest, and the rings inside of them.

Most orders cost the same as others, for all sizes of tiles. What an operand moves depends on which
loops move its slab, and on which other loops repeat that. So few choices remain of all orders and
depths. They depend on the axes alone, and are found once for all operators of a kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

LoopOf = tuple[str, bool]
"""A loop before its step is known: its axis, and whether it is the outer loop of the axis."""
Order = tuple[LoopOf, ...]


@dataclass(frozen=True)
class Around:
    """The loops outside of a ring. The last one of them moves the slab."""

    own: Order  # the loops that move the slab
    # The other loops, outermost first, each with loops of `own` inside of it. It repeats transfers
    # if one of these has several iterations. None: it always does.
    others: tuple[tuple[LoopOf, Order | None], ...]

    def depth_in(self, order: Order) -> int:
        """Return how many loops of `order` are outside of the ring."""
        return max((order.index(loop) + 1 for loop in self.own), default=0)


@dataclass(frozen=True)
class Choices:
    """Orders of loops, with a ring for each operand."""

    orders: tuple[Order, ...]
    rings: tuple[tuple[Around | None, ...], ...]  # of each operand, the first is None: no ring
    # One row for each choice: the number of the ring of each operand, a place in `for_sums`, the
    # number of its order.
    picked: NDArray[np.int64]
    for_sums: tuple[int, ...]  # numbers of orders that may differ in the bytes of sums


@cache
def orders_of(
    fixed: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...], summed: tuple[str, ...]
) -> tuple[Order, ...]:
    """Return every order in which terms of sums ascend. The outer loops of `fixed` come first."""

    def found() -> Iterator[Order]:
        for first in permutations(outer):
            for second in permutations(inner):
                terms = [summed.index(axis) for axis in (*first, *second) if axis in summed]
                if terms == sorted(terms):
                    outermost = [(axis, True) for axis in (*fixed, *first)]
                    yield (*outermost, *((axis, False) for axis in second))

    return tuple(found())


@cache
def choices_of(
    orders: tuple[Order, ...],
    owned: tuple[frozenset[str] | None, ...],
    single: frozenset[str],
    summed: frozenset[str] | None,
    shared: tuple[int, int] | None,
) -> Choices:
    """Return the choices that no other choice with the same slabs beats for every size of tiles.

    `owned`: the axes of each operand, None for an operand that cannot stream. `single`: axes whose
    last tile may be a single cell. `summed`: the axes of sums, None if sums need no memory of their
    own. `shared`: two operands that have the same ring.
    """
    numbers: list[dict[Around | None, int]] = [{None: 0} for _ in owned]
    sums: dict[frozenset[tuple[LoopOf, LoopOf]], int] = {}
    first_orders: list[int] = []  # of each number of `sums`
    rows: list[NDArray[np.int64]] = []
    for number, order in enumerate(orders):
        sides, depths = [], []
        for axes, known in zip(owned, numbers, strict=True):
            rings = list(_rings(order, axes, single)) if axes is not None else []
            sides.append([0, *(known.setdefault(ring, len(known)) for ring in rings)])
            depths.append([-1, *(ring.depth_in(order) for ring in rings)])
        after = _after_terms(order, summed) if summed is not None else frozenset()
        if sums.setdefault(after, len(sums)) == len(first_orders):
            first_orders.append(number)
        grid = np.indices([len(side) for side in sides]).reshape(len(sides), -1)
        if shared is not None:
            one, other = (np.array(depths[i])[grid[i]] for i in shared)
            grid = grid[:, one == other]
        picked = [np.array(side)[at] for side, at in zip(sides, grid, strict=True)]
        last = np.full((2, grid.shape[1]), [[sums[after]], [number]])
        rows.append(np.concatenate([picked, last]).T)
    every = np.concatenate(rows)
    sizes = [*map(len, numbers), len(sums)]
    _, at = np.unique(np.ravel_multi_index(tuple(every[:, :-1].T), sizes), return_index=True)
    kept = np.array(list(_unbeaten(every[at], numbers, list(sums), single)))
    return Choices(orders, tuple(map(tuple, numbers)), kept, tuple(first_orders))


def _rings(order: Order, axes: frozenset[str], single: frozenset[str]) -> Iterator[Around]:
    """Yield the loops around a ring at each depth that matters: see Around."""
    yield Around((), ())
    own: list[LoopOf] = []
    for i, loop in enumerate(order):
        if loop[0] not in axes:
            continue
        own.append(loop)
        repeating: dict[LoopOf, Order | None] = {}
        for j, other in enumerate(order[:i]):
            if other[0] not in axes:
                inside = tuple(sorted(it for it in own if it in order[j:]))
                always = any(outer or axis not in single or (axis, True) not in own
                             for axis, outer in inside)  # fmt: skip
                repeating[other] = None if always else inside
        yield Around(
            _outer_first(own), tuple((it, repeating[it]) for it in _outer_first(repeating))
        )


def _outer_first(loops: Iterable[LoopOf]) -> Order:
    return tuple(sorted(loops, key=lambda loop: (not loop[1], loop[0])))


def _after_terms(order: Order, summed: frozenset[str]) -> frozenset[tuple[LoopOf, LoopOf]]:
    """Return each loop over terms of a sum with each loop over others that is inside of it."""
    return frozenset(
        (terms, loop)
        for i, terms in enumerate(order)
        for loop in order[i + 1 :]
        if terms[0] in summed and loop[0] not in summed
    )


def _unbeaten(
    every: NDArray[np.int64],
    numbers: Sequence[dict[Around | None, int]],
    sums: Sequence[Iterable[tuple[LoopOf, LoopOf]]],
    single: frozenset[str],
) -> Iterator[tuple[int, ...]]:
    """Yield the rows that no other row with the same slabs beats.

    What costs is a set: each loop that repeats transfers with each loop inside of it for which it
    does, and each loop over terms with each loop that is inside of it.
    """
    bits: dict[object, int] = {}

    def mask(things: Iterable[object]) -> int:
        return sum({1 << bits.setdefault(thing, len(bits)) for thing in things})

    def repeats(operand: int, ring: Around) -> Iterator[object]:
        for other, inside in ring.others:
            if inside is None:
                yield operand, other
            for loop in inside or ((axis, False) for axis in single):
                yield operand, other, loop

    masks = [
        [mask(repeats(i, ring)) if ring else 0 for ring in known] for i, known in enumerate(numbers)
    ]
    masks.append([mask(pairs) for pairs in sums])
    slabs = [[ring and ring.own for ring in known] for known in numbers]
    groups: dict[object, list[tuple[int, tuple[int, ...]]]] = {}
    for row in every.tolist():
        slab = tuple(known[at] for known, at in zip(slabs, row, strict=False))
        cost = sum(known[at] for known, at in zip(masks, row, strict=False))
        groups.setdefault(slab, []).append((cost, tuple(row)))
    for group in groups.values():
        costs: list[int] = []
        for cost, row in sorted(group, key=lambda it: (it[0].bit_count(), it[1])):
            if not any(other & ~cost == 0 for other in costs):
                costs.append(cost)
                yield row
