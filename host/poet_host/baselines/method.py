"""Make a verified plan from the drafts of a method, in the same way for all methods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..errors import BadInput
from ..packing.blocks import ALIGNMENT, aligned
from ..plan.completion import Completion, complete
from ..plan.events import Event, events_of, least_value
from ..plan.infeasible import largest_operator_bytes
from ..plan.placed_plan import PLACEMENT_LIMIT_S, Effort, Excess, realise
from ..plan.placement import aligned_graph, arrange
from ..plan.plan import Plan, objective_value, plan_of
from ..plan.problem import TOLERANCE, CostGraph, Problem
from ..plan.timeline import lanes
from ..solver.settings import Settings, Stopwatch

# Most attempts to place a draft. Where it is proved that the last drafts cannot be placed, the next
# ones must need less RAM.
MAX_ROUNDS = 8
EXTENSION = "parameters and data leave RAM between uses, which is not part of the method"
_LOST = "a tensor that an update overwrites is needed again, and there is no storage"


class DoesNotApply(BadInput):
    """The method does not work on this kind of graph. `plan_by` adds the method's name."""


def check_storage(graph: CostGraph) -> None:
    """Raise DoesNotApply if nothing can be paged."""
    if not graph.storage:
        raise DoesNotApply(
            "the method pages tensors, but the graph has no storage: choose another method, "
            "such as poet"
        )


class GaveUp(Exception):
    """A method found no schedule within its limit of effort. A schedule may still exist."""


@dataclass(frozen=True)
class Draft:
    """One schedule that a method proposes."""

    events: Sequence[Event]
    note: str = ""  # what the draft adds to the published method


Drafts = Callable[[CostGraph, int], Sequence[Draft]]
"""A method: returns its schedules for a graph and a RAM budget in bytes, or none if none fits."""


@dataclass
class _Failure:
    """The reason why no draft became a plan."""

    reason: str
    is_proved: bool = True
    smallest_ram_bytes: int | None = None


def cheapest_plan(
    drafts: Drafts, problem: Problem, settings: Settings, *, every: bool = True
) -> Plan:
    """Make a verified plan from the draft of least value that meets the deadline and fits RAM.

    See Problem for the value. If the plan is better when stored tensors leave RAM between uses, its
    note says that they do.

    The plan is "infeasible" if it is proved that no draft fits, whatever the placement and the
    order of transfers. It is "unknown" if a placement or order that was not tried might fit, or if
    `drafts` raises GaveUp. `every`: whether `drafts` returns every draft that fits RAM. Only then
    is the plan "infeasible" if all drafts miss the deadline. Raises DoesNotApply if `drafts`
    raises it.
    """
    clock = Stopwatch(settings.time_limit_s)
    plan = _cheapest_plan(drafts, problem, settings, every, clock)
    return replace(plan, solve_s=clock.elapsed_s)


def _cheapest_plan(
    drafts: Drafts, problem: Problem, settings: Settings, every: bool, clock: Stopwatch
) -> Plan:
    unit = ALIGNMENT if settings.placed else 1
    graph = aligned_graph(problem.graph, unit)
    # The budget is rounded up, since the last tensor may end between two multiples of `unit`.
    capacity = limit = aligned(problem.ram_bytes, unit)
    failure = _Failure("")
    for attempt in range(MAX_ROUNDS):
        try:
            proposed = list(drafts(graph, limit))
        except GaveUp as error:
            failure = _Failure(str(error), is_proved=False)
            break
        completed = [(draft, complete(graph, draft.events, limit)) for draft in proposed]
        if attempt == 0 and settings.below is None:
            whole = replace(problem, graph=graph, ram_bytes=capacity)
            failure = _failure(whole, completed, clock, every)
        fitting = [pair for pair in completed if pair[1].statements is not None]
        fitting.sort(key=lambda pair: _rank(problem, *pair))
        excess, best, note = 0, None, ""
        below = inf if settings.below is None else settings.below
        for draft, completion in fitting:
            if _least_value(problem, completion) >= below * (1 - TOLERANCE):
                break
            if clock.left_s == 0.0:
                failure = _Failure("time ran out before every schedule was tried", False)
                break
            plan = realise(
                problem,
                completion.statements or (),
                placed=settings.placed,
                time_limit_s=clock.left_s,
                effort=transfer_effort(problem, settings),
            )
            if isinstance(plan, Excess):
                if plan.needs_less_ram:
                    excess = min(excess or plan.ram_bytes, plan.ram_bytes)
            elif (value := objective_value(problem.objective, plan.totals)) < below:
                best, note, below = plan, _note(draft, completion), value
        if best is not None:
            return replace(best.as_plan(problem), note=note)
        if excess <= 0 or clock.left_s == 0.0:
            break
        limit -= max(aligned(excess), problem.ram_bytes // 256)
    return plan_of(
        problem,
        "infeasible" if failure.is_proved else "unknown",
        note=failure.reason,
        smallest_ram_bytes=failure.smallest_ram_bytes,
    )


def transfer_effort(problem: Problem, settings: Settings) -> Effort:
    """Return the effort to start transfers early: "none" for seed plans whose time does not matter.

    For all other plans it is "full".
    """
    return "full" if settings.below is None or problem.is_timed else "none"


def _least_value(problem: Problem, completion: Completion) -> float:
    """Return the value of the plan if its lanes never wait for each other."""
    events = events_of(problem.graph, completion.statements or ())
    return least_value(problem.counted, problem.value_per_us, events)


def _rank(problem: Problem, draft: Draft, completion: Completion) -> tuple[float, bool, bool]:
    """Return a sort key for drafts: those of low value come first.

    At equal value, drafts whose parameters stay in RAM come before those whose parameters leave.
    """
    return (
        round(_least_value(problem, completion), 9),
        completion.exits > 0,
        EXTENSION in draft.note,
    )


def _note(draft: Draft, completion: Completion) -> str:
    """Return the plan's note, which states what the plan adds to the published method."""
    notes = [draft.note] if draft.note else []
    if completion.exits and EXTENSION not in notes:
        notes.append(EXTENSION)
    return "; ".join(notes)


def _failure(
    problem: Problem,
    completed: Sequence[tuple[Draft, Completion]],
    clock: Stopwatch,
    every: bool,
) -> _Failure:
    """Find the reason why no draft becomes a plan, and whether this is proved.

    `problem`: the problem with sizes and RAM budget rounded up to the alignment of tensors.
    """
    graph = problem.graph
    if not completed:
        alone = largest_operator_bytes(graph)
        if alone > problem.ram_bytes:
            return _Failure(f"one operator alone needs {alone} bytes")
        return _Failure("the method runs out of memory")
    completed = [(draft, done) for draft, done in completed if done.least_bytes]
    if not completed:
        return _Failure(_LOST)
    draft, least = min(completed, key=lambda pair: pair[1].least_bytes)
    if least.least_bytes > problem.ram_bytes:
        smallest = complete(graph, draft.events, least.least_bytes).statements or ()
        reason = f"its schedules need {least.least_bytes} bytes even if nothing idle stays in RAM"
        limit_s = min(PLACEMENT_LIMIT_S, clock.left_s)
        placement = arrange(graph, smallest, least.least_bytes, limit_s)
        return _Failure(reason, smallest_ram_bytes=placement.height_bytes)
    times = [
        lanes(problem, complete(graph, one.events, inf).statements or ())
        for one, done in completed
        if done.statements is not None
    ]
    limit_us = problem.deadline_us
    if limit_us is not None and all(lane.bound_us > limit_us * (1 + TOLERANCE) for lane in times):
        return _Failure("its schedules miss the deadline even if every transfer is hidden", every)
    return _Failure("no placement or order of transfers was found that fits the limits", False)
