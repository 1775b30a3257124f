"""Compare the times of a recorded run with the predictions of its schedule, by kind of work."""

from collections import defaultdict
from dataclasses import dataclass

from .. import isa
from ..run.run import Run
from ..schedule.decode import Wait, decode
from ..schedule.schedule import Schedule
from .lanes import View

BETWEEN = "between statements"


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured time in a step of all statements of one kind, such as one kernel."""

    what: str
    count: int
    predicted_us: float | None  # None for the last row
    measured_us: float  # sum of the mean times of the statements


def compare_run(schedule: Schedule, plan: View, run: Run) -> tuple[Comparison, ...]:
    """Return a row for each kind of work, in descending order of measured time.

    An additional last row has the measured time between statements, and in which commits write what
    stays in RAM. No trace contains this time: it is the time of the step minus the traced times of
    the processor.
    """
    statements = decode(schedule)
    kernels = isa.by_code("KERNEL")

    def work(index: int) -> str | None:
        statement = statements[index]
        if isinstance(statement, Wait):
            return "waiting for transfers"
        if statement.op == "compute":
            return kernels[schedule.model.operator(schedule.numbers[statement.node]).kernel].name
        return None if statement.op == "free" else statement.op.replace("_", " ")

    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, float] = defaultdict(float)
    for traced in run.trace:
        if what := work(traced.statement):
            measured[what].append(traced.time_us)
    for bar in plan.bars:
        if bar.kind == "streamed":  # its statement has a bar in the processor's lane, too
            continue
        what = "waiting for transfers" if bar.kind == "wait" else work(bar.statement)
        predicted[str(what)] += bar.end_us - bar.begin_us
    found = [
        Comparison(what, len(times), predicted[what], sum(times))
        for what, times in measured.items()
    ]
    found.sort(key=lambda row: -row.measured_us)
    lane_us = sum(traced.time_us for traced in run.trace if not traced.op.startswith("page"))
    if run.steps:
        rest_us = max(0.0, (run.measured_time_us or 0.0) - lane_us)
        homes = schedule.model.storage and schedule.header.home_count
        what = f"{BETWEEN}, and writes of what stays" if homes else BETWEEN
        found.append(Comparison(what, len(run.trace), None, rest_us))
    return tuple(found)
