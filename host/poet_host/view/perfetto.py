"""Export views as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is the JSON Object Format of the "Trace Event Format". A trace has a process for each
view and a thread for each lane. Statements are complete events (ph X). A counter (ph C) shows the
bytes in RAM. Flows (ph s, f) lead from each page-out to the page-in that brings the tensor back.
Times are microseconds, rounded to whole nanoseconds as in Perfetto. Events of a thread never
overlap.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ..schedule.schedule import Schedule
from .lanes import TRANSFERS, WORDS, Bar, View
from .listing import operator_text

_LANES = ("processor", "transfers")
Event = dict[str, Any]


def chrome_trace(schedule: Schedule, views: Sequence[View]) -> dict[str, Any]:
    """Return the trace as a JSON object. Each view is a process, numbered from 1."""
    texts = _texts(schedule)
    events: list[Event] = []
    for pid, view in enumerate(views, 1):
        events += _names(pid, view)
        events += [_slice(pid, bar, texts) for bar in view.bars]
        events += _flows(pid, view)
        events += _counter(pid, view)
    name = schedule.meta.get("graph", {}).get("name", "schedule")
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": name, "board": schedule.meta.get("board") or "unknown"},
    }


def _texts(schedule: Schedule) -> dict[str, Event]:
    model = schedule.model
    found: dict[str, Event] = {}
    for number, (name, tensor) in enumerate(zip(schedule.names, model.tensors, strict=True)):
        found[name] = {"tensor": name, "bytes": tensor.size_bytes}
        if number >= model.stored_count:
            found[name]["operator"] = operator_text(schedule, number)
    return found


def _names(pid: int, view: View) -> Iterator[Event]:
    process = {"ph": "M", "pid": pid, "tid": _tid(pid, "processor")}
    yield {**process, "name": "process_name", "args": {"name": view.name}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": pid}}
    for lane in _LANES:
        about = {"ph": "M", "pid": pid, "tid": _tid(pid, lane)}
        yield {**about, "name": "thread_name", "args": {"name": lane}}
        yield {**about, "name": "thread_sort_index", "args": {"sort_index": about["tid"]}}


def _tid(pid: int, lane: str) -> int:
    """Return the number of a lane's thread: unique in the trace, and not Perfetto's reserved 0."""
    return 10 * pid + _LANES.index(lane)


def _slice(pid: int, bar: Bar, texts: dict[str, Event]) -> Event:
    begin_ns, end_ns = round(bar.begin_us * 1e3), round(bar.end_us * 1e3)
    return {
        "ph": "X",
        "pid": pid,
        "tid": _tid(pid, "transfers" if bar.kind in TRANSFERS else "processor"),
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "name": WORDS[bar.kind] if bar.kind in ("wait", "commit") else bar.node,
        "cat": bar.kind,
        "args": {"statement": bar.statement, "kind": WORDS[bar.kind], **texts.get(bar.node, {})},
    }


def _flows(pid: int, view: View) -> Iterator[Event]:
    """Yield an arrow from each page-out to each later page-in of the same tensor."""
    written: dict[str, Bar] = {}
    for bar in sorted(view.bars, key=lambda bar: bar.statement):
        if bar.kind == "page_out":
            written[bar.node] = bar
        elif bar.kind == "page_in" and bar.node in written:
            arrow: Event = {"pid": pid, "tid": _tid(pid, "transfers")}
            arrow |= {"cat": "page", "name": "page"}
            arrow["id"] = (pid << 16) + bar.statement  # Perfetto needs an integer as `id`
            yield {**arrow, "ph": "s", "ts": round(written[bar.node].begin_us * 1e3) / 1e3}
            yield {**arrow, "ph": "f", "bp": "e", "ts": round(bar.begin_us * 1e3) / 1e3}


def _counter(pid: int, view: View) -> Iterator[Event]:
    """Yield a counter event for each time at which the number of bytes in RAM changes."""
    values = {round(time_us * 1e3): used for time_us, used in view.used}
    for time_ns, used in values.items():
        yield {
            "ph": "C", "pid": pid, "tid": _tid(pid, "processor"), "ts": time_ns / 1e3,
            "name": "RAM", "args": {"bytes": used},
        }  # fmt: skip
