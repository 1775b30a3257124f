"""checkmate: optimal rematerialisation, with everything that is given resident all the time.

P. Jain et al., *Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization*, MLSys
2020, arXiv 1910.02653. Its integer program chooses what is computed again (R_t,i) and what is kept
(S_t,i) in every stage, at least cost; inputs and parameters take a constant part of memory that no
decision changes (U_t,0 begins with M_input + 2 M_param, parameters and their gradients; gradients
take no memory of their own here, where the update is part of the gradient's kernel). So:

  published: stored tensors come in at the start and stay to the end; an update happens in place,
  and is written at once. What is left of RAM is what the program is solved for.
  extension, where stored tensors leave too little RAM: they may be paged, as in `poet-remat`.

The program itself is this planner's for rematerialisation alone, which has no stages' order to keep
and so contains every schedule of Checkmate's; energies take the place of its times.
"""

from dataclasses import replace

from ..plan.plan import Plan, Statement
from ..plan.problem import CostGraph, CostNode, Problem
from ..plan.verify import TOLERANCE
from ..solver.settings import Settings, Stopwatch
from ..solver.solve import solve
from .completion import EXTENSION
from .method import ALIGNMENT, empty_plan, finished, largest_operator_bytes, padded

NAME = "checkmate"
ROUNDS = 4  # with deadlines that are earlier by this factor, while transfers make a plan late
EARLIER = 0.97


def checkmate(problem: Problem, settings: Settings) -> Plan:
    """The plan of least energy that computes again and pages nothing but what it must."""
    clock = Stopwatch(settings.time_limit_s)
    graph = padded(problem.graph, ALIGNMENT if settings.placed else 1)
    if not graph.storage:  # stored tensors then start in RAM, and may leave it for good
        return replace(_solved(problem, settings, clock.left_s), method=NAME)
    resident_bytes = sum(node.bytes for node in graph.nodes if node.stored)
    rest = results_only(problem.graph)
    inner = Problem(rest, problem.ram_bytes - resident_bytes, problem.deadline_us)
    if largest_operator_bytes(inner.graph) <= inner.ram_bytes:
        plan = _published(problem, graph, inner, resident_bytes, settings, clock)
        if plan is not None:
            return plan
    plan = _solved(problem, settings, clock.left_s)
    note = (
        EXTENSION if plan.statements else "even with parameters and data leaving RAM between uses"
    )
    return replace(plan, method=NAME, note=note)


def _solved(problem: Problem, settings: Settings, limit_s: float) -> Plan:
    return solve(problem, replace(settings, time_limit_s=max(limit_s, 0.1)), method="poet-remat")


def results_only(graph: CostGraph) -> CostGraph:
    """The graph without its stored tensors: what overwrites one takes no memory of its own."""
    number: dict[int, int] = {}
    nodes: list[CostNode] = []
    inside: set[int] = set()  # results that lie in a stored tensor's memory
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        over = node.overwrites
        in_place = over is not None and (graph.nodes[over].stored or over in inside)
        if in_place:
            inside.add(i)
        nodes.append(
            replace(
                node,
                inputs=tuple(number[j] for j in node.inputs if j in number),
                bytes=0 if in_place else node.bytes,
                overwrites=None if in_place or over is None else number[over],
                once=node.once or in_place,
                keep=False,
            )
        )
        number[i] = len(nodes) - 1
    return replace(graph, nodes=tuple(nodes), storage=False)


def _published(
    problem: Problem,
    graph: CostGraph,
    inner: Problem,
    resident_bytes: int,
    settings: Settings,
    clock: Stopwatch,
) -> Plan | None:
    """Solve for the results, add the resident tensors and the writing of what is kept.

    None: the program has no solution, or one that needs what an update has overwritten.
    """
    limit_us, bound_uj = problem.deadline_us, None
    for _ in range(ROUNDS):
        left_s = clock.left_s - settings.time_limit_s / 2  # the rest is for the extension
        solved = _solved(replace(inner, deadline_us=limit_us), settings, left_s)
        if not solved.statements:
            break
        whole = _with_residents(graph, solved, resident_bytes if settings.placed else None)
        if whole is None:
            return None
        if bound_uj is None and solved.bound_uj is not None:
            bound_uj = solved.bound_uj + _given_uj(graph)
        plan = finished(problem, NAME, whole, (), "", settings, clock)
        if plan is not None:
            return _with_bound(plan, bound_uj)
        limit_us = (limit_us or 0.0) * EARLIER
    if solved.status == "infeasible" and limit_us == problem.deadline_us:
        return None
    plan = empty_plan(problem, NAME, "unknown", clock)
    return replace(plan, note="no plan with every stored tensor resident was found in time")


def _with_bound(plan: Plan, bound_uj: float | None) -> Plan:
    if bound_uj is None or plan.energy_uj is None:
        return plan
    bound_uj = min(bound_uj, plan.energy_uj)
    gap = (plan.energy_uj - bound_uj) / plan.energy_uj if plan.energy_uj else 0.0
    if gap <= TOLERANCE:
        return replace(plan, status="optimal", bound_uj=bound_uj, gap=0.0)
    return replace(plan, bound_uj=bound_uj, gap=gap)


def _given_uj(graph: CostGraph) -> float:
    """Energy that every plan of the method spends on transfers."""
    ins = sum(node.page_in_uj for node in graph.nodes if node.stored)
    return ins + sum(node.page_out_uj for node in graph.nodes if node.keep and not node.stored)


def _with_residents(
    graph: CostGraph, solved: Plan, base_bytes: int | None
) -> tuple[Statement, ...] | None:
    """The solved statements among residents from offset 0 on; offsets of results move up by
    `base_bytes` (None: no offsets). None: something needs what was overwritten."""
    number = {node.name: i for i, node in enumerate(graph.nodes)}
    place: dict[int, int | None] = {}
    out: list[Statement] = []
    end = 0
    for i in _by_first_use(graph):
        place[i] = end if base_bytes is not None else None
        end += graph.nodes[i].bytes
        out.append(Statement("page_in", graph.nodes[i].name, place[i]))
    gone: set[int] = set()  # overwritten where it lay
    written: set[int] = set()
    for it in solved.statements:
        i = number[it.node]
        node = graph.nodes[i]
        if it.op == "free":
            out.append(it)
            continue
        if gone.intersection(node.inputs):
            return None
        offset, workspace = it.offset, it.workspace_offset
        if node.overwrites is not None and node.overwrites in place:
            place[i] = offset = place[node.overwrites]
            gone.add(node.overwrites)
        elif base_bytes is not None and offset is not None:
            offset += base_bytes
        if base_bytes is not None and workspace is not None:
            workspace += base_bytes
        out.append(replace(it, offset=offset, workspace_offset=workspace))
        if node.keep and i not in written:
            out.append(Statement("page_out", node.name))
            written.add(i)
    return tuple(out)


def _by_first_use(graph: CostGraph) -> list[int]:
    order = dict.fromkeys(j for node in graph.nodes for j in node.inputs if graph.nodes[j].stored)
    unused = [i for i, node in enumerate(graph.nodes) if node.stored and i not in order]
    return [*order, *unused]
