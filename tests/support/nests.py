"""Random nests of an operator, with cuts of its tensors that fit."""

import random
from collections.abc import Iterable, Sequence

import numpy as np
from poet_host.graph.cuts import Cut
from poet_host.graph.operands import Operator
from poet_host.plan.nests import MAX_LOOPS, Loop, Nest, NestedOperator, Ring
from poet_host.plan.parts import LawError
from support.kernel_cases import Case


def operator_of(case: Case, overwrites: int | None = None) -> Operator:
    over = case.overwrites if overwrites is None else overwrites
    return Operator(case.op, case.sink, len(case.inputs), case.attrs, over)


def cut_of(rng: random.Random, size: tuple[int, ...], part: tuple[int, ...]) -> Cut | None:
    """A cut with these parts; None: nothing is cut, or a record has too few axes for it.

    Some of its axes are several axes of the operand.
    """
    axes: list[tuple[int, int]] = []
    for s, p in reversed([pair for pair in zip(size, part, strict=True) if pair[0] > 1]):
        size_below, part_below = axes[0] if axes else (0, 1)
        aligned = part_below == size_below or (p == 1 and size_below % part_below == 0)
        if axes and aligned and rng.random() < 0.5:
            axes[0] = (s * size_below, p * part_below)
        else:
            axes.insert(0, (s, p))
    unit = 4
    while axes and axes[-1][0] == axes[-1][1]:
        unit *= axes.pop()[0]
    if not axes or len(axes) > 3:
        return None
    axes = [(1, 1)] * (3 - len(axes)) + axes
    return Cut(unit, tuple(s for s, _ in axes), tuple(p for _, p in axes))


def random_loops(rng: random.Random, operator: Operator) -> tuple[Loop, ...]:
    """Loops that obey the laws about steps and terms."""
    sequences = [[(axis, operator.size(axis))] for axis in operator.free_axes]
    terms = []
    for axis in operator.summed:
        terms.append((axis, operator.size(axis)))
        if rng.random() < 0.5 and operator.size(axis) > 1:
            break
    last = terms[-1:]  # only this one may have cells of several terms
    found: list[list[Loop]] = []
    summed: list[Loop] = []
    for axis, size in [*(s[0] for s in sequences), *terms]:
        if rng.random() < 0.3 and (axis, size) not in terms[:-1]:
            continue
        step = 1 if (axis, size) in terms and [(axis, size)] != last else rng.randint(1, size)
        loops = [Loop(axis, step)]
        if size // step > 1 and rng.random() < 0.4:
            loops.insert(0, Loop(axis, step * rng.randint(1, size // step)))
        if (axis, size) in terms:
            summed += loops
        else:
            found.append(loops)
    if any(
        operator.size(axis) > 1 and not any(s.axis == axis for s in summed)
        for axis, _ in terms[:-1]
    ):
        summed = [s for s in summed if s.axis == terms[0][0]][:0]
    found = [*filter(None, [*found, summed])]
    merged: list[Loop] = []
    while found and len(merged) < MAX_LOOPS:
        chosen = rng.choice(found)
        merged.append(chosen.pop(0))
        found = [*filter(None, found)]
    if operator.has_steps and rng.random() < 0.5:  # rows in each step
        outer = Loop("n", rng.randint(1, max(1, operator.size("n"))))
        rows = [loop for loop in merged if loop.axis == "k"]
        merged = [*([outer] if rng.random() < 0.3 else []), Loop("n", 1), *rows]
    return tuple(merged)


def random_part(
    rng: random.Random, size: tuple[int, ...], cell: tuple[int, ...]
) -> tuple[int, ...]:
    """Parts that may hold the cells: the cells themselves, or more of them."""
    kind = rng.random()
    if kind < 0.3:
        return size
    if kind < 0.6:
        return cell
    return tuple(
        s if c == s or rng.random() < 0.3 else min(s, c * rng.randint(1, max(1, s // c)))
        for s, c in zip(size, cell, strict=True)
    )


def random_operands(
    rng: random.Random, operator: Operator, numbers: Iterable[int], loops: Sequence[Loop]
) -> tuple[list[Cut | None], list[Ring | None]]:
    """Cuts and rings of these operands; about half of the operands stream."""
    steps = {loop.axis: loop.step for loop in loops}
    cuts, rings = [], []
    for axes in map(operator.operand, numbers):
        size = tuple(axis.size for axis in axes)
        cell = tuple(
            int(a.extent(np.array(steps[a.cut_by]))) if a.cut_by in steps else a.size for a in axes
        )
        cuts.append(cut_of(rng, size, random_part(rng, size, cell)))
        ring = Ring(rng.randint(1, 2), rng.randint(0, len(loops)))
        rings.append(ring if rng.random() < 0.6 else None)
    return cuts, rings


def random_nest(rng: random.Random, operator: Operator) -> NestedOperator:
    """A nest that obeys all laws; about half of its operands stream."""
    for _ in range(300):
        loops = random_loops(rng, operator)
        over = operator.overwritten
        in_place = over is not None and (operator.must_overwrite or rng.random() < 0.7)
        cuts, rings = random_operands(rng, operator, range(operator.input_count + 1), loops)
        if in_place:
            assert over is not None
            cuts[over], rings[over] = cuts[-1], rings[-1]
        nest = Nest(loops, tuple(rings), in_place or over is None)
        try:
            return NestedOperator(operator, tuple(cuts), nest)
        except LawError:
            continue
    whole = Nest((), (None,) * (operator.input_count + 1))
    return NestedOperator(operator, (None,) * (operator.input_count + 1), whole)
