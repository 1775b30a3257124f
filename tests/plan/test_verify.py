"""The verifier accepts good plans and names the law that each broken one breaks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from poet_host.errors import PoetError
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Op, Plan, Statement
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import PlanError, Totals, verify
from support.cost_graphs import random_problem
from support.oracle import cheapest
from support.plans import node_with, plan_of

node = node_with(
    energy_uj=8.0, time_us=10.0, page_in_us=4.0, page_in_uj=2.0, page_out_us=5.0, page_out_uj=3.0,
    page_in_cpu_us=1.0, page_out_cpu_us=2.0,
)  # fmt: skip


# w: a parameter; a uses it; b uses a; u renews w in place.
GRAPH = CostGraph(
    "step",
    (
        node("w", 8, stored=True),
        node("a", 4, 0),
        node("b", 4, 1, workspace_bytes=4),
        node("u", 8, 0, 2, overwrites=0, keep=True, once=True),
    ),
    base_power_uw=500.0,
)
PLAN = (
    Statement("page_in", "w", 0),
    Statement("compute", "a", 8),
    Statement("compute", "b", 12, 16),
    Statement("free", "a"),
    Statement("compute", "u", 0),
    Statement("page_out", "u"),
    Statement("free", "b"),
)
PROBLEM = Problem(GRAPH, 20)
BARE = replace(GRAPH, storage=False, base_power_uw=0.0)


def test_costs_by_hand() -> None:
    # p: a 4 + 10, b 24, u 34, its page-out takes 2; x: w 4, u 34 + 5.
    totals = verify(PROBLEM, plan_of(PLAN))
    assert totals == Totals(2 + 3 * 8 + 3, 39.0, 20, 29 + 500.0 * 39.0 / 1e6, 39.0)


def test_unplaced_bounds_the_sum_and_ignores_offsets() -> None:
    loose = [replace(it, offset=1, workspace_offset=-7) for it in PLAN]
    assert verify(PROBLEM, plan_of(loose), placed=False).peak_bytes == 20
    with pytest.raises(PlanError) as error:
        verify(replace(PROBLEM, ram_bytes=19), plan_of(loose), placed=False)
    assert error.value.law == "RAM"


def without(*indices: int) -> list[Statement]:
    return [it for i, it in enumerate(PLAN) if i not in indices]


def with_(index: int, *new: Statement) -> list[Statement]:
    return [*PLAN[:index], *new, *PLAN[index:]]


def changed(index: int, **more: Any) -> list[Statement]:
    return [replace(it, **more) if i == index else it for i, it in enumerate(PLAN)]


def s(op: Op, name: str, offset: int | None = None, workspace: int | None = None) -> Statement:
    return Statement(op, name, offset, workspace)


BROKEN: dict[str, tuple[str, int | None, str, list[Statement]]] = {
    # what is wrong: law, statement, node, statements
    "no such node": ("node", 1, "z", changed(1, node="z")),
    "input never paged in": ("input", 0, "a", without(0)),
    "input freed too early": ("input", 3, "b", [*PLAN[:2], PLAN[3], PLAN[2], *PLAN[4:]]),
    "input overwritten": ("input", 6, "a", [*PLAN[:5], s("free", "b"), s("compute", "a", 8)]),
    "computed while in RAM": ("twice", 2, "a", with_(2, s("compute", "a", 16))),
    "paged in while in RAM": ("twice", 1, "w", with_(1, s("page_in", "w", 8))),
    "freed twice": ("in RAM", 4, "a", with_(4, s("free", "a"))),
    "overwritten, then freed": ("in RAM", 7, "w", with_(7, s("free", "w"))),
    "paged out when freed": ("in RAM", 4, "a", with_(4, s("page_out", "a"))),
    "paged in, never out": ("on storage", 4, "a", with_(4, s("page_in", "a", 8))),
    "stored computed": ("stored", 0, "w", changed(0, op="compute")),
    "second before first": ("order", 1, "b", [PLAN[0], PLAN[2], PLAN[1], *PLAN[3:]]),
    "update before all else": ("order", 1, "u", [PLAN[0], PLAN[4]]),
    "update twice": (
        "once",
        8,
        "u",
        [*PLAN[:6], s("free", "u"), s("page_in", "w", 0), s("compute", "u", 0)],
    ),
    "never computed": ("computed", None, "u", list(PLAN[:4])),
    "nothing at all": ("computed", None, "a", []),
    "not kept": ("keep", None, "u", without(5)),
    "no offset": ("offset", 1, "a", changed(1, offset=None)),
    "offset not aligned": ("offset", 1, "a", changed(1, offset=10)),
    "offset negative": ("offset", 1, "a", changed(1, offset=-4)),
    "page-in without offset": ("offset", 0, "w", changed(0, offset=None)),
    "workspace without offset": ("offset", 2, "b", changed(2, workspace_offset=None)),
    "workspace not aligned": ("offset", 2, "b", changed(2, workspace_offset=18)),
    "output over input": ("overlap", 1, "a", changed(1, offset=4)),
    "workspace over output": ("overlap", 2, "b", changed(2, workspace_offset=12)),
    "workspace over input": ("overlap", 2, "b", changed(2, workspace_offset=8)),
    "beyond the budget": ("height", 1, "a", changed(1, offset=20)),
    "workspace beyond the budget": ("height", 2, "b", changed(2, workspace_offset=20)),
    "update next to its input": ("overwrites", 4, "u", changed(4, offset=12)),
    "update without offset": ("overwrites", 4, "u", changed(4, offset=None)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_plan(what: str) -> None:
    law, index, name, statements = BROKEN[what]
    with pytest.raises(PlanError) as error:
        verify(PROBLEM, plan_of(statements))
    assert (error.value.law, error.value.statement, error.value.node) == (law, index, name)
    assert law in str(error.value)
    assert name in str(error.value)
    assert isinstance(error.value, PoetError)


def test_index_of_update_twice_is_that_of_the_second_computation() -> None:
    _, index, _, statements = BROKEN["update twice"]
    assert index is not None
    assert statements[index] == s("compute", "u", 0)


def test_budget_is_exact() -> None:
    assert verify(PROBLEM, plan_of(PLAN)).peak_bytes == 20
    with pytest.raises(PlanError) as error:
        verify(replace(PROBLEM, ram_bytes=19), plan_of(PLAN))
    assert (error.value.law, error.value.statement) == ("RAM", 2)


def test_inputs_output_and_workspace_count_together() -> None:
    graph = CostGraph("g", (node("a", 4), node("b", 8, 0, workspace_bytes=3)))
    statements = [s("compute", "a", 0), s("compute", "b", 4, 12)]
    assert verify(Problem(graph, 15), plan_of(statements)).peak_bytes == 15
    with pytest.raises(PlanError, match="15 bytes"):
        verify(Problem(graph, 14), plan_of(statements), placed=False)


def test_overwriting_takes_no_memory_of_its_own() -> None:
    graph = CostGraph("g", (node("a", 8), node("b", 8, 0, overwrites=0)))
    plan = plan_of([s("compute", "a", 0), s("compute", "b", 0)])
    assert verify(Problem(graph, 8), plan).peak_bytes == 8


def test_the_copy_of_an_overwritten_tensor_stays_on_storage() -> None:
    again = s("page_in", "w", 0)
    totals = verify(PROBLEM, plan_of([*PLAN, s("free", "u"), again, s("free", "w")]))
    assert totals.energy_uj == 29 + 2


def test_page_out_again_is_legal_and_charged() -> None:
    plan = plan_of([*PLAN[:6], s("page_out", "u"), PLAN[6]])
    totals = verify(PROBLEM, plan)
    assert (totals.energy_uj, totals.time_us) == (32.0, 44.0)


def test_empty_tensors_need_no_room_but_offsets() -> None:
    graph = CostGraph("g", (node("a", 8), node("z", 0, 0), node("y", 0, 1)))
    statements = [s("compute", "a", 0), s("compute", "z", 4), s("compute", "y", 4)]
    assert verify(Problem(graph, 8), plan_of(statements)).peak_bytes == 8
    with pytest.raises(PlanError) as error:
        verify(Problem(graph, 8), plan_of([statements[0], s("compute", "z"), statements[2]]))
    assert error.value.law == "offset"


# Two lanes, one rule at a time. Costs: compute 10, page in 4 (cpu 1), page out 5 (cpu 2).
LANES: dict[str, tuple[list[Statement], float]] = {
    # a waits for w (4), then 14
    "compute waits for its input": ([s("page_in", "w"), s("compute", "a")], 14.0),
    # x of b: max(0, 0) + 4; p = 1, then 11: w arrives meanwhile
    "page-in runs during a computation": ([s("page_in", "w"), s("compute", "b")], 11.0),
    # transfers in turn: 4, 8; a waits for v: 18
    "transfers run in turn": ([s("page_in", "w"), s("page_in", "v"), s("compute", "c")], 18.0),
    # b until 10, out 15
    "page-out waits for the processor": ([s("compute", "b"), s("page_out", "b")], 15.0),
    # w 4, written 9; free waits
    "page-out waits for arrival": ([s("page_in", "w"), s("page_out", "w")], 9.0),
    "free waits for arrival": ([s("page_in", "w"), s("free", "w"), s("compute", "b")], 14.0),
    # b 10, written 15, free 15, d 25
    "free waits for writing": (
        [s("compute", "b"), s("page_out", "b"), s("free", "b"), s("compute", "d")],
        25.0,
    ),
    # without the free: b 10, written 15, p 12, d 22
    "no wait without a free": ([s("compute", "b"), s("page_out", "b"), s("compute", "d")], 22.0),
    # b 10, p 12, o waits for written(b) = 15: 25
    "overwriting waits for writing": (
        [s("compute", "b"), s("page_out", "b"), s("compute", "o")],
        25.0,
    ),
    # p = 10 when w is asked for: 14; a 24
    "page-in starts after what stands before it": (
        [s("compute", "b"), s("page_in", "w"), s("compute", "a")],
        24.0,
    ),
}
WORLD = (
    node("w", 4, stored=True),
    node("v", 4, stored=True),
    node("a", 4, 0),
    node("b", 4),
    node("c", 4, 0, 1),
    node("d", 4),
    node("o", 4, 3, overwrites=3),
)


@pytest.mark.parametrize("rule", LANES)
def test_two_lanes(rule: str) -> None:
    statements, time_us = LANES[rule]
    order = [it.node for it in statements if it.op == "compute"]
    computed = sorted((n for n in WORLD if n.name in order), key=lambda n: order.index(n.name))
    kept = [*(n for n in WORLD if n.stored), *computed]
    place = {n.name: i for i, n in enumerate(kept)}
    nodes = tuple(
        replace(
            n,
            inputs=tuple(place[WORLD[j].name] for j in n.inputs),
            overwrites=None if n.overwrites is None else place[WORLD[n.overwrites].name],
        )
        for n in kept
    )
    problem = Problem(CostGraph("lanes", nodes), 100, deadline_us=time_us)
    assert verify(problem, plan_of(statements), placed=False).time_us == time_us
    with pytest.raises(PlanError) as error:
        verify(replace(problem, deadline_us=time_us - 1), plan_of(statements), placed=False)
    assert (error.value.law, error.value.statement) == ("deadline", None)


def test_deadline_allows_a_relative_1e9() -> None:
    plan = plan_of(PLAN)
    verify(replace(PROBLEM, deadline_us=39.0 / (1 + 0.5e-9)), plan)
    with pytest.raises(PlanError):
        verify(replace(PROBLEM, deadline_us=39.0 / (1 + 2e-9)), plan)


def bare_plan(**more: object) -> Plan:
    """The step on a board without storage: w starts in RAM."""
    return plan_of([it for it in PLAN if it.op not in ("page_in", "page_out")], **more)


def test_without_storage_stored_tensors_start_in_ram() -> None:
    assert verify(Problem(BARE, 20), bare_plan()) == Totals(24.0, 30.0, 20, 24.0, 30.0)


def test_without_storage_initial_offsets_count() -> None:
    moved = [replace(it, offset=4) if it.node == "u" else it for it in bare_plan().statements]
    moved = [replace(it, offset=0) if it.node == "a" else it for it in moved]
    plan = plan_of(moved, initial_offsets=(("w", 4),))
    assert verify(Problem(BARE, 20), plan).peak_bytes == 20
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 20), plan_of(moved))
    assert (error.value.law, error.value.node) == ("overlap", "a")


@pytest.mark.parametrize("offset", [-4, 2, 16])
def test_without_storage_initial_offsets_are_checked(offset: int) -> None:
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 20), bare_plan(initial_offsets=(("w", offset),)))
    assert (error.value.statement, error.value.node) == (None, "w")
    assert error.value.law == ("height" if offset == 16 else "offset")


def test_without_storage_a_stored_tensor_must_have_an_initial_offset() -> None:
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 20), bare_plan(initial_offsets=(("other", 0),)))
    assert (error.value.law, error.value.node) == ("offset", "w")


def test_without_storage_the_start_must_fit() -> None:
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 4), bare_plan(), placed=False)
    assert (error.value.law, error.value.statement, error.value.node) == ("RAM", None, "w")


@pytest.mark.parametrize("op", ["page_in", "page_out"])
def test_without_storage_nothing_is_paged(op: Op) -> None:
    statements = [*bare_plan().statements, s(op, "u", 0)]
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 20), plan_of(statements))
    assert error.value.law == "no storage"


def test_without_storage_keep_means_in_ram() -> None:
    with pytest.raises(PlanError) as error:
        verify(Problem(BARE, 20), plan_of([*bare_plan().statements, s("free", "u")]))
    assert (error.value.law, error.value.node) == ("keep", "u")


def test_true_claims_pass() -> None:
    claims = {
        "energy_uj": 29.0,
        "time_us": 39.0 * (1 + 0.9e-9),
        "peak_bytes": 20,
        "total_energy_uj": 29.0195,
        "objective": "added-energy",
        "bound": 26.1,
        "gap": 0.1,
    }
    verify(PROBLEM, plan_of(PLAN, **claims))


FALSE_CLAIMS: dict[str, dict[str, object]] = {
    "energy": {"energy_uj": 28.9},
    "energy not a number": {"energy_uj": float("nan")},
    "time": {"time_us": 39.0 * (1 + 2e-9)},
    "peak": {"peak_bytes": 24},
    "total energy": {"total_energy_uj": 29.0},
    "bound above energy": {"bound": 29.1},
    "gap": {"bound": 26.1, "gap": 0.0},
    "optimal without a bound": {"status": "optimal"},
    "optimal with a gap": {"status": "optimal", "bound": 26.1, "gap": 0.1},
}


@pytest.mark.parametrize("what", FALSE_CLAIMS)
def test_false_claims(what: str) -> None:
    with pytest.raises(PlanError) as error:
        verify(PROBLEM, plan_of(PLAN, **FALSE_CLAIMS[what]))
    assert error.value.law == "claim"


MUTATIONS: dict[str, Callable[[list[Statement], int], list[Statement]]] = {
    "drop": lambda plan, i: plan[:i] + plan[i + 1 :],
    "repeat": lambda plan, i: [*plan[: i + 1], plan[i], *plan[i + 1 :]],
}


def test_good_plans_of_random_problems_pass_and_mutants_of_them_fail_or_stay_legal() -> None:
    """A mutant that passes must cost what its statements cost, and be no better than best."""
    laws: Counter[str] = Counter()
    for seed in range(60):
        problem = random_problem(seed, 7)
        best = cheapest(problem)
        if best is None:
            continue
        plan = plan_of(best.statements, energy_uj=best.energy_uj)
        verify(problem, plan, placed=False)
        for mutate in MUTATIONS.values():
            for i in range(len(best.statements)):
                mutant = plan_of(mutate(list(best.statements), i))
                law, energy_uj = law_broken(problem, mutant)
                laws[law] += 1
                assert law or energy_uj >= best.energy_uj * (1 - 1e-9)
    assert set(laws) <= {
        *("", "input", "twice", "in RAM", "on storage", "order", "once", "computed", "keep", "RAM")
    }
    assert laws[""] > 20
    assert laws.total() - laws[""] > 300


def law_broken(problem: Problem, plan: Plan) -> tuple[str, float]:
    """The law, or "" and the plan's energy."""
    try:
        return "", verify(problem, plan, placed=False).energy_uj
    except PlanError as error:
        return error.law, 0.0


def test_keep_everything_passes_under_its_own_height_and_not_under_less() -> None:
    for seed in range(40):
        graph = random_problem(seed).graph
        try:
            plan = keep_everything(graph)
        except PoetError:
            continue
        assert plan.peak_bytes is not None
        verify(Problem(graph, plan.peak_bytes), plan)
        if plan.peak_bytes:
            with pytest.raises(PlanError) as error:
                verify(Problem(graph, plan.peak_bytes - 1), plan)
            assert error.value.law in ("RAM", "height")
