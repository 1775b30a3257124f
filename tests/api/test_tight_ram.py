"""Operators that hardly fit the RAM: planned whole first, and then with streams."""

import pickle
from dataclasses import replace
from typing import Any

import poet_host as poet
import pytest
from poet_host.plan.plan import Plan
from poet_host.plan.verify import verify
from poet_host.solver.policy import DEFAULT_POLICY
from poet_host.solver.solve import better, may_stream

BOARD = "mkr1000"
LARGEST_BYTES = 14_536  # of an operator of resnet-digits


def digits() -> poet.Graph:
    graph = poet.load("resnet-digits")
    assert isinstance(graph, poet.Graph)
    return graph


def plan(value: float, bound: float | None, **more: object) -> Plan:
    gap = None if bound is None else 1 - bound / value
    costs = {"energy_uj": value, "total_energy_uj": value, "bound": bound, "gap": gap}
    return replace(Plan("feasible", 1000, stopped_by="time-limit", solve_s=1.0), **costs | more)  # type: ignore[arg-type]


NONE = Plan("infeasible", 1000, stopped_by="proof", solve_s=1.0)


def test_only_operators_that_hardly_fit_may_stream_later() -> None:
    graph = digits()

    def streams_later(**limits: Any) -> bool:
        return may_stream(poet.problem(graph, BOARD, **limits), DEFAULT_POLICY)

    assert streams_later(ram=LARGEST_BYTES)
    assert not streams_later(ram=24_576)
    assert not streams_later(ram=16_384, streaming=False)
    assert not streams_later(ram=16_384, storage=False)
    without_card = poet.estimate_profile(BOARD).without_card()
    small = poet.problem(graph, without_card, ram=LARGEST_BYTES - 4)
    assert small.streaming is small.streamable is None
    with pytest.raises(poet.BadInput, match="cannot stream"):
        poet.problem(graph, without_card, streaming=True)
    streams = poet.problem(graph, BOARD, ram=LARGEST_BYTES - 4)
    assert streams.streaming is not None
    assert not may_stream(streams, DEFAULT_POLICY)
    tight = poet.problem(graph, BOARD, ram=16_384)
    assert tight.streamable is graph
    assert not may_stream(tight, replace(DEFAULT_POLICY, tight_ram_share=0.9))
    for problem in (streams, tight):
        assert problem.graph.effects["free", 0, 0]  # made on demand, and not saved
        loaded = pickle.loads(pickle.dumps(problem))
        assert loaded == problem
        assert loaded.streaming == problem.streaming
        assert not loaded.graph.effects


def test_the_better_plan_has_a_bound_for_both_searches() -> None:
    for first, second in ((plan(10, 6), plan(8, 7)), (plan(8, 7), plan(10, 6))):
        best = better(first, second, 0.01)
        assert (best.value, best.bound, best.gap) == (8, 6, pytest.approx(0.25))
        assert (best.solve_s, best.stopped_by, best.status) == (2.0, "time-limit", "feasible")
    proved = plan(8, 8, status="optimal", stopped_by="proof")
    assert better(plan(10, 6), proved, 0.01).status == "feasible"
    assert better(plan(10, 9), proved, 0.01).status == "optimal"
    assert better(plan(10, None), plan(8, 7), 0.01).bound is None
    near = better(plan(10, 7.95), plan(8, 7.98), 0.01)
    assert (near.bound, near.stopped_by) == (7.95, "gap")


def test_a_search_that_proves_that_no_plan_exists_has_no_bound() -> None:
    assert better(NONE, plan(8, 7), 0.01).bound == 7
    assert better(NONE, NONE, 0.01).status == "infeasible"
    unknown = replace(NONE, status="unknown", stopped_by="time-limit")
    assert better(NONE, unknown, 0.01).status == "unknown"
    assert better(unknown, NONE, 0.01).status == "unknown"


def test_two_searches_give_a_valid_plan() -> None:
    graph = digits()
    seen: list[float] = []
    wanted = poet.problem(graph, BOARD, ram=16_384)
    found = poet.solve(
        wanted, work_limit=2_000, progress=lambda value, *_: seen.append(value or float("inf"))
    )
    assert found.problem is not None
    assert found.value == pytest.approx(min(seen))
    assert verify(found.problem, found).total_energy_uj == found.total_energy_uj
    assert poet.encode(graph, found).plan_part


def test_ctrl_c_while_operators_are_priced_keeps_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("poet_host.solver.solve.with_streaming", interrupt)
    found = poet.solve(poet.problem(digits(), BOARD, ram=16_384), time_limit_s=4, gap=0)
    assert (found.stopped_by, found.status) == ("interrupt", "feasible")


def test_a_proof_needs_no_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        pytest.fail("the operators were priced again")

    monkeypatch.setattr("poet_host.solver.solve.with_streaming", unwanted)
    wanted = poet.problem(digits(), BOARD, ram=16_384)
    assert poet.solve(wanted, time_limit_s=20, gap=0.5).stopped_by in ("gap", "proof")
    assert poet.solve(wanted, method="checkpoint-all").problem is wanted
