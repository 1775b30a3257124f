"""Draw the two lanes of a nest: an operator of ResNet-18 whose operands stream in 24 KiB.

    python -m bench.nest_picture schedules/nest.png

The times are those of the planner, slab by slab. A slab is asked for as soon as its ring has room,
and is written when the processor leaves it, as in firmware/src/nest.c.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
import poet_host as poet
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from poet_host.graph.graph import Node
from poet_host.graph.operands import operator_of
from poet_host.plan.nests import NestedOperator, Range
from poet_host.plan.problem import Mode
from poet_host.profile.transfer import Lane

BOARD, RAM = "nrf52840_dk", "24KiB"
OPERATOR = "layer4.2.relu1:grad"
SHOWN_MS = (2_300.0, 2_400.0)  # the processor leaves a slab of the output
PROCESSOR, TRANSFERS = "#4878a8", ("#7fb069", "#d9822b", "#8d6a9f")

mpl.use("Agg")


@dataclass(frozen=True)
class Bar:
    """What a lane does at a time. `operand`: of a transfer; None: a cell is computed."""

    begin_us: float
    end_us: float
    operand: int | None = None


@dataclass
class _Stream:
    """An operand that streams."""

    index: int
    slots: int
    depth: int
    times_us: list[float]  # of the transfer of each slab
    moved_us: list[float] = field(default_factory=list)  # when each slab has been moved
    left: int = 0  # slabs that the processor has left


def bars(nested: NestedOperator, cell_us: float, page_in: Lane, page_out: Lane) -> Iterator[Bar]:
    """Walk a nest, and yield what both lanes do. The output must not overwrite an input.

    `cell_us`: the time of one call of the kernel.
    """
    rings = list(enumerate(nested.nest.operands))
    lanes = [*[page_in] * nested.count, page_out]
    streams = [_Stream(i, r.slots, r.depth, _times_us(nested, i, lanes[i])) for i, r in rings if r]
    cells = list(_slabs_of_cells(nested, streams))
    asks = iter(_asks(cells, [stream for stream in streams if stream.index < nested.count]))
    ask = next(asks, None)
    processor_us = lane_us = 0.0
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        while ask is not None and len(ask.moved_us) < ask.left + ask.slots:
            begin_us = max(lane_us, processor_us)
            lane_us = begin_us + ask.times_us[len(ask.moved_us)]
            ask.moved_us.append(lane_us)
            yield Bar(begin_us, lane_us, ask.index)
            ask = next(asks, None)
        for stream, slab in zip(streams, cell, strict=True):
            awaited = slab if stream.index < nested.count else slab - stream.slots
            if awaited >= 0:
                processor_us = max(processor_us, stream.moved_us[awaited])
        yield Bar(processor_us, processor_us + cell_us)
        processor_us += cell_us
        for at, stream in enumerate(streams):
            if after is not None and after[at] == cell[at]:
                continue
            stream.left += 1
            if stream.index == nested.count:
                begin_us = max(lane_us, processor_us)
                lane_us = begin_us + stream.times_us[cell[at]]
                stream.moved_us.append(lane_us)
                yield Bar(begin_us, lane_us, stream.index)


def _times_us(nested: NestedOperator, index: int, lane: Lane) -> list[float]:
    sizes = (np.array(list(nested.transfers_of(index, slab))) for slab in nested.slabs(index))
    return [float(lane.pieces_us(of_slab)[0].sum()) for of_slab in sizes]


def _slabs_of_cells(nested: NestedOperator, streams: list[_Stream]) -> Iterator[tuple[int, ...]]:
    """Yield for each cell the number of the slab of each stream."""
    seen: list[list[Range | None] | None] = [None] * len(streams)
    number = [-1] * len(streams)
    for levels in nested.levels(len(nested.nest.loops)):
        for at, stream in enumerate(streams):
            cut = nested.cut_ranges(stream.index, levels[stream.depth])
            if cut != seen[at]:
                seen[at] = cut
                number[at] += 1
        yield tuple(number)


def _asks(cells: list[tuple[int, ...]], inputs: list[_Stream]) -> Iterator[_Stream]:
    """Yield the streams of the inputs in the order in which their slabs are asked for."""
    before = (-1,) * len(inputs)
    for cell in cells:
        for at, stream in enumerate(inputs):
            if cell[at] != before[at]:
                yield stream
        before = cell[: len(inputs)]


@dataclass(frozen=True)
class Drawn:
    """The operator of the picture: its node, the costs of its mode, and what its lanes do."""

    node: Node
    cost: Mode
    bars: tuple[Bar, ...]


def drawn() -> Drawn:
    """Return the mode of least energy of those in which all operands stream."""
    graph = poet.load("resnet18")
    problem = poet.problem(graph, BOARD, ram=RAM)
    profile = problem.profile
    assert isinstance(graph, poet.Graph)
    assert problem.streaming is not None
    assert profile is not None
    node, cuts = graph[OPERATOR], problem.streaming.cuts
    modes = enumerate(problem.graph.nodes[problem.graph.index[OPERATOR]].modes, 1)
    streamed = [it for it in modes if it[1].streamed_output and len(it[1].streamed_inputs) == 2]
    power_uw = problem.graph.base_power_uw
    mode, cost = min(streamed, key=lambda it: it[1].energy_uj + power_uw * it[1].wall_us / 1e6)
    nest = problem.streaming.nests[OPERATOR, mode]
    names = [*node.inputs, node.name]
    nested = NestedOperator(operator_of(node), tuple(map(cuts.get, names)), nest)
    cell_us = cost.time_us / sum(1 for _ in nested.cells())
    return Drawn(node, cost, tuple(bars(nested, cell_us, profile.page_in, profile.page_out)))


def draw(path: Path) -> None:
    """Draw a part of the time of the operator."""
    found = drawn()
    node, cost = found.node, found.cost
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    for bar in found.bars:
        begin_ms, end_ms = bar.begin_us / 1e3, bar.end_us / 1e3
        if end_ms < SHOWN_MS[0] or begin_ms > SHOWN_MS[1]:
            continue
        at, colour = (1, PROCESSOR) if bar.operand is None else (0, TRANSFERS[bar.operand])
        axes.broken_barh(
            [(begin_ms, end_ms - begin_ms)], (at + 0.1, 0.8),
            facecolor=colour, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
    axes.set_xlim(SHOWN_MS)
    axes.set_yticks([0.5, 1.5], ["transfers", "processor"])
    axes.set_xlabel("time, ms")
    axes.set_title(
        f"{node.op} of {OPERATOR}: {cost.wall_us / 1e6:.1f} s, "
        f"{cost.moved_in_bytes + cost.moved_out_bytes:,.0f} bytes through "
        f"{cost.workspace_bytes:,} bytes of RAM",
        fontsize=10,
    )
    words = [*(f"read {name}" for name in node.inputs), f"write {node.name}"]
    handles = [Patch(color=PROCESSOR, label="one cell computed")]
    handles += [Patch(color=c, label=w) for c, w in zip(TRANSFERS, words, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
