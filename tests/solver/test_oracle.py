"""The exhaustive search is itself right: against brute force, against the verifier."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

import pytest
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import PlanError, Totals, _Machine
from support.cost_graphs import (
    COUNTER_EXAMPLES,
    contested_problem,
    contrary,
    general,
    problem_of,
    random_problem,
    swept,
    tight_problem,
    training,
)
from support.mode_graphs import kinds_of, mode_graph, mode_problem, timed_mode_problems
from support.oracle import cheapest, fastest, smallest_energy, smallest_ram_bytes
from support.plans import node_with, totals


def least_by_machine(problem: Problem, most_states: int = 2_000) -> Totals | None:
    """The cheapest plan of any length: every statement that the verifier's machine takes, from
    every state that it reaches, cheapest first; only equal states are the same.

    Raises ManyStates beyond `most_states`.
    """
    start = _Machine(problem.graph, problem.ram_bytes, placed=False)
    try:
        start.start(Plan("feasible", problem.ram_bytes))
    except PlanError:
        return None
    ops = ("compute", "free") + (("page_in", "page_out") if problem.graph.storage else ())
    every = [Statement(op, node.name) for node in problem.graph.nodes for op in ops]
    every += [
        Statement("compute", node.name, mode=number)
        for node in problem.graph.nodes
        for number in range(1, len(node.modes) + 1)
    ]
    tie = count()
    heap = [(0.0, next(tie), start)]
    seen: set[object] = set()
    while heap:
        _, _, machine = heappop(heap)
        state = state_of(machine, problem.deadline_us is not None)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > most_states:
            raise ManyStates
        with suppress(PlanError):
            return copy(machine).end()
        for statement in every:
            following = copy(machine)
            for places in ("ram", "storage", "done", "arrival", "written"):
                setattr(following, places, copy(getattr(machine, places)))
            try:
                following.execute(0, statement)
            except PlanError:
                continue
            end_us = max(following.p, following.x)
            if problem.deadline_us is None or end_us <= problem.deadline_us * (1 + 1e-9):
                heappush(heap, (following.energy_uj, next(tie), following))
    return None


class ManyStates(Exception):
    """The machine has too many states for a test."""


def state_of(machine: _Machine, timed: bool) -> object:
    """All that decides what the machine can still do; a wait that is over is none."""
    places = (frozenset(machine.ram), frozenset(machine.storage), len(machine.done))
    if not timed:
        return places
    waits = [
        frozenset(
            (i, until) for i, until in times.items() if i in machine.ram and until > machine.p
        )
        for times in (machine.arrival, machine.written)
    ]
    return (*places, machine.p, max(machine.p, machine.x), *waits)


node = node_with(
    energy_uj=3.0, time_us=2.0, page_in_uj=1.0, page_out_uj=1.5, page_in_us=5.0, page_out_us=4.0
)
TINY = {
    "chain": (CostGraph("g", (node("a", 2), node("b", 2, 0), node("c", 1, 0))), 4),
    "recompute": (CostGraph("g", (node("a", 2), node("b", 4), node("c", 1, 0)), storage=False), 4),
    "cheap again": (
        CostGraph("g", (node("a", 2, energy_uj=1.0), node("b", 4), node("c", 1, 0))),
        4,
    ),
    "page": (CostGraph("g", (node("a", 2, energy_uj=9.0), node("b", 4), node("c", 1, 0))), 4),
    "update": (
        CostGraph("g", (node("w", 2, stored=True), node("u", 2, 0, overwrites=0, keep=True))),
        2,
    ),
    "workspace": (
        CostGraph("g", (node("a", 1), node("b", 1, workspace_bytes=2), node("c", 1, 0, 1))),
        3,
    ),
    "overwritten input": (
        CostGraph("g", (node("a", 1), node("b", 1, 0, overwrites=0), node("c", 1, 0))),
        2,
    ),
    "too small": (CostGraph("g", (node("a", 2), node("b", 2, 0))), 3),
}


@pytest.mark.parametrize("name", TINY)
def test_equals_brute_force(name: str) -> None:
    problem = Problem(*TINY[name])
    best = least_by_machine(problem)
    assert smallest_energy(problem) == (None if best is None else best.energy_uj)
    assert (name == "too small") == (best is None)


@pytest.mark.parametrize("seed", range(30))
def test_equals_brute_force_on_random_graphs_with_and_without_a_deadline(seed: int) -> None:
    problem = problem_of(general(seed, 3), seed)
    best, found = least_by_machine(problem), cheapest(problem)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert found.energy_uj == best.energy_uj
    tight = replace(problem, deadline_us=0.8 * totals(problem, found.statements).time_us)
    expected, timed = least_by_machine(tight, 20_000), cheapest(tight)
    assert (timed is None) == (expected is None)
    assert timed is None or expected is None or timed.energy_uj == expected.energy_uj


@pytest.mark.slow
def test_no_plan_with_modes_beats_it() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(40):
        free = mode_problem(seed, 3, "added-energy")
        for problem in (free, *timed_mode_problems(seed, 3)):
            try:
                least = least_by_machine(problem, 1_000)
            except ManyStates:
                kinds["skipped"] += 1
                continue
            best = cheapest(problem)
            assert (best is None) == (least is None), seed
            if best is None or least is None:
                kinds["none"] += 1
                continue
            assert best.energy_uj == pytest.approx(least.energy_uj, rel=1e-12, abs=1e-12), seed
            kinds["modes" if any(it.mode for it in best.statements) else "mode 0"] += 1
    assert kinds["skipped"] < sum(kinds.values()) / 3, kinds
    assert min(kinds[kind] for kind in ("none", "modes", "mode 0")) > 12, kinds


@pytest.mark.slow
def test_modes_are_drawn_of_every_kind_and_their_best_plans_are_legal() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(120):
        kinds.update(kinds_of(mode_graph(seed)))
        problem = mode_problem(seed, 6)
        best = cheapest(problem)
        if best is None:
            continue
        spent = totals(problem, best.statements)
        assert spent.energy_uj == pytest.approx(best.energy_uj, rel=1e-12, abs=1e-12)
        assert best.time_us is None or spent.time_us == pytest.approx(best.time_us, rel=1e-12)
        computed = [it.node for it in best.statements if it.op == "compute"]
        kinds["plans with modes"] += any(it.mode for it in best.statements)
        kinds["again"] += len(set(computed)) < len(computed)
    assert min(kinds.values()) > 4, kinds
    assert kinds["plans with modes"] > 50, kinds


@pytest.mark.slow
def test_no_plan_of_any_length_beats_it() -> None:
    """Idle frees, repeated pages, every order: with and without a deadline."""
    kinds: Counter[str] = Counter()
    for seed in range(80):
        free = tight_problem(seed, 4, 0.8) if seed % 2 else random_problem(seed, 4)
        quick = fastest(free)
        least_us = (quick and quick.time_us) or 0.0
        limits = [least_us * share for share in (1.1, 1, 1 - 1e-6)] if least_us else []
        for timed in [free, *(replace(free, deadline_us=limit_us) for limit_us in limits)]:
            try:
                least = least_by_machine(timed)
            except ManyStates:
                kinds["skipped"] += 1
                continue
            best = cheapest(timed)
            assert (best is None) == (least is None), seed
            if best is not None and least is not None:
                assert best.energy_uj == pytest.approx(least.energy_uj, rel=1e-12), seed
            kinds["none" if best is None else "free" if timed is free else "timed"] += 1
    assert kinds["skipped"] < sum(kinds.values()) / 3, kinds
    assert min(kinds[kind] for kind in ("none", "free", "timed")) > 40, kinds


@pytest.mark.slow
def test_nothing_finishes_before_the_fastest_and_speed_costs_energy() -> None:
    for seed in range(120):
        problem, least_us = contested_problem(seed)
        quick, cheap = fastest(problem), cheapest(problem)
        assert quick is not None
        assert cheap is not None
        spent = totals(problem, quick.statements)
        assert (spent.energy_uj, spent.time_us) == (quick.energy_uj, quick.time_us)
        assert quick.time_us == least_us
        assert cheapest(replace(problem, deadline_us=least_us * (1 - 1e-6))) is None
        met = cheapest(replace(problem, deadline_us=least_us))
        assert met is not None
        assert cheap.energy_uj < met.energy_uj <= quick.energy_uj


def test_the_smallest_budget_is_where_plans_begin() -> None:
    for seed in range(100):
        graph = contrary(seed, 6)
        least_bytes = smallest_ram_bytes(graph)
        if least_bytes is None:
            assert cheapest(Problem(graph, 1 << 40)) is None
            continue
        assert cheapest(Problem(graph, least_bytes)) is not None
        assert least_bytes == 0 or cheapest(Problem(graph, least_bytes - 1)) is None


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda example: example.__name__)
def test_counter_examples(example: Callable[[], tuple[Problem, float]]) -> None:
    problem, energy_uj = example()
    assert smallest_energy(problem) == energy_uj


@pytest.mark.slow
def test_what_it_finds_is_legal_and_costs_what_it_says() -> None:
    feasible = 0
    for seed in range(150):
        problem = random_problem(seed)
        best = cheapest(problem)
        if best is not None:
            feasible += 1
            spent = totals(problem, best.statements)
            assert spent.energy_uj == pytest.approx(best.energy_uj, rel=1e-12)
    assert feasible > 100


@pytest.mark.slow
def test_a_deadline_costs_energy_or_more_than_there_is() -> None:
    kinds = {"free": 0, "dearer": 0, "impossible": 0}
    for seed in range(300):
        problem = problem_of(general(seed, 6), seed)
        best = cheapest(problem)
        if best is None:
            continue
        slowest = totals(problem, best.statements).time_us
        for share in (1.0, 0.95, 0.85, 0.7):
            timed = replace(problem, deadline_us=share * slowest)
            found = cheapest(timed)
            if found is None:
                kinds["impossible"] += 1
                continue
            assert totals(timed, found.statements).energy_uj == found.energy_uj
            assert found.energy_uj >= best.energy_uj
            kinds["free" if found.energy_uj == best.energy_uj else "dearer"] += 1
            assert share < 1.0 or found.energy_uj == best.energy_uj
    assert min(kinds.values()) > 5, kinds


def test_methods_are_the_same_search_with_less_allowed() -> None:
    dearer = {"paging": 0, "recomputing": 0}
    for seed in range(150):
        problem = random_problem(seed, 7)
        best = smallest_energy(problem)
        for kind, options in (
            ("paging", {"recompute": False}),
            ("recomputing", {"page": False}),
        ):
            restricted = smallest_energy(problem, **options)
            if restricted is not None:
                assert best is not None
                assert best <= restricted
            dearer[kind] += restricted != best
    assert min(dearer.values()) > 5, dearer


def test_generators_cover_what_they_promise() -> None:
    graphs = [make(seed) for seed in range(200) for make in (general, training, contrary, swept)]
    assert all(len(graph.nodes) <= 9 for graph in graphs)
    nodes = [node for graph in graphs for node in graph.nodes]
    for flag in ("stored", "keep", "once", "workspace_bytes"):
        assert sum(bool(getattr(node, flag)) for node in nodes) > 100
    assert sum(node.overwrites is not None for node in nodes) > 50
    assert 50 < sum(graph.storage for graph in graphs) < 750
    for graph in graphs:
        for i, made in enumerate(graph.nodes):
            assert all(j < i for j in made.inputs)
            if made.overwrites is not None:
                assert made.overwrites in made.inputs
                assert graph.nodes[made.overwrites].bytes == made.bytes
