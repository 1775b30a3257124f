"""Make a plan from a graph and a profile, and a schedule from a plan."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..baselines.registry import METHODS, SCHEDULERS, plan_by
from ..device.board import Board
from ..errors import BadInput, Infeasible, OutOfTime
from ..graph.graph import Graph
from ..packing.blocks import ALIGNMENT
from ..plan.costgraph import dump_cost_graph
from ..plan.infeasible import largest_need, largest_operator_bytes, why_infeasible
from ..plan.keepall import METHOD as KEEP_EVERYTHING, keep_everything
from ..plan.limits import problem_of, slice_us as slice_us_of
from ..plan.plan import Plan, plan_of
from ..plan.pricing import commit_costs, cost_graph
from ..plan.problem import DEFAULT_OBJECTIVE, OBJECTIVES, TOLERANCE, CostGraph, Objective, Problem
from ..plan.verify import Totals
from ..profile.profile import Profile
from ..schedule.encode import QUEUE_CAPACITY, encode as encode_plan, encode_costs
from ..schedule.schedule import Schedule
from ..solver.greedy import greedy_totals
from ..solver.policy import DEFAULT_POLICY
from ..solver.settings import Settings
from ..solver.solve import DEFAULT_GAP
from ..stream.in_place import with_modes_in_place
from ..stream.pairs import in_pair_order
from ..stream.slices import with_slices
from ..stream.streaming import with_streaming
from ..stream.used_modes import with_used_modes
from ..work import UNITS_PER_S
from .forward import with_inference
from .inputs import as_profile

_MOST_LIMIT_S = 1_000_000  # eleven days: waits of the system end at 2^31 ms
ALL_METHODS: tuple[str, ...] = (*METHODS, KEEP_EVERYTHING)
Costs = Profile | Board | str | Path
"""The types that inputs.as_profile accepts."""


def costs_of(
    graph: Graph | CostGraph,
    profile: Costs | None,
    *,
    storage: bool = True,
    commit_every: int | None = None,
) -> CostGraph:
    """Return `graph` with the costs in `profile`. Of a cost graph, only `commit_every` may change.

    If `storage` is False, the board has no card: parameters and state stay in RAM. `commit_every`:
    see `problem`.
    """
    if commit_every is not None and commit_every < 1:
        raise BadInput(f"`commit_every` must be at least 1, not {commit_every}")
    if isinstance(graph, CostGraph):
        if not storage and graph.storage:
            raise BadInput(
                f'the cost graph {graph.name} is for a board with storage: add "storage": false at '
                "its top level"
            )
        return graph if commit_every is None else replace(graph, commit_every=commit_every)
    if profile is None:
        raise BadInput(f"the costs of {graph.name} are unknown: pass a profile or a board")
    known = as_profile(profile)
    if commit_every is not None and not (storage and known.storage):
        raise BadInput(
            f"without a card, a plan of {graph.name} does not say how often weights are written: "
            "use the --commit-every of `train` instead"
        )
    return cost_graph(graph, known, storage, commit_every=commit_every or 1)


def problem(
    graph: Graph | CostGraph,
    profile: Costs | None = None,
    *,
    ram: str | float | None = None,
    deadline: str | float | None = None,
    objective: Objective = DEFAULT_OBJECTIVE,
    storage: bool = True,
    streaming: bool | None = None,
    commit_every: int | None = None,
    slice: str | float | None = None,
) -> Problem:
    """Return the problem of planning a training step of `graph` within `ram` and `deadline`.

    The problem holds the costs of the graph and the keep-everything plan. `profile` is a measured
    profile or its file; or a board or its name, whose costs are then estimated. A cost graph needs
    no profile.

    `ram` is a number of bytes, or a text such as "24KiB" or "50%" (100%: what keep-everything
    needs). If `ram` is None, the budget is the arena of the profile's board; a larger budget is
    accepted, for studies. `deadline` is a number of milliseconds, a text such as "1.2x" (1x: the
    time of keep-everything), or None.

    `objective` is what plans minimise: "energy" (all that the battery loses in a step),
    "added-energy" (the same without the power of the sleeping board) or "time". If `storage` is
    False, the board has no card: tensors are recomputed, never paged, and parameters and state stay
    in RAM.

    `streaming`: whether operators may stream their operands, part by part, through small buffers.
    None: they may if an operator exceeds the budget, or if one needs more than three quarters of it
    and `solve` does not reach its gap with whole operators.

    `commit_every`: parameters and state that stay in RAM from step to step are written to storage
    once in so many steps. None: in each step, or as often as a cost graph says.

    `slice`: the time for which a computation may occupy the processor without a pause, in
    milliseconds, or a text such as "10ms". Operators that take longer run cell by cell, with
    operands in RAM, where that is possible. Raises BadInput for a limit that cannot be parsed, for
    another objective, for streaming without storage or without a Graph, and for slices of a cost
    graph.
    """
    if objective not in OBJECTIVES:
        raise BadInput(f"there is no objective {objective!r}: use one of {', '.join(OBJECTIVES)}")
    known = None if profile is None else as_profile(profile)
    slice_us = slice_us_of(slice)
    if slice_us and not isinstance(graph, Graph):
        raise BadInput(f"the operators of the cost graph {graph.name} have no slices: omit `slice`")
    if slice_us and isinstance(graph, Graph) and storage and known and known.storage:
        graph = in_pair_order(graph)
    costs = costs_of(graph, known, storage=storage, commit_every=commit_every)
    wanted = problem_of(costs, ram, deadline, known, objective)
    can_stream = isinstance(graph, Graph) and costs.storage
    if streaming and not can_stream:
        raise BadInput(
            f"the operators of {graph.name} cannot stream: this needs a board with storage, and a "
            "model instead of a cost graph"
        )
    if not isinstance(graph, Graph):
        return wanted
    if streaming is None and can_stream:
        streaming = largest_operator_bytes(costs, ALIGNMENT) > wanted.ram_bytes
        wanted = replace(wanted, streamable=None if streaming or slice_us else graph)
    made = (with_streaming if streaming else with_modes_in_place)(wanted, graph)
    return with_slices(made, graph, slice_us) if slice_us else made


def solve(
    graph: Graph | CostGraph | Problem,
    profile: Costs | None = None,
    *,
    ram: str | float | None = None,
    deadline: str | float | None = None,
    objective: Objective | None = None,
    method: str = "poet",
    time_limit_s: float = 60.0,
    work_limit: float | None = None,
    gap: float | None = None,
    placed: bool = True,
    progress: Callable[..., object] | None = None,
) -> Plan:
    """Return the plan that the problem's objective wants, or the plan that `method` makes.

    solve(graph, profile, ram=..., deadline=..., objective=...) is short for solve(problem(...)).
    The objective is "energy" if it is None. The search stops when it is proved that any other plan
    is better by at most the share `gap` of the best plan found so far (None: DEFAULT_GAP). If no
    plan is found, the result has the status "infeasible" or "unknown". `encode` raises an error for
    such a result. Pricing a graph counts towards `time_limit_s`.

    `work_limit` replaces `time_limit_s`: the searches run one after another in one process, and
    equal input gives equal plans on every computer. 1,000 units are about one second of an idle
    computer. Methods other than poet's count the time limit in the same way.
    """
    began = time.monotonic()
    if not isinstance(graph, Problem):
        wanted = problem(
            graph, profile, ram=ram, deadline=deadline, objective=objective or DEFAULT_OBJECTIVE,
            streaming=None if uses_modes(method) else False,
        )  # fmt: skip
    elif (profile, ram, deadline, objective) == (None, None, None, None):
        wanted = graph
    else:
        raise BadInput(
            "a poet.Problem already has its profile, limits and objective: pass `profile`, `ram`, "
            "`deadline` and `objective` to poet.problem instead"
        )
    gap = DEFAULT_GAP if gap is None else gap
    check_limits(time_limit_s, work_limit, gap)
    if method == KEEP_EVERYTHING:
        return _keep_everything_within(wanted)
    limit_s = time_limit_s if work_limit is None else work_limit / UNITS_PER_S
    counted = work_limit is not None or not uses_modes(method)
    if not counted:
        limit_s = search_limit_s(time_limit_s, time.monotonic() - began)
    settings = Settings(limit_s, gap, placed, progress, counted=counted)
    plan = plan_by(method, wanted, settings)
    return plan if plan.problem else replace(plan, problem=wanted)


def check_limits(time_limit_s: float, work_limit: float | None, gap: float) -> None:
    """Raise BadInput for a limit of `solve` that is not positive, or too large, or a wrong gap."""
    most_work = _MOST_LIMIT_S * UNITS_PER_S
    if not 0 < time_limit_s <= _MOST_LIMIT_S:
        raise BadInput(
            f"the time limit must be above 0 and at most {_MOST_LIMIT_S:,} s, not {time_limit_s} s"
        )
    if work_limit is not None and not 0 < work_limit <= most_work:
        raise BadInput(
            f"the work limit must be above 0 and at most {most_work:,}, not {work_limit}"
        )
    if not 0 <= gap <= 1:
        raise BadInput(f"`gap` must be a number from 0 to 1, not {gap}")


def search_limit_s(time_limit_s: float, priced_s: float) -> float:
    """Return the time limit of the search after pricing took `priced_s` seconds of the limit."""
    return max(time_limit_s - priced_s, min(time_limit_s, DEFAULT_POLICY.least_search_s))


def uses_modes(method: str) -> bool:
    return method in SCHEDULERS and SCHEDULERS[method].knows_extensions


def _keep_everything_within(problem: Problem) -> Plan:
    """Return the keep-everything plan if it meets the limits, otherwise an infeasible plan.

    Raises BadInput if the graph has no keep-everything plan.
    """
    keep = problem.keep_everything or keep_everything(problem.graph)  # the latter raises
    assert keep.peak_bytes is not None
    assert keep.time_us is not None
    late = problem.deadline_us is not None and keep.time_us > problem.deadline_us * (1 + TOLERANCE)
    large = keep.peak_bytes > problem.ram_bytes
    if not (late or large):
        ram_bytes, deadline_us = problem.ram_bytes, problem.deadline_us
        return replace(
            keep, ram_bytes=ram_bytes, deadline_us=deadline_us, objective=problem.objective
        )
    plan = plan_of(problem, "infeasible", method=KEEP_EVERYTHING)
    return replace(
        plan, problem=problem, smallest_ram_bytes=keep.peak_bytes if large else None,
        smallest_deadline_us=keep.time_us if late else None,
    )  # fmt: skip


def smallest_ram_bytes(graph: Graph, profile: Profile) -> int:
    """Return the RAM of the operator that needs the most.

    Operands stream through the smallest buffers. Their sizes do not depend on the costs in
    `profile`, so the result is the same for all boards.
    """
    need = largest_need(problem(graph, profile, ram=ALIGNMENT).graph)
    return need.bytes if need else 0


def step_without_search(graph: Graph, profile: Profile, smallest_ram_bytes: int) -> dict[str, Any]:
    """Return the RAM, energy and time of a training step on the board of `profile`.

    The step is planned without search, and its operators stream if one exceeds the board's arena.
    Energy and time are None if no plan was found that fits the arena. Without storage, the step
    keeps everything in RAM, and the smallest RAM is not known.
    """
    wanted = problem(graph, profile)
    keep, storage = wanted.keep_everything, wanted.graph.storage
    if storage:
        totals: Totals | Plan | None = greedy_totals(wanted)
    else:
        kept = _keep_everything_within(wanted)
        totals = kept if kept.statements else None
    return {
        "board": profile.board,
        "profile": profile.kind,
        "arena_bytes": wanted.ram_bytes,
        "smallest_ram_bytes": smallest_ram_bytes if storage else None,
        "keep_everything_bytes": keep.peak_bytes if keep else None,
        "energy_uj": totals.energy_uj if totals else None,
        "total_energy_uj": totals.total_energy_uj if totals else None,
        "time_us": totals.time_us if totals else None,
    }


def why_no_plan(graph: Graph | CostGraph, plan: Plan) -> str:
    """Return a text with the limit that no plan meets, and the smallest limit that a plan meets.

    For a RAM limit, the text also names the operator that needs the most RAM, if it is known.
    """
    kernels = {node.name: node.op for node in graph} if isinstance(graph, Graph) else {}
    costs = plan.problem.graph if plan.problem else None
    return why_infeasible(plan, costs, lambda name: kernels.get(name, ""))


def encode(
    graph: Graph | CostGraph,
    profile: Plan | Costs | None,
    plan: Plan | None = None,
    about: Mapping[str, Any] | None = None,
    *,
    forward: bool = True,
) -> Schedule:
    """Return the schedule of a plan: encode(graph, plan). It has a forward program, unless
    `forward` is False.

    The metadata of the schedule contains the costs that the plan was solved for, and the entries of
    `about`. If the plan does not come from `solve`, pass the profile too: encode(graph, profile,
    plan). A plan in which operators stream keeps the costs that it was solved for. Raises
    Infeasible or OutOfTime if the plan has no statements, and BadInput if the plan was solved for
    another graph.
    """
    if isinstance(profile, Plan):
        profile, plan = None, profile
    if plan is None:
        raise BadInput("poet.encode received no plan: call encode(graph, plan)")
    streams = plan.problem is not None and plan.problem.streaming is not None
    if not streams and (profile or (plan.problem is None and isinstance(graph, CostGraph))):
        known = None if profile is None else as_profile(profile)
        limits = plan.ram_bytes, plan.deadline_us
        costs = costs_of(graph, known, storage=plan.storage, commit_every=plan.commit_every)
        priced = Problem(costs, *limits, known)
        if isinstance(graph, Graph):
            priced = with_modes_in_place(priced, graph)
        plan = replace(plan, problem=priced)
    if plan.status == "infeasible":
        raise Infeasible(why_no_plan(graph, plan), plan.smallest_ram_bytes)
    if plan.status == "unknown":
        raise OutOfTime(
            "the search reached its time limit with neither a plan nor a proof that none exists: "
            "allow more time"
        )
    if plan.problem is None:
        raise BadInput(
            "the costs of this plan are unknown, because it does not come from poet.solve: call "
            "encode(graph, profile, plan)"
        )
    if isinstance(graph, CostGraph):
        graph = replace(graph, commit_every=plan.problem.graph.commit_every)
    elif streams and plan.storage:
        graph = in_pair_order(graph)
    _check_same(graph, plan.problem.graph, plan)
    keep = plan.problem.keep_everything
    used, plan = with_used_modes(plan.problem, plan)
    costs, known, streaming = used.graph, used.profile, used.streaming
    meta = {
        "board": known.board if known else None,
        "keep_everything": keep
        and {"peak_bytes": keep.peak_bytes, "time_us": keep.time_us, "energy_uj": keep.energy_uj},
        "commit": known and _commit(known, costs, plan) if costs.storage else None,
        "costs": dump_cost_graph(costs),
        "slice_us": streaming and streaming.slice_us,
        "slices": streaming and dict(streaming.slices),
        **(about or {}),
    }
    if isinstance(graph, CostGraph):
        return encode_costs(graph, plan, meta)
    queue_capacity = known.transfer_queue if known else QUEUE_CAPACITY
    cuts, nests = (streaming.cuts, streaming.nests) if streaming else ({}, {})

    def encoded(plan: Plan) -> Schedule:
        return encode_plan(
            graph, plan, meta, queue_capacity, cuts, storage=costs.storage, nests=nests
        )

    if forward and known:
        return with_inference(graph, plan, used, encoded)
    return encoded(plan)


def _commit(profile: Profile, costs: CostGraph, plan: Plan) -> dict[str, float]:
    time_us, energy_uj = commit_costs(profile, costs, plan)
    return {"time_us": time_us, "energy_uj": energy_uj}


def _check_same(graph: Graph | CostGraph, costs: CostGraph, plan: Plan) -> None:
    """Raise BadInput unless `costs` is the cost graph of `graph` and has the nodes of `plan`."""
    if isinstance(graph, CostGraph):
        same = graph == costs
    else:
        sizes = [(node.name, node.size_bytes) for node in graph]
        same = sizes == [(node.name, node.bytes) for node in costs.nodes]
    if not same:
        raise BadInput(
            f"the plan was solved for another graph, not for this {graph.name}: pass the graph of "
            "the plan"
        )
    known = {(node.name, number) for node in costs.nodes for number in range(len(node.all_modes))}
    for it in plan.statements:
        if (it.node, it.mode) not in known:
            raise BadInput(
                f"the plan has a statement of {it.node} in mode {it.mode}, which {graph.name} "
                "lacks: pass a plan that poet.solve returned"
            )
