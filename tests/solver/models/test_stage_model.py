"""Laws of the stage model: what it says of all plans holds for the best plan there is."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from poet_host.plan.events import Event, energy_uj, events_of, fits, normal_order, tidy
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.models import conflicts, solution, stage_model
from poet_host.solver.models.stage_columns import Stage, StageModel
from poet_host.solver.modes import Modes
from poet_host.solver.program import (
    INFINITY,
    LaneTimes,
    Program,
    TimeLimits,
    Values,
    attainable,
    minimise,
)
from poet_host.solver.recompute_candidates import RecomputeCandidates, recomputable
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.unavoidable import unavoidable_uj
from support.cost_graphs import (
    beyond_exhaustive,
    contrary,
    random_cost_graph,
    random_problem,
    tight_problem,
    timed_problems,
)
from support.oracle import Best, cheapest, smallest_energy

from tests.solver.test_solve import honest

ENERGIES = ("energy_uj", "page_in_uj", "page_out_uj")
ROUNDS = 40  # of conflicts, at most
LIMIT_S = 20.0


def untied(problem: Problem, seed: int) -> Problem:
    """No two plans of it cost the same, and nothing is free; then the best plan wastes nothing."""
    rng = random.Random(f"untied {seed}")
    nodes = tuple(
        replace(node, **{key: getattr(node, key) + rng.uniform(0.01, 0.2) for key in ENERGIES})
        for node in problem.graph.nodes
    )
    return replace(problem, graph=replace(problem.graph, nodes=nodes))


def problems(seeds: Sequence[int]) -> Iterator[tuple[Problem, Best]]:
    """Problems with plans, and the best one of each; some have deadlines."""
    for seed in seeds:
        made = [random_problem(seed, 8), tight_problem(seed, 7, storage_share=0.7)]
        made += timed_problems(seed, 5)[1:3] if seed % 4 == 0 else []
        for problem in made:
            problem = untied(problem, seed)
            best = cheapest(problem)
            if best is not None:
                yield problem, best


def simplest(graph: CostGraph, best: Best) -> list[Event]:
    """The best plan in normal order; no energy depends on that, and it takes no more RAM."""
    return normal_order(graph, events_of(graph, best.statements))


def model_of(problem: Problem, overhead_uj: float = INFINITY, *, for_conflicts: bool) -> StageModel:
    graph, timed = problem.graph, problem.deadline_us is not None
    candidates = RecomputeCandidates(
        graph,
        recomputable(graph, recompute=True, page=graph.storage, deadline=timed),
        overhead=overhead_uj,
        conflict_stages=frozenset(range(len(graph.nodes) if for_conflicts else 0)),
    )
    limits = TimeLimits(problem.deadline_us)
    return stage_model.build(candidates, problem.ram_bytes, limits=limits)


def broken_rows(program: Program, values: Values) -> list[int]:
    """The rows that a solution breaks."""
    broken = []
    for row, (low, high) in enumerate(zip(program.row_lower, program.row_upper, strict=True)):
        terms = range(program.row_starts[row], program.row_starts[row + 1])
        total = sum(program.coefficients[k] * values[program.columns[k]] for k in terms)
        if not low - 1e-6 <= total <= high + 1e-6:
            broken.append(row)
    return broken


def cost_uj(program: Program, values: Values) -> float:
    return float(program.offset + np.dot(program.cost, values))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_best_plan_obeys_the_model_and_every_conflict(block: int) -> None:
    count = learned = 0
    for problem, best in problems(range(block * 15, block * 15 + 15)):
        events = simplest(problem.graph, best)
        assert fits(problem.graph, events, problem.ram_bytes)
        model = model_of(problem, for_conflicts=True)
        values = solution.values_of(model, events)
        assert cost_uj(model.program, values) <= best.energy_uj * (1 + 1e-9)
        for _ in range(ROUNDS):
            new = conflicts.violated_sets(model, values)
            for conflict in new:
                assert conflict.once
                assert conflicts.forbid(model, conflict)
            values = solution.values_of(model, events)
        assert not conflicts.violated_sets(model, values), problem.graph.name
        learned += _learn(model)
        values = solution.values_of(model, events)
        assert cost_uj(model.program, values) <= best.energy_uj * (1 + 1e-9)
        assert not broken_rows(model.program, values), problem.graph.name
        wrong = 1 - values
        assert model.program.violated_rows(wrong) == broken_rows(model.program, wrong)
        count += 1
    assert count > 15
    assert learned > 0


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_best_plan_obeys_any_conflict(block: int) -> None:
    """Of sets of recomputations that no solution suggests, too."""
    rng = random.Random(f"any conflict {block}")
    binding = 0
    for problem, best in problems(range(block * 25 + 200, block * 25 + 225)):
        model = model_of(problem, for_conflicts=True)
        events = simplest(problem.graph, best)
        values = solution.values_of(model, events)
        rows = model.program.shape[1]
        for index, stage in enumerate(model.stages):
            done = [i for i, column in stage.computed.items() if values[column] > 0.5]
            for _ in range(40 if done else 4):
                conflicts.forbid(model, any_conflict(rng, problem, stage, index, done))
        binding += model.program.shape[1] - rows
        values = solution.values_of(model, events)
        assert cost_uj(model.program, values) <= best.energy_uj * (1 + 1e-9)
        assert not broken_rows(model.program, values), problem.graph.name
    assert binding > 100


def any_conflict(
    rng: random.Random, problem: Problem, stage: Stage, index: int, done: list[int]
) -> conflicts.Conflict:
    others = [i for i in stage.computed if i not in done]
    members = [i for i in done if rng.random() < 0.8]
    computed = frozenset(members + rng.sample(others, min(len(others), rng.choice((0, 0, 1)))))
    kept = frozenset(i for i in sorted(computed & stage.used.keys()) if rng.random() < 0.7)
    outside = {i for j in computed for i in problem.graph.nodes[j].inputs} - computed
    passing = frozenset(i for i in sorted(outside) if rng.random() < 0.5)
    once = frozenset(i for i in sorted(computed) if rng.random() < rng.choice((0.0, 0.5, 1.0)))
    modes = Modes(problem.graph)
    peak = conflicts._least_peak(modes, computed, kept, passing, problem.ram_bytes, once)
    return conflicts.Conflict(index, computed, kept, passing, once, peak)


def there_when_the_stage_begins() -> Problem:
    """The last stage begins with j1 and j2 in RAM, computes k, and then each of them alone.

    With the first one in RAM, there is not enough for the second.
    """
    rows = [
        ("x", (), 38, 0), ("y", (0,), 1, 0), ("j1", (), 10, 24), ("j2", (), 10, 24),
        ("k", (2, 3), 1, 0), ("n", (2,), 4, 0), ("p", (3,), 4, 0), ("h", (), 4, 0),
        ("b", (2, 3), 20, 0), ("t", (4, 1, 5, 6, 7), 1, 0),
    ]  # fmt: skip
    nodes = tuple(
        CostNode(name, inputs, size, 1.0, 1000.0 if name == "h" else 1.0, workspace_bytes=workspace)
        for name, inputs, size, workspace in rows
    )
    return Problem(CostGraph("there when the stage begins", nodes, storage=False), 44)


def test_conflicts_allow_for_what_is_there_when_the_stage_begins() -> None:
    problem = there_when_the_stage_begins()
    best = cheapest(problem)
    assert best is not None
    assert best.energy_uj == 1016
    model = model_of(problem, for_conflicts=True)
    values = solution.values_of(model, simplest(problem.graph, best))
    assert not conflicts.violated_sets(model, values)
    _learn(model)
    values = solution.values_of(model, simplest(problem.graph, best))
    assert not broken_rows(model.program, values)
    large = beyond_exhaustive(problem)
    honest(solve(large, Settings(placed=False)), large, best.energy_uj)


def _learn(model: StageModel) -> int:
    """Forbid what solutions of the program break; how much that is."""
    learned = 0
    for _ in range(ROUNDS):
        found = minimise(model.program, LIMIT_S)
        assert found.outcome == "optimal"
        new = conflicts.violated_sets(model, found.values)
        if not [conflict for conflict in new if conflicts.forbid(model, conflict)]:
            break
        learned += len(new)
    return learned


@pytest.mark.slow
@pytest.mark.parametrize("for_conflicts", [False, True])
def test_a_solution_that_fits_costs_the_objective(for_conflicts: bool) -> None:
    fitting = 0
    for problem, best in problems(range(60, 90)):
        graph = problem.graph
        model = model_of(problem, for_conflicts=for_conflicts)
        found = minimise(model.program, LIMIT_S)
        assert found.outcome == "optimal"
        assert found.objective <= best.energy_uj * (1 + 1e-9)
        assert found.objective == pytest.approx(cost_uj(model.program, found.values), rel=1e-9)
        events = tidy(graph, solution.events(model, found.values))
        if fits(graph, events, problem.ram_bytes):
            fitting += 1
            assert energy_uj(graph, events) == pytest.approx(found.objective, rel=1e-6)
    assert fitting > 15


@pytest.mark.slow
@pytest.mark.parametrize("for_conflicts", [False, True])
def test_candidates_include_all_that_a_better_plan_can_afford(for_conflicts: bool) -> None:
    less = 0
    for problem, best in problems(range(90, 130)):
        overhead_uj = best.energy_uj - unavoidable_uj(problem.graph)
        model = model_of(problem, overhead_uj, for_conflicts=for_conflicts)
        everything = model_of(problem, for_conflicts=for_conflicts)
        less += model.program.shape < everything.program.shape
        found = minimise(model.program, LIMIT_S)
        assert found.objective <= best.energy_uj * (1 + 1e-9), problem.graph.name
        if for_conflicts:
            values = solution.values_of(model, simplest(problem.graph, best))
            assert not broken_rows(model.program, values), problem.graph.name
    assert less > 10


def test_least_peak_is_that_of_the_best_order() -> None:
    for seed in range(500):
        rng = random.Random(f"peak {seed}")
        graph = contrary(seed, 8) if seed % 2 else random_cost_graph(seed, 8)
        operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
        computed = frozenset(rng.sample(operators, min(len(operators), rng.randint(1, 5))))
        kept = frozenset(i for i in sorted(computed) if rng.random() < 0.5)
        outside = {i for j in computed for i in graph.nodes[j].inputs} - computed
        passing = frozenset(i for i in sorted(outside) if rng.random() < 0.5)
        found = conflicts._least_peak(Modes(graph), computed, kept, passing, 0)
        assert found == least_peak(graph, computed, kept, passing), graph.name


def least_peak(
    graph: CostGraph, computed: frozenset[int], kept: frozenset[int], passing: frozenset[int]
) -> int:
    """The least limit within which some walk computes all and ends with what is kept."""
    nodes = graph.nodes
    own = {
        j: nodes[j].workspace_bytes
        + (nodes[j].bytes if nodes[j].overwrites is None else 0)
        + sum(nodes[i].bytes for i in passing & set(nodes[j].inputs))
        for j in computed
    }
    every = chain.from_iterable(combinations(sorted(computed), n) for n in range(len(computed) + 1))
    sizes = {sum(nodes[i].bytes for i in subset) for subset in every}
    for limit in sorted({size + own[j] for size in sizes for j in computed}):
        border: list[tuple[frozenset[int], frozenset[int]]] = [(frozenset(), frozenset())]
        reached = set(border)
        while border:
            ram, done = border.pop()
            if done == computed and kept <= ram:
                return limit
            live = sum(nodes[i].bytes for i in ram)
            steps = [(ram - {i}, done) for i in ram]
            for j in computed - ram:
                if set(nodes[j].inputs) & computed <= ram and live + own[j] <= limit:
                    gone = {nodes[j].overwrites} - {None}
                    steps.append(((ram - gone) | {j}, done | {j}))
            border += [step for step in steps if step not in reached]
            reached.update(steps)
    raise AssertionError("there is always an order")


@pytest.mark.parametrize("seed", range(40))
def test_attainable_is_the_largest_sum_within_the_room(seed: int) -> None:
    rng = random.Random(f"attainable {seed}")
    sizes = [rng.choice((0, 4, 6, 12, 40)) * rng.choice((1, 3)) for _ in range(rng.randint(1, 8))]
    room = rng.randint(0, sum(sizes) + 1)
    every = chain.from_iterable(combinations(sizes, n) for n in range(len(sizes) + 1))
    reachable = max(total for total in map(sum, every) if total <= room)
    assert attainable(sizes, room) == (room if sum(sizes) <= room else reachable)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_without_exhaustive_search_it_is_as_honest(block: int) -> None:
    """The searches for large graphs, where exhaustive search can judge them."""
    proved = 0
    for seed in range(block * 50, block * 50 + 50):
        problem = random_problem(seed)
        large = beyond_exhaustive(problem)
        plan = solve(large, Settings(placed=False, time_limit_s=LIMIT_S))
        honest(plan, large, smallest_energy(problem))
        proved += plan.status in ("optimal", "infeasible")
    assert proved >= 0.95 * 50


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_without_exhaustive_search_deadlines_are_as_honest(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        for problem in timed_problems(seed)[1:3]:
            large = beyond_exhaustive(problem)
            plan = solve(large, Settings(placed=False, time_limit_s=3))
            honest(plan, large, smallest_energy(problem))


def test_what_occupies_a_lane_twice_is_one_term() -> None:
    program = Program()
    column, lanes = program.binary(0.0), LaneTimes()
    program.fix(column, 1.0)
    lanes.compute(2.0, 1.0, column)
    lanes.store(1.0, 4.0, column)
    lanes.add_to(program, TimeLimits(value_per_us=1.0))
    for integer in (False, True):
        assert minimise(program, LIMIT_S, integer=integer).bound == pytest.approx(5.0)
