"""The orders of the loops of a nest, and the rings inside of them.

Only some orders are offered: see `orders_of`. For the 431 operators of five models in small RAM
(ResNet-18, MobileNet, ResNet-8, a network for digits, bert-tiny), all orders have 7,405 best nests.
These orders reach the workspace, time and energy of each of them. That is measured, not proved.

What an operand moves depends on which loops move its slab, and on which other loops repeat that. So
many depths of a ring cost the same, and only one of them is a choice. The choices depend on the
axes alone, and are made once for all operators of a kind.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

LoopOf = tuple[str, bool]
"""A loop before its step is known: its axis, and whether it is the outer loop of the axis."""
Order = tuple[LoopOf, ...]


@dataclass(frozen=True)
class Position:
    """A place for a ring: the loops outside of it. The innermost of them moves the slab."""

    own: Order  # the loops that move the slab
    # The other loops, outer ones first, each with the loops of `own` inside of it. It repeats
    # transfers if one of these has several iterations. None: it always repeats them.
    others: tuple[tuple[LoopOf, Order | None], ...]

    def depth_in(self, order: Order) -> int:
        """Return how many loops of `order` are outside of the ring."""
        return max((order.index(loop) + 1 for loop in self.own), default=0)


FOR_SUMS, ORDER = -2, -1  # the last two columns of `Choices.picked`


@dataclass(frozen=True)
class Choices:
    """Orders of loops, with a ring for each operand."""

    orders: tuple[Order, ...]
    rings: tuple[tuple[Position | None, ...], ...]  # by operand; the first is None: no ring
    # A row for each choice: indices into the rings of each operand, into `for_sums`, into `orders`.
    picked: NDArray[np.int64]
    for_sums: tuple[int, ...]  # indices of orders that may differ in the bytes of sums


@cache
def orders_of(
    fixed: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...], summed: tuple[str, ...]
) -> tuple[Order, ...]:
    """Return the orders that are priced: outer loops, those of `fixed` first, then inner loops.

    Outer loops, and inner loops, are in the given order of their axes or in reverse. Only loops
    over axes of sums keep the order of `summed`. They stand together, at any place.
    """

    def halves(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        terms = tuple(axis for axis in summed if axis in axes)
        free = tuple(axis for axis in axes if axis not in summed)
        for others, i in product((free, free[::-1]), range(len(free) + 1)):
            yield (*others[:i], *terms, *others[i:])

    return tuple(
        dict.fromkeys(
            (*((axis, True) for axis in (*fixed, *first)), *((axis, False) for axis in second))
            for first, second in product(halves(outer), halves(inner))
        )
    )


@cache
def choices_of(
    orders: tuple[Order, ...],
    owned: tuple[frozenset[str] | None, ...],
    single: frozenset[str],
    summed: frozenset[str] | None,
    shared: tuple[int, int] | None,
) -> Choices:
    """Return the choices, without those that cost the same as another one with all tile sizes.

    `owned`: the axes whose loops move the slab of each operand; None: the operand cannot stream.
    `single`: axes whose last tile may be a single cell. `summed`: the axes of sums; None: sums need
    no memory of their own. `shared`: two operands that have the same ring.
    """
    numbers: list[dict[Position | None, int]] = [{None: 0} for _ in owned]
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
    return Choices(orders, tuple(map(tuple, numbers)), every[at], tuple(first_orders))


def _rings(order: Order, axes: frozenset[str], single: frozenset[str]) -> Iterator[Position]:
    """Yield the positions of a ring: outside of all loops, or just inside of an own one."""
    yield Position((), ())
    own: list[LoopOf] = []
    for i, loop in enumerate(order):
        if loop[0] not in axes:
            continue
        own.append(loop)
        repeating: dict[LoopOf, Order | None] = {}
        for j, other in enumerate(order[:i]):
            if other[0] not in axes:
                inside = tuple(sorted(loop for loop in own if loop in order[j:]))
                always = any(outer or axis not in single or (axis, True) not in own
                             for axis, outer in inside)  # fmt: skip
                repeating[other] = None if always else inside
        yield Position(_outer_first(own), tuple((o, repeating[o]) for o in _outer_first(repeating)))


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
