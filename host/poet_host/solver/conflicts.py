"""Conflicts: recomputations of one stage that do not fit into RAM together with other tensors.

The stage model (stage_model.py) bounds RAM only while the operator of a stage runs. A conflict is
a set S of recomputations of a stage. The results of a subset K stay until the stage's operator
runs. M is the least peak RAM, in bytes, for computing S, over all orders and repetitions. Let
held_i = U_ti - R_ti - P_ti, which is at most 1. It is above 0 only if i is in RAM throughout the
stage. Then

    M (sum_S R_tj + sum_K U_tj - |S| - |K| + 1) + sum m_i held_i <= RAM,

where the last sum is over the tensors i that are not in S. An input of S that is not in S counts
either as held, or in M while it is used. The inputs that count in M are called `passing`.

Every plan obeys this constraint, if R and P count only tensors that were not in RAM when the stage
began, or are in RAM when its operator runs (`solution.values_of`). So if a tensor leaves RAM and
returns only for a part of the stage, R and P do not count its return. The plan spends energy on
this return, but the model does not.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from .modes import Modes
from .program import Term, Values
from .stage_columns import ALWAYS_IN_RAM, Stage, StageModel

MAX_STATES = 2000  # visited for one M
INTEGRALITY_TOLERANCE = 1e-3  # largest distance of a variable's value from 0 or 1


@dataclass(frozen=True)
class Conflict:
    """A conflict: recomputations of a stage that do not fit into RAM together."""

    stage: int  # index of the stage
    computed: frozenset[int]  # S
    kept: frozenset[int]  # K
    passing: frozenset[int]  # inputs of nodes in S that are not in S, but count in M
    peak_bytes: int  # M


def forbid(model: StageModel, conflict: Conflict) -> bool:
    """Add a conflict's constraint. Return False if the model does not have its recomputations."""
    stage = model.stages[conflict.stage]
    kept = {i: stage.used.get(i) for i in conflict.kept}
    if any(j not in stage.computed for j in conflict.computed) or None in kept.values():
        return False
    terms: dict[int, float] = {}
    limit = model.ram_bytes + conflict.peak_bytes * (len(conflict.computed) - 1)
    for j in conflict.computed:
        terms[stage.computed[j]] = float(conflict.peak_bytes)
    for column in kept.values():
        if column != ALWAYS_IN_RAM:
            assert column is not None
            terms[column] = float(conflict.peak_bytes)
            limit += conflict.peak_bytes
    for i in stage.used.keys() - conflict.computed - conflict.passing:
        size = model.graph.nodes[i].bytes
        for column, sign in _held(stage, i):
            if column == ALWAYS_IN_RAM:
                limit -= size
            else:
                terms[column] = terms.get(column, 0.0) + sign * size
    model.program.at_most(terms.items(), limit, model.ram_bytes)
    return True


def _held(stage: Stage, i: int) -> Iterator[Term]:
    """Yield the terms of held_i = U_ti - R_ti - P_ti."""
    yield stage.used[i], 1.0
    for made in (stage.computed, stage.paged):
        if i in made:
            yield made[i], -1.0


def violated_sets(model: StageModel, values: Values) -> list[Conflict]:
    """Return conflicts for the stages whose recomputations in an integral solution exceed RAM.

    They hold for models in which these recomputations need their inputs. A conflict of few
    recomputations forbids more solutions, so none of them can be left out of its conflict.
    """
    found = []
    for index, stage in enumerate(model.stages):
        computed = frozenset(j for j, column in stage.computed.items() if values[column] > 0.5)
        parts = list(_connected(model, computed))
        conflicts = [_conflict(model, index, part, values) for part in parts]
        if len(parts) > 1 and not any(conflicts):
            conflicts.append(_conflict(model, index, computed, values))
        found += [_smallest(model, conflict, values) for conflict in conflicts if conflict]
    return found


def _connected(model: StageModel, computed: frozenset[int]) -> Iterator[frozenset[int]]:
    """Yield the largest sets of recomputations that use one another."""
    again = model.modes.exact.again
    left = set(computed)
    while left:
        part: set[int] = set()
        border = {left.pop()}
        while border:
            j = border.pop()
            part.add(j)
            near = left & {*again[j], *(k for k in left if j in again[k])}
            left -= near
            border |= near
        yield frozenset(part)


def _smallest(model: StageModel, conflict: Conflict, values: Values) -> Conflict:
    """Leave out recomputations while the others are a conflict."""
    for j in sorted(conflict.computed):
        fewer = _conflict(model, conflict.stage, conflict.computed - {j}, values)
        conflict = conflict if fewer is None else fewer
    return conflict


def _conflict(
    model: StageModel, index: int, computed: frozenset[int], values: Values
) -> Conflict | None:
    """Return the conflict of some recomputations of a stage; None if they fit into RAM."""
    nodes, stage = model.graph.nodes, model.stages[index]
    held = _held_shares(stage, values)
    modes = model.modes.exact
    inputs = {i for j in computed for i in modes.again[j]} - computed
    almost_one = 1 - INTEGRALITY_TOLERANCE
    passing = frozenset(i for i in inputs if held.get(i, 0.0) < almost_one)
    kept = frozenset(
        j for j in computed if j in stage.used and _value(stage.used[j], values) > almost_one
    )
    out = computed | passing
    held_bytes = sum(round(nodes[i].bytes * share) for i, share in held.items() if i not in out)
    peak = _least_peak(modes, computed, kept, passing, model.ram_bytes - held_bytes)
    if peak + held_bytes <= model.ram_bytes:
        return None
    return Conflict(index, computed, kept, passing, peak)


def _held_shares(stage: Stage, values: Values) -> dict[int, float]:
    return {
        i: sum(sign * _value(column, values) for column, sign in _held(stage, i))
        for i in stage.used
    }


def _value(column: int, values: Values) -> float:
    return 1.0 if column == ALWAYS_IN_RAM else float(values[column])


def _least_peak(
    modes: Modes,
    computed: frozenset[int],
    kept: frozenset[int],
    passing: frozenset[int],
    capacity_bytes: int,
) -> int:
    """Return the least peak bytes of RAM to compute all of `computed`, with `kept` left in RAM.

    Each computation may use any mode.
    States are visited in the order of their peaks, so no state before the end has a higher peak.
    The result is only a lower bound if more than MAX_STATES states would be visited. If no order
    is possible, the result is above `capacity_bytes`.
    """
    nodes, members = modes.graph.nodes, sorted(computed)
    runs = [
        (
            j,
            frozenset(whole) & computed,
            own_bytes + sum(nodes[i].bytes for i in passing & set(whole)),
            over,
        )
        for j in members
        for whole, own_bytes, over in modes.runs_again(j)
    ]
    nothing: frozenset[int] = frozenset()
    heap: list[tuple[int, int, int, frozenset[int], frozenset[int]]] = [(0, 0, 0, nothing, nothing)]
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()
    count, peak = 0, 0
    while heap and len(seen) < MAX_STATES:
        peak, _, _, present, done = heapq.heappop(heap)
        if (present, done) in seen:
            continue
        seen.add((present, done))
        if done == computed and kept <= present:
            return peak
        size = sum(nodes[i].bytes for i in present)
        following = [(peak, present - {i}, done) for i in present]
        for j, inputs, own, over in runs:
            if j not in present and inputs <= present:
                after = (present | {j}) - (set() if over is None else {over})
                following.append((max(peak, size + own), after, done | {j}))
        for top, after, finished in following:
            if (after, finished) not in seen:
                count += 1
                heapq.heappush(heap, (top, -len(finished), count, after, finished))
    return peak if heap else capacity_bytes + 1
