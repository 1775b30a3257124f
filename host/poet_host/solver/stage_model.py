"""The stage model: the mixed-integer program over rematerialisation and paging.

Stage t ends with the first computation of operator t. Variables, all binary, for every
stage t and every tensor i that exists by then and may still be needed:

    R_ti   i is recomputed in stage t              U_ti   i is in RAM while operator t runs
    P_ti   i is paged in in stage t                o_i    i is paged out, once, when computed

    min  sum energy(t) + sum energy(i) R_ti + sum page_in_uj(i) P_ti + sum page_out_uj(i) o_i

U_ti is 1 for the inputs of operator t. A_ti = U_(t-1)i + R_ti + P_ti is 1 if i is in RAM at some
moment of stage t. In this sum, U_(t-1)i is 1 for the result of operator t - 1, and 0 for the tensor
that operator t - 1 overwrote.

Every plan obeys these constraints, however often and whenever it computes and pages a tensor: a
second recomputation or page-in of a tensor within a stage satisfies no more constraints than the
first. So every bound on the program is a bound on all plans. The program limits RAM only while
operator t runs. In the rest of stage t, RAM depends on the order of events: slot_model.py makes
plans from solutions, and conflicts.py has constraints that a solution may violate.
recompute_candidates.py explains which R_ti exist, and why these suffice.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

from ..plan.problem import CostGraph
from .program import INFINITY, NO_LIMITS, LaneTimes, Program, Term, TimeLimits
from .recompute_candidates import RecomputeCandidates, paging_values

Columns = dict[int, int]  # tensor -> column
ALWAYS_IN_RAM = -1  # stands for a column of U whose value is always 1
MAX_NONZEROS = 3_000_000  # in all constraints; the solver takes about 150 bytes per non-zero


class TooLarge(Exception):
    """The stage model cannot be built in the time or memory that is available."""


@dataclass(frozen=True)
class Stage:
    """The columns of the variables of one stage."""

    operator: int | None  # None: the last stage, for the tensors in RAM at the end
    before: Columns  # U of the previous stage
    computed: Columns  # R
    paged: Columns  # P
    used: Columns  # U


@dataclass(frozen=True)
class Gap:
    """The columns of a tensor's variables, from one operator that needs the tensor to the next.

    See `_add_gap_cuts`.
    """

    held: int  # H
    paged: int  # Q
    used: tuple[int, ...]  # U within the gap
    pages: tuple[int, ...]  # P within the gap


@dataclass
class StageModel:
    """The integer program, and the columns of its variables."""

    graph: CostGraph
    ram_bytes: int
    # Whether a stage may drop a tensor that is in RAM at its start, and create the tensor again.
    allows_repeats: bool
    program: Program = field(default_factory=Program)
    written: Columns = field(default_factory=dict)  # o
    stages: list[Stage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    lanes: LaneTimes = field(default_factory=LaneTimes)


def build(
    candidates: RecomputeCandidates,
    ram_bytes: int,
    *,
    page: bool = True,
    limits: TimeLimits = NO_LIMITS,
    out_of_time: Callable[[], bool] = lambda: False,
) -> StageModel:
    """Build the stage model that offers the candidates.

    `page` False: computed tensors are paged out only if they must be on storage at the end. If the
    candidates are `for_conflicts`, a stage may drop a tensor and create it again. Only then do the
    constraints of conflicts (conflicts.py) hold for all plans.
    Raises TooLarge if the model exceeds MAX_NONZEROS, or if `out_of_time()` returns True.
    """
    graph = candidates.graph
    model = StageModel(graph, ram_bytes, candidates.for_conflicts)
    _page_outs(model, page)
    before: Columns = {}
    if not graph.storage:
        before = {i: ALWAYS_IN_RAM for i, node in enumerate(graph.nodes) if node.stored}
    previous: int | None = None
    for t, node in enumerate(graph.nodes):
        if node.stored:
            continue
        if out_of_time() or len(model.program.columns) > MAX_NONZEROS:
            raise TooLarge
        model.program.offset += node.energy_uj
        stage = _stage(model, candidates, t, previous, set(node.inputs), before)
        _ram_constraint(model, t, stage.used)
        last = candidates.last
        before = {i: u for i, u in stage.used.items() if last[i] > t and i != node.overwrites}
        if last[t] > t:
            before[t] = ALWAYS_IN_RAM
        previous = t
    if not graph.storage:
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        _stage(model, candidates, len(graph.nodes), previous, kept, before)
        if sum(graph.nodes[i].bytes for i in kept) > ram_bytes:
            model.program.make_infeasible()
    if candidates.depth_limit is None:
        _add_gap_cuts(model)
    if page and limits.deadline_us is None:
        _prefer_paging(model, limits.value_per_us)
    if limits != NO_LIMITS:
        _add_times(model, limits)
    return model


def _page_outs(model: StageModel, page: bool) -> None:
    """Add o_i for computed tensors. For kept tensors, add only the energy of the page-out."""
    graph, program = model.graph, model.program
    for i, node in enumerate(graph.nodes):
        if node.stored or not graph.storage:
            continue
        if node.keep:
            program.offset += node.page_out_uj
        elif page:
            model.written[i] = program.binary(node.page_out_uj)


def _stage(
    model: StageModel,
    candidates: RecomputeCandidates,
    t: int,
    previous: int | None,
    needed: set[int],
    before: Columns,
) -> Stage:
    """Add the variables and constraints of one stage, which ends with `needed` in RAM."""
    graph, program, last = model.graph, model.program, candidates.last
    nodes, end = graph.nodes, t == len(graph.nodes)
    demanded = candidates.demanded(needed)
    early = candidates.early(t, previous, needed, demanded)
    computed = {
        i: program.binary(nodes[i].energy_uj)
        for i in sorted(demanded | early)
        if i < t and last[i] >= t and (model.allows_repeats or before.get(i) != ALWAYS_IN_RAM)
    }
    users: dict[int, list[int]] = {}
    needs_inputs = candidates.depth_limit is None or candidates.depth_limit.needs_inputs
    for j, column in computed.items() if needs_inputs else ():
        for i in set(nodes[j].inputs):
            users.setdefault(i, []).append(column)
    paged: Columns = {}
    for i in sorted(needed | users.keys()):
        pageable = graph.storage and (nodes[i].stored or nodes[i].keep or i in model.written)
        if pageable and (model.allows_repeats or before.get(i) != ALWAYS_IN_RAM):
            paged[i] = program.binary(nodes[i].page_in_uj)
            _on_storage(model, i, paged[i])
    # A tensor that nothing in this stage touches keeps the previous stage's column of U.
    used = {i: column for i, column in before.items() if last[i] >= t}
    stage = Stage(None if end else t, before, computed, paged, used)
    model.stages.append(stage)
    certain = {i for i, column in used.items() if column == ALWAYS_IN_RAM}
    for i in sorted(needed | users.keys() | computed.keys() | paged.keys() | certain):
        made = _terms(i, computed, paged)
        if i in needed:
            used[i] = ALWAYS_IN_RAM
            _needed(model, before.get(i), made)
        elif last[i] >= t:
            _available(model, used, i, before.get(i), made)
            _on_demand(program, paged.get(i), users.get(i, []))
            if i not in early:
                _on_demand(program, computed.get(i), users.get(i, []))
    for j, column in computed.items() if needs_inputs else ():
        for i in set(nodes[j].inputs):
            _has_input(program, column, before.get(i), _terms(i, computed, paged))
    return stage


def _terms(i: int, *columns: Columns) -> list[Term]:
    return [(stage[i], 1.0) for stage in columns if i in stage]


def _needed(model: StageModel, before: int | None, made: list[Term]) -> None:
    """Add the constraint A_ti = 1; A_ti >= 1 if a stage may drop i and create it again."""
    if before != ALWAYS_IN_RAM:
        held = [] if before is None else [(before, 1.0)]
        model.program.row([*held, *made], 1.0, INFINITY if model.allows_repeats else 1.0)


def _available(
    model: StageModel, used: Columns, i: int, before: int | None, made: list[Term]
) -> None:
    """Add U_ti <= A_ti. Unless a stage may drop i and create it again, also add A_ti <= 1."""
    program = model.program
    if before is None and not made:
        return
    used[i] = program.binary()
    if before == ALWAYS_IN_RAM:
        return
    there = [*([] if before is None else [(before, 1.0)]), *made]
    program.row([(used[i], 1.0), *((c, -1.0) for c, _ in there)], upper=0.0)
    if len(there) > 1 and not model.allows_repeats:
        program.row(there, upper=1.0)


def _has_input(program: Program, column: int, before: int | None, made: list[Term]) -> None:
    """Add the constraint R_tj <= A_ti for an input i of j."""
    if before != ALWAYS_IN_RAM:
        held = [] if before is None else [(before, -1.0)]
        program.row([(column, 1.0), *held, *((c, -1.0) for c, _ in made)], upper=0.0)


def _on_demand(program: Program, column: int | None, users: Iterable[int]) -> None:
    """Add a constraint on R_ti or P_ti, for a tensor i that operator t does not need.

    The variable is at most the sum of R_tj over the nodes j that use i.
    """
    if column is not None:
        program.row([(column, 1.0), *((j, -1.0) for j in users)], upper=0.0)


def _on_storage(model: StageModel, i: int, paged: int) -> None:
    """Add the constraint P_ti <= o_i: only a tensor that was paged out can be paged in."""
    if i in model.written:
        model.program.row([(paged, 1.0), (model.written[i], -1.0)], upper=0.0)


def _ram_constraint(model: StageModel, t: int, used: Columns) -> None:
    """Add the constraint sum m_i U_ti + m_t + workspace_t <= RAM.

    A node that overwrites an input has no bytes of its own.
    """
    nodes = model.graph.nodes
    own = nodes[t].own_bytes()
    own += sum(nodes[i].bytes for i, column in used.items() if column == ALWAYS_IN_RAM)
    columns = [column for column in used.values() if column != ALWAYS_IN_RAM]
    sizes = [nodes[i].bytes for i, column in used.items() if column != ALWAYS_IN_RAM]
    model.program.knapsack(columns, sizes, model.ram_bytes - own)


def _add_gap_cuts(model: StageModel) -> None:
    """Add 1 - H <= sum R + Q,  H <= U,  Q <= sum P,  Q <= o  over the stages of a gap.

    H is 1 if tensor i is in RAM all the time between two operators that need it. Otherwise a
    recomputation or a page-in creates it again. One page-in is enough: Q <= o, while the sum of the
    P_ti can be larger. Integral solutions satisfy these constraints anyway, but solutions of the
    linear relaxation may not.
    """
    nodes = model.graph.nodes
    for i, stages in _gaps(model):
        inner = {stage.used.get(i, ALWAYS_IN_RAM) for stage in stages[:-1]}
        if i not in model.written or not inner or ALWAYS_IN_RAM in inner:
            continue
        computed = [stage.computed[i] for stage in stages if i in stage.computed]
        pages = tuple(stage.paged[i] for stage in stages if i in stage.paged)
        if len(pages) < 2 or nodes[i].bytes == 0:
            continue
        program = model.program
        gap = Gap(program.binary(), program.binary(), tuple(sorted(inner)), pages)
        model.gaps.append(gap)
        made = [(column, 1.0) for column in (gap.held, gap.paged, *computed)]
        program.row(made, lower=1.0)
        for column in gap.used:
            program.row([(gap.held, 1.0), (column, -1.0)], upper=0.0)
        program.row([(gap.paged, 1.0), *((column, -1.0) for column in pages)], upper=0.0)
        program.row([(gap.paged, 1.0), (model.written[i], -1.0)], upper=0.0)


def _gaps(model: StageModel) -> Iterator[tuple[int, list[Stage]]]:
    """Yield each tensor with the stages of a gap, once for each of its gaps.

    A gap begins after an operator that creates or needs the tensor. It ends with the next operator
    that needs the tensor.
    """
    nodes = model.graph.nodes
    since: dict[int, list[Stage]] = {}
    for stage in model.stages:
        if stage.operator is None:
            break
        for stages in since.values():
            stages.append(stage)
        for i in set(nodes[stage.operator].inputs):
            if i in since:
                yield i, since[i]
            since[i] = []
        since[stage.operator] = []


def _prefer_paging(model: StageModel, value_per_us: float) -> None:
    """Add sum_t R_ti <= K (1 - o_i), if computing i costs more than paging it in.

    K is the largest number of recomputations that cost less than a page-out and K page-ins, if
    these transfers delay the step as much as they can.
    """
    columns: dict[int, list[int]] = {}
    for stage in model.stages:
        for i, column in stage.computed.items():
            columns.setdefault(i, []).append(column)
    for i, recomputed in columns.items():
        node = model.graph.nodes[i]
        page_in, page_out = paging_values(node, value_per_us)
        extra = node.energy_uj - page_in  # of a recomputation, compared with a page-in
        if i in model.written and extra > 0 and extra * len(recomputed) > page_out:
            limit = max(0.0, ceil(page_out / extra) - 1.0)
            terms = [(column, 1.0) for column in recomputed]
            model.program.row([*terms, (model.written[i], limit)], upper=limit)


def _add_times(model: StageModel, limits: TimeLimits) -> None:
    """Add the times of both lanes, which the deadline and the time of the step bound."""
    lanes, nodes = model.lanes, model.graph.nodes
    for i, node in enumerate(nodes):
        if not node.stored:
            lanes.compute(node)
            if node.keep and model.graph.storage:
                lanes.page_out(node)
        if i in model.written:
            lanes.page_out(node, model.written[i])
    for stage in model.stages:
        for i, column in stage.computed.items():
            lanes.compute(nodes[i], column)
        for i, column in stage.paged.items():
            lanes.page_in(nodes[i], column)
    lanes.add_to(model.program, limits)
