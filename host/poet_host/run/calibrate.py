"""Run and trace a schedule on a board, to calibrate a profile or to validate its predictions.

A profile's kernels and transfers are measured one by one. The time that a board spends between
them can be measured only while the board runs a schedule.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from .. import isa
from ..device.board import StatementCosts, load_board
from ..device.device import Progress
from ..errors import PoetError
from ..graph.graph import Graph, Node
from ..plan.plan import Plan, Statement
from ..plan.pricing import commit_costs
from ..plan.problem import CostGraph, Problem
from ..plan.verify import verify
from ..profile.profile import Profile
from ..profile.transfer import Lane, shares
from ..schedule.decode import Wait
from ..schedule.nests import Streamed, nested
from .energy import energy_uj
from .run import Step
from .train import Training

MAX_STEPS = 256  # enough steps to see the rare pauses of a card
MAX_TIME_US = 10e6  # when the steps have taken this long, no more steps run
MAX_TRACED_US = 60e6  # the same while some statements were not traced
FASTEST_SHARE = 4  # on a computer, only the fastest quarter of the steps counts
_PAGES = ("page_in", "page_out")


@dataclass(frozen=True)
class Observed:
    """The measured times of some steps of a schedule, and the traces of their statements."""

    steps: tuple[Step, ...]
    records: tuple[tuple[Any, ...], ...]  # the poet_trace records of each step
    statements: tuple[Statement | Wait, ...]  # of the schedule
    tick_us: float
    card_khz: int  # clock of the card's bus; 0: no card, or not known
    # The node of each tensor that a nest writes, and how many transfers move how many bytes.
    stores: tuple[tuple[str, Counter[int]], ...] = ()


def observe(training: Training, progress: Progress | None = None) -> Observed:
    """Run steps until MAX_STEPS or MAX_TIME_US is reached, and measure them.

    If the trace does not cover every statement by then, more steps run until it does or
    MAX_TRACED_US is reached. The first step fills the board's cache and does not count. On a
    computer, other processes slow steps down, so only the fastest steps are kept.
    """
    training.step()
    steps: list[Step] = []
    records: list[tuple[Any, ...]] = []
    windows = training.trace.windows
    taken_us = 0.0
    while taken_us < (MAX_TRACED_US if len(steps) < windows else MAX_TIME_US) and (
        len(steps) < max(windows, MAX_STEPS)
    ):
        if progress:
            progress(len(steps), max(windows, MAX_STEPS))
        steps.append(training.step())
        records.append(training.trace.records)
        taken_us += steps[-1].time_us
    statements, tick_us = tuple(training.trace.statements), training.device.us(1)
    kept: Sequence[int] = range(len(steps))
    if training.device.board.is_computer:
        kept = fastest([step.time_us for step in steps], max(windows, 1))
    # After a reset during a step, the board knows only its loss.
    kept = [i for i in kept if steps[i].time_us]
    if not kept:
        raise PoetError("the board measured no time for any step: profile again")
    return Observed(
        tuple(steps[i] for i in kept),
        tuple(records[i] for i in kept),
        statements,
        tick_us,
        int(training.device.health().card_khz),
        tuple(_stores(training)),
    )


def _stores(training: Training) -> Iterable[tuple[str, Counter[int]]]:
    schedule = training.schedule
    for statement in training.trace.statements:
        if not isinstance(statement, Streamed):
            continue
        nest = nested(schedule.model, schedule.names.index(statement.own), statement.nest)
        for index, name in enumerate((statement.own, statement.other or ""), nest.count):
            if any(nest.nest.rings[index : index + 1]):
                yield name, nest.transfers(index)


def fastest(times_us: Sequence[float], windows: int) -> list[int]:
    """Return the indices of the fastest quarter of the steps.

    The steps trace `windows` parts of the schedule in turn. The quarter is chosen for each part.
    """
    kept: list[int] = []
    for window in range(windows):
        steps = sorted(range(window, len(times_us), windows), key=lambda step: times_us[step])
        kept += steps[: -(-len(steps) // FASTEST_SHARE)]
    return sorted(kept)


def calibrated(profile: Profile, graph: Graph, observed: Observed) -> Profile:
    """Return the profile with the costs that only a running schedule shows.

    These are the times between statements, and the extra time of writes, compared with a
    measurement of page-outs alone. Tensors that a step updates (such as weights) lie in other erase
    groups of the card than other tensors. The card pauses when a write goes to another erase group
    than the previous write. The extra time is `renewed_turn_us` for each updated tensor. The rest
    is divided among the other tensors that page-outs and nests write (`page_turn_us`). Without such
    tensors, it is added to the commit.
    """
    found = replace(profile, statements=statement_costs(observed, profile.statements))
    if not profile.storage:
        return replace(found, check_us_per_byte=_check_us_per_byte(profile, graph, observed))
    if load_board(profile.board).is_computer and found.statements.page_us:
        found = replace(
            found, page_in=_unattended(found.page_in), page_out=_unattended(found.page_out)
        )
    outs = _outs(graph, observed)
    written = [*outs.values(), *(graph[name] for name, _ in observed.stores)]
    page_count = sum(node.updates is None for node in written)
    extra_us = _extra_us(profile, outs, observed)
    renewed_us = min(
        _renewed_us(profile, outs, observed), max(0.0, extra_us) / max(1, len(written))
    )
    found = replace(found, renewed_turn_us=renewed_us)
    turns_us = extra_us - renewed_us * (len(written) - page_count)
    if page_count:
        return replace(found, page_turn_us=max(0.0, turns_us) / page_count)
    late_us = _late_us(found, graph, observed)
    return replace(found, commit_us=profile.commit_us + max(0.0, turns_us + late_us))


def _check_us_per_byte(profile: Profile, graph: Graph, observed: Observed) -> float:
    """Return the time of the check of new weights, which ends a step without a card.

    It is that of `profile` if not all statements were traced, whose time is not the check's.
    """
    traced = {record.statement for records in observed.records for record in records}
    if len(traced) < len(observed.statements):
        return profile.check_us_per_byte
    renewed_bytes = sum(node.size_bytes for node in graph if node.updates is not None)
    return _end_us(observed) / renewed_bytes if renewed_bytes else 0.0


def _extra_us(profile: Profile, outs: Mapping[int, Node], observed: Observed) -> float:
    spent_us = fmean(step.writing_us - step.overhead_writing_us for step in observed.steps)
    outs_us = sum(profile.page_out.times_us(node.size_bytes)[0] for node in outs.values())
    nests_us = sum(
        float(profile.page_out.pieces_us(np.array(size_bytes))[0]) * count
        for _, transfers in observed.stores
        for size_bytes, count in transfers.items()
    )
    return spent_us - outs_us - nests_us


def _renewed_us(profile: Profile, outs: Mapping[int, Node], observed: Observed) -> float:
    """Return the mean extra time of a page-out of an updated tensor that follows another one."""
    expected_us = {
        after: profile.page_out.times_us(outs[after].size_bytes)[0]
        for before, after in pairwise(outs)
        if outs[before].updates is not None and outs[after].updates is not None
    }
    extra_us = _mean(
        observed.tick_us * ((record.end - record.begin) % 2**32) - expected_us[record.statement]
        for records in observed.records
        for record in records
        if record.statement in expected_us
    )
    return max(0.0, extra_us)


def _late_us(profile: Profile, graph: Graph, observed: Observed) -> float:
    """Return by how much the commits exceed the prediction of `profile`.

    The card pauses between the commit record and the first updated tensor. If this tensor shares a
    block, its write is a part of the commit, so the time of the commit includes the pause.
    """
    sizes = [node.size_bytes for node in graph if node.updates is not None]
    step_us = fmean(step.time_us - step.overhead_us for step in observed.steps)
    known_us, _ = profile.commit(sizes, step_us)
    return max(0.0, fmean(step.commit_us for step in observed.steps) - known_us)


def averaged(found: Sequence[Profile]) -> Profile:
    """Return a profile with the mean of the costs that `calibrated` found with several schedules.

    `found`: profiles that differ in nothing else.
    """
    costs = zip(*(astuple(it.statements) for it in found), strict=True)
    names = ("page_turn_us", "renewed_turn_us", "commit_us", "check_us_per_byte")
    means: dict[str, Any] = {name: fmean(getattr(it, name) for it in found) for name in names}
    return replace(found[0], statements=StatementCosts(*map(fmean, costs)), **means)


def _end_us(observed: Observed) -> float:
    """Return the time of a step after its last traced statement, if nothing is transferred."""
    spans_us: dict[int, list[float]] = {}  # by the first statement of a part of the schedule
    for records in filter(None, observed.records):
        ticks = (records[-1].end - records[0].begin) % 2**32
        spans_us.setdefault(records[0].statement, []).append(observed.tick_us * ticks)
    step_us = fmean(step.time_us - step.overhead_us for step in observed.steps)
    return max(0.0, step_us - sum(map(fmean, spans_us.values())))


def _unattended(lane: Lane) -> Lane:
    """Return a computer's coefficients of transfer times, with a processor time of 0.

    A thread of the computer runs the transfers. The time to pass a transfer to the thread is part
    of the time between statements.
    """
    return replace(lane, cpu_base_us=0.0, cpu_us_per_byte=0.0, cpu_us_per_rest_byte=0.0)


def _outs(graph: Graph, observed: Observed) -> dict[int, Node]:
    """Return the node of each page-out, by the index of the statement in the schedule.

    Page-outs of tensors that share blocks are omitted: their time is a part of the commit's.
    """
    outs = {
        number: graph[statement.node]
        for number, statement in enumerate(observed.statements)
        if not isinstance(statement, Wait) and statement.op == "page_out"
    }
    return {i: node for i, node in outs.items() if not (node.updates and shares(node.size_bytes))}


def statement_costs(observed: Observed, before: StatementCosts) -> StatementCosts:
    """Return the mean time between the statements of a trace, by kind of statement.

    The processor runs the statements compute, stream, free, wait and end one after another. Between
    two of these, it decodes the second one, and the page-ins and page-outs that lie between the
    two. The transfers themselves run at the same time as the processor. A kind of statement that
    was not traced has the cost of `before`.
    """
    found = [gap for records in observed.records for gap in _gaps(records, observed.tick_us)]
    alone = {kind: _mean(us for name, pages, us in found if name == kind and not pages)
             for kind in ("compute", "stream", "free", "wait", "end")}  # fmt: skip
    pages = sum(number for _, number, _ in found)
    waits = sum(name == "wait" for name, _, _ in found)
    with_pages_us = sum(gap_us - alone[name] for name, number, gap_us in found if number)
    page_us = max(0.0, with_pages_us + waits * alone["wait"]) / pages if pages else before.page_us
    total_us = sum(gap_us for _, _, gap_us in found)
    return StatementCosts(
        alone["compute"] or before.compute_us,
        page_us,
        alone["free"] or before.free_us,
        _reading(observed, total_us),
        alone["stream"] or before.stream_us,
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def _reading(observed: Observed, traced_us: float) -> float:
    """Return the share (0 to 1) of the time between statements in which the board reads records."""
    records_us = sum(
        step.reading_us + step.writing_us - step.transfer_us - step.commit_us
        for step in observed.steps
    )
    seen = sum(len(records) for records in observed.records)
    every_us = traced_us * len(observed.statements) * len(observed.steps) / seen if seen else 0.0
    return min(1.0, max(0.0, records_us / every_us)) if every_us else 0.0


def _gaps(records: Sequence[Any], tick_us: float) -> Iterable[tuple[str, int, float]]:
    """Yield (kind, pages, time in us) for each compute, free, wait and end, except the first.

    The time begins at the end of the previous one of these statements. `pages` is the number of
    page-ins and page-outs between the two.
    """
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
    """The predicted costs of a schedule's step, and the costs that the board measured.

    Energies include the sleeping board. The measured energy is an estimate: the time that the board
    measured in each power state, times the power of that state.
    """

    model: str
    ram_bytes: int  # the plan's budget
    steps: int  # number of traced steps; measured costs are means over these steps
    predicted_us: float
    time_us: float  # measured
    predicted_uj: float
    energy_uj: float  # measured
    asleep_share: float  # of the measured time, in which the processor slept
    card_khz: int  # clock of the card's bus; 0: no card, or not known

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
    """Compare the costs that a plan predicts for a step with the measured steps in `observed`.

    `costs` must be the cost graph that is made with `profile`.
    """
    # Without its own costs, which `verify` would compare.
    bare = Plan(
        "feasible", plan.ram_bytes, statements=plan.statements,
        initial_offsets=plan.initial_offsets, commit_every=plan.commit_every,
    )  # fmt: skip
    promised = verify(Problem(costs, plan.ram_bytes), bare)
    commit_us, commit_uj = commit_costs(profile, costs, replace(plan, time_us=promised.time_us))
    predicted_us = promised.time_us + commit_us
    base_uj = costs.base_power_uw * predicted_us / 1e6
    return Validation(
        graph.name,
        plan.ram_bytes,
        len(observed.steps),
        predicted_us,
        fmean(step.time_us for step in observed.steps),
        promised.energy_uj + commit_uj + base_uj,
        fmean(energy_uj(step, profile.power)[1] for step in observed.steps),
        fmean(step.asleep_us / step.time_us for step in observed.steps),
        observed.card_khz,
    )
