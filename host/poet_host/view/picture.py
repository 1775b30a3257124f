"""Draw a schedule, and a recorded run if there is one: processor, transfers, RAM over time."""

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files import write_whole
from ..plan.plan import Plan, start_offsets
from ..plan.problem import CostGraph
from ..run.run import Run
from ..schedule.schedule import Schedule
from .lanes import TRANSFERS, WORDS, Kind, View, planned, views_of

# The colours differ in lightness, so that a grey print is legible. web/page.css has these hues.
COLOURS: dict[Kind, str] = {
    "forward": "#2f5d8c",
    "again": "#e08030",
    "page_in": "#a6d8a0",
    "page_out": "#8a2f66",
    "wait": "#dfe3e8",
    "commit": "#6b5b95",
    "streamed": "#3f8f8a",
}
LABELS: dict[Kind, str] = {"page_in": "black"}  # text colour on such boxes; white on others
# What a label needs: the share of the time axis for each character, the share of the RAM axis.
CHARACTER_WIDTH, LABEL_HEIGHT = 0.0055, 0.045


def draw(schedule: Schedule, path: Path | str, run: Run | None = None) -> None:
    """Draw a step of a schedule, and of a run of it if there is one, into a PNG file.

    The picture shows processor, transfers and RAM over time. Raises BadInput if matplotlib is
    missing, or if the run has another schedule; PoetError if the file cannot be written.
    """
    ram_bytes = schedule.meta["plan"]["ram_bytes"]
    title = f"{schedule.meta['graph']['name']} in {ram_bytes:,} bytes of RAM"
    views = views_of(schedule, run)
    write_whole(path, draw_views(views, title=title, ram_bytes=ram_bytes))


def draw_plan(graph: CostGraph, plan: Plan, *, title: str) -> bytes:
    """Return a PNG picture of a plan with offsets. Raises BadInput if matplotlib is missing."""
    view = planned(graph, plan.statements, start_offsets(graph, plan))
    return draw_views([view], title=title, ram_bytes=plan.ram_bytes)


def draw_views(views: Sequence[View], *, title: str, ram_bytes: int) -> bytes:
    """Return a PNG picture of views, one below another, with a common time axis.

    Raises BadInput if matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput(
            "matplotlib, which draws the picture, is missing: run `pip install 'poet-host[plot]'`"
        ) from error
    end_ms = max((view.end_us for view in views), default=0.0) / 1e3
    figure = Figure(figsize=(14, 7.5 * len(views)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 * len(views), 1, sharex=True, height_ratios=(1, 3) * len(views))
    for view, lanes, memory in zip(views, axes[::2], axes[1::2], strict=True):
        _draw_lanes(lanes, view)
        _draw_memory(memory, view, end_ms, ram_bytes)
        if len(views) > 1:
            lanes.set_title(view.name, loc="left", fontsize=10)
    axes[0].set(xlim=(0, end_ms or 1))
    axes[-1].set_xlabel("time, ms")
    figure.suptitle(title, parse_math=False)
    buffer = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the font lacks characters of some names
        figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw_lanes(axes: Any, view: View) -> None:
    for bar in view.bars:
        begin_ms, end_ms = bar.begin_us / 1e3, bar.end_us / 1e3
        lane = 0 if bar.kind in TRANSFERS else 1
        axes.broken_barh(
            [(begin_ms, end_ms - begin_ms)], (lane + 0.1, 0.8), color=COLOURS[bar.kind], lw=0
        )
    axes.set(ylim=(0, 2))
    axes.set_yticks([0.5, 1.5], ["transfers", "processor"])


def _draw_memory(axes: Any, view: View, end_ms: float, ram_bytes: int) -> None:
    from matplotlib.patches import Patch, Rectangle

    for box in view.boxes:
        begin_ms, width = box.begin_us / 1e3, (box.end_us - box.begin_us) / 1e3
        low, height = box.offset / 1024, box.size_bytes / 1024
        axes.add_patch(
            Rectangle(
                (begin_ms, low), width, height, facecolor=COLOURS[box.kind],
                edgecolor="white", linewidth=0.4, alpha=0.85,
            )
        )  # fmt: skip
        needed_ms = CHARACTER_WIDTH * (len(box.node) + 1) * end_ms
        if width > needed_ms and height > LABEL_HEIGHT * ram_bytes / 1024:
            axes.text(
                begin_ms + width / 2, low + height / 2, box.node, fontsize=10,
                color=LABELS.get(box.kind, "white"), ha="center", va="center", clip_on=True,
                parse_math=False,
            )  # fmt: skip
    limit_kib = ram_bytes / 1024
    axes.axhline(limit_kib, color="black", linewidth=1, linestyle="--")
    axes.set(ylim=(0, limit_kib * 1.12), ylabel="arena, KiB")
    shown = [kind for kind in COLOURS if any(bar.kind == kind for bar in view.bars)]
    axes.legend(
        handles=[Patch(color=COLOURS[kind], label=WORDS[kind]) for kind in shown],
        loc="upper right", ncols=len(shown) or 1, fontsize=10,
    )  # fmt: skip
