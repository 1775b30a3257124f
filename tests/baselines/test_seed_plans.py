"""poet never needs more energy than the methods that it begins from; they get no help from it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from poet_host.baselines import capuchin, planner, pofo
from poet_host.baselines.chain import chain_of
from poet_host.baselines.method import DoesNotApply, largest_operator_bytes
from poet_host.baselines.registry import METHODS, SCHEDULERS, plan_by
from poet_host.baselines.seed_plans import STARTS, Cheap
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify
from poet_host.solver import exhaustive
from poet_host.solver.candidate import Candidate
from poet_host.solver.events import energy_uj, fits, lazy
from poet_host.solver.portfolio import Found
from poet_host.solver.primal_search import climb
from poet_host.solver.search import Start, Task
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.workers import Line
from support.chains import chain, with_parameters
from support.cost_graphs import random_problem

from bench import graphs

WITHOUT_SEARCH = [one.run.__name__.replace("_", "-") for one in STARTS]
MUCH_S = 200.0  # for what takes seconds: nothing here depends on how fast the computer is


def at(graph: CostGraph, share: float) -> Problem:
    """RAM at a share of the way from the largest operator to keeping everything."""
    least, most = largest_operator_bytes(graph), keep_everything(graph).peak_bytes or 0
    return Problem(graph, least + int((most - least) * share) // 4 * 4)


def planned(method: str, problem: Problem) -> Plan | None:
    """A method's plan, verified; None if it has none."""
    try:
        plan = plan_by(method, problem, Settings(time_limit_s=MUCH_S))
    except DoesNotApply:
        return None
    if not plan.statements:
        return None
    assert verify(problem, plan).energy_uj == plan.energy_uj
    return plan


def uj(plan: Plan | None) -> float:
    return inf if plan is None or plan.energy_uj is None else plan.energy_uj


def begun(
    problem: Problem, starts: Sequence[Start], known: Candidate | None = None
) -> Candidate | None:
    """The best plan when the search has asked all `starts` and made its first plans: as if time
    ran out there. Sizes are multiples of 4."""
    asked: list[Start] = []
    plans: list[Candidate] = []
    first: list[str] = []

    def watched(start: Start) -> Start:
        def ask(problem: Problem, placed: bool, below_uj: float, limit_s: float) -> Plan | None:
            asked.append(start)
            return start(problem, placed, below_uj, limit_s)

        return ask

    def emit(kind: str, content: Any) -> None:
        if kind == "plan":
            plans.append(content)
        if kind == "climbed":
            first.append(kind)

    line = Line(emit, lambda: bool(first) and len(asked) == len(starts))
    watched_starts = tuple(watched(start) for start in starts)
    ends_at = time.monotonic() + MUCH_S
    climb(
        Task(
            problem, problem.graph, problem.ram_bytes, recompute=True, page=True, unit=4, gap=0.0,
            ends_at=ends_at, starts=watched_starts, known=known,
        ),
        line,
    )  # fmt: skip
    return plans[-1] if plans else None


def checked(problem: Problem, best: Candidate | None) -> float:
    """Energy of a verified plan; infinite without one."""
    if best is None:
        return inf
    plan = Plan(
        "feasible", problem.ram_bytes, problem.deadline_us,
        statements=best.statements, initial_offsets=best.initial_offsets,
    )  # fmt: skip
    return verify(problem, plan).energy_uj


def test_every_method_without_a_search_is_a_start() -> None:
    searches = {"poet", "poet-paging", "poet-remat", "checkmate"}
    assert set(WITHOUT_SEARCH) == set(METHODS) - searches
    for one in STARTS:
        assert SCHEDULERS[one.run.__name__.replace("_", "-")].run is one.run


GENERATED = [
    chain([12, 4, 16, 8, 20, 4, 12, 8] * 3, storage=True, page=9.0, gradients=4),
    chain([8] * 20, [5.0, 1.0, 3.0, 2.0] * 5, storage=True, page=4.0, gradients=8),
    chain([16, 8, 4] * 6, [2.0, 9.0] * 9, gradients=4),
    with_parameters(),
]


@pytest.fixture(autouse=True)
def no_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; the workers of `solve` keep theirs."""
    monkeypatch.setattr(exhaustive, "MOST_NODES", 0)


@pytest.mark.parametrize("graph", GENERATED, ids=lambda graph: graph.name)
def test_however_early_it_ends_no_method_without_a_search_needs_less(graph: CostGraph) -> None:
    compared = 0
    for share in (0.1, 0.4):
        free = at(graph, share)
        times = [plan.time_us or 0.0 for one in WITHOUT_SEARCH if (plan := planned(one, free))]
        timed = replace(free, deadline_us=max(times, default=None))
        for problem in (free, timed) if share > 0.1 else (free,):
            ours = checked(problem, begun(problem, STARTS))
            for method in WITHOUT_SEARCH:
                theirs = planned(method, problem)
                assert ours <= uj(theirs) * (1 + 1e-9), (share, method, problem.deadline_us)
                compared += theirs is not None
    assert compared > 6


def test_without_the_others_the_first_plans_are_behind_them() -> None:
    problem = at(graphs.training("bert-micro", graphs.M4), 0.3)
    least_uj = min(uj(one(problem, True, inf, MUCH_S)) for one in STARTS)
    alone, together = (checked(problem, begun(problem, starts)) for starts in ((), STARTS))
    assert alone > 1.01 * least_uj
    assert together <= least_uj * (1 + 1e-9)


def test_plans_of_one_kind_need_no_less_than_mixed_ones() -> None:
    problem = at(with_parameters(), 0.1)
    ours = uj(planned("poet", problem))
    theirs = [uj(planned(method, problem)) for method in ("poet-paging", "poet-remat", "checkmate")]
    assert ours <= min(theirs) * (1 + 1e-9)
    assert max(theirs) > ours  # where they differ


def test_poet_begins_from_them_and_its_ablations_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Sequence[Start]] = {}

    def listen(
        problem: Problem, settings: Settings, *, method: str, seed_plans: Sequence[Start] = ()
    ) -> Plan:
        given[method] = seed_plans
        return keep_everything(problem.graph)

    monkeypatch.setattr(planner, "solve", listen)
    for method in ("poet", "poet-paging", "poet-remat"):
        assert plan_by(method, at(with_parameters(), 0.6)).statements
    assert given == {"poet": STARTS, "poet-paging": (), "poet-remat": ()}


def test_a_start_is_the_plan_of_its_method() -> None:
    """Alike in all but when transfers begin, which the search sees to."""
    graph, started = GENERATED[1], 0
    for share in (0.1, 0.4):
        problem = at(graph, share)
        for one, method in zip(STARTS, WITHOUT_SEARCH, strict=True):
            whole, plan = planned(method, problem), one(problem, True, inf, MUCH_S)
            assert uj(plan) == pytest.approx(uj(whole))
            if plan is not None:
                started += 1
                verify(problem, plan)
                assert one(problem, True, uj(plan), MUCH_S) is None  # it does not need less
    assert started > 8


def test_methods_are_asked_only_about_graphs_that_they_are_soon_done_with() -> None:
    graph = chain([4] * 200, storage=True, gradients=4)
    assert len(chain_of(graph, "pofo")) > 64
    problem = Problem(graph, 400)
    assert Cheap(pofo.pofo, most_links=64)(problem, True, inf, MUCH_S) is None
    assert Cheap(capuchin.capuchin, most_nodes=400)(problem, True, inf, MUCH_S) is None
    assert Cheap(capuchin.capuchin)(problem, True, inf, MUCH_S) is not None
    residual = Problem(chain([4, 4]), 400)
    assert Cheap(pofo.pofo, most_links=64)(residual, True, inf, MUCH_S) is None


@pytest.mark.parametrize("ended", [False, True])
def test_time_that_a_deadline_leaves_is_used(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first search had to end, a second one begins from its plan, though in time."""
    problem = Problem(with_parameters(), 400)
    keeping = begun(problem, ())
    searches: list[tuple[float | None, Candidate | None]] = []

    def search(
        self: object, problem: Problem, share: float, known: Candidate | None = None
    ) -> Found:
        searches.append((problem.deadline_us, known))
        return Found(first=known or keeping, bound_uj=1.0, ended=ended)

    monkeypatch.setattr("poet_host.solver.solve._Solver._search", search)
    plan = solve(replace(problem, deadline_us=1e9))
    assert plan.energy_uj == checked(problem, keeping)
    assert [deadline_us for deadline_us, _ in searches] == ([None] if ended else [None, 1e9])
    if not ended:
        known = searches[1][1]
        assert known is not None
        assert known.totals.energy_uj == plan.energy_uj


def test_a_search_that_knows_a_plan_finds_none_that_needs_more() -> None:
    problem = at(GENERATED[1], 0.4)
    best = begun(problem, STARTS)
    assert best is not None
    again = begun(problem, STARTS, known=best)
    assert again is None or checked(problem, again) < checked(problem, best)


def test_lazy_order_needs_no_more_of_anything() -> None:
    """Whatever order transfers have, their lazy order is legal, and takes no more RAM or energy."""
    changed = 0
    for seed in range(40):
        problem = random_problem(seed)
        graph = problem.graph
        plan = solve(problem, Settings(time_limit_s=MUCH_S, placed=False))
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
