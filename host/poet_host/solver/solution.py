"""Convert plans to solutions of the stage model (stage_model.py), and solutions to plans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..plan.problem import CostGraph
from .events import Event
from .program import Program, Values
from .stage_columns import ALWAYS_IN_RAM, Stage, StageModel


def recomputed(model: StageModel, values: Values) -> list[list[int]]:
    """Return for each stage the nodes that the solution recomputes, in the order of the graph."""
    return [
        sorted(i for i, column in stage.computed.items() if values[column] > 0.5)
        for stage in model.stages
    ]


def events(model: StageModel, values: Values) -> list[Event]:
    """Return the events of a solution in a simple order. This order may need too much RAM."""
    nodes = model.graph.nodes
    found: list[Event] = []
    for stage in model.stages:
        paged = {i for i, column in stage.paged.items() if values[column] > 0.5}
        steps = sorted(j for j, column in stage.computed.items() if values[column] > 0.5)
        runs = [Event("compute", j, _way(model, stage, values, j)) for j in steps]
        i = stage.operator
        if i is not None:
            runs.append(Event("compute", i, _mode(stage, values)))
        for run in runs:
            for j in dict.fromkeys(nodes[run.node].whole_inputs(run.mode)):
                if j in paged:
                    found.append(Event("page_in", j))
                    paged.discard(j)
            found.append(run)
        if i is not None and not nodes[i].mode(runs[-1].mode).streamed_output:
            kept = nodes[i].keep and model.graph.storage
            if kept or (i in model.written and values[model.written[i]] > 0.5):
                found.append(Event("page_out", i))
    return found


def _mode(stage: Stage, values: Values) -> int:
    """Return the mode in which a solution computes the operator of a stage."""
    return max(stage.modes, key=lambda m: values[stage.modes[m]], default=0)


def _way(model: StageModel, stage: Stage, values: Values, j: int) -> int:
    """Return the mode in which a solution recomputes node j in a stage."""
    ways = model.modes.ways[j]
    columns = stage.ways.get(j)
    return ways[0 if columns is None else int(np.argmax(values[columns]))].mode


def values_of(model: StageModel, events: Sequence[Event]) -> Values:
    """Return the values that the variables of a model have in a plan.

    The values are a solution if the model offers the recomputations of the plan.
    """
    values = np.zeros(len(model.program.cost))
    firsts = {event.node: event.mode for event in reversed(events) if event.op == "compute"}
    written = _written(model.graph, events) - {
        i for i, mode in firsts.items() if model.graph.nodes[i].mode(mode).streamed_output
    }
    for i, column in model.written.items():
        values[column] = float(i in written)
    stages = _by_stage(model.graph, events)
    for index, (stage, (computed, paged, in_ram)) in enumerate(
        zip(model.stages, stages, strict=True)
    ):
        repeats = index in model.conflict_stages
        if stage.operator is not None:
            _set_mode(model, stage, values, firsts[stage.operator], in_ram)
        for i, column in stage.used.items():
            if column != ALWAYS_IN_RAM and i in in_ram:
                values[column] = 1.0
        for i in (stage.computed.keys() | stage.paged.keys()) & (computed.keys() | paged):
            held = stage.before.get(i)
            was_there = held is not None and (held == ALWAYS_IN_RAM or values[held] > 0.5)
            if was_there and not (repeats and i in in_ram):
                continue
            made = stage.paged.get(i) if i in paged else stage.computed.get(i)
            if made is not None:
                values[made] = 1.0
            if i in stage.ways and i not in paged:
                values[stage.ways[i][model.modes.way_of(i, computed[i])]] = 1.0
    for gap in model.gaps:
        values[gap.held] = min(values[column] for column in gap.used)
        values[gap.paged] = max(values[column] for column in gap.pages)
    model.lanes.fill(model.program, values)
    return values


def _written(graph: CostGraph, events: Sequence[Event]) -> set[int]:
    """Return the tensors that events put on storage."""
    return {
        event.node
        for event in events
        if event.op == "page_out"
        or (event.op == "compute" and graph.nodes[event.node].mode(event.mode).streamed_output)
    }


def _set_mode(model: StageModel, stage: Stage, values: Values, mode: int, in_ram: set[int]) -> None:
    """Set the variables x and V of a stage, whose operator is computed in `mode`.

    Where the model lacks this mode, x is set for another one that is at least as good.
    """
    t = stage.operator
    assert t is not None
    node = model.graph.nodes[t]
    if stage.modes:
        values[stage.modes[model.modes.instead_of(t, mode)]] = 1.0
    for i, column in stage.after.items():
        if column not in (ALWAYS_IN_RAM, stage.used.get(i)):
            is_there = i in in_ram and node.taken(mode) != i
            values[column] = float(not node.mode(mode).streamed_output if i == t else is_there)


def recomputed_by_stage(graph: CostGraph, events: Sequence[Event]) -> dict[int, set[int]]:
    """Return for each stage the nodes that a plan recomputes. A stage's key is its operator."""
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    stages = zip([*operators, len(graph.nodes)], _by_stage(graph, events), strict=False)
    return {operator: set(computed) for operator, (computed, _, _) in stages}


def overhead_by_stage(model: StageModel, values: Values) -> list[float]:
    """Return a solution's energy for recomputations, page-ins and expensive modes in each stage.

    If this energy is 0 in all stages, return 1 for each stage.
    """
    costs = np.array(model.program.cost)
    spent = []
    for stage in model.stages:
        ways = [column for columns in stage.ways.values() for column in columns]
        columns = [*stage.computed.values(), *stage.paged.values(), *ways, *stage.modes.values()]
        least = min((costs[x] for x in stage.modes.values()), default=0.0)
        spent.append(max(0.0, float(sum(costs[c] * values[c] for c in columns) - least)))
    return spent if any(spent) else [1.0] * len(spent)


def neighbourhood(model: StageModel, values: Values, window: range) -> Program:
    """Return the program with all variables fixed to a solution, except those of some stages.

    `window`: indices of the stages whose variables are free. For some tensors, the variables U are
    free in all stages: the inputs of the window's operators, the tensors recomputed in the window,
    and the inputs of both.
    """
    nodes = model.graph.nodes
    free: set[int] = {*model.written.values(), model.lanes.column}
    tensors: set[int] = set()
    for stage in (model.stages[index] for index in window):
        for columns in (stage.before, stage.computed, stage.paged, stage.used, stage.modes):
            free.update(columns.values())
        free.update(column for columns in stage.ways.values() for column in columns)
        inputs = () if stage.operator is None else nodes[stage.operator].inputs
        again = [i for i, column in stage.computed.items() if values[column] > 0.5]
        tensors.update(inputs, again, *(nodes[i].inputs for i in (*inputs, *again)))
    for stage in model.stages:
        free.update(stage.used[i] for i in tensors if i in stage.used)
        free.update(stage.after[i] for i in tensors if i in stage.after)
    lower, upper = model.program.lower[:], model.program.upper[:]
    for column in range(len(lower)):
        if column not in free:
            lower[column] = upper[column] = round(values[column])
    return replace(model.program, lower=lower, upper=upper)


def _apart(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Move each deferred computation to the end of the stage before.

    `with_pairs_together` does the opposite.
    """
    found: list[Event] = []
    at, done = 0, -1  # where the events of the present stage begin
    for event in events:
        op, i, mode = event
        if op == "compute" and graph.nodes[i].mode(mode).deferred:
            found.insert(at, event)
            at, done = at + 1, i
            continue
        found.append(event)
        if (op == "compute" and i > done) or (op in ("free", "page_out") and len(found) == at + 1):
            at, done = len(found), max(done, i) if op == "compute" else done
    return found


def _by_stage(
    graph: CostGraph, events: Sequence[Event]
) -> Iterator[tuple[dict[int, int], set[int], set[int]]]:
    """Yield for each stage the tensors recomputed, paged in, and in RAM while the operator runs.

    The tensors recomputed come with the mode of the first of their recomputations in the stage.
    Recomputations that stream their output are left out.
    """
    done = -1
    events = _apart(graph, events)
    computed: dict[int, int] = {}
    paged: set[int] = set()
    ram = set() if graph.storage else {i for i, n in enumerate(graph.nodes) if n.stored}
    for op, i, mode in events:
        if op == "compute":
            if i > done:
                yield computed, paged, set(ram)
                computed, paged, done = {}, set(), i
            elif not graph.nodes[i].mode(mode).streamed_output:
                computed.setdefault(i, mode)
            if graph.nodes[i].mode(mode).streamed_output:
                continue
            ram.discard(graph.nodes[i].taken(mode))
            ram.add(i)
        elif op == "page_in":
            paged.add(i)
            ram.add(i)
        elif op == "free":
            ram.discard(i)
    if not graph.storage:
        yield computed, paged, set(ram)
