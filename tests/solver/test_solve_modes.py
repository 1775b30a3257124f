"""`solve` chooses modes: its plans are the best ones, and its bounds hold for all plans."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from math import inf

import pytest
from poet_host.baselines.registry import plan_by
from poet_host.plan.events import events_of, fits, normal_order
from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem, without_modes
from poet_host.plan.verify import verify
from poet_host.solver.feasibility import least_ram_bytes
from poet_host.solver.models import solution, stage_model
from poet_host.solver.program import minimise
from poet_host.solver.repair import RepairSearch
from poet_host.solver.search import Search
from poet_host.solver.settings import Method, Settings
from poet_host.solver.solve import solve
from poet_host.solver.workers import Channel
from support.mode_graphs import mode_problem, timed_mode_problems
from support.oracle import Best, cheapest
from support.plans import task_of
from support.streamed_graphs import streamed_instance

from tests.solver.models.test_stage_model import untied

PROOF = Settings(60.0, gap=0.0, placed=False, counted=True)
SILENT = Channel(lambda kind, found: None, lambda: False)
MODELS = (
    {"strict": {}},
    {"strict": {1: {0}, 3: {0, 1, 2}}},
    {},
    {"conflict_stages": set(range(7))},
)


def problems(seeds: range, most_nodes: int = 6, *, is_fused: bool = False) -> Iterator[Problem]:
    for seed in seeds:
        yield mode_problem(seed, most_nodes, is_fused=is_fused)
        if seed % 4 == 0:
            yield from timed_mode_problems(seed, most_nodes - 1, is_fused=is_fused)


def agree(problem: Problem, plan: Plan, best: Best | None) -> None:
    """The plan is the best one, or both say that there is none."""
    if best is None:
        assert plan.status == "infeasible", problem
        return
    assert plan.status == "optimal", problem
    assert plan.value == pytest.approx(best.value(problem), rel=1e-6), problem
    verify(problem, plan, placed=False)


def bounds_of(some: Iterable[Problem], options: dict[str, object]) -> int:
    """Check the bounds of stage models. Return how many exceed the value that every plan needs."""
    bounds = 0
    for problem in some:
        best = cheapest(problem)
        least = inf if best is None else best.value(problem)
        task = task_of(problem)
        candidates = Search(task, SILENT).candidates(**options)
        limits = task.time_limits(task.deadline_us)
        model = stage_model.build(candidates, task.padded_ram_bytes, limits=limits)
        found = minimise(model.program, 20.0)
        assert found.bound <= least * (1 + 1e-6) + 1e-9, problem
        bounds += found.bound > task.least_value
    return bounds


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True], ids=("one node", "several nodes"))
@pytest.mark.parametrize("block", range(4))
def test_the_optimum_is_that_of_exhaustive_search(block: int, is_fused: bool) -> None:
    """With modes that compute several nodes, and with nodes that may be left out, too."""
    kinds: Counter[str] = Counter()
    for problem in problems(range(block * 50, block * 50 + 50), is_fused=is_fused):
        best = cheapest(problem)
        plan = solve(problem, PROOF)
        agree(problem, plan, best)
        kinds[problem.objective] += 1
        kinds["deadline"] += problem.deadline_us is not None
        kinds["none" if best is None else "plan"] += 1
        runs = [
            problem.graph.outputs(problem.graph.index[it.node], it.mode)
            for it in plan.statements
            if it.op == "compute"
        ]
        kinds["modes"] += any(statement.mode for statement in plan.statements)
        if is_fused and plan.statements:
            kinds["several nodes"] += any(len(made) > 1 for made in runs)
            computed = {it.node for made in runs for it in made}
            kinds["left out"] += len(computed) < sum(not n.stored for n in problem.graph.nodes)
    assert len(kinds) == (9 if is_fused else 7), kinds
    assert min(kinds.values()) > 2, kinds


@pytest.mark.parametrize(
    ("method", "allowed"), [("poet-paging", {"recompute": False}), ("poet-remat", {"page": False})]
)
def test_the_other_methods_use_modes_within_their_limits(
    method: Method, allowed: dict[str, bool]
) -> None:
    """poet-remat streams only kept tensors to storage: it does not page computed tensors."""
    found = 0
    for problem in problems(range(200, 212), 5):
        plan = solve(problem, PROOF, method=method)
        agree(problem, plan, cheapest(problem, **allowed))
        found += any(statement.mode for statement in plan.statements)
    assert found > 2


@pytest.mark.slow
@pytest.mark.parametrize("options", MODELS, ids=("relaxed", "strict", "whole", "conflicts"))
def test_every_model_bounds_all_plans(options: dict[str, object]) -> None:
    some = [*problems(range(300, 340), 7), *problems(range(300, 340), 6, is_fused=True)]
    assert bounds_of(some, options) > 20


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True], ids=("one node", "several nodes"))
def test_the_best_plan_is_a_solution_of_the_model(is_fused: bool) -> None:
    """So searches can start from a plan, and search its neighbourhood."""
    again = before_fused = 0
    for seed in range(600, 900):
        problem = untied(mode_problem(seed, 6, "added-energy", is_fused=is_fused), seed)
        best = cheapest(problem)
        if best is None:
            continue
        task = task_of(problem)
        events = normal_order(task.padded, events_of(task.padded, best.statements))
        if not fits(task.padded, events, task.padded_ram_bytes):
            continue
        search = RepairSearch(task, SILENT)
        model = search.neighbourhood_model(events)
        assert model is not None
        values = solution.values_of(model, events)
        assert not model.program.violated_rows(values), problem
        made = [task.padded.outputs(it.node, it.mode) for it in events if it.op == "compute"]
        again += len({it.node for it in chain(*made)}) < len([*chain(*made)])
        before_fused += any(
            len(task.padded.outputs(one.node, one.mode)) > 1
            for it, one in pairwise(events)
            if it.op == "page_in" and one.op == "compute"
        )
    assert again > 5
    assert before_fused > 2 or not is_fused


def test_a_tensor_that_only_modes_write_to_storage_can_be_paged_in() -> None:
    """Also if a plan may leave it out."""
    found = 0
    for seed in (686, 992, 1097):
        problem = mode_problem(seed, 6, "added-energy", is_fused=True)
        best = cheapest(problem)
        assert best is not None
        task = task_of(problem)
        model = stage_model.build(Search(task, SILENT).candidates(), task.padded_ram_bytes)
        assert minimise(model.program, 20.0).bound <= best.energy_uj * (1 + 1e-6)
        modes = task.modes
        found += any(modes.streaming[i] and not modes.whole[i] for i in modes.apart.left_out)
    assert found == 3


@pytest.mark.slow
def test_placed_plans_have_their_workspaces_and_transfers_placed() -> None:
    placed = also = 0
    for seed in range(400, 480):
        problem = mode_problem(seed, 6, is_fused=seed >= 430)
        wide = replace(problem, ram_bytes=problem.ram_bytes + 16)
        plan = plan_by("poet", wide, Settings(20.0, gap=0.0, counted=True))
        if not plan.statements:
            continue
        verify(wide, plan)
        best = cheapest(wide)
        assert best is not None
        assert plan.value is not None
        assert plan.value >= best.value(wide) * (1 - 1e-9)
        placed += any(it.mode and it.workspace_offset is not None for it in plan.statements)
        also += any(it.also_offsets for it in plan.statements)
    assert placed > 5
    assert also > 2


def test_a_smallest_ram_within_which_a_plan_exists_is_named() -> None:
    named = 0
    for seed in range(500, 530):
        problem = mode_problem(seed, 6)
        least = least_ram_bytes(problem.graph, 1)
        if not problem.graph.storage or least == 0:
            continue
        plan = solve(replace(problem, ram_bytes=least - 1), PROOF)
        assert (plan.status, plan.smallest_ram_bytes) == ("infeasible", least)
        assert cheapest(replace(problem, ram_bytes=least)) is not None
        named += 1
    assert named > 10


@pytest.mark.slow
def test_a_training_step_with_a_thousand_modes_is_planned_in_an_arena_of_24_kib() -> None:
    """In mode 0, its largest operator needs eight times as much."""
    graph = streamed_instance("step-resnet8-cifar-nrf52840_dk")
    assert sum(len(node.modes) for node in graph.nodes) > 1000
    problem = Problem(graph, 24 * 1024, objective="added-energy")
    assert least_ram_bytes(without_modes(graph), 4) > 8 * problem.ram_bytes
    plan = plan_by("poet", problem, Settings(300.0, gap=0.01, counted=True))
    verify(problem, plan)
    assert plan.gap is not None
    assert plan.gap <= 0.01


def test_there_is_a_plan_however_soon_time_is_up() -> None:
    """Methods without modes have no plan within so little RAM."""
    graph = streamed_instance("step-resnet8-cifar-nrf52840_dk")
    problem = Problem(graph, 24 * 1024, objective="added-energy")
    plan = plan_by("poet", problem, Settings(0.01))
    assert plan.status == "feasible"
    verify(problem, plan)
