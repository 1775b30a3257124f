"""Convert plans to solutions of the stage model (stage_model.py), and solutions to plans."""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from ...plan.effects import Contents
from ...plan.problem import CostGraph
from ..events import Event
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
    found: list[Event] = []
    paged: set[int] = set()
    outs: list[Event] = []  # page-outs of tensors that a closing mode will compute
    for stage in model.stages:
        paged |= {i for i, column in stage.paged.items() if values[column] > 0.5}
        steps = sorted(j for j, column in stage.computed.items() if values[column] > 0.5)
        runs = list(dict.fromkeys(_again(model, stage, values, j) for j in steps))
        i, first = stage.operator, None
        if i is not None:
            mode = _mode(stage, values)
            first = modes.event_of(i, mode)
            runs += [] if first is None else [first]
            kept = nodes[i].keep and model.graph.storage
            is_paged_out = i in model.written and values[model.written[i]] > 0.5
            if (kept or is_paged_out) and not nodes[i].mode(mode).streamed_output:
                outs.append(Event("page_out", i))
        for run in runs:
            for j in dict.fromkeys(modes.given.effects[run].needs):
                if j in paged:
                    found.append(Event("page_in", j))
                    paged.discard(j)
            found.append(run)
        if first is not None:
            found += outs
            paged, outs = set(), []
    return found


def _mode(stage: Stage, values: Values) -> int:
    return max(stage.modes, key=lambda m: values[stage.modes[m]], default=0)


def _again(model: StageModel, stage: Stage, values: Values, j: int) -> Event:
    """Return the event by which a solution recomputes node j in a stage."""
    ways = model.modes.ways[j]
    columns = stage.ways.get(j)
    way = ways[0 if columns is None else int(np.argmax(values[columns]))]
    return Event("compute", way.node, way.mode)


def repeated(model: StageModel, values: Values) -> set[tuple[int, int]]:
    """Return the (stage, node) of recomputations that a solution repeats within a stage."""
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

    The values are a solution if the model offers the recomputations of the plan. `repeats`: see
    `repeated`; recomputations that the events should repeat, but do not.
    """
    values = np.zeros(len(model.program.cost))
    firsts, effects = model.modes.firsts(events), model.modes.given.effects
    written = {i for event in events for i in effects[event].stores}
    written -= {i for i, mode in firsts.items() if model.graph.nodes[i].mode(mode).streamed_output}
    for i, column in model.written.items():
        values[column] = float(i in written)
    stages = _by_stage(model.modes.given, events)
    for index, (stage, (computed, paged, in_ram, twice)) in enumerate(
        zip(model.stages, stages, strict=True)
    ):
        may_drop = index in model.conflict_stages
        if stage.operator is not None:
            _set_mode(model, stage, values, firsts[stage.operator], in_ram)
        for i, column in stage.used.items():
            if column != ALWAYS_IN_RAM and i in in_ram:
                values[column] = 1.0
        for i in (stage.computed.keys() | stage.paged.keys()) & (computed.keys() | paged):
            held = stage.before.get(i)
            was_there = held is not None and (held == ALWAYS_IN_RAM or values[held] > 0.5)
            if was_there and not (may_drop and i in in_ram):
                continue
            made = stage.paged.get(i) if i in paged else stage.computed.get(i)
            if made is not None:
                values[made] = 1.0
            if i in stage.repeated:
                again = i in twice or (index, i) in repeats
                values[stage.repeated[i]] = float(again and i not in paged)
            if i in stage.ways and i not in paged:
                values[stage.ways[i][model.modes.way_of(i, computed[i])]] = 1.0
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
    return {operator: set(computed) for operator, (computed, *_) in stages}


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
    found = {bisect(model.first_rows, row) - 1 for row in model.program.violated_rows(values)}
    return found & set(range(len(model.stages)))


def neighbourhood(model: StageModel, values: Values, window: Iterable[int]) -> Program:
    """Return the program with all variables fixed to a solution, except those of some stages.

    `window`: indices of the stages whose variables are free. For some tensors, the variables U are
    free in all stages: the inputs of the window's operators, the tensors recomputed in the window,
    and the inputs of both.
    """
    nodes = model.graph.nodes
    free: set[int] = {*model.written.values(), model.lanes.column}
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


def _by_stage(
    graph: CostGraph, events: Sequence[Event]
) -> Iterator[tuple[dict[int, Event], set[int], set[int], set[int]]]:
    """Yield for each stage the tensors recomputed, paged in, in RAM while the operator runs, and
    recomputed more than once.

    The tensors recomputed come with the first of their recomputations in the stage.
    Recomputations that stream their output are left out. If one event computes several nodes first,
    all before it happens in the stage of the last one, except what an earlier one overwrites: a
    waiting mode needs nothing else (see apart.py). Nothing happens in the stage of a node that is
    left out. RAM then holds what it held when the previous operator had run.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    place = {i: stage for stage, i in enumerate(operators)}
    following = 0  # index of the stage in `operators`
    computed: dict[int, Event] = {}
    paged: set[int] = set()
    twice: set[int] = set()
    contents = Contents(graph)
    ram, before = contents.ram, set(contents.ram)
    for event in events:
        effect = graph.effects[event]
        if event.op != "compute":
            paged.update(effect.makes)
            ram.update(effect.makes)
            ram.difference_update(effect.drops)
            continue
        taken = {i: over for i, over, _ in effect.places}
        again = [i for i in taken if place[i] < following]
        first = {place[i]: i for i in (*taken, *effect.stores) if place[i] >= following}
        for i in again:
            if i in computed:
                twice.add(i)
            computed.setdefault(i, event)
            ram.discard(taken[i])
            ram.add(i)
        last = max(first, default=following - 1)
        for stage in range(following, last):
            early = first.get(stage, -1)
            needed = _needed(graph, taken.get(early), computed, paged, ram)
            now = {j: computed.pop(j) for j in needed & computed.keys()}
            yield now, needed & paged, (before | needed) & ram, twice & needed
            paged -= needed
            before |= needed
            if early in taken:
                ram.discard(taken[early])
                ram.add(early)
                before.add(early)
        if last in first:
            yield computed, paged, set(ram), twice
            computed, paged, twice, following = {}, set(), set(), last + 1
            contents.change(effect)
            before = set(ram)
    for _ in range(following, len(operators)):
        yield {}, set(), set(before & ram), set()
    if not graph.storage:
        yield computed, paged, set(ram), twice


def _needed(
    graph: CostGraph,
    tensor: int | None,
    computed: Mapping[int, Event],
    paged: Set[int],
    ram: Set[int],
) -> set[int]:
    """Return what a stage must have done before a tensor is in RAM: recomputations and page-ins.

    It also must have used all of this that is not in RAM any more.
    """
    inputs = {j: set(graph.effects[event].needs) for j, event in computed.items()}
    found: set[int] = set()
    border = {i for i in (*inputs, *paged) if i == tensor}
    while border:
        found |= border
        used = {i for j in border for i in inputs.get(j, ())}
        users = {j for j in inputs if not inputs[j].isdisjoint(found - ram)}
        border = (used | users) & (inputs.keys() | paged) - found
    return found
