"""The paper's own formulation (Patil et al., ICML 2022, section 4), for comparison only.

Stage t ends with the first computation of operator t. For t, tensors i <= t, and k <= t:

    R[t,i]      i is computed in stage t         M_in[t,i]    i is paged in during stage t
    S_ram[t,i]  i is in RAM when t starts        M_out[t,i]   i is paged out during stage t
    S_sd[t,i]   i is on storage when t starts    FREE[t,i,k]  i is freed after k in stage t
    U[t,k]      bytes in RAM when k has been computed in stage t

    min  sum energy(i) R + page_in_uj(i) M_in + page_out_uj(i) M_out
    R[t,t] = 1; nothing is in RAM or on storage when the first stage starts
    R[t,k] <= R[t,i] + S_ram[t,i]                                  for each input i of k
    S_ram[t+1,i] <= R[t,i] + S_ram[t,i] + M_in[t,i]
    S_sd[t+1,i] <= S_sd[t,i] + M_out[t,i];  M_in <= S_sd;  M_out <= S_ram
    U[t,k] = U[t,k-1] + m_k R[t,k] - sum m_i FREE[t,i,k-1] <= RAM, from sum m_i S_ram[t,i]
    FREE[t,i,k] = 1 exactly if R[t,k] and nobody wants i later in t, nor S_ram[t+1,i]
    sum time(i) R <= deadline

Variables above the diagonal are left out ("lower-triangular"). FREE is linear as in Checkmate:
H[t,i,k] = (1 - R[t,k]) + S_ram[t+1,i] + sum R[t,j] over later users j;
1 - FREE <= H <= (number of terms) (1 - FREE).
The paper's model has neither parameters on storage nor updates in place. Without paging it is the
program of Checkmate (Jain et al., MLSys 2020), with energy as the cost.
"""

import time
from dataclasses import dataclass
from typing import Any

import highspy
from poet_host.plan.problem import CostGraph, Problem
from poet_host.solver.program import INFINITY, Program, highs_model

_Highs: Any = highspy.Highs  # untyped
OBJECTIVE_SCALE = 1000.0  # the energy of computing everything once, in the solver
Index = tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """The result of HiGHS."""

    status: str
    energy_uj: float | None  # None: no solution
    bound_uj: float
    columns: int
    rows: int
    time_s: float  # with building the program

    @property
    def gap(self) -> float | None:
        if self.energy_uj is None:
            return None
        return max(0.0, self.energy_uj - self.bound_uj) / self.energy_uj if self.energy_uj else 0.0


def is_expressible(graph: CostGraph) -> bool:
    """Whether the paper's model has everything that the graph has."""
    return graph.storage and not any(
        node.stored or node.keep or node.overwrites is not None or node.once or node.workspace_bytes
        for node in graph.nodes
    )


def solve(problem: Problem, time_limit_s: float, *, page: bool = True) -> Outcome:
    """Minimise with HiGHS, one thread. Raises ValueError if the model lacks a kind of node."""
    began = time.monotonic()
    if not is_expressible(problem.graph):
        raise ValueError(f"{problem.graph.name}: the paper's model has no such nodes")
    program, continuous = _build(problem, page)
    once_uj = sum(node.energy_uj for node in problem.graph.nodes)
    scale = OBJECTIVE_SCALE / once_uj if once_uj else 1.0
    left_s = max(0.0, time_limit_s - (time.monotonic() - began))
    solver = _solver(program, continuous, scale, left_s)
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    return Outcome(
        solver.modelStatusToString(status).lower(),
        info.objective_function_value / scale if found else None,
        INFINITY if infeasible else max(0.0, info.mip_dual_bound / scale),
        len(program.cost),
        len(program.row_lower),
        time.monotonic() - began,
    )


def _build(problem: Problem, page: bool) -> tuple[Program, set[int]]:
    """The program, and the columns that are not integral."""
    program, nodes, ram = Program(), problem.graph.nodes, problem.ram_bytes
    n = len(nodes)
    unit = max(ram, 1)
    size = [node.bytes / unit for node in nodes]
    below = [(t, i) for t in range(n) for i in range(t)]
    R = {(t, i): program.binary(nodes[i].energy_uj) for t in range(n) for i in range(t + 1)}
    S_ram = {at: program.binary() for at in below}
    paged = below if page else []
    S_sd = {at: program.binary() for at in paged}
    M_in = {(t, i): program.binary(nodes[i].page_in_uj) for t, i in paged}
    M_out = {(t, i): program.binary(nodes[i].page_out_uj) for t, i in paged}
    U = {at: program.binary() for at in R}
    for column in U.values():
        program.upper[column] = ram / unit

    for t in range(n):
        program.row([(R[t, t], 1.0)], 1.0, 1.0)
    for t, k in R:
        for i in set(nodes[k].inputs):
            _at_most(program, R[t, k], [R[t, i], S_ram[t, i]])
    for t, i in below:
        before = (t - 1, i)
        _at_most(program, S_ram[t, i], [a[before] for a in (R, S_ram, M_in) if before in a])
    for t, i in paged:
        before = (t - 1, i)
        _at_most(program, M_in[t, i], [S_sd[t, i]])
        _at_most(program, M_out[t, i], [S_ram[t, i]])
        _at_most(program, S_sd[t, i], [a[before] for a in (S_sd, M_out) if before in a])
    free = _frees(program, problem.graph, R, S_ram)
    for t, k in U:
        terms = [(U[t, k], 1.0), (R[t, k], -size[k])]
        if k == 0:
            terms += [(S_ram[t, i], -size[i]) for i in range(t)]
        else:
            terms += [(U[t, k - 1], -1.0)]
            terms += [(free[t, i, k - 1], size[i]) for i in set(nodes[k - 1].inputs)]
        program.row(terms, 0.0, 0.0)
    if problem.deadline_us is not None:
        limit = problem.deadline_us
        times = [(column, nodes[i].time_us / max(limit, 1.0)) for (_, i), column in R.items()]
        program.row(times, -INFINITY, limit / max(limit, 1.0))
    return program, set(U.values())


def _frees(
    program: Program, graph: CostGraph, R: dict[Index, int], S_ram: dict[Index, int]
) -> dict[tuple[int, int, int], int]:
    users: dict[int, list[int]] = {i: [] for i in range(len(graph.nodes))}
    for k, node in enumerate(graph.nodes):
        for i in set(node.inputs):
            users[i].append(k)
    free = {}
    for t, k in R:
        for i in set(graph.nodes[k].inputs):
            wanted = [R[t, j] for j in users[i] if k < j <= t]
            wanted += [S_ram[t + 1, i]] if (t + 1, i) in S_ram else []
            column = free[t, i, k] = program.binary()
            # With H = 1 - R + wanted: 1 - FREE <= H, and H <= terms x (1 - FREE).
            hazards = [(R[t, k], -1.0), *((wish, 1.0) for wish in wanted)]
            program.row([(column, 1.0), *hazards], 0.0, INFINITY)
            terms = 1.0 + len(wanted)
            program.row([(column, terms), *hazards], -INFINITY, terms - 1.0)
    return free


def _at_most(program: Program, less: int, more: list[int]) -> None:
    """less <= sum of more."""
    program.row([(less, 1.0), *((column, -1.0) for column in more)], upper=0.0)


def _solver(program: Program, continuous: set[int], scale: float, time_limit_s: float) -> Any:
    lp = highs_model(program, scale, integer=False)
    kinds = highspy.HighsVarType
    lp.integrality_ = [
        kinds.kContinuous if column in continuous else kinds.kInteger
        for column in range(len(program.cost))
    ]
    solver: Any = _Highs()
    for name, value in {
        "output_flag": False,
        "threads": 1,
        "random_seed": 1,
        "time_limit": time_limit_s,
        "mip_rel_gap": 0.0,
    }.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    return solver
