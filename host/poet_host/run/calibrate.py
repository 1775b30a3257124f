"""What a board's statements cost, and how true predictions are: schedules run and traced.

A profile's kernels and transfers are measured one by one; what a board does between them shows
only while it executes a schedule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from .. import isa
from ..device.board import load_board
from ..device.device import Progress
from ..graph.graph import Graph, Node
from ..plan.plan import Plan, Statement
from ..plan.problem import CostGraph, Problem
from ..plan.verify import verify
from ..profile.profile import Lane, Profile, StatementCosts
from ..schedule.decode import Wait
from .energy import energy_uj
from .run import Step
from .train import Training

STEPS = 256  # that are counted, for a card pauses in few of them; or fewer if they take longer than
ENOUGH_US = 10e6
TYPICAL = 4  # of a computer's steps, the quickest one in so many: what else it does only adds time
_PAGES = ("page_in", "page_out")


@dataclass(frozen=True)
class Observed:
    """Traced steps. The first one of a run is left out: it fills the board's cache; of a computer's
    all but the quickest."""

    steps: tuple[Step, ...]
    records: tuple[tuple[Any, ...], ...]  # poet_trace, of each step
    statements: tuple[Statement | Wait, ...]  # of the schedule
    tick_us: float


def observe(training: Training, progress: Progress | None = None) -> Observed:
    """Run a schedule until every statement has been traced, and for some steps at least."""
    training.step()
    steps: list[Step] = []
    records: list[tuple[Any, ...]] = []
    windows = training.trace.windows
    while len(steps) < windows or (
        len(steps) < STEPS and sum(step.time_us for step in steps) < ENOUGH_US
    ):
        if progress:
            progress(len(steps), max(windows, STEPS))
        steps.append(training.step())
        records.append(training.trace.records)
    statements, tick_us = tuple(training.trace.statements), training.device.us(1)
    kept: Sequence[int] = range(len(steps))
    if training.device.board.is_computer:
        kept = typical([step.time_us for step in steps], max(windows, 1))
    return Observed(
        tuple(steps[i] for i in kept), tuple(records[i] for i in kept), statements, tick_us
    )


def typical(times_us: Sequence[float], windows: int) -> list[int]:
    """Which steps are the quickest of those that trace the same one of so many windows."""
    kept: list[int] = []
    for window in range(windows):
        steps = sorted(range(window, len(times_us), windows), key=lambda step: times_us[step])
        kept += steps[: -(-len(steps) // TYPICAL)]
    return sorted(kept)


def calibrated(profile: Profile, graph: Graph, observed: Observed) -> Profile:
    """The profile with what only a schedule shows: what its statements cost, and what transfers
    out take beyond those that were measured one after another.

    A card pauses when another of its erase groups is written. What updates take after updates
    becomes part of every transfer out, and the rest is for the pages that come between them; a
    schedule without pages has one such pause, between a commit's record and its first update.
    """
    outs = _outs(graph, observed)
    expected_us = {
        index: profile.page_out.times_us(node.size_bytes)[0] for index, node in outs.items()
    }
    pages = [index for index, node in outs.items() if node.updates is None]
    after_updates = {
        after for before, after in pairwise(outs) if before not in pages and after not in pages
    }
    more_us = max(
        0.0,
        _mean(
            observed.tick_us * ((record.end - record.begin) % 2**32) - expected_us[record.statement]
            for records in observed.records
            for record in records
            if record.statement in after_updates
        ),
    )
    spent_us = fmean(step.writing_us - step.commit_us for step in observed.steps)
    turns_us = max(0.0, spent_us - sum(expected_us.values()) - more_us * len(outs))
    page_in, page_out = profile.page_in, profile.page_out
    statements = statement_costs(observed)
    if load_board(profile.board).is_computer and statements.page_us:
        page_in, page_out = _unattended(page_in), _unattended(page_out)
    return replace(
        profile,
        statements=statements,
        page_in=page_in,
        page_out=replace(page_out, base_us=page_out.base_us + more_us),
        page_turn_us=turns_us / len(pages) if pages else profile.page_turn_us,
        commit_us=profile.commit_us if pages else profile.commit_us + turns_us,
    )


def _unattended(lane: Lane) -> Lane:
    """Where the lane is a thread, all that a transfer takes of the processor is to hand it over,
    which is part of what passes between statements."""
    return replace(lane, cpu_base_us=0.0, cpu_us_per_byte=0.0, cpu_us_per_rest_byte=0.0)


def _outs(graph: Graph, observed: Observed) -> dict[int, Node]:
    """What is paged out by which statement, in order."""
    return {
        index: graph[one.node]
        for index, one in enumerate(observed.statements)
        if not isinstance(one, Wait) and one.op == "page_out"
    }


def statement_costs(observed: Observed) -> StatementCosts:
    """What passes between the statements of a trace, by their kind, on average.

    The processor's statements (compute, free, wait, end) follow one another; between two of
    them the second is decoded, and so are the pages before it, which run in the other lane.
    """
    found = [gap for records in observed.records for gap in _gaps(records, observed.tick_us)]
    alone = {
        kind: _mean(gap_us for name, pages, gap_us in found if name == kind and not pages)
        for kind in ("compute", "free", "wait", "end")
    }
    pages = sum(number for _, number, _ in found)
    waits = sum(name == "wait" for name, _, _ in found)
    beside_us = sum(gap_us - alone[name] for name, number, gap_us in found if number)
    page_us = max(0.0, beside_us + waits * alone["wait"]) / pages if pages else 0.0
    all_us = sum(gap_us for _, _, gap_us in found)
    return StatementCosts(alone["compute"], page_us, alone["free"], _reading(observed, all_us))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def _reading(observed: Observed, traced_us: float) -> float:
    """The share of what passes between statements in which records are read."""
    records_us = sum(
        step.reading_us + step.writing_us - step.transfer_us - step.commit_us
        for step in observed.steps
    )
    seen = sum(len(records) for records in observed.records)
    every_us = traced_us * len(observed.statements) * len(observed.steps) / seen if seen else 0.0
    return min(1.0, max(0.0, records_us / every_us)) if every_us else 0.0


def _gaps(records: Sequence[Any], tick_us: float) -> Iterable[tuple[str, int, float]]:
    """Kind of each statement of the processor, pages just before it, time since the one before."""
    names = {row.code: row.name for row in isa.rows("STATEMENT")}
    end, pages = None, 0
    for record in records:
        name = names[record.kind]
        if name in _PAGES:
            pages += 1
            continue
        if end is not None:
            yield name, pages, (record.begin - end) % 2**32 * tick_us
        end, pages = record.end, 0


@dataclass(frozen=True)
class Validation:
    """A schedule's prediction and what the board did, the mean of `steps` traced steps.

    Energies are of one step, the sleeping board's included: the board's own measurement of its
    states x their powers, so estimated.
    """

    model: str
    ram_bytes: int
    steps: int
    predicted_us: float
    time_us: float
    predicted_uj: float
    energy_uj: float

    @property
    def time_error(self) -> float:
        return self.predicted_us / self.time_us - 1

    @property
    def energy_error(self) -> float:
        return self.predicted_uj / self.energy_uj - 1

    def to_json(self) -> dict[str, Any]:
        errors = {"time_error": self.time_error, "energy_error": self.energy_error}
        return {**asdict(self), **errors}


def validation(
    graph: Graph, profile: Profile, costs: CostGraph, plan: Plan, observed: Observed
) -> Validation:
    """What `costs` (of this profile) promise of a plan, and what was observed of it."""
    promised = verify(Problem(costs, plan.ram_bytes), _unclaimed(plan))
    predicted_us = promised.time_us + profile.commit_us
    base_uj = profile.power.base_uw * predicted_us / 1e6
    return Validation(
        graph.name,
        plan.ram_bytes,
        len(observed.steps),
        predicted_us,
        fmean(step.time_us for step in observed.steps),
        promised.energy_uj + profile.commit_uj + base_uj,
        fmean(energy_uj(step, profile.power)[1] for step in observed.steps),
    )


def _unclaimed(plan: Plan) -> Plan:
    """A plan without the costs that it was solved for."""
    return replace(
        plan,
        status="feasible",
        energy_uj=None,
        bound_uj=None,
        gap=None,
        time_us=None,
        total_energy_uj=None,
    )
