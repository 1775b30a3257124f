"""Modes that only overwrite an input: plans with them are the best, and bounds hold for all."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from poet_host.plan.problem import Problem
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from support.cost_graphs import general
from support.mode_graphs import in_place, normed, staying
from support.oracle import cheapest, smallest_ram_bytes

from tests.solver.test_solve_modes import agree, bounds_of

PROOF = Settings(60.0, gap=0.0, placed=False, counted=True)


def problems(seeds: range, most_nodes: int = 7) -> Iterator[Problem]:
    """Problems of all kinds. In each, RAM is about the least for which there is a plan."""
    for seed in seeds:
        rng = random.Random(seed)
        graph = in_place(normed(seed) if seed % 2 else general(seed, most_nodes), seed)
        if seed % 10 == 0:
            graph = staying(graph, seed)
        elif seed % 3 == 0:
            graph = replace(graph, base_power_uw=1e6)
        least = smallest_ram_bytes(graph) or 0
        yield Problem(graph, least + rng.choice((0, 0, 1, 4)))


def compare_with_oracle(seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for problem in problems(seeds):
        best, plan = cheapest(problem), solve(problem, PROOF)
        agree(problem, plan, best)
        computed = [it.node for it in plan.statements if it.op == "compute"]
        chosen = [it.node for it in plan.statements if it.mode]
        found["in place"] += bool(chosen)
        found["again, in place"] += any(computed.count(name) > 1 for name in chosen)
        found["none"] += best is None
    return found


def test_the_best_plan_is_found_and_proved() -> None:
    found = compare_with_oracle(range(10))
    assert found["in place"] > 2, found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 50))
def test_the_optimum_is_that_of_exhaustive_search(first: int) -> None:
    found = compare_with_oracle(range(first, first + 50))
    assert min(found["in place"], found["again, in place"]) > 4, found


@pytest.mark.parametrize("options", [{"strict": {}}, {}, {"conflict_stages": {1, 2, 3}}])
def test_every_model_bounds_all_plans(options: dict[str, object]) -> None:
    assert bounds_of(problems(range(400, 412)), options) > 3
