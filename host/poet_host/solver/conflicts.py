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
VIOLATION_TOLERANCE = 1e-6  # ignore an excess of up to this share of the RAM budget


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


def violated_single(model: StageModel, values: Values, max_count: int) -> list[Conflict]:
    """Return the conflicts in a fractional solution, in descending order of the excess of RAM.

    Each conflict has one recomputation. At most `max_count` conflicts are returned.
    """
    nodes, again, found = model.graph.nodes, model.modes.again, []
    for index, stage in enumerate(model.stages):
        held = _held_shares(stage, values)
        held_bytes = sum(nodes[i].bytes * share for i, share in held.items())
        for j, column in stage.computed.items():
            if values[column] < INTEGRALITY_TOLERANCE:
                continue
            inputs = frozenset(again[j])
            own = min(model.modes.need_bytes(j, m) for m in model.modes.whole[j])
            others = held_bytes - sum(nodes[i].bytes * held.get(i, 0.0) for i in {j, *inputs})
            excess = own * values[column] + others - model.ram_bytes
            if excess > VIOLATION_TOLERANCE * model.ram_bytes:
                conflict = Conflict(index, frozenset({j}), frozenset(), inputs, own)
                found.append((excess, conflict))
    found.sort(key=lambda it: -it[0])
    return [conflict for _, conflict in found[:max_count]]


def violated_sets(model: StageModel, values: Values) -> list[Conflict]:
    """Return a conflict for each stage whose recomputations in an integral solution exceed RAM."""
    found = []
    for index, stage in enumerate(model.stages):
        computed = frozenset(j for j, column in stage.computed.items() if values[column] > 0.5)
        if computed:
            conflict = _conflict(model, index, stage, computed, values)
            if conflict is not None:
                found.append(conflict)
    return found


def _conflict(
    model: StageModel, index: int, stage: Stage, computed: frozenset[int], values: Values
) -> Conflict | None:
    nodes = model.graph.nodes
    held = _held_shares(stage, values)
    inputs = {i for j in computed for i in model.modes.again[j]} - computed
    almost_one = 1 - INTEGRALITY_TOLERANCE
    passing = frozenset(i for i in inputs if held.get(i, 0.0) < almost_one)
    kept = frozenset(
        j for j in computed if j in stage.used and _value(stage.used[j], values) > almost_one
    )
    out = computed | passing
    held_bytes = sum(round(nodes[i].bytes * share) for i, share in held.items() if i not in out)
    peak = _least_peak(model.modes, computed, kept, passing, model.ram_bytes - held_bytes)
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
            nodes[j].own_bytes(m) + sum(nodes[i].bytes for i in passing & set(whole)),
            nodes[j].taken(m),
        )
        for j in members
        for m in modes.whole[j]
        for whole in (nodes[j].whole_inputs(m),)
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
