"""The busy times of both lanes in the stage model (stage_model.py)."""

from collections.abc import Iterator

from ..program import TimeLimits
from ..ways import Way
from .stage_columns import Stage, StageModel


def recomputations(model: StageModel, stage: Stage) -> Iterator[tuple[int, Way]]:
    """Yield the columns of R_tiw, or of R_ti if i has one way, each with its way."""
    for i, column in stage.computed.items():
        yield from zip(stage.ways.get(i, [column]), model.modes.ways[i], strict=True)


def add_times(model: StageModel, limits: TimeLimits) -> None:
    """Bound the busy time of each lane: it is at most the deadline, and the time of the step."""
    lanes, nodes, modes = model.lanes, model.graph.nodes, model.modes
    for i, node in enumerate(nodes):
        if not node.stored and not node.modes:
            lanes.compute(*modes.lanes_us(i, 0))
            if i in model.graph.always_written:
                lanes.page_out(node)
        if i in model.written:
            lanes.store(*modes.storing_us[i], model.written[i])
    for stage in model.stages:
        for m, x in stage.modes.items():
            assert stage.operator is not None
            t, node = stage.operator, nodes[stage.operator]
            lanes.compute(*modes.lanes_us(t, m), x)
            if t in model.graph.always_written and not node.mode(m).streamed_output:
                lanes.store(*modes.storing_us[t], x)
        for column, way in recomputations(model, stage):
            lanes.compute(way.processor_us, way.transfers_us, column)
        for i, column in stage.paged.items():
            lanes.page_in(nodes[i], column)
    lanes.add_to(model.program, limits)
