"""The picture of a schedule: two lanes over time, and the arena over time.

Times follow the plan's own rules (what the verifier checks), so the picture shows what was
promised, with the costs of the profile that the schedule was solved for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Literal

from ..errors import BadInput
from ..plan.plan import Statement
from ..plan.problem import CostGraph, Problem
from ..plan.timeline import timeline

Kind = Literal["forward", "again", "page_in", "page_out"]
COLOURS: dict[Kind, str] = {
    "forward": "#4878a8",
    "again": "#e08030",
    "page_in": "#58a068",
    "page_out": "#b05a7a",
}
WORDS: dict[Kind, str] = {
    "forward": "computed",
    "again": "computed again",
    "page_in": "paged in",
    "page_out": "paged out",
}


@dataclass(frozen=True)
class Bar:
    """One computation or transfer: `node` is busy in its lane from `begin_us` to `end_us`."""

    node: str
    kind: Kind
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Box:
    """A tensor in the arena: bytes [offset, offset + size) from `begin_us` to `end_us`."""

    node: str
    kind: Kind
    offset: int
    size_bytes: int
    begin_us: float
    end_us: float


def bars_and_boxes(
    graph: CostGraph, statements: Sequence[Statement], ram_bytes: int
) -> tuple[tuple[Bar, ...], tuple[Box, ...]]:
    """Bars and boxes of a placed plan that the verifier accepts."""
    nodes = {node.name: node for node in graph.nodes}
    spans = timeline(Problem(graph, ram_bytes), statements)
    bars: list[Bar] = []
    boxes: list[Box] = []
    here: dict[str, Box] = {}
    computed: set[str] = set()

    def enter(name: str, kind: Kind, offset: int | None, begin_us: float) -> None:
        here[name] = Box(name, kind, offset or 0, nodes[name].bytes, begin_us, begin_us)

    def leave(name: str, end_us: float) -> None:
        boxes.append(replace(here.pop(name), end_us=end_us))

    for statement, span in zip(statements, spans, strict=True):
        name, node = statement.node, nodes[statement.node]
        if statement.op == "free":
            leave(name, span.end_us)
            continue
        kind: Kind = "forward"
        if statement.op != "compute":
            kind = statement.op
        elif name in computed:
            kind = "again"
        bars.append(Bar(name, kind, span.begin_us, span.end_us))
        if statement.op == "page_in":
            enter(name, kind, statement.offset, span.begin_us)
        elif statement.op == "compute":
            computed.add(name)
            offset = statement.offset
            if node.overwrites is not None:
                gone = graph.nodes[node.overwrites].name
                offset = here[gone].offset
                leave(gone, span.begin_us)
            enter(name, kind, offset, span.begin_us)
            if statement.workspace_offset is not None:
                label, size = f"{name} (workspace)", node.workspace_bytes
                at = statement.workspace_offset
                boxes.append(Box(label, kind, at, size, span.begin_us, span.end_us))
    end_us = max((span.end_us for span in spans), default=0.0)
    for name in tuple(here):
        leave(name, end_us)
    return tuple(bars), tuple(boxes)


def draw(
    graph: CostGraph,
    statements: Sequence[Statement],
    *,
    title: str,
    ram_bytes: int,
    file_format: Literal["png", "svg"] = "png",
) -> bytes:
    """The picture as the bytes of a PNG or SVG file; BadInput if matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError as error:
        raise BadInput("a picture needs matplotlib: try `pip install 'poet-host[plot]'`") from error
    bars, boxes = bars_and_boxes(graph, statements, ram_bytes)
    end_ms = max((bar.end_us for bar in bars), default=0.0) / 1e3
    figure = Figure(figsize=(14, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    for bar in bars:
        lane = 1 if bar.kind in ("forward", "again") else 0
        width = (bar.end_us - bar.begin_us) / 1e3
        lanes.add_patch(
            Rectangle((bar.begin_us / 1e3, lane + 0.1), width, 0.8, color=COLOURS[bar.kind], lw=0)
        )
    lanes.set(xlim=(0, end_ms or 1), ylim=(0, 2), title=title)
    lanes.set_yticks([0.5, 1.5], ["transfers", "processor"])
    for box in boxes:
        width = (box.end_us - box.begin_us) / 1e3
        low, height = box.offset / 1024, box.size_bytes / 1024
        memory.add_patch(
            Rectangle(
                (box.begin_us / 1e3, low), width, height, facecolor=COLOURS[box.kind],
                edgecolor="white", linewidth=0.4, alpha=0.85,
            )
        )  # fmt: skip
        if width > 0.06 * end_ms and height > 0.035 * ram_bytes / 1024:
            memory.text(
                box.begin_us / 1e3 + width / 2, low + height / 2, box.node, fontsize=6,
                color="white", ha="center", va="center", clip_on=True,
            )  # fmt: skip
    limit_kib = ram_bytes / 1024
    memory.axhline(limit_kib, color="black", linewidth=1, linestyle="--")
    memory.set(ylim=(0, limit_kib * 1.12), xlabel="time, ms", ylabel="arena, KiB")
    memory.legend(
        handles=[Patch(color=COLOURS[kind], label=WORDS[kind]) for kind in COLOURS],
        loc="upper right", ncols=4, fontsize=8,
    )  # fmt: skip
    buffer = BytesIO()
    figure.savefig(buffer, format=file_format, dpi=120)
    return buffer.getvalue()
