"""poet never needs more energy than the methods that it begins from; they get no help from it."""

import sys
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest
from chains import chain, with_parameters
from cost_graphs import random_problem
from poet_host.plan.baselines import capuchin, pofo
from poet_host.plan.baselines.chain import chain_of
from poet_host.plan.baselines.method import DoesNotApply, largest_operator_bytes
from poet_host.plan.baselines.registry import METHODS, SCHEDULERS, plan_by
from poet_host.plan.baselines.starts import STARTS, Cheap
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.solve import solve
from poet_host.plan.statements import energy_uj, fits, lazy
from poet_host.plan.verify import verify

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import graphs

WITHOUT_SEARCH = [one.run.__name__.replace("_", "-") for one in STARTS]


def planned(method: str, problem: Problem, limit_s: float = 10.0) -> Plan | None:
    """A method's plan, verified; None if it has none."""
    try:
        plan = plan_by(method, problem, time_limit_s=limit_s)
    except DoesNotApply:
        return None
    if not plan.statements:
        return None
    assert verify(problem, plan).energy_uj == plan.energy_uj
    return plan


def uj(plan: Plan | None) -> float:
    return inf if plan is None or plan.energy_uj is None else plan.energy_uj


@cache
def resnet18() -> CostGraph:
    return graphs.training("resnet18-cifar", graphs.M4)


def at(graph: CostGraph, share: float) -> Problem:
    """RAM at a share of the way from the largest operator to keeping everything."""
    least, most = largest_operator_bytes(graph), keep_everything(graph).peak_bytes or 0
    return Problem(graph, least + int((most - least) * share) // 4 * 4)


def test_every_method_without_a_search_is_a_start() -> None:
    searches = {"poet", "poet-paging", "poet-remat", "checkmate"}
    assert set(WITHOUT_SEARCH) == set(METHODS) - searches
    for one in STARTS:
        assert SCHEDULERS[one.run.__name__.replace("_", "-")].run is one.run


GENERATED = [
    chain([12, 4, 16, 8, 20, 4, 12, 8] * 3, storage=True, page=9.0, gradients=4),
    chain([8] * 20, [5.0, 1.0, 3.0, 2.0] * 5, storage=True, page=4.0, gradients=8),
    with_parameters(),
]


@pytest.mark.parametrize("graph", GENERATED, ids=lambda graph: graph.name)
def test_no_method_without_a_search_needs_less_than_poet(graph: CostGraph) -> None:
    compared = 0
    for share in (0.1, 0.4):
        free = at(graph, share)
        fastest = [plan.time_us for one in WITHOUT_SEARCH if (plan := planned(one, free))]
        for problem in (free, replace(free, deadline_us=max(fastest, default=None))):
            ours = uj(planned("poet", problem, 2.0))
            for method in WITHOUT_SEARCH:
                theirs = planned(method, problem)
                assert ours <= uj(theirs) * (1 + 1e-9), (share, method, problem.deadline_us)
                compared += theirs is not None
    assert compared > 8


def test_plans_of_one_kind_need_no_less_than_mixed_ones() -> None:
    problem = at(with_parameters(), 0.1)
    ours = uj(planned("poet", problem))
    theirs = [uj(planned(method, problem)) for method in ("poet-paging", "poet-remat", "checkmate")]
    assert ours <= min(theirs) * (1 + 1e-9)
    assert max(theirs) > ours  # where they differ


def test_without_the_others_the_search_is_behind_them() -> None:
    problem = at(resnet18(), 0.6)
    least_uj = min(uj(one(problem, True, inf, 5.0)) for one in STARTS)
    assert least_uj < uj(solve(problem, time_limit_s=3.5)) * 0.99
    plan = planned("poet", problem, 3.5)
    assert plan is not None
    assert uj(plan) <= least_uj * (1 + 1e-9)
    assert plan.solve_s < 3.5 + 2.0


def test_a_start_is_the_plan_of_its_method() -> None:
    """Alike in all but when transfers begin, which the search sees to."""
    graph = chain([8] * 20, [5.0, 1.0, 3.0, 2.0] * 5, storage=True, page=4.0, gradients=8)
    started = 0
    for share in (0.1, 0.4):
        problem = at(graph, share)
        for one, method in zip(STARTS, WITHOUT_SEARCH, strict=True):
            whole, plan = planned(method, problem), one(problem, True, inf, 5.0)
            assert uj(plan) == pytest.approx(uj(whole))
            if plan is not None:
                started += 1
                verify(problem, plan)
                assert one(problem, True, uj(plan), 5.0) is None  # it does not need less
    assert started > 8


def test_methods_are_asked_only_about_graphs_that_they_are_soon_done_with() -> None:
    graph = chain([4] * 200, storage=True, gradients=4)
    assert len(chain_of(graph, "pofo")) > 64
    problem = Problem(graph, 400)
    assert Cheap(pofo.pofo, most_links=64)(problem, True, inf, 1.0) is None
    assert Cheap(capuchin.capuchin, most_nodes=400)(problem, True, inf, 1.0) is None
    assert Cheap(capuchin.capuchin)(problem, True, inf, 9.0) is not None
    residual = Problem(chain([4, 4]), 400)
    assert Cheap(pofo.pofo, most_links=64)(residual, True, inf, 1.0) is None


def test_lazy_order_needs_no_more_of_anything() -> None:
    """Whatever order transfers have, their lazy order is legal, and takes no more RAM or energy."""
    changed = 0
    for seed in range(40):
        problem = random_problem(seed)
        graph = problem.graph
        plan = solve(problem, time_limit_s=5.0, placed=False)
        if not plan.statements:
            continue
        numbers = {node.name: i for i, node in enumerate(graph.nodes)}
        events = [(it.op, numbers[it.node]) for it in plan.statements]
        moved = lazy(graph, events)
        assert fits(graph, moved, problem.ram_bytes)
        assert energy_uj(graph, moved) <= energy_uj(graph, events) * (1 + 1e-9)
        assert lazy(graph, moved) == moved
        changed += moved != events
    assert changed > 2
