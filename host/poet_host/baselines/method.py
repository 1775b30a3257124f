"""What all methods share: their settings, and the way from their drafts to a verified plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import BadInput
from ..plan.placement import arrange
from ..plan.plan import Plan, Statement, Status
from ..plan.problem import CostGraph, CostNode, Problem
from ..plan.timeline import lanes
from ..plan.transfers import overlap
from ..plan.verify import TOLERANCE, verify
from ..solver.settings import Settings, Stopwatch
from .completion import EXTENSION, Event, Settled, energy_uj, settle

ALIGNMENT = 4  # bytes; offsets are multiples of it
ROUNDS = 8  # of drafts for less and less RAM, while the placement does not fit
PLACING_S = 2.0
_LOST = "what an update overwrites is needed again, and there is no storage"


class DoesNotApply(BadInput):
    """The graph is not of the kind that a method is made for."""


class GaveUp(Exception):
    """A method's rules lead nowhere within its limit of effort; says nothing about the budget."""


@dataclass(frozen=True)
class Draft:
    """One schedule that a method proposes; `note` names what was done beyond its publication."""

    events: Sequence[Event]
    note: str = ""


Drafts = Callable[[CostGraph, int], Sequence[Draft]]
"""A method: its schedules for a graph and so many bytes of RAM; none: it has none that fits."""


@dataclass
class _Failure:
    """Why no draft became a plan."""

    proved: bool = True
    reason: str = ""
    smallest_ram_bytes: int | None = None


def realise(
    problem: Problem, method: str, drafts: Drafts, settings: Settings, *, every: bool = True
) -> Plan:
    """The cheapest draft that fits RAM (placement included) and deadline, as a verified plan.

    A method is given its best: where letting stored tensors leave RAM makes it cheaper, that is
    done, and noted.

    The plan is "infeasible" if no draft of the method can fit, whatever the placement and the
    order of transfers, and "unknown" if those tried do not. `every`: are the drafts that fit
    RAM all that the method has? If not, one that meets the deadline may have been missed.
    `drafts` may raise DoesNotApply, which is passed on, and GaveUp.
    """
    clock = Stopwatch(settings.time_limit_s)
    unit = ALIGNMENT if settings.placed else 1
    graph = padded(problem.graph, unit)
    # The last tensor may end between two multiples: the placement tells.
    room = limit = -(-problem.ram_bytes // unit) * unit
    failure = _Failure()
    for attempt in range(ROUNDS):
        try:
            proposed = list(drafts(graph, limit))
        except GaveUp as error:
            failure = _Failure(False, str(error))
            break
        settled = [(draft, settle(graph, draft.events, limit)) for draft in proposed]
        if attempt == 0 and settings.below_uj is None:
            failure = _failure(replace(problem, graph=graph, ram_bytes=room), settled, clock, every)
        fitting = [(d, s) for d, s in settled if s.statements is not None]
        if settings.below_uj is not None:
            fitting = [pair for pair in fitting if _cost_uj(graph, pair[1]) < settings.below_uj]
        fitting.sort(key=lambda pair: _rank(graph, *pair))
        excess = 0
        for draft, one in fitting:
            if clock.left_s == 0.0:
                failure = _Failure(False, "time ran out before every schedule was tried")
                break
            plan, height_bytes = _realised(problem, method, draft, one, settings, clock)
            if plan is not None:
                return plan
            over = height_bytes - problem.ram_bytes
            excess = min(excess or over, over) if over > 0 else excess
        if excess <= 0 or clock.left_s == 0.0:
            break
        limit -= max(-(-excess // ALIGNMENT) * ALIGNMENT, problem.ram_bytes // 256)
    return _without(problem, method, failure, clock)


def _rank(graph: CostGraph, draft: Draft, settled: Settled) -> tuple[float, bool, bool]:
    """By energy; as published before extended."""
    return round(_cost_uj(graph, settled), 9), settled.left > 0, EXTENSION in draft.note


def _cost_uj(graph: CostGraph, settled: Settled) -> float:
    return energy_of(graph, settled.statements or ())


def energy_of(graph: CostGraph, statements: Sequence[Statement]) -> float:
    """Energy of statements, microjoules."""
    number = {node.name: i for i, node in enumerate(graph.nodes)}
    return energy_uj(graph, [(s.op, number[s.node]) for s in statements if s.op != "free"])


def padded(graph: CostGraph, unit: int) -> CostGraph:
    """Sizes rounded up to multiples of `unit`: what a placed tensor takes."""

    def up(node: CostNode) -> CostNode:
        size, workspace = (-(-n // unit) * unit for n in (node.bytes, node.workspace_bytes))
        return replace(node, bytes=size, workspace_bytes=workspace)

    return replace(graph, nodes=tuple(up(node) for node in graph.nodes))


def largest_operator_bytes(graph: CostGraph) -> int:
    """RAM that no schedule can do without: one operator with its inputs."""
    nodes = graph.nodes
    needs = [
        node.workspace_bytes
        + (node.bytes if node.overwrites is None else 0)
        + sum(nodes[j].bytes for j in node.inputs)
        for node in nodes
        if not node.stored
    ]
    return max(needs, default=0)


def _realised(
    problem: Problem,
    method: str,
    draft: Draft,
    settled: Settled,
    settings: Settings,
    clock: Stopwatch,
) -> tuple[Plan | None, int]:
    """The plan if it fits and is in time, and the height of its placement."""
    statements: tuple[Statement, ...] = settled.statements or ()
    initial: tuple[tuple[str, int], ...] = ()
    height = 0
    if settings.placed:
        seconds = min(PLACING_S, clock.left_s)
        placement = arrange(problem.graph, statements, problem.ram_bytes, seconds)
        height = placement.height_bytes
        if height > problem.ram_bytes:
            return None, height
        statements, initial = placement.statements, placement.initial_offsets
    note = _note(draft, settled)
    return finished(problem, method, statements, initial, note, settings, clock), height


def _note(draft: Draft, settled: Settled) -> str:
    """What was added to the published method."""
    notes = [draft.note] if draft.note else []
    if settled.left and EXTENSION not in notes:
        notes.append(EXTENSION)
    return "; ".join(notes)


def finished(
    problem: Problem,
    method: str,
    statements: tuple[Statement, ...],
    initial: tuple[tuple[str, int], ...],
    note: str,
    settings: Settings,
    clock: Stopwatch,
) -> Plan | None:
    """A verified plan of statements within the RAM budget; None if it is late."""
    limit_us = problem.deadline_us
    if settings.below_uj is None or limit_us is not None:
        statements = overlap(problem, statements, clock.left_s)
    plan = empty_plan(problem, method, "feasible", clock)
    plan = replace(plan, statements=statements, initial_offsets=initial, note=note)
    free = replace(problem, deadline_us=None)
    totals = verify(free, replace(plan, deadline_us=None), placed=settings.placed)
    if limit_us is not None and totals.time_us > limit_us * (1 + TOLERANCE):
        return None
    return replace(
        plan,
        energy_uj=totals.energy_uj,
        time_us=totals.time_us,
        total_energy_uj=totals.total_energy_uj,
        peak_bytes=totals.peak_bytes,
    )


def _failure(
    problem: Problem, settled: Sequence[tuple[Draft, Settled]], clock: Stopwatch, every: bool
) -> _Failure:
    """What is known if none of the drafts becomes a plan: is each of them impossible?

    Sizes and budget of `problem` are those of placed tensors.
    """
    graph = problem.graph
    if not settled:
        alone = largest_operator_bytes(graph)
        if alone > problem.ram_bytes:
            return _Failure(True, f"one operator alone needs {alone} bytes")
        return _Failure(True, "the method runs out of memory")
    settled = [(d, s) for d, s in settled if s.least_bytes]
    if not settled:
        return _Failure(True, _LOST)
    in_ram = [s for _, s in settled if s.least_bytes <= problem.ram_bytes]
    if not in_ram:
        draft, least = min(settled, key=lambda pair: pair[1].least_bytes)
        smallest = settle(graph, draft.events, least.least_bytes).statements or ()
        reason = f"its schedules need {least.least_bytes} bytes even if nothing idle stays in RAM"
        placement = arrange(graph, smallest, least.least_bytes, min(PLACING_S, clock.left_s))
        return _Failure(True, reason, placement.height_bytes)
    times = [
        lanes(problem, settle(graph, d.events, _everything(graph, d.events)).statements or ())
        for d, s in settled
        if s.statements is not None
    ]
    limit_us = problem.deadline_us
    if limit_us is not None and all(one.bound_us > limit_us * (1 + TOLERANCE) for one in times):
        return _Failure(every, "its schedules take longer even if every transfer is hidden")
    return _Failure(False, "a schedule has the size, but no placement or order that fits was found")


def _everything(graph: CostGraph, events: Sequence[Event]) -> int:
    """RAM in which nothing has to leave."""
    return 2 * (sum(n.bytes + n.workspace_bytes for n in graph.nodes) + len(events))


def _without(problem: Problem, method: str, failure: _Failure, clock: Stopwatch) -> Plan:
    status: Status = "infeasible" if failure.proved else "unknown"
    return replace(
        empty_plan(problem, method, status, clock),
        note=failure.reason,
        smallest_ram_bytes=failure.smallest_ram_bytes,
    )


def empty_plan(problem: Problem, method: str, status: Status, clock: Stopwatch) -> Plan:
    """A plan with nothing known but what was asked for."""
    return Plan(
        status=status,
        ram_bytes=problem.ram_bytes,
        deadline_us=problem.deadline_us,
        solve_s=clock.elapsed_s,
        method=method,
    )
