"""A recorded run beside what its schedule promised: times by kind of work, energy, peak."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .. import isa
from ..plan.plan import Statement
from ..run.run import Run
from ..schedule.decode import Wait
from ..schedule.schedule import Schedule
from .lanes import View

BETWEEN = "between statements"


@dataclass(frozen=True)
class Beside:
    """All statements of one kind of work in a step: a kernel, transfers, waits.

    Predictions of operators and transfers contain what passes between statements; a trace does
    not, so that has a row of its own (BETWEEN) whose prediction is None.
    """

    what: str
    count: int
    predicted_us: float | None
    measured_us: float


def beside(
    schedule: Schedule, statements: Sequence[Statement | Wait], plan: View, run: Run
) -> tuple[Beside, ...]:
    """Predicted and measured times, the longest measured first; medians of traced steps."""
    names = {name: i for i, name in enumerate(schedule.names)}
    kernels = isa.by_code("KERNEL")

    def work(index: int) -> str | None:
        statement = statements[index]
        if isinstance(statement, Wait):
            return "waiting for transfers"
        if statement.op == "compute":
            return kernels[schedule.model.operator(names[statement.node]).kernel].name
        return None if statement.op == "free" else statement.op.replace("_", " ")

    measured: dict[str, list[float]] = defaultdict(list)
    predicted: dict[str, float] = defaultdict(float)
    for one in run.trace:
        if what := work(one.statement):
            measured[what].append(one.time_us)
    for bar in plan.bars:
        what = "waiting for transfers" if bar.kind == "wait" else work(bar.statement)
        predicted[str(what)] += bar.end_us - bar.begin_us
    found = [
        Beside(what, len(times), predicted[what], sum(times)) for what, times in measured.items()
    ]
    found.sort(key=lambda one: -one.measured_us)
    lane = sum(one.time_us for one in run.trace if not one.op.startswith("page"))
    if run.steps:
        rest_us = max(0.0, (step_us(run) or 0.0) - lane)
        found.append(Beside(BETWEEN, len(run.trace), None, rest_us))
    return tuple(found)


def step_us(run: Run) -> float | None:
    """A step without what no plan contains, its commit and answers to the host: the median."""
    times_us = [step.time_us - step.overhead_us for step in run.steps]
    return median(times_us) if times_us else None
