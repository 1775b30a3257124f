"""With deadlines too, the solver's energy is that of an exhaustive search."""

from dataclasses import replace
from typing import Any

import poet_host as poet
import pytest
from poet_host.plan.events import Candidate, energy_uj
from poet_host.plan.problem import Problem, without_energy
from poet_host.plan.verify import verify
from poet_host.solver.overlapped import with_processor_time
from poet_host.solver.phases import Searches
from poet_host.solver.portfolio import Results
from poet_host.solver.search import Task
from poet_host.solver.settings import Settings, Stopwatch
from poet_host.solver.solve import solve
from support.cost_graphs import timed_problems
from support.oracle import cheapest

GRAPHS = 120
BLOCK = 12


@pytest.mark.slow
@pytest.mark.parametrize("block", range(GRAPHS // BLOCK))
def test_energy_under_a_deadline_equals_exhaustive_search(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        for problem in timed_problems(seed):
            best = cheapest(problem)
            plan = solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
            case = f"seed {seed}, deadline {problem.deadline_us}"
            if best is None:
                assert plan.status == "infeasible", case
                continue
            assert plan.status == "optimal", case
            assert plan.energy_uj == pytest.approx(best.energy_uj, rel=1e-9, abs=1e-9), case
            verify(problem, plan, placed=False)


@pytest.mark.parametrize("objective", ["energy", "added-energy"])
def test_searches_for_a_deadline_start_from_the_plans_found_before(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[tuple[Task, Results]] = []
    search = Searches.search

    def recorded(solver: Searches, task: Task, *known: Any) -> Results:
        found = search(solver, task, *known)
        searches.append((task, found))
        return found

    monkeypatch.setattr(Searches, "search", recorded)
    started = late = 0
    for seed in (4, 6, 8):
        for problem in timed_problems(seed):
            searches.clear()
            graph = replace(problem.graph, base_power_uw=1e5)
            problem = replace(problem, graph=graph, objective=objective)
            solve(problem, Settings(placed=False, time_limit_s=20, counted=True))
            if len(searches) < 2 or searches[0][1].best is None:
                continue
            first, deadline_us = searches[0][1].best, problem.deadline_us
            assert deadline_us is not None
            overlapped = [it for it in searches[1:] if it[0].deadline_us is None]
            plans: list[Candidate] = []
            for task, found in overlapped:
                if plans:
                    assert task.known is not None
                    assert task.value(task.known) <= min(map(task.value, plans))
                    started += 1
                plans += [found.best] if found.best else []
            busy = with_processor_time(without_energy(graph), 1.0)
            if overlapped and energy_uj(busy, first.events) > deadline_us * (1 + 1e-9):
                assert all(it.energy_uj == it.time_us for it in overlapped[0][0].padded.nodes)
                late += 1
    assert started > 10
    assert late > 0


def test_waits_are_cheap_where_transfers_cost_far_more_than_a_sleeping_board() -> None:
    """The search for the least energy then leaves them out."""
    graph = poet.load("resnet-digits")
    for board, is_cheap in (("nrf52840_dk", True), ("mkr1000", False), ("rpi4b", False)):
        costs = poet.costs_of(graph, poet.estimate_profile(board))
        assert solver_of(Problem(costs, 65_536)).waits_are_cheap == is_cheap, board
        assert not solver_of(Problem(costs, 65_536, deadline_us=1e9)).waits_are_cheap
        assert not solver_of(Problem(costs, 65_536, objective="time")).waits_are_cheap


def solver_of(problem: Problem) -> Searches:
    return Searches(problem, Settings(), "poet", (), Stopwatch(60.0))
