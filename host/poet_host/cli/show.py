"""The command `show`."""

from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..files import write_json, write_whole
from ..view.comparison import Comparison, compare_run
from ..view.lanes import views_of
from ..view.listing import counted, listing, unit_of
from ..view.page import page
from ..view.perfetto import chrome_trace
from ..view.picture import draw
from .console import Answer, say, show_table, show_text
from .declared import option, takes
from .options import SCHEDULE
from .written import check_writable, output_file


@click.command()
@takes
def show(
    schedule: Path = SCHEDULE,
    run_path: Path | None = option("--run"),
    html: Path | None = output_file(),
    trace: Path | None = output_file(),
    png: Path | None = output_file(),
    forward: bool = False,
) -> Answer:
    """Show a schedule as a listing, a web page, a trace or a picture.

    Prints the listing if no option names a file to write.

    --run RUN.json  In addition, show the measurements in this file, which `poet-host train --run
        FILE` wrote for the same schedule. [default: none]
    --html FILE  Write a self-contained web page. It shows processor, transfers and RAM over time,
        and why tensors are paged or recomputed.
    --trace FILE  Write a trace for ui.perfetto.dev or chrome://tracing to this file.
    --png FILE  Draw processor, transfers and RAM over time into this PNG file.
    --forward  Show the forward program, which is the plan of an inference.
    """
    files = (html, trace, png)
    check_writable(*files, read=(schedule, run_path))
    loaded = api.Schedule.load(schedule)
    if forward and run_path:
        raise BadInput("a run is that of a training step, not of --forward: omit one of the two")
    loaded = loaded.needed_forward() if forward else loaded
    run = api.Run.load(run_path) if run_path else None
    views = views_of(loaded, run, str(run_path)) if run or any(files) else []
    if html:
        write_whole(html, page(loaded, views, run))
    if trace:
        write_json(trace, chrome_trace(loaded, views))
    if png:
        draw(loaded, png, run)
    for path in files:
        if path:
            say(f"wrote {path}")
    found = compare_run(loaded, views[0], run) if run else ()

    def show_listing() -> None:
        took_us = {traced.statement: traced.time_us for traced in run.trace} if run else None
        show_text(listing(loaded, took_us))
        if run:
            _show_comparison(loaded, run, found)

    facts = _about(loaded, run, found)
    return Answer(facts) if any(files) else Answer(facts, show_listing)


def _about(
    schedule: api.Schedule, run: api.Run | None, found: tuple[Comparison, ...]
) -> dict[str, Any]:
    hidden = ("tensors", "costs")
    about = {key: value for key, value in schedule.meta.items() if key not in hidden}
    about |= {"model_bytes": len(schedule.model_part), "plan_bytes": len(schedule.plan_part)}
    if run:
        about["run"] = {
            "steps": len(run.steps),
            "statistic": run.statistic,
            "time_us": run.time_us,
            "step_us": run.measured_time_us,
            "energy_uj": run.energy_uj,
            "peak_bytes": run.peak_bytes,
            "comparison": [vars(row) for row in found],
        }
    return about


def _show_comparison(schedule: api.Schedule, run: api.Run, found: tuple[Comparison, ...]) -> None:
    planned_for = schedule.meta.get("board")
    same = run.board == planned_for
    promised, took_us = schedule.meta["plan"]["time_us"], run.measured_time_us
    unit, measured_in = unit_of(promised or 0.0), unit_of(took_us or 0.0)
    rows = [
        (
            row.what,
            f"{row.count:,}",
            unit.text(row.predicted_us),
            measured_in.text(row.measured_us),
            _error(row.predicted_us, row.measured_us, same),
        )
        for row in found
    ]
    if took_us is not None:
        error = _error(promised, took_us, same)
        times = (unit.text(promised), measured_in.text(took_us), error)
        rows.append(("a step without commit and host", "", *times))
    other = "" if same else f"; the plan is for {planned_for}"
    title = f"{run.statistic} of {counted(len(run.steps), 'step')} on {run.board}{other}"
    heads = (f">predicted {unit.name}", f">measured {measured_in.name}")
    show_table(("of a step", ">times", *heads, ">error"), rows, title)


def _error(predicted_us: float | None, measured_us: float, same: bool) -> str:
    """Return the error of a prediction in per cent; "" if the plan is for another board."""
    if not (same and predicted_us and measured_us):
        return ""
    return f"{predicted_us / measured_us - 1:+.1%}"
