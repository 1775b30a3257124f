"""The stage model: the mixed-integer program over rematerialisation and paging.

Stage t ends with the first computation of operator t. Variables, all binary, for every
stage t and every tensor i that exists by then and may still be needed:

    R_ti   i is computed again in stage t          U_ti   i is in RAM while operator t runs
    P_ti   i is paged in in stage t                o_i    i is paged out, once, when computed

    min  sum energy(t) + sum energy(i) R_ti + sum page_in_uj(i) P_ti + sum page_out_uj(i) o_i

U_ti is 1 for the inputs of operator t. A_ti = U_(t-1)i + R_ti + P_ti says that i is in RAM
at some moment of stage t; what operator t - 1 computed is, what it overwrote is not.

Every plan obeys these constraints, however often it computes and pages a tensor and when,
so that every bound on the program is a bound on all plans: more than one recomputation or
page-in of a tensor within a stage satisfies no constraint that one does not. What the
program leaves out is the RAM within a stage, where the order matters: sequence.py turns its
solutions into plans, and conflicts.py has constraints that a solution may break. Which R_ti
exist, and why no others need to, says reach.py.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from ..plan.problem import CostGraph
from .program import INFINITY, Program, Term, attainable
from .recompute_candidates import Reach

Columns = dict[int, int]  # tensor -> column
HERE = -1  # in place of a column: certainly in RAM
Values = Any  # numpy array of a solution
MOST_NONZEROS = 3_000_000  # of the constraints; the solver takes about 150 bytes for each


class TooLarge(Exception):
    """The model cannot be built in the time or memory that there is."""


@dataclass(frozen=True)
class Stage:
    """Columns of U_(t-1), R, P and U. `operator` None: what has to be in RAM at the end."""

    operator: int | None
    before: Columns
    computed: Columns
    paged: Columns
    used: Columns


@dataclass(frozen=True)
class Gap:
    """Between two operators that need a tensor: columns of H and Q; of U, R and P within."""

    held: int
    paged: int
    used: tuple[int, ...]
    computed: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass
class StageModel:
    graph: CostGraph
    ram_bytes: int
    made_again: bool  # within a stage, though in RAM when it began
    program: Program = field(default_factory=Program)
    written: Columns = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def build(
    reach: Reach,
    ram_bytes: int,
    *,
    page: bool = True,
    deadline_us: float | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> StageModel:
    """The stage model with the recomputations that `reach` offers.

    `page` False: computed tensors are not paged out, except kept ones. Raises TooLarge beyond
    MOST_NONZEROS, and as soon as `out_of_time()`. A reach for conflicts also gets what they
    need to hold for all plans: a tensor may be dropped and made again within a stage.
    """
    graph = reach.graph
    model = StageModel(graph, ram_bytes, reach.for_conflicts)
    _page_outs(model, page)
    before = {} if graph.storage else {i: HERE for i, n in enumerate(graph.nodes) if n.stored}
    previous: int | None = None
    for t, node in enumerate(graph.nodes):
        if node.stored:
            continue
        if out_of_time() or len(model.program.columns) > MOST_NONZEROS:
            raise TooLarge
        model.program.offset += node.energy_uj
        stage = _stage(model, reach, t, previous, set(node.inputs), before)
        _operator_fits(model, t, stage.used)
        before = {i: u for i, u in stage.used.items() if reach.last[i] > t and i != node.overwrites}
        if reach.last[t] > t:
            before[t] = HERE
        previous = t
    if not graph.storage:
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        _stage(model, reach, len(graph.nodes), previous, kept, before)
        if sum(graph.nodes[i].bytes for i in kept) > ram_bytes:
            model.program.never()
    if reach.rung is None:
        _bridge_gaps(model)
    if page and deadline_us is None:
        _rather_page(model)
    if deadline_us is not None:
        _lanes(model, deadline_us)
    return model


def _page_outs(model: StageModel, page: bool) -> None:
    """o_i, or its energy where i is kept on storage in any case."""
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
    reach: Reach,
    t: int,
    previous: int | None,
    needed: set[int],
    before: Columns,
) -> Stage:
    """Variables and constraints of one stage, at whose end `needed` is in RAM."""
    graph, program = model.graph, model.program
    nodes, end = graph.nodes, t == len(graph.nodes)
    demanded = reach.demanded(needed)
    early = reach.early(t, previous, needed, demanded)
    computed = {
        i: program.binary(nodes[i].energy_uj)
        for i in sorted(demanded | early)
        if i < t and reach.last[i] >= t and (model.made_again or before.get(i) != HERE)
    }
    users: dict[int, list[int]] = {}
    needs_inputs = reach.rung is None or reach.rung.needs_inputs
    for j, column in computed.items() if needs_inputs else ():
        for i in set(nodes[j].inputs):
            users.setdefault(i, []).append(column)
    paged: Columns = {}
    for i in sorted(needed | users.keys()):
        pageable = graph.storage and (nodes[i].stored or nodes[i].keep or i in model.written)
        if pageable and (model.made_again or before.get(i) != HERE):
            paged[i] = program.binary(nodes[i].page_in_uj)
            _on_storage(model, i, paged[i])
    # what nothing touches is kept or gone, as before
    used = {i: column for i, column in before.items() if reach.last[i] >= t}
    stage = Stage(None if end else t, before, computed, paged, used)
    model.stages.append(stage)
    certain = {i for i, column in used.items() if column == HERE}
    for i in sorted(needed | users.keys() | computed.keys() | paged.keys() | certain):
        made = _terms(i, computed, paged)
        if i in needed:
            used[i] = HERE
            _needed(model, before.get(i), made)
        elif reach.last[i] >= t:
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
    """A_ti = 1; at least 1 where it may be made again."""
    if before != HERE:
        held = [] if before is None else [(before, 1.0)]
        model.program.row([*held, *made], 1.0, INFINITY if model.made_again else 1.0)


def _available(
    model: StageModel, used: Columns, i: int, before: int | None, made: list[Term]
) -> None:
    """U_ti <= A_ti;  A_ti <= 1 where it may not be made again."""
    program = model.program
    if before is None and not made:
        return
    used[i] = program.binary()
    if before == HERE:
        return
    there = [*([] if before is None else [(before, 1.0)]), *made]
    program.row([(used[i], 1.0), *((c, -1.0) for c, _ in there)], upper=0.0)
    if len(there) > 1 and not model.made_again:
        program.row(there, upper=1.0)


def _has_input(program: Program, column: int, before: int | None, made: list[Term]) -> None:
    """R_tj <= A_ti for each input i of j."""
    if before != HERE:
        held = [] if before is None else [(before, -1.0)]
        program.row([(column, 1.0), *held, *((c, -1.0) for c, _ in made)], upper=0.0)


def _on_demand(program: Program, column: int | None, users: Iterable[int]) -> None:
    """R_ti, P_ti <= sum R_tj over the j that use i: not needed by operator t, but used."""
    if column is not None:
        program.row([(column, 1.0), *((j, -1.0) for j in users)], upper=0.0)


def _on_storage(model: StageModel, i: int, paged: int) -> None:
    """P_ti <= o_i."""
    if i in model.written:
        model.program.row([(paged, 1.0), (model.written[i], -1.0)], upper=0.0)


def _operator_fits(model: StageModel, t: int, used: Columns) -> None:
    """sum m_i U_ti + m_t + workspace_t <= RAM; what overwrites has no bytes of its own.

    The room is lowered to the largest sum of sizes that it admits.
    """
    nodes = model.graph.nodes
    own = _own_bytes(model.graph, t)
    own += sum(nodes[i].bytes for i, column in used.items() if column == HERE)
    columns = [column for column in used.values() if column != HERE]
    sizes = [nodes[i].bytes for i, column in used.items() if column != HERE]
    model.program.knapsack(columns, sizes, attainable(sizes, model.ram_bytes - own))


def _own_bytes(graph: CostGraph, t: int) -> int:
    """What operator t occupies beside its inputs."""
    node = graph.nodes[t]
    return node.workspace_bytes + (0 if node.overwrites is not None else node.bytes)


def _bridge_gaps(model: StageModel) -> None:
    """1 - H <= sum R + Q,  H <= U,  Q <= sum P,  Q <= o  over the stages of a gap.

    H: i is in RAM all the time between two operators that need it. Otherwise it is made again
    by some recomputation or by some page-in, of which one is enough: Q <= o, where the sum
    of the P_ti could be larger. This follows from the other constraints if all variables are
    integral, but not in the linear relaxation.
    """
    nodes = model.graph.nodes
    for i, stages in _gaps(model):
        inner = {stage.used.get(i, HERE) for stage in stages[:-1]}
        if i not in model.written or not inner or HERE in inner:
            continue
        computed = tuple(stage.computed[i] for stage in stages if i in stage.computed)
        pages = tuple(stage.paged[i] for stage in stages if i in stage.paged)
        if len(pages) < 2 or nodes[i].bytes == 0:
            continue
        program = model.program
        gap = Gap(program.binary(), program.binary(), tuple(sorted(inner)), computed, pages)
        model.gaps.append(gap)
        made = [(column, 1.0) for column in (gap.held, gap.paged, *computed)]
        program.row(made, lower=1.0)
        for column in gap.used:
            program.row([(gap.held, 1.0), (column, -1.0)], upper=0.0)
        program.row([(gap.paged, 1.0), *((column, -1.0) for column in pages)], upper=0.0)
        program.row([(gap.paged, 1.0), (model.written[i], -1.0)], upper=0.0)


def _gaps(model: StageModel) -> Iterator[tuple[int, list[Stage]]]:
    """For each tensor, the stages from an operator that makes or needs it to the next one."""
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


def _rather_page(model: StageModel) -> None:
    """sum_t R_ti <= K (1 - o_i), if computing i costs at least its page-in.

    K recomputations are the most that cost less than a page-out and K page-ins.
    """
    columns: dict[int, list[int]] = {}
    for stage in model.stages:
        for i, column in stage.computed.items():
            columns.setdefault(i, []).append(column)
    for i, again in columns.items():
        node = model.graph.nodes[i]
        more = node.energy_uj - node.page_in_uj  # of each recomputation than of a page-in
        if i in model.written and more > 0 and more * len(again) > node.page_out_uj:
            most = max(0.0, ceil(node.page_out_uj / more) - 1.0)
            terms = [(column, 1.0) for column in again]
            model.program.row([*terms, (model.written[i], most)], upper=most)


def _lanes(model: StageModel, deadline_us: float) -> None:
    """sum of the processor's times <= deadline; sum of the transfers' times <= deadline."""
    processor: dict[int, float] = {}
    transfers: dict[int, float] = {}
    processor_us = transfers_us = 0.0
    nodes = model.graph.nodes
    for i, node in enumerate(nodes):
        if not node.stored:
            processor_us += node.time_us
            if node.keep and model.graph.storage:
                processor_us += node.page_out_cpu_us
                transfers_us += node.page_out_us
        if i in model.written:
            processor[model.written[i]] = node.page_out_cpu_us
            transfers[model.written[i]] = node.page_out_us
    for stage in model.stages:
        for i, column in stage.computed.items():
            processor[column] = nodes[i].time_us
        for i, column in stage.paged.items():
            processor[column] = nodes[i].page_in_cpu_us
            transfers[column] = nodes[i].page_in_us
    for lane, fixed_us in ((processor, processor_us), (transfers, transfers_us)):
        model.program.at_most(lane.items(), deadline_us - fixed_us, deadline_us)
