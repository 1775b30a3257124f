"""Our methods never need more than the seed plans that they may use."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest
from poet_host.baselines import registry
from poet_host.baselines.chain import chain_of
from poet_host.baselines.method import DoesNotApply
from poet_host.baselines.registry import METHODS, SCHEDULERS, SEED_PLANS, SeedLimits, plan_by
from poet_host.errors import PoetWarning
from poet_host.graph import models
from poet_host.graph.training_options import TrainingOptions
from poet_host.plan.events import Candidate, energy_uj, events_of, fits, normal_order
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan, plan_from_json
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import PlanError, verify
from poet_host.profile.profile import estimate_profile
from poet_host.solver.policy import DEFAULT_POLICY
from poet_host.solver.portfolio import Results
from poet_host.solver.primal_search import PHASES, search_plans
from poet_host.solver.search import SeedPlan, Task
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.workers import Channel
from support.chains import chain, with_parameters
from support.cost_graphs import random_problem

from bench import graphs

MUCH_S = 200.0  # for what takes seconds: nothing here depends on how fast the computer is
UNLIMITED = Settings(MUCH_S, below=inf)
WITHOUT_SEARCH = [name for name, row in SCHEDULERS.items() if row.seed]


def at(graph: CostGraph, share: float) -> Problem:
    """RAM at a share of the way from the largest operator to keeping everything."""
    least, most = largest_operator_bytes(graph), keep_everything(graph).peak_bytes or 0
    ram_bytes = least + int((most - least) * share) // 4 * 4
    return Problem(graph, ram_bytes, objective="added-energy")


@cache
def planned(method: str, problem: Problem) -> Plan | None:
    """A method's plan, verified; None if it has none. Tests of one graph ask for the same plans."""
    try:
        plan = plan_by(method, problem, Settings(MUCH_S))
    except DoesNotApply:
        return None
    if not plan.statements:
        return None
    assert verify(problem, plan).energy_uj == plan.energy_uj
    return plan


def uj(plan: Plan | None) -> float:
    return inf if plan is None or plan.energy_uj is None else plan.energy_uj


def first_plan(
    problem: Problem,
    seed_plans: Sequence[SeedPlan],
    known: Candidate | None = None,
    *,
    recompute: bool = True,
    page: bool = True,
    began_from: list[str] | None = None,
) -> Candidate | None:
    """The best plan of a search that only asks for plans. Sizes are multiples of 4. `began_from`
    gets the names that are emitted."""
    results: dict[str, list[Any]] = {
        "plan": [],
        "began from": [] if began_from is None else began_from,
    }
    slow = {"exact", "shallow", "medium", "neighbourhoods", "deep"}
    task = Task(
        problem, problem.graph, 0.0, problem.ram_bytes, recompute=recompute, page=page, unit=4,
        gap=0.0, ends_at=time.monotonic() + MUCH_S, known=known, seed_plans=tuple(seed_plans),
        policy=replace(DEFAULT_POLICY, skipped=slow),
    )  # fmt: skip
    channel = Channel(lambda kind, it: results.setdefault(kind, []).append(it), lambda: False)
    search_plans(task, channel)
    plans: list[Candidate] = results["plan"]
    return plans[-1] if plans else None


def checked(problem: Problem, best: Candidate | None) -> float:
    """Energy of a verified plan; infinite without one."""
    return inf if best is None else verify(problem, best.as_plan(problem)).energy_uj


def test_every_method_without_a_search_makes_seed_plans() -> None:
    searches = {"poet", "poet-paging", "poet-remat", "checkmate"}
    assert set(WITHOUT_SEARCH) == set(METHODS) - searches
    asked = [
        "checkpoint-all", "dtr", "dtr-eq", "chen-sqrt", "chen-greedy", "pofo", "griewank",
        "capuchin",
    ]  # fmt: skip
    assert tuple(SCHEDULERS[name].seed_plan for name in asked) == SEED_PLANS


GENERATED = [
    chain([12, 4, 16, 8, 20, 4, 12, 8] * 3, storage=True, page=9.0, gradients=4),
    chain([8] * 20, [5.0, 1.0, 3.0, 2.0] * 5, storage=True, page=4.0, gradients=8),
    chain([16, 8, 4] * 6, [2.0, 9.0] * 9, gradients=4),
    with_parameters(),
]


@pytest.mark.slow
@pytest.mark.parametrize("graph", GENERATED, ids=lambda graph: graph.name)
def test_however_early_it_ends_no_method_without_a_search_needs_less(graph: CostGraph) -> None:
    compared = 0
    for share in (0.1, 0.4):
        free = at(graph, share)
        times = [plan.time_us or 0.0 for it in WITHOUT_SEARCH if (plan := planned(it, free))]
        timed = replace(free, deadline_us=max(times, default=None))
        for problem in (free, timed) if share > 0.1 else (free,):
            ours = checked(problem, first_plan(problem, SEED_PLANS))
            for method in WITHOUT_SEARCH:
                theirs = planned(method, problem)
                assert ours <= uj(theirs) * (1 + 1e-9), (share, method, problem.deadline_us)
                compared += theirs is not None
    assert compared > 6


@pytest.mark.slow
def test_without_seed_plans_the_first_plans_need_more() -> None:
    graph = models.load("bert-micro", TrainingOptions(sequence_length=128))
    problem = at(cost_graph(graph, estimate_profile(graphs.M4)), 0.3)
    plans = [plan for seed_plan in SEED_PLANS if (plan := seed_plan(problem, UNLIMITED))]
    best = min(plans, key=uj)
    began_from: list[str] = []
    alone = checked(problem, first_plan(problem, ()))
    together = checked(problem, first_plan(problem, SEED_PLANS, began_from=began_from))
    assert alone > 1.01 * uj(best)
    assert together <= uj(best) * (1 + 1e-9)
    assert began_from[-1] == best.method


@pytest.mark.slow
def test_plans_of_one_kind_need_no_less_than_mixed_ones() -> None:
    problem = at(with_parameters(), 0.1)
    ours = uj(planned("poet", problem))
    theirs = [uj(planned(method, problem)) for method in ("poet-paging", "poet-remat", "checkmate")]
    assert ours <= min(theirs) * (1 + 1e-9)
    assert max(theirs) > ours  # where they differ


def test_a_plan_names_the_method_that_it_began_from() -> None:
    """If no search has time for a plan, the last resort is the best seed plan."""
    problem = at(GENERATED[0], 0.4)
    skipped = {name for name, *_ in PHASES}
    patient = Settings(0.0, policy=replace(DEFAULT_POLICY, skipped=skipped, last_resort_s=MUCH_S))
    plan = solve(problem, patient, seed_plans=SEED_PLANS)
    assert plan.began_from in WITHOUT_SEARCH
    assert plan.to_json()["began_from"] == plan.began_from
    assert plan_from_json(plan.to_json()) == replace(plan, problem=None)
    assert "began_from" not in solve(problem, patient).to_json()


def test_all_methods_that_search_start_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float, Sequence[SeedPlan]]] = []

    def fake_solve(
        problem: Problem, settings: Settings, *, method: str, seed_plans: Sequence[SeedPlan]
    ) -> Plan:
        given.append((method, settings.time_limit_s, seed_plans))
        return keep_everything(problem.graph)

    monkeypatch.setattr(registry, "solve", fake_solve)
    monkeypatch.setattr("poet_host.baselines.checkmate.solve", fake_solve)
    for method in ("poet", "poet-paging", "poet-remat"):
        assert plan_by(method, at(with_parameters(), 0.6)).statements
    assert given == [(it, 60.0, SEED_PLANS) for it in ("poet", "poet-paging", "poet-remat")]
    for graph in (with_parameters(), GENERATED[0]):
        assert plan_by("checkmate", Problem(graph, 400)).statements
        method, limit_s, seed_plans = given[-1]
        assert (method, seed_plans) == ("poet-remat", SEED_PLANS)
        assert limit_s > 55.0


@pytest.mark.slow
@pytest.mark.parametrize("graph", GENERATED[2:], ids=lambda graph: graph.name)
@pytest.mark.parametrize(("recompute", "page"), [(True, False), (False, True)])
def test_an_ablation_has_a_plan_where_it_may_use_that_of_a_method(
    graph: CostGraph, recompute: bool, page: bool
) -> None:
    compared = 0
    for share in (0.1, 0.4, 1.0):
        problem = at(graph, share)
        best = first_plan(problem, SEED_PLANS, recompute=recompute, page=page)
        if best is not None:
            assert _may_use(graph, best.as_plan(problem), recompute, page)
        for method in WITHOUT_SEARCH:
            theirs = planned(method, problem)
            if theirs is not None and _may_use(graph, theirs, recompute, page):
                assert checked(problem, best) <= uj(theirs) * (1 + 1e-9), (share, method)
                compared += 1
    assert compared > 1


def _may_use(graph: CostGraph, plan: Plan, recompute: bool, page: bool) -> bool:
    computes = [it.node for it in plan.statements if it.op == "compute"]
    pages = {it.node for it in plan.statements if it.op == "page_in"}
    stored = {node.name for node in graph.nodes if node.stored}
    return (recompute or len(computes) == len(set(computes))) and (page or pages <= stored)


@pytest.mark.parametrize("method", ["poet", "poet-paging", "poet-remat"])
def test_if_time_ends_before_a_search_asks_for_them_the_best_is_used(method: str) -> None:
    problem = Problem(with_parameters(), 160, 1e9, objective="added-energy")
    skipped = replace(DEFAULT_POLICY, skipped={name for name, *_ in PHASES})
    plan = plan_by(method, problem, Settings(time_limit_s=5.0, policy=skipped))
    assert uj(plan) == uj(planned("checkpoint-all", problem))


@pytest.mark.slow
def test_a_seed_plan_is_the_plan_of_its_method() -> None:
    """They differ only in when transfers start, which the search decides again."""
    graph, count = GENERATED[1], 0
    for share in (0.1, 0.4):
        problem = at(graph, share)
        for method in WITHOUT_SEARCH:
            seed_plan = SCHEDULERS[method].seed_plan
            whole, plan = planned(method, problem), seed_plan(problem, UNLIMITED)
            if method == "pofo" and plan is not None:  # its own plan is the fastest, not the best
                assert uj(plan) <= uj(whole) * (1 + 1e-9)
            else:
                assert uj(plan) == pytest.approx(uj(whole))
            if plan is not None:
                count += 1
                verify(problem, plan)
                assert seed_plan(problem, Settings(MUCH_S, below=uj(plan))) is None
    assert count > 8


def test_a_seed_plan_that_breaks_a_law_is_left_out_with_a_warning() -> None:
    def run(problem: Problem, settings: Settings) -> Plan:
        raise PlanError("once", "a node is computed twice")

    row = replace(SCHEDULERS["dtr"], run=run)
    with pytest.warns(PoetWarning, match="dtr"):
        assert row.seed_plan(at(GENERATED[0], 0.4), UNLIMITED) is None
    with pytest.raises(PlanError):  # the method itself hides nothing
        row.plan(at(GENERATED[0], 0.4), UNLIMITED)


@pytest.mark.slow
def test_seed_plans_are_made_only_of_small_graphs() -> None:
    graph = chain([4] * 200, storage=True, gradients=4)
    assert len(chain_of(graph)) > 64
    problem = Problem(graph, 400)
    pofo, capuchin = SCHEDULERS["pofo"], SCHEDULERS["capuchin"]
    assert pofo.seed == SeedLimits(6, max_links=64)
    assert pofo.seed_plan(problem, UNLIMITED) is None
    few = replace(capuchin, seed=SeedLimits(1, max_nodes=400))
    assert few.seed_plan(problem, UNLIMITED) is None
    many = replace(capuchin, seed=SeedLimits(1))
    assert many.seed_plan(problem, UNLIMITED) is not None
    assert pofo.seed_plan(Problem(chain([4, 4]), 400), UNLIMITED) is None


@pytest.mark.parametrize("ended", [False, True])
def test_time_that_a_deadline_leaves_is_used(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the first search ended, later ones start from its plan, which is in time."""
    problem = Problem(with_parameters(), 400)
    keeping = first_plan(problem, ())
    searches: list[tuple[float | None, Candidate | None]] = []

    class FakePortfolio:
        def __init__(self, found: Results, report: object) -> None:
            searches.append((found.task.deadline_us, found.early_plan))
            found.early_plan = found.early_plan or keeping
            found.bound, found.is_exhausted = 1.0, ended

        def run(self) -> None:
            pass

    monkeypatch.setattr("poet_host.solver.portfolio.Portfolio", FakePortfolio)
    plan = solve(replace(problem, deadline_us=1e9))
    assert plan.energy_uj == checked(problem, keeping)
    assert [deadline_us for deadline_us, _ in searches] == ([None] if ended else [None, None, 1e9])
    for _, known in searches[1:]:
        assert known is not None
        assert known.totals.energy_uj == plan.energy_uj


@pytest.mark.slow
def test_a_search_that_knows_a_plan_finds_none_that_needs_more() -> None:
    problem = at(GENERATED[1], 0.4)
    best = first_plan(problem, SEED_PLANS)
    assert best is not None
    again = first_plan(problem, SEED_PLANS, known=best)
    assert again is None or checked(problem, again) < checked(problem, best)


@pytest.mark.slow
def test_normal_order_needs_no_more_of_anything() -> None:
    """For any order of transfers, the normal order is legal, and needs no more RAM or energy."""
    changed = 0
    for seed in range(40):
        problem = random_problem(seed)
        graph = problem.graph
        plan = solve(problem, Settings(time_limit_s=MUCH_S, placed=False))
        if not plan.statements:
            continue
        events = events_of(graph, plan.statements)
        moved = normal_order(graph, events)
        assert fits(graph, moved, problem.ram_bytes)
        assert energy_uj(graph, moved) <= energy_uj(graph, events) * (1 + 1e-9)
        assert normal_order(graph, moved) == moved
        changed += moved != events
    assert changed > 2
