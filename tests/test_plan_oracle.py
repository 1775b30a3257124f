"""The exhaustive search is itself right: against brute force, against the verifier."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from cost_graphs import COUNTER_EXAMPLES, general, problem_of, random_problem, training
from oracle import cheapest, smallest_energy
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import PlanError, Totals, verify


def check(problem: Problem, statements: tuple[Statement, ...]) -> Totals:
    plan = Plan(
        "feasible", problem.ram_bytes, None, None, None, None, None, None, None, 0.0, statements
    )
    return verify(problem, plan, placed=False)


def brute_force(problem: Problem, longest: int) -> Totals | None:
    """The cheapest plan of at most `longest` statements, by trying them all.

    Only the verifier decides what is legal: a plan whose only fault is that something is
    missing at its end may be continued, any other fault ends the search there.
    """
    ops = ("compute", "free") + (("page_in", "page_out") if problem.graph.storage else ())
    every = [Statement(op, node.name) for node in problem.graph.nodes for op in ops]
    best: Totals | None = None

    def legal(statements: tuple[Statement, ...]) -> Iterator[tuple[tuple[Statement, ...], bool]]:
        for statement in every:
            longer = (*statements, statement)
            try:
                yield longer, check(problem, longer) is not None
            except PlanError as error:
                if error.law in ("computed", "keep"):
                    yield longer, False

    border: list[tuple[Statement, ...]] = [()]
    for _ in range(longest):
        following = []
        for statements in border:
            for longer, complete in legal(statements):
                following.append(longer)
                if complete:
                    totals = check(problem, longer)
                    if best is None or totals.energy_uj < best.energy_uj:
                        best = totals
        border = following
    return best


def node(name: str, size: int, *inputs: int, **more: object) -> CostNode:
    costs = {
        "energy_uj": 3.0,
        "time_us": 2.0,
        "page_in_uj": 1.0,
        "page_out_uj": 1.5,
        "page_in_us": 5.0,
        "page_out_us": 4.0,
    }
    return CostNode(name, inputs, size, **(costs | more))  # type: ignore[arg-type]


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
    graph, ram_bytes = TINY[name]
    problem = Problem(graph, ram_bytes)
    best = brute_force(problem, longest=7)
    expected = None if best is None else best.energy_uj
    assert smallest_energy(problem) == expected
    assert (name == "too small") == (expected is None)


@pytest.mark.parametrize("seed", range(30))
def test_equals_brute_force_on_random_graphs_with_and_without_a_deadline(seed: int) -> None:
    problem = problem_of(general(seed, 3), seed)
    best = brute_force(problem, longest=6)
    found = cheapest(problem)
    if found is not None and len(found.statements) > 6:
        assert best is None or best.energy_uj >= found.energy_uj
        return
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert found.energy_uj == best.energy_uj
    tight = replace(problem, deadline_us=0.8 * best.time_us)
    expected = brute_force(tight, longest=6)
    timed = cheapest(tight)
    if timed is not None and len(timed.statements) > 6:
        assert expected is None or expected.energy_uj >= timed.energy_uj
    else:
        assert (timed is None) == (expected is None)
        assert timed is None or expected is None or timed.energy_uj == expected.energy_uj


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda example: example.__name__)
def test_counter_examples(example: Callable[[], tuple[Problem, float]]) -> None:
    problem, energy_uj = example()
    assert smallest_energy(problem) == energy_uj


def test_what_it_finds_is_legal_and_costs_what_it_says() -> None:
    feasible = 0
    for seed in range(150):
        problem = random_problem(seed)
        best = cheapest(problem)
        if best is not None:
            feasible += 1
            totals = check(problem, best.statements)
            assert totals.energy_uj == pytest.approx(best.energy_uj, rel=1e-12)
    assert feasible > 100


def test_a_deadline_costs_energy_or_more_than_there_is() -> None:
    kinds = {"free": 0, "dearer": 0, "impossible": 0}
    for seed in range(300):
        problem = problem_of(general(seed, 6), seed)
        best = cheapest(problem)
        if best is None:
            continue
        slowest = check(problem, best.statements).time_us
        for share in (1.0, 0.95, 0.85, 0.7):
            timed = replace(problem, deadline_us=share * slowest)
            found = cheapest(timed)
            if found is None:
                kinds["impossible"] += 1
                continue
            assert check(timed, found.statements).energy_uj == found.energy_uj
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
    graphs = [make(seed) for seed in range(200) for make in (general, training)]
    assert all(len(graph.nodes) <= 9 for graph in graphs)
    nodes = [node for graph in graphs for node in graph.nodes]
    for flag in ("stored", "keep", "once", "workspace_bytes"):
        assert sum(bool(getattr(node, flag)) for node in nodes) > 100
    assert sum(node.overwrites is not None for node in nodes) > 50
    assert 50 < sum(graph.storage for graph in graphs) < 350
    for graph in graphs:
        for i, made in enumerate(graph.nodes):
            assert all(j < i for j in made.inputs)
            if made.overwrites is not None:
                assert made.overwrites in made.inputs
                assert graph.nodes[made.overwrites].bytes == made.bytes
