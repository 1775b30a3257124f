"""The bound search: its bounds hold for all plans, and it proves the best plan."""

import copy
import random
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.bound_search import BoundSearch, Learnt, first_bound
from poet_host.solver.feasibility import least_ram_bytes
from poet_host.solver.models import conflicts, stage_model
from poet_host.solver.program import minimise
from poet_host.solver.repair import RepairSearch
from poet_host.solver.search import Search
from poet_host.solver.workers import Channel
from support.cost_graphs import random_problem, tight_problem, timed_problems
from support.mode_graphs import mode_problem, timed_mode_problems
from support.oracle import cheapest
from support.plans import task_of

from tests.solver.models.test_stage_model import any_conflict, problems as untied_problems

LIMIT_S = 20.0


def problems(seeds: range) -> Iterator[Problem]:
    for seed in seeds:
        made = [tight_problem(seed, 7, storage_share=0.7), random_problem(seed, 7)]
        made.append(mode_problem(seed, 5))
        if seed % 4 == 0:
            made += [*timed_problems(seed, 6), *timed_mode_problems(seed, 5)]
        yield from (it for it in made if least_ram_bytes(it.graph, 1) <= it.ram_bytes)


def collected(search: BoundSearch) -> dict[str, list[Any]]:
    """Run the search. Return the contents that it emitted, by kind."""
    found: dict[str, list[Any]] = {"bound": [], "plan": [], "solution": [], "learnt": []}
    search.channel.emit = lambda kind, content: found[kind].append(content)
    search.run()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_bounds_rise_to_the_value_of_the_best_plan(block: int) -> None:
    reached = plans = shorter = repaired = 0
    for problem in problems(range(block * 10, block * 10 + 10)):
        best = cheapest(problem)
        least = inf if best is None else best.value(problem)
        task = task_of(problem)
        found = collected(BoundSearch(task, Channel(print, lambda: False)))
        assert found["bound"] == sorted(found["bound"])
        assert max(found["bound"]) <= least * (1 + 1e-6) + 1e-9, problem
        learnt = copy.deepcopy(found["learnt"][-1]) if found["learnt"] else Learnt()
        again = collected(BoundSearch(task, Channel(print, lambda: False), learnt=learnt))
        assert max(again["bound"]) == pytest.approx(max(found["bound"]), rel=1e-6), problem
        shorter += len(again["learnt"]) < len(found["learnt"])
        assert all(task.value(plan) >= least * (1 - 1e-6) for plan in found["plan"]), problem
        reached += max(found["bound"]) >= least * (1 - 1e-6)
        plans += bool(found["plan"])
        repair = RepairSearch(task, Channel(lambda kind, plan: None, lambda: False))
        for solution in found["solution"]:
            repair.channel.latest = solution
            repair.receive()
        assert repair.incumbent_value >= least * (1 - 1e-6), problem
        repaired += repair.incumbent_value <= least * (1 + 1e-6) < inf
    assert reached > 28
    assert plans > 25
    assert repaired > 25
    assert shorter > 0  # of the searches that begin with what another search learnt


@pytest.mark.slow
def test_the_first_bound_offers_only_plans_that_are_better_than_the_known_one() -> None:
    found = 0
    for seed in range(60):
        task = task_of(mode_problem(seed, 6))
        if least_ram_bytes(task.padded, 1) > task.padded_ram_bytes:
            continue
        plans: list[Any] = []

        def emit(kind: str, content: Any, plans: list[Any] = plans) -> None:
            if kind == "plan":
                plans.append(content)

        search = Search(task, Channel(emit, lambda: False))
        first_bound(search)
        if not plans:
            continue
        found += 1
        values = [task.value(plan) for plan in plans]
        assert values == sorted(values, reverse=True)
        assert search.incumbent_value == values[-1]
        plans.clear()
        first_bound(search)
        assert not plans
    assert found > 20


@pytest.mark.parametrize("block", range(4))
def test_the_best_plan_obeys_any_conflict_of_some_stages_and_strict_nodes(block: int) -> None:
    rng = random.Random(f"strict {block}")
    binding = 0
    for problem, best in untied_problems(range(block * 12 + 300, block * 12 + 312)):
        task = task_of(problem)
        every = range(len(problem.graph.nodes))
        for share in (0.4, 0.9):
            strict = {
                j: {i for i in problem.graph.nodes[j].inputs if rng.random() < 0.9} for j in every
            }
            whole = {
                j for j, inputs in strict.items() if inputs == set(problem.graph.nodes[j].inputs)
            }
            stages = {k for k in every if rng.random() < share}
            search = Search(task, Channel(lambda kind, found: None, lambda: False))
            candidates = search.candidates(strict, conflict_stages=stages)
            limits = task.time_limits(task.deadline_us)
            model = stage_model.build(candidates, task.padded_ram_bytes, limits=limits)
            before = minimise(model.program, LIMIT_S).objective
            for index in stages & set(range(len(model.stages))):
                stage = model.stages[index]
                done = [i for i in stage.computed if i in whole]
                for _ in range(10 if done else 0):
                    conflict = any_conflict(rng, problem, stage, index, rng.sample(done, 1))
                    if conflict.computed <= whole:
                        conflicts.forbid(model, conflict)
            found = minimise(model.program, LIMIT_S)
            assert found.objective <= best.energy_uj * (1 + 1e-6), problem.graph.name
            binding += found.objective > before * (1 + 1e-6)
    assert binding > 0


def test_the_bound_counts_recomputations_that_a_stage_must_repeat() -> None:
    """b needs f and h. While h is computed, RAM has no room for f."""
    rows = [
        ("x", (), 1, 0, 1.0), ("f", (0,), 5, 0, 100.0), ("a", (1,), 1, 0, 1.0),
        ("h", (2,), 1, 6, 1.0), ("b", (1, 3), 1, 0, 1.0), ("z", (), 1, 9, 1.0),
        ("t", (4, 5), 1, 0, 1.0),
    ]  # fmt: skip
    nodes = tuple(
        CostNode(name, inputs, size, 1.0, energy, workspace_bytes=workspace)
        for name, inputs, size, workspace, energy in rows
    )
    problem = Problem(CostGraph("repeats f", nodes, storage=False), 10)
    best = cheapest(problem)
    assert best is not None
    assert best.energy_uj > 400  # f is computed twice in the stages of b and of t
    found = collected(BoundSearch(task_of(problem), Channel(print, lambda: False)))
    assert any(conflict.once for conflict in found["learnt"][-1].conflicts)
    assert max(found["bound"]) == pytest.approx(best.energy_uj, rel=1e-6)
