"""Conflicts: what recomputations of one stage cannot be, with what stays in RAM meanwhile.

The stage model (milp.py) bounds what is in RAM while the operator of a stage runs. A
conflict is a set of recomputations S of a stage, of which K are to stay until its operator
runs, and the least bytes M that they occupy at some moment, whatever their order and
however often they are repeated. With held_i = U_ti - R_ti - P_ti, at most 1 where i was in
RAM throughout the stage,

    M (sum_S R_tj + sum_K U_tj - |S| - |K| + 1) + sum m_i held_i <= RAM

over the i that are not in S. Inputs from outside S either count as held, or in M while they
are used; `passing` are the latter.

Every plan obeys this, if of what it makes again in a stage only that counts as R or P which
was not in RAM when the stage began, or is there when its operator runs (`solution.start`).
What is dropped and comes back for a while is left out: it costs the plan, not the model.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from ..plan.problem import CostGraph
from .program import Term
from .stage_model import HERE, Stage, StageModel, Values

MOST_STATES = 2000
WHOLE = 0.999  # of a value: the variable is 1
BROKEN = 1e-6  # of the RAM: how much too much breaks a constraint


@dataclass(frozen=True)
class Conflict:
    """`stage`: its position. `peak_bytes`: M above."""

    stage: int
    computed: frozenset[int]
    kept: frozenset[int]
    passing: frozenset[int]
    peak_bytes: int


def forbid(model: StageModel, conflict: Conflict) -> bool:
    """Add the constraint of a conflict; False if the model does not offer its recomputations."""
    stage = model.stages[conflict.stage]
    kept = {i: stage.used.get(i) for i in conflict.kept}
    if any(j not in stage.computed for j in conflict.computed) or None in kept.values():
        return False
    terms: dict[int, float] = {}
    room = model.ram_bytes + conflict.peak_bytes * (len(conflict.computed) - 1)
    for j in conflict.computed:
        terms[stage.computed[j]] = float(conflict.peak_bytes)
    for column in kept.values():
        if column != HERE:
            assert column is not None
            terms[column] = float(conflict.peak_bytes)
            room += conflict.peak_bytes
    for i in stage.used.keys() - conflict.computed - conflict.passing:
        size = model.graph.nodes[i].bytes
        for column, sign in _held(stage, i):
            if column == HERE:
                room -= size
            else:
                terms[column] = terms.get(column, 0.0) + sign * size
    model.program.at_most(terms.items(), room, model.ram_bytes)
    return True


def _held(stage: Stage, i: int) -> Iterator[Term]:
    """U_ti - R_ti - P_ti."""
    yield stage.used[i], 1.0
    for made in (stage.computed, stage.paged):
        if i in made:
            yield made[i], -1.0


def lone(model: StageModel, values: Values, most: int) -> list[Conflict]:
    """Single recomputations whose constraint a fractional solution breaks, worst first."""
    nodes, found = model.graph.nodes, []
    for index, stage in enumerate(model.stages):
        held = _held_shares(stage, values)
        held_bytes = sum(nodes[i].bytes * share for i, share in held.items())
        for j, column in stage.computed.items():
            if values[column] < 1e-3:
                continue
            inputs = frozenset(nodes[j].inputs)
            own = _made_bytes(model.graph, j) + sum(nodes[i].bytes for i in inputs)
            others = held_bytes - sum(nodes[i].bytes * held.get(i, 0.0) for i in {j, *inputs})
            excess = own * values[column] + others - model.ram_bytes
            if excess > BROKEN * model.ram_bytes:
                one = Conflict(index, frozenset({j}), frozenset(), inputs, own)
                found.append((excess, one))
    found.sort(key=lambda it: -it[0])
    return [conflict for _, conflict in found[:most]]


def sets(model: StageModel, values: Values) -> list[Conflict]:
    """Of each stage, what an integral solution computes again, if that cannot be."""
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
    inputs = {i for j in computed for i in nodes[j].inputs} - computed
    passing = frozenset(i for i in inputs if held.get(i, 0.0) < WHOLE)
    kept = frozenset(
        j for j in computed if j in stage.used and _value(stage.used[j], values) > WHOLE
    )
    out = computed | passing
    held_bytes = sum(round(nodes[i].bytes * share) for i, share in held.items() if i not in out)
    peak = _least_peak(model.graph, computed, kept, passing, model.ram_bytes - held_bytes)
    if peak + held_bytes <= model.ram_bytes:
        return None
    return Conflict(index, computed, kept, passing, peak)


def _held_shares(stage: Stage, values: Values) -> dict[int, float]:
    return {
        i: sum(sign * _value(column, values) for column, sign in _held(stage, i))
        for i in stage.used
    }


def _value(column: int, values: Values) -> float:
    return 1.0 if column == HERE else float(values[column])


def _made_bytes(graph: CostGraph, j: int) -> int:
    """What the computation of j needs beside its inputs."""
    node = graph.nodes[j]
    return node.workspace_bytes + (0 if node.overwrites is not None else node.bytes)


def _least_peak(
    graph: CostGraph,
    computed: frozenset[int],
    kept: frozenset[int],
    passing: frozenset[int],
    room_bytes: int,
) -> int:
    """The least peak of computing all of `computed` and ending with `kept`, or less.

    Exact unless more than MOST_STATES states have to be visited, or some order stays within
    the room: states are visited in the order of their peaks, so that all before the end
    have no higher one.
    """
    nodes, members = graph.nodes, sorted(computed)
    own = {
        j: _made_bytes(graph, j) + sum(nodes[i].bytes for i in passing & set(nodes[j].inputs))
        for j in members
    }
    inputs = {j: frozenset(nodes[j].inputs) & computed for j in members}
    nothing: frozenset[int] = frozenset()
    heap: list[tuple[int, int, int, frozenset[int], frozenset[int]]] = [(0, 0, 0, nothing, nothing)]
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()
    count, peak = 0, 0
    while heap and len(seen) < MOST_STATES:
        peak, _, _, present, done = heapq.heappop(heap)
        if (present, done) in seen:
            continue
        seen.add((present, done))
        if done == computed and kept <= present:
            return peak
        size = sum(nodes[i].bytes for i in present)
        following = [(peak, present - {i}, done) for i in present]
        for j in members:
            if j not in present and inputs[j] <= present:
                over = nodes[j].overwrites
                after = (present | {j}) - (set() if over is None else {over})
                following.append((max(peak, size + own[j]), after, done | {j}))
        for top, after, finished in following:
            if (after, finished) not in seen:
                count += 1
                heapq.heappush(heap, (top, -len(finished), count, after, finished))
    return peak if heap else room_bytes + 1
