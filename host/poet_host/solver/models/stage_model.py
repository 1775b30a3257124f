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

An operator with modes (modes.py) has more variables, all binary:

    x_tm   operator t is computed first in mode m, with sum_m x_tm = 1
    R_tiw  i is recomputed in stage t in way w, with sum_w R_tiw = R_ti
    V_ti   i is in RAM after operator t, if this depends on the mode; V takes the place of U in A

x_tm <= U_ti and R_tiw <= A_ti hold for the inputs that a mode needs in RAM. What is streamed must
be on storage: the sum of the x_tm (or R_tiw) that stream i is at most o_i plus the x_im that stream
i out, which page-ins of i may use too. Recomputations that stream their output are left out: o_i
costs no more than the cheapest of them. In the RAM constraint, each mode counts its own output
and workspace. A mode other than 0 occupies both lanes.

s_i is 1 if i is in RAM when the step begins: it takes the place of U in the first stage. What stays
is in RAM in a last stage, too. A kept node k that ends in its place is paged out (o_k = 1),
streamed out, or written by a commit: y_k = 1 at the cost of a share of a page-out, and y_k <= s_i.
If a commit comes once in several steps, no statement reads i from storage: the sum of these is at
most 1 - s_i.

A mode that computes several nodes is taken apart (apart.py): x_tm = sum x_uk, where m is the
waiting mode of a member t, and the modes k of the last member u close it. A node i that a plan may
leave out has a mode z that makes nothing: R_ti + x_iz <= 1 and o_i + x_iz <= 1.
"""

from collections.abc import Callable, Iterable, Iterator, Set

from ..policy import DEFAULT_POLICY, SearchPolicy
from ..program import INFINITY, NO_LIMITS, Program, Term, TimeLimits
from ..recompute_candidates import RecomputeCandidates
from ..ways import Way
from .model import Columns
from .stage_columns import ALWAYS_IN_RAM, Stage, StageModel
from .stage_cuts import add_gap_cuts


class TooLarge(Exception):
    """The stage model cannot be built in the time or memory that is available."""


def build(
    candidates: RecomputeCandidates,
    ram_bytes: int,
    *,
    page: bool = True,
    limits: TimeLimits = NO_LIMITS,
    out_of_time: Callable[[], bool] = lambda: False,
    policy: SearchPolicy = DEFAULT_POLICY,
) -> StageModel:
    """Build the stage model that offers the candidates.

    `page` False: computed tensors are paged out only if they must be on storage at the end. A stage
    that is one of the candidates' `conflict_stages` may drop a tensor and create it again. Only for
    such a stage, the constraints of conflicts (conflicts.py) hold for all plans.
    Raises TooLarge if the model exceeds `policy.max_nonzeros`, or if `out_of_time()` returns True.
    """
    graph = candidates.graph
    modes, stages = candidates.modes, candidates.conflict_stages
    model = StageModel(graph, modes, ram_bytes, page, conflict_stages=stages, policy=policy)
    for i in range(len(graph.nodes)):
        model.add_written(i, modes.storing_uj[i])
    model.starts.update((i, model.program.binary()) for i in graph.starting)
    model.add_commits(limits.value_per_us)
    before = dict(model.starts)
    if not graph.storage:
        before = {i: ALWAYS_IN_RAM for i, node in enumerate(graph.nodes) if node.stored}
    previous: int | None = None
    for t, node in enumerate(graph.nodes):
        if node.stored:
            continue
        if out_of_time() or len(model.program.columns) > policy.max_nonzeros:
            raise TooLarge
        model.first_rows.append(len(model.program.row_lower))
        chosen = _modes(model, t)
        stage = _stage(model, candidates, t, previous, set(model.modes.wanted[t]), before, chosen)
        _ram_constraint(model, t, stage)
        _after(model, candidates, t, stage)
        before, previous = stage.after, t
    if model.starts:
        model.first_rows.append(len(model.program.row_lower))
        heirs = {graph.heirs[i] for i in model.starts if i in graph.heirs}
        _stage(model, candidates, len(graph.nodes), previous, heirs, before, {})
    if not graph.storage:
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        model.first_rows.append(len(model.program.row_lower))
        _stage(model, candidates, len(graph.nodes), previous, kept, before, {})
        if sum(graph.nodes[i].bytes for i in kept) > ram_bytes:
            model.program.make_infeasible()
    model.first_rows.append(len(model.program.row_lower))
    if candidates.depth_limit is None:
        add_gap_cuts(model)
    if limits != NO_LIMITS:
        _add_times(model, limits)
    return model


def _modes(model: StageModel, t: int) -> Columns:
    """Add x_tm. Return the columns by mode; none for a node without modes."""
    columns = model.add_first(t, model.modes.storing_uj[t])
    if columns:
        model.join(t)
        if t in model.written:
            model.not_if_left_out(t, [model.written[t]])
        model.streams(t, columns)
    model.keep(t)
    return columns


def _stage(
    model: StageModel,
    candidates: RecomputeCandidates,
    t: int,
    previous: int | None,
    wanted: set[int],
    before: Columns,
    chosen: Columns,
) -> Stage:
    """Add the variables and constraints of one stage. The operator at its end may need `wanted` in
    RAM; `chosen` are the columns of its modes.
    """
    last, modes, end = candidates.last, model.modes, t == len(model.graph.nodes)
    # A tensor that nothing in this stage touches keeps the previous stage's column of U, unless the
    # previous operator created or may have needed it: then it may leave RAM now.
    used = {i: column for i, column in before.items() if last[i] >= t}
    fresh = {i for i, column in used.items() if column == ALWAYS_IN_RAM}
    if previous is not None:
        fresh |= used.keys() & {previous, *modes.wanted[previous]}
    may_repeat = len(model.stages) in model.conflict_stages
    stage = Stage(None if end else t, before, {}, {}, used, chosen, may_repeat=may_repeat)
    model.stages.append(stage)
    demanded = candidates.demanded(wanted)
    early = candidates.early(t, previous, wanted, demanded)
    for i in sorted(demanded | early):
        if i < t and last[i] >= t and stage.may_create(i):
            _recomputation(model, stage, i)
    needed = modes.needed[t] if not end else set() if model.starts else wanted
    users = _users(model, stage, wanted - needed)
    _page_ins(model, stage, needed | users.keys())
    touched = needed | users.keys() | stage.computed.keys() | stage.paged.keys()
    for i in sorted(touched | fresh):
        if i in needed:
            used[i] = ALWAYS_IN_RAM
            _needed(model.program, stage, i)
        elif last[i] >= t:
            _may_stay(model.program, stage, i)
            _on_demand(model.program, stage.paged.get(i), users.get(i, []))
            if i not in early:
                _on_demand(model.program, stage.computed.get(i), users.get(i, []))
    for column, way in _recomputed_ways(model, stage):
        for i in set(way.whole):
            _has_input(model.program, stage, column, i)
    for m, x in chosen.items():
        _mode_needs(model, stage, t, m, x)
    for i, s in model.starts.items() if end else ():
        if i in model.graph.heirs:
            _has_input(model.program, stage, s, model.graph.heirs[i])
    return stage


def _users(model: StageModel, stage: Stage, optional: Set[int]) -> dict[int, list[int]]:
    """Return by tensor the columns of the recomputations, and of the modes, that need it in RAM.

    `optional`: the tensors that only some modes need in RAM. What recomputations stream must be on
    storage: add these constraints.
    """
    users: dict[int, list[int]] = {}
    for column, way in _recomputed_ways(model, stage):
        for i in set(way.whole):
            users.setdefault(i, []).append(column)
        for i in way.streamed:
            model.on_storage(i, [(column, 1.0)])
    for i in optional:
        if stage.operator is None:
            starts = [s for j, s in model.starts.items() if model.graph.heirs.get(j) == i]
            users[i] = [*users.get(i, []), *starts]
            continue
        node = model.graph.nodes[stage.operator]
        readers = [x for m, x in stage.modes.items() if i in node.whole_inputs(m)]
        users[i] = [*users.get(i, []), *readers]
    return users


def _page_ins(model: StageModel, stage: Stage, tensors: Set[int]) -> None:
    """Add P_ti for tensors that may be on storage."""
    for i in sorted(tensors):
        is_stored = model.modes.certainly_stored(i) or i in model.graph.may_be_old
        if (is_stored or model.storing(i)) and stage.may_create(i):
            stage.paged[i] = model.program.binary(model.graph.nodes[i].page_in_uj)
            model.on_storage(i, [(stage.paged[i], 1.0)])


def _recomputed_ways(model: StageModel, stage: Stage) -> Iterator[tuple[int, Way]]:
    """Yield the columns of R_tiw, or of R_ti if i has one way, each with its way."""
    for i, column in stage.computed.items():
        yield from zip(stage.ways.get(i, [column]), model.modes.ways[i], strict=True)


def _recomputation(model: StageModel, stage: Stage, i: int) -> None:
    """Add R_ti and, if there are several ways to compute i again, R_tiw with sum_w R_tiw = R_ti."""
    program, least = model.program, model.modes.least_way[i]
    assert least is not None
    stage.computed[i] = column = program.binary(least.energy_uj)
    ways = model.modes.ways[i]
    if len(ways) > 1:
        stage.ways[i] = [program.binary(way.energy_uj - least.energy_uj) for way in ways]
        program.row([(column, -1.0), *((c, 1.0) for c in stage.ways[i])], 0.0, 0.0)
    model.not_if_left_out(i, [column])


def _mode_needs(model: StageModel, stage: Stage, t: int, m: int, x: int) -> None:
    """Add x_tm <= U_ti for the inputs that the mode needs in RAM.

    If it streams an input that it overwrites, add x_tm + U_ti <= 1.
    """
    node, program = model.graph.nodes[t], model.program
    for i in set(node.whole_inputs(m)):
        column = stage.used.get(i)
        if column is None:
            program.fix(x, 0.0)
        elif column != ALWAYS_IN_RAM:
            program.row([(x, 1.0), (column, -1.0)], upper=0.0)
    mode = node.mode(m)
    if mode.streamed_output and mode.overwrites in stage.used:
        column = stage.used[mode.overwrites]
        if column == ALWAYS_IN_RAM:
            program.fix(x, 0.0)
        else:
            program.row([(x, 1.0), (column, 1.0)], upper=1.0)


def _after(model: StageModel, candidates: RecomputeCandidates, t: int, stage: Stage) -> None:
    """Set the columns of V_ti: tensor i is in RAM after operator t.

    V_ti = U_ti, except for the output, and for an input whose memory the output takes over.
    """
    node, program, last, modes = model.graph.nodes[t], model.program, candidates.last, model.modes
    usable = modes.usable[t]
    for i, column in stage.used.items():
        if last[i] <= t:
            continue
        taking = [m for m in usable if node.taken(m) == i]
        if not taking:
            stage.after[i] = column
        elif len(taking) < len(usable):
            stage.after[i] = program.binary()
            program.row(
                [(stage.after[i], 1.0), *((stage.modes[m], 1.0) for m in taking)], upper=1.0
            )
            if column != ALWAYS_IN_RAM:
                program.row([(stage.after[i], 1.0), (column, -1.0)], upper=0.0)
    if last[t] > t and modes.whole[t]:
        stage.after[t] = ALWAYS_IN_RAM
        if len(modes.whole[t]) < len(usable):
            stage.after[t] = program.binary()
            whole = [(stage.modes[m], -1.0) for m in modes.whole[t]]
            program.row([(stage.after[t], 1.0), *whole], 0.0, 0.0)


def _in_stage(stage: Stage, i: int, sign: float) -> list[Term]:
    """Return the terms of A_ti, which is 1 if i is in RAM at some moment of the stage."""
    return [(c[i], sign) for c in (stage.before, stage.computed, stage.paged) if i in c]


def _needed(program: Program, stage: Stage, i: int) -> None:
    """Add the constraint A_ti = 1; A_ti >= 1 if the stage may drop i and create it again."""
    if stage.before.get(i) != ALWAYS_IN_RAM:
        program.row(_in_stage(stage, i, 1.0), 1.0, INFINITY if stage.may_repeat else 1.0)


def _may_stay(program: Program, stage: Stage, i: int) -> None:
    """Add U_ti <= A_ti. Unless the stage may drop i and create it again, also add A_ti <= 1."""
    terms = _in_stage(stage, i, 1.0)
    if not terms:
        return
    stage.used[i] = program.binary()
    if stage.before.get(i) == ALWAYS_IN_RAM:
        return
    program.row([(stage.used[i], 1.0), *_in_stage(stage, i, -1.0)], upper=0.0)
    if len(terms) > 1 and not stage.may_repeat:
        program.row(terms, upper=1.0)


def _has_input(program: Program, stage: Stage, column: int, i: int) -> None:
    """Add the constraint R_tj <= A_ti, where `column` is that of R_tj, and i is an input of j."""
    if stage.before.get(i) != ALWAYS_IN_RAM:
        program.row([(column, 1.0), *_in_stage(stage, i, -1.0)], upper=0.0)


def _on_demand(program: Program, column: int | None, users: Iterable[int]) -> None:
    """Add a constraint on R_ti or P_ti, for a tensor i that operator t does not need.

    The variable is at most the sum of R_tj over the nodes j that use i.
    """
    if column is not None:
        program.row([(column, 1.0), *((j, -1.0) for j in users)], upper=0.0)


def _ram_constraint(model: StageModel, t: int, stage: Stage) -> None:
    """Add the constraint sum m_i U_ti + sum own_tm x_tm <= RAM.

    own_tm: bytes of the output and the workspace. An output that is streamed, or that overwrites an
    input, has no bytes of its own.
    """
    nodes, usable = model.graph.nodes, model.modes.usable[t]
    if not usable:
        model.program.make_infeasible()
        return
    own_bytes = {m: model.graph.own_bytes(t, m) for m in usable}
    least = min(own_bytes.values())
    held = {i: column for i, column in stage.used.items() if column != ALWAYS_IN_RAM}
    own = least + sum(nodes[i].bytes for i in stage.used.keys() - held.keys())
    columns = [*held.values(), *stage.modes.values()]
    sizes = [nodes[i].bytes for i in held]
    sizes += [own_bytes[m] - least for m in stage.modes]
    model.program.knapsack(columns, sizes, model.ram_bytes - own)


def _add_times(model: StageModel, limits: TimeLimits) -> None:
    """Bound the busy time of each lane: it is at most the deadline, and the time of the step."""
    lanes, nodes, modes = model.lanes, model.graph.nodes, model.modes
    for i, node in enumerate(nodes):
        if not node.stored and not node.modes:
            lanes.compute(*modes.lanes_us(i, 0))
            if i in model.graph.always_written:
                lanes.page_out(node)
        if i in model.written:
            lanes.store(*modes.storing_us[i], model.written[i])
    for stage in model.stages:
        for m, x in stage.modes.items():
            assert stage.operator is not None
            t, node = stage.operator, nodes[stage.operator]
            lanes.compute(*modes.lanes_us(t, m), x)
            if t in model.graph.always_written and not node.mode(m).streamed_output:
                lanes.store(*modes.storing_us[t], x)
        for column, way in _recomputed_ways(model, stage):
            lanes.compute(way.processor_us, way.transfers_us, column)
        for i, column in stage.paged.items():
            lanes.page_in(nodes[i], column)
    lanes.add_to(model.program, limits)
