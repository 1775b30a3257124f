"""Convert plans to solutions of the stage model (stage_model.py), and solutions to plans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..plan.problem import CostGraph
from .events import Event
from .program import Program, Values
from .stage_model import ALWAYS_IN_RAM, StageModel


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
        last = [] if stage.operator is None else [stage.operator]
        for j in (*steps, *last):
            for i in dict.fromkeys(nodes[j].inputs):
                if i in paged:
                    found.append(Event("page_in", i))
                    paged.discard(i)
            found.append(Event("compute", j))
        for i in last:
            kept = nodes[i].keep and model.graph.storage
            if kept or (i in model.written and values[model.written[i]] > 0.5):
                found.append(Event("page_out", i))
    return found


def values_of(model: StageModel, events: Sequence[Event]) -> Values:
    """Return the values that the variables of a model have in a plan.

    The values are a solution if the model offers the recomputations of the plan.
    """
    values = np.zeros(len(model.program.cost))
    for i, column in model.written.items():
        values[column] = float(Event("page_out", i) in events)
    stages = _by_stage(model.graph, events)
    for stage, (computed, paged, in_ram) in zip(model.stages, stages, strict=True):
        for i, column in stage.used.items():
            if column != ALWAYS_IN_RAM and i in in_ram:
                values[column] = 1.0
        for i in (stage.computed.keys() | stage.paged.keys()) & (computed | paged):
            held = stage.before.get(i)
            was_there = held is not None and (held == ALWAYS_IN_RAM or values[held] > 0.5)
            if was_there and not (model.allows_repeats and i in in_ram):
                continue
            made = stage.paged.get(i) if i in paged else stage.computed.get(i)
            if made is not None:
                values[made] = 1.0
    for gap in model.gaps:
        values[gap.held] = min(values[column] for column in gap.used)
        values[gap.paged] = max(values[column] for column in gap.pages)
    model.lanes.fill(model.program, values)
    return values


def recomputed_by_stage(graph: CostGraph, events: Sequence[Event]) -> dict[int, set[int]]:
    """Return for each stage the nodes that a plan recomputes. A stage's key is its operator."""
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    stages = zip([*operators, len(graph.nodes)], _by_stage(graph, events), strict=False)
    return {operator: computed for operator, (computed, _, _) in stages}


def overhead_by_stage(model: StageModel, values: Values) -> list[float]:
    """Return a solution's energy for recomputations and page-ins in each stage.

    If this energy is 0 in all stages, return 1 for each stage.
    """
    cost = np.array(model.program.cost) * values
    spent = [
        float(sum(cost[column] for column in (*stage.computed.values(), *stage.paged.values())))
        for stage in model.stages
    ]
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
        for columns in (stage.before, stage.computed, stage.paged, stage.used):
            free.update(columns.values())
        inputs = () if stage.operator is None else nodes[stage.operator].inputs
        again = [i for i, column in stage.computed.items() if values[column] > 0.5]
        tensors.update(inputs, again, *(nodes[i].inputs for i in (*inputs, *again)))
    for stage in model.stages:
        free.update(stage.used[i] for i in tensors if i in stage.used)
    lower, upper = model.program.lower[:], model.program.upper[:]
    for column in range(len(lower)):
        if column not in free:
            lower[column] = upper[column] = round(values[column])
    return replace(model.program, lower=lower, upper=upper)


def _by_stage(
    graph: CostGraph, events: Sequence[Event]
) -> Iterator[tuple[set[int], set[int], set[int]]]:
    """Yield for each stage the tensors recomputed, paged in, and in RAM while the operator runs."""
    done = -1
    computed: set[int] = set()
    paged: set[int] = set()
    ram = set() if graph.storage else {i for i, n in enumerate(graph.nodes) if n.stored}
    for op, i, _ in events:
        if op == "compute" and i > done:
            yield computed, paged, set(ram)
            computed, paged, done = set(), set(), i
        elif op == "compute":
            computed.add(i)
        elif op == "page_in":
            paged.add(i)
        if op in ("compute", "page_in"):
            ram.add(i)
        over = graph.nodes[i].overwrites
        if op == "compute" and over is not None:
            ram.discard(over)
        elif op == "free":
            ram.discard(i)
    if not graph.storage:
        yield computed, paged, set(ram)
