"""Constraints that make the stage model tight. They lose no plan of least value."""

from collections.abc import Iterator

from .stage_columns import ALWAYS_IN_RAM, Gap, Stage, StageModel


def add_gap_cuts(model: StageModel) -> None:
    """Add 1 - H <= sum R + Q,  H <= U,  Q <= sum P,  Q <= o  over the stages of a gap.

    H is 1 if tensor i is in RAM all the time between two operators that need it. Otherwise a
    recomputation or a page-in creates it again. One page-in is enough: Q <= o, while the sum of the
    P_ti can be larger. Integral solutions satisfy these constraints anyway, but solutions of the
    linear relaxation may not. If the second operator has modes that stream i, the first constraint
    is sum x - H <= sum R + Q, over the modes that do not. Where i may be streamed out, its x count
    with o.
    """
    nodes = model.graph.nodes
    for i, stages in _gaps(model):
        inner = {stage.used.get(i, ALWAYS_IN_RAM) for stage in stages[:-1]}
        if i not in model.written or not inner or ALWAYS_IN_RAM in inner:
            continue
        computed = [stage.computed[i] for stage in stages if i in stage.computed]
        pages = tuple(stage.paged[i] for stage in stages if i in stage.paged)
        if len(pages) < 2 or nodes[i].bytes == 0:
            continue
        program = model.program
        gap = Gap(program.binary(), program.binary(), tuple(sorted(inner)), pages)
        model.gaps.append(gap)
        made = [(column, 1.0) for column in (gap.held, gap.paged, *computed)]
        users = _whole_users(model, i, stages[-1])
        program.row([*made, *((x, -1.0) for x in users)], lower=0.0 if users else 1.0)
        for column in gap.used:
            program.row([(gap.held, 1.0), (column, -1.0)], upper=0.0)
        program.row([(gap.paged, 1.0), *((column, -1.0) for column in pages)], upper=0.0)
        program.row([(gap.paged, 1.0), *model.storing(i)], upper=0.0)


def _whole_users(model: StageModel, i: int, stage: Stage) -> list[int]:
    """Return the columns of the modes that need i in RAM; none if all modes do."""
    t = stage.operator
    if t is None or i in model.modes.needed[t]:
        return []
    node = model.graph.nodes[t]
    return [x for m, x in stage.modes.items() if i in node.whole_inputs(m)]


def _gaps(model: StageModel) -> Iterator[tuple[int, list[Stage]]]:
    """Yield each tensor with the stages of a gap, once for each of its gaps.

    A gap begins after an operator that creates or needs the tensor. It ends with the next operator
    that needs the tensor.
    """
    wanted = model.modes.wanted
    since: dict[int, list[Stage]] = {}
    for stage in model.stages:
        if stage.operator is None:
            break
        for stages in since.values():
            stages.append(stage)
        for i in set(wanted[stage.operator]):
            if i in since:
                yield i, since[i]
            since[i] = []
        since[stage.operator] = []
