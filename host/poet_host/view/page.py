"""One HTML page that shows a schedule, and a recorded run beside it; it needs nothing else.

The files of web/ are put together with the data as JSON; the page draws it. Rows of
the data are lists, in the order that the functions here name, as there may be thousands.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..files import read_text
from ..plan.plan import Statement
from ..run.run import Run
from ..schedule.decode import decode
from ..schedule.listing import SHORT_US, operator_text, rows
from ..schedule.schedule import Schedule
from ..schedule.times import costs_of_schedule
from .absences import Absence, absences
from .comparison import beside, step_us
from .lanes import WORDS, Kind, View

_WEB = Path(__file__).parent / "web"
# One program in parts; the last one starts it.
_SCRIPTS = ("base", "scale", "chart", "why", "totals", "detail", "tables", "run", "controls")
_KINDS: tuple[Kind, ...] = tuple(WORDS)


def page(schedule: Schedule, views: Sequence[View], run: Run | None = None) -> str:
    """The page of what was planned (the first view) and, with `run`, of what was recorded."""
    data = page_data(schedule, views, run)
    # Nothing in a name may end the script element or begin a comment.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "TITLE": escape(f"{data['name']}: schedule"),
        "STYLE": read_text(_WEB / "page.css"),
        "DATA": text,
        "SCRIPT": "\n".join(read_text(_WEB / f"{name}.js") for name in _SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read_text(_WEB / "page.html"))


def page_data(schedule: Schedule, views: Sequence[View], run: Run | None = None) -> dict[str, Any]:
    """What the page knows, as plain JSON."""
    costs, statements = costs_of_schedule(schedule), decode(schedule)
    away = absences(costs, statements, views[0])
    number = {name: i for i, name in enumerate(schedule.names)}
    took_us = {one.statement: one.time_us for one in run.trace} if run else {}
    plan, keep = schedule.meta["plan"], schedule.meta.get("keep_everything")
    return {
        "version": version("poet-host"),
        "name": schedule.meta["graph"]["name"],
        "board": schedule.meta.get("board"),
        "plan_bytes": len(schedule.plan_part),
        "plan": plan,
        "keep": keep if isinstance(keep, dict) else None,
        "short_us": SHORT_US,
        "kinds": [WORDS[kind] for kind in _KINDS],
        "tensors": _tensors(schedule),
        "views": [_view(view, number) for view in views],
        "rows": [
            [
                row.statement,
                number.get(row.tensor, -1),
                row.offset,
                row.ram_bytes,
                row.begin_us,
                row.time_us,
                took_us.get(row.index),
                row.what,
            ]
            for row in rows(schedule)
        ],
        "away": [_absence(one, number) for one in away],
        "run": _run(schedule, statements, views[0], run) if run else None,
    }


def _tensors(schedule: Schedule) -> list[list[Any]]:
    """Name, operator or role, bytes, times computed, paged in and paged out, then costs: energy
    and time of computing, paging in, paging out."""
    model, costs = schedule.model, costs_of_schedule(schedule)
    done = Counter((one.op, one.node) for one in decode(schedule) if isinstance(one, Statement))
    nodes = {node.name: node for node in costs.nodes}
    found: list[list[Any]] = []
    for i, (name, about) in enumerate(zip(schedule.names, schedule.meta["tensors"], strict=True)):
        node = nodes[name]
        stored = i < model.stored_count
        what = about.get("role", "stored") if stored else operator_text(schedule, i)
        counts = (done[op, name] for op in ("compute", "page_in", "page_out"))
        paging = (node.page_in_uj, node.page_in_us, node.page_out_uj, node.page_out_us)
        found.append([name, what, node.bytes, *counts, node.energy_uj, node.time_us, *paging])
    return found


def _view(view: View, number: dict[str, int]) -> dict[str, Any]:
    """Bars: statement, tensor, kind, begin, end. Boxes: statement, tensor, kind, offset, bytes,
    begin, ready, end, workspace. Used: time, bytes."""
    peak = view.peak
    return {
        "name": view.name,
        "end_us": view.end_us,
        "peak_us": peak.begin_us if peak else 0.0,
        "peak_bytes": peak.offset + peak.size_bytes if peak else 0,
        "bars": [
            [
                bar.statement, number.get(bar.node, -1), _KINDS.index(bar.kind), bar.begin_us,
                bar.end_us,
            ]
            for bar in view.bars
        ],
        "boxes": [
            [
                box.statement, number[box.node], _KINDS.index(box.kind), box.offset,
                box.size_bytes, box.begin_us, box.ready_us, box.end_us, int(box.workspace),
            ]
            for box in view.boxes
        ],
        "used": [list(one) for one in view.used],
    }  # fmt: skip


def _absence(one: Absence, number: dict[str, int]) -> dict[str, Any]:
    return {
        **vars(one),
        "node": number[one.node],
        "how": _KINDS.index(one.how),
        "spent": list(vars(one.spent).values()),
        "instead": list(vars(one.instead).values()) if one.instead else None,
    }


def _run(schedule: Schedule, statements: Any, plan: View, run: Run) -> dict[str, Any]:
    return {
        "board": run.board,
        "data": run.data,
        "batch": run.batch,
        "ended": run.ended,
        "time_us": run.time_us,
        "step_us": step_us(run),
        "energy_uj": run.energy_uj,
        "total_energy_uj": run.total_energy_uj,
        "peak_bytes": run.peak_bytes,
        "steps": [[step.step, step.loss, step.time_us] for step in run.steps],
        "beside": [list(vars(one).values()) for one in beside(schedule, statements, plan, run)],
    }
