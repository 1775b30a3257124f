"""A self-contained HTML page that shows a schedule and, if there is one, a recorded run.

The page contains the files of web/, and the data as JSON. The scripts of web/ draw the data. Rows
of the data are lists, not objects, because there may be thousands. base.js names the columns.
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
from ..schedule.nests import Streamed
from ..schedule.schedule import Schedule
from ..schedule.times import costs_of_schedule
from .absences import Absence, absences
from .comparison import compare_run
from .lanes import WORDS, Kind, View
from .listing import SHORT_US, operator_text, rows

_WEB = Path(__file__).parent / "web"
# These scripts form one program, in this order. The last script starts the program.
_SCRIPTS = ("base", "scale", "chart", "why", "totals", "detail", "tables", "run", "controls")
_KINDS: tuple[Kind, ...] = tuple(WORDS)


def page(schedule: Schedule, views: Sequence[View], run: Run | None = None) -> str:
    """Return the HTML page. `views`: the view of the plan and, if there is a run, its view."""
    data = page_data(schedule, views, run)
    # Escape `<`: names in the data must not end the script element or begin a comment.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "TITLE": escape(f"{data['name']}: schedule"),
        "STYLE": read_text(_WEB / "page.css"),
        "DATA": text,
        "SCRIPT": "\n".join(read_text(_WEB / f"{name}.js") for name in _SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read_text(_WEB / "page.html"))


def page_data(schedule: Schedule, views: Sequence[View], run: Run | None = None) -> dict[str, Any]:
    """Collect the data that the page shows, as plain JSON."""
    costs, statements = costs_of_schedule(schedule), decode(schedule)
    away = absences(costs, statements, views[0])
    number = schedule.numbers
    took_us = {traced.statement: traced.time_us for traced in run.trace} if run else {}
    plan, keep = schedule.meta["plan"], schedule.meta.get("keep_everything")
    return {
        "version": version("poet-host"),
        "name": schedule.meta["graph"]["name"]
        + (", an inference" if schedule.model.trained_by is not None else ""),
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
        "away": [_absence(absence, number) for absence in away],
        "run": _run(schedule, views[0], run) if run else None,
    }


def _tensors(schedule: Schedule) -> list[list[Any]]:
    """Return a row for each tensor.

    The columns are: name; operator or role; bytes; numbers of computations, page-ins, page-outs;
    energy and time of one computation, page-in and page-out. Tensors that one statement computes
    have its costs each.
    """
    model, costs = schedule.model, costs_of_schedule(schedule)
    statements = [s for s in decode(schedule) if isinstance(s, Statement)]
    done = Counter((statement.op, statement.node) for statement in statements)
    done.update(("compute", s.also) for s in statements if isinstance(s, Streamed) and s.also)
    nodes = {node.name: node for node in costs.nodes}
    computed = {s.node: nodes[s.node].mode(s.mode) for s in statements if s.op == "compute"}
    computed |= {s.also: computed[s.node] for s in statements if isinstance(s, Streamed) and s.also}
    found: list[list[Any]] = []
    for i, (name, about) in enumerate(zip(schedule.names, schedule.meta["tensors"], strict=True)):
        node = nodes[name]
        stored = i < model.stored_count
        what = about.get("role", "stored") if stored else operator_text(schedule, i)
        counts = (done[op, name] for op in ("compute", "page_in", "page_out"))
        paging = (node.page_in_uj, node.page_in_us, node.page_out_uj, node.page_out_us)
        mode = computed.get(name, node.mode(0))
        found.append([name, what, node.bytes, *counts, mode.energy_uj, mode.wall_us, *paging])
    return found


def _view(view: View, number: dict[str, int]) -> dict[str, Any]:
    """Return a view as JSON.

    BAR and BOX in base.js name the columns of "bars" and "boxes". The rows of "used" are pairs
    (time, bytes in use from then on).
    """
    fullest_us, fullest_bytes = view.fullest
    return {
        **{name: getattr(view, name) for name in ("name", "end_us", "height_bytes")},
        "fullest_us": fullest_us,
        "fullest_bytes": fullest_bytes,
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
        "used": [list(row) for row in view.used],
    }  # fmt: skip


def _absence(absence: Absence, number: dict[str, int]) -> dict[str, Any]:
    return {
        **vars(absence),
        "node": number[absence.node],
        "how": _KINDS.index(absence.how),
        "spent": list(vars(absence.spent).values()),
        "instead": list(vars(absence.instead).values()) if absence.instead else None,
    }


def _run(schedule: Schedule, plan: View, run: Run) -> dict[str, Any]:
    about = ("board", "data", "batch", "ended", "statistic")
    costs = ("time_us", "energy_uj", "total_energy_uj", "peak_bytes")
    return {
        **{name: getattr(run, name) for name in (*about, *costs)},
        "step_us": run.measured_time_us,
        "steps": [[step.step, step.loss, step.time_us] for step in run.steps],
        "comparison": [list(vars(row).values()) for row in compare_run(schedule, plan, run)],
    }
