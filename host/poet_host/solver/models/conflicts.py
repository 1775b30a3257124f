"""Conflicts: recomputations of one stage that do not fit into RAM together with other tensors.

The stage model (stage_model.py) bounds RAM only while the operator of a stage runs. A conflict also
bounds it while the stage recomputes a set S of nodes (example: docs/explanation/planner.md):

    (M - m(K)) (sum_S R_tj - |S| + 1) + sum_K m_i U_ti + sum m_i held_i <= RAM

    M        the least peak RAM, in bytes, to compute S, over all orders and repetitions
    K        the results of S that stay until the stage's operator runs; m(K) are their bytes
    held_i   U_ti - R_ti - P_ti, at most 1, for i not in S: 1 if i is in RAM all through the stage

If less of K stays, M falls by at most the bytes of what does not stay. Four refinements:

- The bytes that operator t itself needs may be subtracted from both M and RAM.
- If a recomputation may overwrite a tensor of K, its U is added to the R, and 1 to |S|.
- An input of S that is not in S counts either as held, or in M while it is used (`passing`).
- A conflict may assume that nodes of a subset Q are recomputed once in the stage, so that M is
  larger. Then the sum over Q of W_tj + U_(t-1)j is subtracted from that of the R. The binary
  variable W_tj is 1 if the stage recomputes j more than once. It costs the energy to compute j.

Every plan obeys this constraint, if R and P count only tensors that were not in RAM when the stage
began, or are in RAM when its operator runs (`solution.values_of`). So if a tensor leaves RAM and
returns only for a part of the stage, R and P do not count its return. The plan spends energy on
this return, but the model does not.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..modes import Modes
from ..policy import DEFAULT_POLICY
from ..program import INFINITY, Term, Values
from .model import Columns
from .stage_columns import ALWAYS_IN_RAM, Stage, StageModel

INTEGRALITY_TOLERANCE = 1e-3  # largest distance of a variable's value from 0 or 1


@dataclass(frozen=True)
class Conflict:
    """A conflict: recomputations of a stage that do not fit into RAM together."""

    stage: int  # index of the stage
    computed: frozenset[int]  # S
    kept: frozenset[int]  # K
    passing: frozenset[int]  # inputs of nodes in S that are not in S, but count in M
    once: frozenset[int]  # Q
    peak_bytes: int  # M


def forbid(model: StageModel, conflict: Conflict) -> bool:
    """Add a conflict's constraint. Return False if the model does not have its recomputations."""
    stage, nodes = model.stages[conflict.stage], model.graph.nodes
    if any(j not in stage.computed for j in conflict.computed) or any(
        j not in stage.used for j in conflict.kept
    ):
        return False
    if any(stage.before.get(j) == ALWAYS_IN_RAM for j in conflict.once):
        return False
    lost = conflict.kept & _overwritten(model.modes.exact, conflict.computed)
    own_bytes = _own_bytes(model, stage)
    extra = conflict.peak_bytes - own_bytes
    extra -= sum(nodes[i].bytes for i in conflict.kept - lost)
    if extra <= 0:
        return True  # whatever the solution, the operator needs as much
    limit = model.ram_bytes - own_bytes + extra * (len(conflict.computed) + len(lost) - 1)
    sums: Counter[int] = Counter()  # coefficients, by column
    for j in conflict.computed:
        sums[stage.computed[j]] += extra
    for i in conflict.kept:
        sums[stage.used[i]] += extra if i in lost else nodes[i].bytes
    for j in conflict.once:
        if j not in stage.repeated:
            stage.repeated[j] = model.program.binary(_energy_uj(model, j))
        sums[stage.repeated[j]] -= extra
        if j in stage.before:
            sums[stage.before[j]] -= extra
    for i in stage.used.keys() - conflict.computed - conflict.passing:
        for column, sign in _held(stage, i):
            sums[column] += int(sign) * nodes[i].bytes
    limit -= sums.pop(ALWAYS_IN_RAM, 0)
    model.program.at_most(sums.items(), limit, model.ram_bytes)
    return True


def _own_bytes(model: StageModel, stage: Stage) -> int:
    """Return the least bytes of the output and the workspace of a stage's operator."""
    t = stage.operator
    if t is None:
        return 0
    return min((model.graph.own_bytes(t, m) for m in model.modes.usable[t]), default=0)


def _overwritten(modes: Modes, computed: frozenset[int]) -> set[int | None]:
    return {over for j in computed for *_, over in modes.runs_again(j)}


def _energy_uj(model: StageModel, j: int) -> float:
    way = model.modes.exact.least_way[j]
    return INFINITY if way is None else way.energy_uj


def _held(stage: Stage, i: int) -> Iterator[Term]:
    """Yield the terms of held_i = U_ti - R_ti - P_ti."""
    yield stage.used[i], 1.0
    for made in (stage.computed, stage.paged):
        if i in made:
            yield made[i], -1.0


def violated_sets(model: StageModel, values: Values) -> list[Conflict]:
    """Return conflicts for the stages whose recomputations in an integral solution exceed RAM.

    They hold for models in which these recomputations need their inputs. A conflict of few
    recomputations forbids more solutions, so none of them can be left out of its conflict. If all
    fit into RAM, but only if some are repeated, the conflict assumes that they are not.
    """
    found = []
    for index, stage in enumerate(model.stages):
        computed = frozenset(j for j, column in stage.computed.items() if values[column] > 0.5)
        parts = list(_connected(model, computed))
        for once in (frozenset(), _once(stage, computed, values)):
            conflicts = [_conflict(model, index, part, part & once, values) for part in parts]
            if len(parts) > 1 and not any(conflicts):
                conflicts.append(_conflict(model, index, computed, once, values))
            if any(conflicts):
                break
        smallest = (_smallest(model, conflict, values) for conflict in conflicts if conflict)
        found += [_lifted(model, conflict) for conflict in smallest]
    return found


def _once(stage: Stage, computed: frozenset[int], values: Values) -> frozenset[int]:
    """Return the recomputations of a stage that the solution does not repeat."""

    def is_one(columns: Columns, j: int) -> bool:
        return j in columns and _value(columns[j], values) > INTEGRALITY_TOLERANCE

    return frozenset(
        j for j in computed if not is_one(stage.repeated, j) and not is_one(stage.before, j)
    )


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
    """Leave out recomputations while the others are a conflict.

    Then let recomputations repeat, the cheap ones first, while this is still a conflict.
    """
    for j in sorted(conflict.computed):
        fewer = _conflict(
            model, conflict.stage, conflict.computed - {j}, conflict.once - {j}, values
        )
        conflict = conflict if fewer is None else fewer
    for j in sorted(conflict.once, key=lambda j: (_energy_uj(model, j), j)):
        freer = _conflict(model, conflict.stage, conflict.computed, conflict.once - {j}, values)
        conflict = conflict if freer is None else freer
    return conflict


def _lifted(model: StageModel, conflict: Conflict) -> Conflict:
    """Add results to `kept` that raise the peak by their own bytes.

    So the conflict also forbids solutions that keep others of these results.
    """
    stage, modes = model.stages[conflict.stage], model.modes.exact
    most = model.policy.max_conflict_states
    out = conflict.kept | _overwritten(modes, conflict.computed)
    for j in sorted(conflict.computed - out):
        size = model.graph.nodes[j].bytes
        if size and j in stage.used:
            kept = conflict.kept | {j}
            rest = conflict.passing, 0, conflict.once, most
            peak = _least_peak(modes, conflict.computed, kept, *rest)
            if peak >= conflict.peak_bytes + size:
                conflict = replace(conflict, kept=kept, peak_bytes=conflict.peak_bytes + size)
    return conflict


def _conflict(
    model: StageModel,
    index: int,
    computed: frozenset[int],
    once: frozenset[int],
    values: Values,
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
    most, left_bytes = model.policy.max_conflict_states, model.ram_bytes - held_bytes
    peak = _least_peak(modes, computed, kept, passing, left_bytes, once, most)
    if peak + held_bytes <= model.ram_bytes:
        return None
    return Conflict(index, computed, kept, passing, once, peak)


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
    once: frozenset[int] = frozenset(),
    max_states: int = DEFAULT_POLICY.max_conflict_states,
) -> int:
    """Return the least peak bytes of RAM to compute all of `computed`, with `kept` left in RAM.

    Each computation may use any mode. `once`: nodes that are computed once; others may be repeated.
    The search runs backwards from the end. A state is what RAM must hold at some moment, and the
    results that must still be computed before it. The predecessors of a state differ in which of
    these was computed last. So nothing needs to be dropped, and the last state is empty.
    States are visited in the order of their peaks, so no state before the last has a higher peak.
    The result is only a lower bound if more than `max_states` states would be visited. If no order
    is possible, the result is above `capacity_bytes`.
    """
    nodes = modes.graph.nodes
    runs = {
        j: [
            (
                frozenset(whole) & computed,
                own_bytes + sum(nodes[i].bytes for i in passing & set(whole)),
                over,
            )
            for whole, own_bytes, over in modes.runs_again(j)
        ]
        for j in computed
    }
    certain = (frozenset.intersection(*(it for it, _, _ in runs[j])) for j in computed if runs[j])
    unused = computed.difference(kept, *certain)  # no other result implies that these are computed
    heap = [(0, sorted(computed, reverse=True), kept, unused | once)]
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()
    peak = 0
    while heap and len(seen) < max_states:
        peak, _, held, left = heapq.heappop(heap)
        if (held, left) in seen:
            continue
        seen.add((held, left))
        if not held and not left:
            return peak
        for j in held | left:
            for inputs, own_bytes, over in runs[j]:
                before, waiting = (held - {j}) | inputs, left - {j}
                is_legal = over not in held and before & once <= waiting
                if is_legal and (before, waiting) not in seen:
                    size = own_bytes + sum(nodes[i].bytes for i in before)
                    order = sorted(before | waiting, reverse=True)
                    heapq.heappush(heap, (max(peak, size), order, before, waiting))
    return peak if heap else capacity_bytes + 1
