"""The stage relaxation: a lower bound on the energy of every plan.

Stage t ends with the first computation of operator t. Whatever a plan does within a stage
and in which order, these binary variables can be read off it, for every tensor i computed
or stored before t:

    S_ti    i is in RAM when stage t starts        U_ti    i is in RAM when operator t runs
    R_ti    i is computed again in stage t         P_ti    i is paged in in stage t
    c_ti    i stays in RAM throughout stage t      o_i     i is ever paged out

    min  sum energy(t) + sum energy(i) R_ti + sum page_in_uj(i) P_ti + sum page_out_uj(i) o_i

Every plan obeys the constraints below, so the minimum, and any bound on it, is a bound on
all plans: any number of recomputations and page-ins at any time. How often something
happens within a stage does not matter: "at least once" satisfies every constraint.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from .problem import CostGraph
from .program import Program, Term

Stage = dict[int, int]  # tensor -> column, in one stage


@dataclass
class StageModel:
    graph: CostGraph
    ram_bytes: int
    again: Sequence[bool]
    program: Program = field(default_factory=Program)
    written: Stage = field(default_factory=dict)


def build(
    graph: CostGraph,
    ram_bytes: int,
    again: Sequence[bool],
    *,
    page: bool = True,
    deadline_us: float | None = None,
) -> StageModel:
    """The stage relaxation; `again`: which nodes may be computed again (slots.py)."""
    model = StageModel(graph, ram_bytes, again)
    program = model.program
    lanes = _Lanes(deadline_us)
    for i, node in enumerate(graph.nodes):
        if node.stored or not graph.storage:
            continue
        if node.keep:
            program.offset += node.page_out_uj
            lanes.certain(0.0, node.page_out_us, node.page_out_cpu_us)
        elif page:
            model.written[i] = program.binary(node.page_out_uj)
            lanes.choice(model.written[i], 0.0, node.page_out_us, node.page_out_cpu_us)
    start: Stage = {}
    if not graph.storage:
        start = {i: program.binary() for i, node in enumerate(graph.nodes) if node.stored}
    last_use = _last_uses(graph, again)
    for t, node in enumerate(graph.nodes):
        if node.stored:
            continue
        program.offset += node.energy_uj
        lanes.certain(node.time_us, 0.0, 0.0)
        alive = [i for i in range(len(graph.nodes)) if last_use[i] >= t and _exists(graph, i, t)]
        used = _stage(model, alive, start, set(node.inputs), lanes)
        _operator_fits(model, t, used)
        start = _next(model, t, used, last_use)
    if not graph.storage:
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        end = len(graph.nodes)
        alive = [i for i in range(end) if last_use[i] >= end]
        used = _stage(model, alive, start, kept, lanes)
        _fit(model, used, 0, None)
    lanes.rows(program)
    return model


def _exists(graph: CostGraph, i: int, t: int) -> bool:
    return i < t or graph.nodes[i].stored


def _last_uses(graph: CostGraph, again: Sequence[bool]) -> list[int]:
    """The last stage in which a tensor may serve something, directly or by recomputation."""
    end = len(graph.nodes)
    last = [end if node.keep and not graph.storage else -1 for node in graph.nodes]
    for j in reversed(range(end)):
        for i in graph.nodes[j].inputs:
            last[i] = max(last[i], j, last[j] if again[j] else -1)
    return last


def _stage(
    model: StageModel, alive: Sequence[int], start: Stage, needed: Set[int], lanes: "_Lanes"
) -> Stage:
    """Variables and constraints of a stage at whose end `needed` is in RAM; returns its U."""
    graph, program = model.graph, model.program
    used = {i: program.binary() for i in alive}
    for i in needed:
        program.fix(used[i], 1.0)
    computed: Stage = {}
    paged: Stage = {}
    for i in alive:
        node = graph.nodes[i]
        if model.again[i]:
            computed[i] = program.binary(node.energy_uj)
            lanes.choice(computed[i], node.time_us, 0.0, 0.0)
        if graph.storage and (node.stored or node.keep or i in model.written):
            paged[i] = program.binary(node.page_in_uj)
            lanes.choice(paged[i], 0.0, node.page_in_us, node.page_in_cpu_us)
            if i in model.written:
                program.row([(paged[i], 1.0), (model.written[i], -1.0)], upper=0.0)
    there = {i: _terms(i, start, computed, paged) for i in alive}
    for i in alive:
        _appears(program, used[i], there[i])
    for j, column in computed.items():
        _has_inputs(program, column, [there[i] for i in set(graph.nodes[j].inputs)])
    held = _held(program, alive, start, used, computed, paged)
    for j, column in computed.items():
        _recomputation_fits(model, j, column, held)
    return used


def _terms(i: int, *stages: Stage) -> list[Term]:
    return [(stage[i], 1.0) for stage in stages if i in stage]


def _appears(program: Program, used: int, there: Sequence[Term]) -> None:
    """U_i <= S_i + R_i + P_i."""
    program.row([(used, 1.0), *((c, -1.0) for c, _ in there)], upper=0.0)


def _has_inputs(program: Program, computed: int, inputs: Sequence[Sequence[Term]]) -> None:
    """R_j <= S_i + R_i + P_i for each input i of j."""
    for there in inputs:
        program.row([(computed, 1.0), *((c, -1.0) for c, _ in there)], upper=0.0)


def _held(
    program: Program,
    alive: Sequence[int],
    start: Stage,
    used: Stage,
    computed: Stage,
    paged: Stage,
) -> Stage:
    """c_i >= S_i + U_i - 1 - R_i - P_i: there at both ends and not created between."""
    held: Stage = {}
    if not computed:
        return held
    for i in alive:
        if i in start:
            held[i] = program.binary()
            created = [(c, -1.0) for c, _ in _terms(i, computed, paged)]
            ends = [(start[i], 1.0), (used[i], 1.0)]
            program.row([*ends, (held[i], -1.0), *created], upper=1.0)
    return held


def _operator_fits(model: StageModel, t: int, used: Stage) -> None:
    """sum m_i U_i + m_t + workspace_t <= RAM."""
    node, nodes = model.graph.nodes[t], model.graph.nodes
    fixed = node.workspace_bytes + (0 if node.overwrites is not None else node.bytes)
    fixed += sum(nodes[i].bytes for i in set(node.inputs))
    _fit(model, {i: used[i] for i in used if i not in node.inputs}, fixed, None)


def _recomputation_fits(model: StageModel, j: int, computed: int, held: Stage) -> None:
    """(m_j + workspace_j + inputs) R_j + sum m_i c_i (i no input of j) <= RAM."""
    node, nodes = model.graph.nodes[j], model.graph.nodes
    own = node.workspace_bytes + (0 if node.overwrites is not None else node.bytes)
    own += sum(nodes[i].bytes for i in set(node.inputs))
    _fit(model, {i: held[i] for i in held if i != j and i not in node.inputs}, own, computed)


def _fit(model: StageModel, others: Stage, own: int, runs: int | None) -> None:
    """own (x runs) + sum m_i others_i <= RAM."""
    program, room = model.program, model.ram_bytes - own
    columns, sizes = list(others.values()), [model.graph.nodes[i].bytes for i in others]
    if runs is None:
        program.knapsack(columns, sizes, room)
    elif room < 0:
        program.fix(runs, 0.0)
    else:
        program.knapsack([*columns, runs], [*sizes, own], model.ram_bytes)


def _next(model: StageModel, t: int, used: Stage, last_use: Sequence[int]) -> Stage:
    """S'_i <= U_i; what operator t overwrites is gone, its output is there if kept."""
    program = model.program
    following: Stage = {}
    for i in used:
        if last_use[i] > t and i != model.graph.nodes[t].overwrites:
            following[i] = program.binary()
            program.row([(following[i], 1.0), (used[i], -1.0)], upper=0.0)
    if last_use[t] > t:
        following[t] = program.binary()
    return following


class _Lanes:
    """Neither the processor nor the transfers may work longer than the deadline."""

    def __init__(self, deadline_us: float | None) -> None:
        self.deadline_us = deadline_us
        self.processor: list[Term] = []
        self.transfers: list[Term] = []
        self.processor_us = self.transfers_us = 0.0

    def certain(self, processor_us: float, transfer_us: float, cpu_us: float) -> None:
        self.processor_us += processor_us + cpu_us
        self.transfers_us += transfer_us

    def choice(self, column: int, processor_us: float, transfer_us: float, cpu_us: float) -> None:
        self.processor.append((column, processor_us + cpu_us))
        self.transfers.append((column, transfer_us))

    def rows(self, program: Program) -> None:
        """sum of a lane's times <= deadline, for both lanes."""
        if self.deadline_us is None:
            return
        scale = max(self.deadline_us, 1.0)
        for terms, fixed in (
            (self.processor, self.processor_us),
            (self.transfers, self.transfers_us),
        ):
            room = (self.deadline_us - fixed) / scale
            program.row([(c, v / scale) for c, v in terms if v > 0], upper=room)
