"""Convert plans to solutions of the stage model (stage_model.py), and solutions to plans."""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...plan.effects import Contents
from ...plan.events import Event
from ...plan.problem import CostGraph
from ..program import Program, Values
from .stage_columns import ALWAYS_IN_RAM, Stage, StageModel


def recomputed(model: StageModel, values: Values) -> list[list[int]]:
    """Return for each stage the nodes that the solution recomputes, in the order of the graph."""
    return [
        sorted(i for i, column in stage.computed.items() if values[column] > 0.5)
        for stage in model.stages
    ]


def events(model: StageModel, values: Values) -> list[Event]:
    """Return the events of a solution in a simple order. This order may need too much RAM."""
    nodes, modes = model.graph.nodes, model.modes
    ordered: list[Event] = []
    paged: set[int] = set()
    page_outs: list[Event] = []  # some wait for the closing mode that computes their tensor
    ordered += (Event("start", i) for i, s in model.starts.items() if values[s] > 0.5)
    for stage in model.stages:
        paged |= {i for i, column in stage.paged.items() if values[column] > 0.5}
        again = sorted(j for j, column in stage.computed.items() if values[column] > 0.5)
        computes = list(dict.fromkeys(_again(model, stage, values, j) for j in again))
        i, first = stage.operator, None
        if i is not None:
            mode = _mode(stage, values)
            first = modes.event_of(i, mode)
            computes += [] if first is None else [first]
            is_kept = i in model.graph.always_written
            is_paged_out = i in model.written and values[model.written[i]] > 0.5
            if (is_kept or is_paged_out) and not nodes[i].mode(mode).streamed_output:
                page_outs.append(Event("page_out", i))
        for event in computes:
            for j in dict.fromkeys(modes.given.effects[event].needs):
                if j in paged:
                    ordered.append(Event("page_in", j))
                    paged.discard(j)
            ordered.append(event)
        if first is not None:
            ordered += page_outs
            paged, page_outs = set(), []
    return [*ordered, *(Event("page_in", j) for j in sorted(paged))]


def _mode(stage: Stage, values: Values) -> int:
    """Return the mode in which a solution computes the operator of a stage."""
    return max(stage.modes, key=lambda m: values[stage.modes[m]], default=0)


def _again(model: StageModel, stage: Stage, values: Values, j: int) -> Event:
    """Return the event by which a solution recomputes node j in a stage."""
    ways = model.modes.ways[j]
    columns = stage.ways.get(j)
    way = ways[0 if columns is None else int(np.argmax(values[columns]))]
    return Event("compute", way.node, way.mode)


def repeated(model: StageModel, values: Values) -> set[tuple[int, int]]:
    """Return the recomputations that a solution repeats within a stage, as (stage, node)."""
    return {
        (index, i)
        for index, stage in enumerate(model.stages)
        for i, column in stage.repeated.items()
        if values[column] > 0.5
    }


def values_of(
    model: StageModel, events: Sequence[Event], repeats: Set[tuple[int, int]] = frozenset()
) -> Values:
    """Return the values that the variables of a model have in a plan.

    The values are a solution if the model offers the recomputations of the plan. `repeats`: the
    (stage, node) of recomputations that count as repeated, although the events make them once.
    """
    values = np.zeros(len(model.program.cost))
    firsts, effects = model.modes.firsts(events), model.modes.given.effects
    stored = {i for event in events for i in effects[event].stores}
    written = stored - {
        i for i, mode in firsts.items() if model.graph.nodes[i].mode(mode).streamed_output
    }
    for i, column in model.written.items():
        values[column] = float(i in written)
    for op, i, _ in events:
        if op == "start":
            values[model.starts[i]] = 1.0
    for k, y in model.commits.items():
        values[y] = float(k not in stored)
    by_stage = _by_stage(model.modes.given, events)
    for index, (stage, done) in enumerate(zip(model.stages, by_stage, strict=True)):
        if stage.operator is not None:
            _set_mode(model, stage, values, firsts[stage.operator], done.in_ram)
        for i, column in stage.used.items():
            if column != ALWAYS_IN_RAM and i in done.in_ram:
                values[column] = 1.0
        created = done.recomputed.keys() | done.paged
        for i in (stage.computed.keys() | stage.paged.keys()) & created:
            before = stage.before.get(i)
            was_there = before is not None and (before == ALWAYS_IN_RAM or values[before] > 0.5)
            if was_there and not (stage.may_repeat and i in done.in_ram):
                continue
            is_paged = i in done.paged
            created_by = stage.paged.get(i) if is_paged else stage.computed.get(i)
            if created_by is not None:
                values[created_by] = 1.0
            if i in stage.repeated:
                is_repeated = i in done.repeated or (index, i) in repeats
                values[stage.repeated[i]] = float(is_repeated and not is_paged)
            if i in stage.ways and not is_paged:
                values[stage.ways[i][model.modes.way_of(i, done.recomputed[i])]] = 1.0
    for gap in model.gaps:
        values[gap.held] = min(values[column] for column in gap.used)
        values[gap.paged] = max(values[column] for column in gap.pages)
    model.lanes.fill(model.program, values)
    return values


def _set_mode(model: StageModel, stage: Stage, values: Values, mode: int, in_ram: set[int]) -> None:
    """Set the variables x and V of a stage, whose operator is computed in `mode`.

    Where the model lacks this mode, x is set for another one that is at least as good.
    """
    t = stage.operator
    assert t is not None
    effect = model.graph.effects["compute", t, mode]
    if stage.modes:
        values[stage.modes[model.modes.instead_of(t, mode)]] = 1.0
    for i, column in stage.after.items():
        if column not in (ALWAYS_IN_RAM, stage.used.get(i)):
            is_there = i in in_ram and i not in effect.drops
            values[column] = float(i in effect.makes if i == t else is_there)


def recomputed_by_stage(graph: CostGraph, events: Sequence[Event]) -> dict[int, set[int]]:
    """Return for each stage the nodes that a plan recomputes. A stage's key is its operator."""
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    stages = zip([*operators, len(graph.nodes)], _by_stage(graph, events), strict=False)
    return {operator: set(done.recomputed) for operator, done in stages}


def overhead_by_stage(model: StageModel, values: Values) -> list[float]:
    """Return a solution's energy for recomputations, page-ins and expensive modes in each stage.

    If this energy is 0 in all stages, return 1 for each stage.
    """
    costs = np.array(model.program.cost)
    spent = []
    for stage in model.stages:
        ways = [column for columns in stage.ways.values() for column in columns]
        again = [*stage.computed.values(), *stage.repeated.values(), *ways]
        columns = [*again, *stage.paged.values(), *stage.modes.values()]
        least = min((costs[x] for x in stage.modes.values()), default=0.0)
        spent.append(max(0.0, float(sum(costs[c] * values[c] for c in columns) - least)))
    return spent if any(spent) else [1.0] * len(spent)


def violated_stages(model: StageModel, values: Values) -> set[int]:
    """Return the indices of the stages whose constraints the values violate."""
    stages = {bisect(model.first_rows, row) - 1 for row in model.program.violated_rows(values)}
    return stages & set(range(len(model.stages)))


def neighbourhood(model: StageModel, values: Values, window: Iterable[int]) -> Program:
    """Return the program with all variables fixed to a solution, except those of some stages.

    `window`: indices of the stages whose variables are free. For some tensors, the variables U are
    free in all stages: the inputs of the window's operators, the tensors recomputed in the window,
    and the inputs of both.
    """
    nodes = model.graph.nodes
    free: set[int] = {*model.written.values(), model.lanes.column}
    free |= {*model.starts.values(), *model.commits.values()}
    tensors: set[int] = set()
    for stage in (model.stages[index] for index in window):
        free.update(stage.before.values(), stage.used.values(), stage.modes.values())
        free.update(stage.computed.values(), stage.repeated.values(), stage.paged.values())
        free.update(column for columns in stage.ways.values() for column in columns)
        inputs = () if stage.operator is None else nodes[stage.operator].all_inputs
        again = [i for i, column in stage.computed.items() if values[column] > 0.5]
        tensors.update(inputs, again, *(nodes[i].all_inputs for i in (*inputs, *again)))
    for stage in model.stages:
        free.update(stage.used[i] for i in tensors if i in stage.used)
        free.update(stage.after[i] for i in tensors if i in stage.after)
    lower, upper = model.program.lower[:], model.program.upper[:]
    for column in range(len(lower)):
        if column not in free:
            lower[column] = upper[column] = round(values[column])
    return replace(model.program, lower=lower, upper=upper)


class _StageEvents(NamedTuple):
    """What a plan does in one stage, before the stage's operator runs."""

    recomputed: dict[int, Event]  # by node, the first event of the stage that recomputes it in RAM
    paged: set[int]  # tensors that are paged in
    repeated: set[int]  # nodes that are recomputed more than once
    in_ram: set[int]  # tensors in RAM while the operator runs


def _by_stage(graph: CostGraph, events: Sequence[Event]) -> Iterator[_StageEvents]:
    """Yield what happens in each stage. Recomputations that stream their output are left out.

    An event may compute several nodes first. What happens before it belongs to the stage of the
    last one. Only what brings a tensor into RAM that an earlier one overwrites belongs to the stage
    of that one, whose waiting mode needs nothing else (see apart.py). In the stage of a node that
    is left out, nothing happens, and RAM holds what stays from the stage before.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    stage_of = {i: stage for stage, i in enumerate(operators)}
    following = 0  # index of the stage in `operators`
    recomputed: dict[int, Event] = {}
    paged: set[int] = set()
    repeated: set[int] = set()
    contents = Contents(graph)
    ram, before = contents.ram, set(contents.ram)
    for event in events:
        effect = graph.effects[event]
        if event.op != "compute":
            (before if event.op == "start" else paged).update(effect.makes)
            ram.update(effect.makes)
            ram.difference_update(effect.drops)
            continue
        takes = {place.node: place.takes for place in effect.places}
        first = {stage_of[i]: i for i in (*takes, *effect.stores) if stage_of[i] >= following}
        for i in (i for i in takes if stage_of[i] < following):
            if i in recomputed:
                repeated.add(i)
            recomputed.setdefault(i, event)
            ram.discard(takes[i])
            ram.add(i)
        last = max(first, default=following - 1)
        for stage in range(following, last):
            waiting = first.get(stage, -1)
            needed = _needed(graph, takes.get(waiting), recomputed, paged, ram)
            now = {j: recomputed.pop(j) for j in needed & recomputed.keys()}
            yield _StageEvents(now, needed & paged, repeated & needed, (before | needed) & ram)
            paged -= needed
            before |= needed
            if waiting in takes:
                ram.discard(takes[waiting])
                ram.add(waiting)
                before.add(waiting)
        if last in first:
            yield _StageEvents(recomputed, paged, repeated, set(ram))
            recomputed, paged, repeated, following = {}, set(), set(), last + 1
            contents.change(effect)
            before = set(ram)
    for _ in range(following, len(operators)):
        yield _StageEvents({}, set(), set(), before & ram)
    if graph.starting or not graph.storage:
        yield _StageEvents(recomputed, paged, repeated, set(ram))


def _needed(
    graph: CostGraph,
    tensor: int | None,
    recomputed: Mapping[int, Event],
    paged: Set[int],
    ram: Set[int],
) -> set[int]:
    """Return the tensors that are recomputed or paged in to bring a tensor into RAM.

    If such a tensor has left RAM since, what used it is one of them, too.
    """
    inputs = {j: set(graph.effects[event].needs) for j, event in recomputed.items()}
    needed: set[int] = set()
    border = {i for i in (*inputs, *paged) if i == tensor}
    while border:
        needed |= border
        used = {i for j in border for i in inputs.get(j, ())}
        users = {j for j in inputs if not inputs[j].isdisjoint(needed - ram)}
        border = (used | users) & (inputs.keys() | paged) - needed
    return needed
