"""Counted work: plans that do not depend on the computer's other work."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from poet_host import api, work
from poet_host.baselines.registry import plan_by
from poet_host.errors import BadInput
from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem
from poet_host.solver.settings import Settings, Stopwatch

from bench import graphs
from bench.points import Point

TRAINING = Point("resnet8-cifar", graphs.M4, 40, training=True)


def same(first: Plan, second: Plan) -> bool:
    return replace(first, solve_s=0.0) == replace(second, solve_s=0.0)


@contextmanager
def busy_computer() -> Iterator[None]:
    """Run more processes than the computer has processors."""
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def counted(problem: Problem, method: str = "poet", limit_s: float = 3.0, **more: Any) -> Plan:
    return plan_by(method, problem, Settings(limit_s, 1e-4, counted=True, **more))


def test_a_work_limit_gives_the_same_plan_on_a_busy_computer() -> None:
    problem = TRAINING.problem()
    first = counted(problem)
    with busy_computer():
        second = counted(problem)
    assert same(first, second)
    assert first.stopped_by == "work-limit"
    assert first.bound is not None
    more = counted(problem, limit_s=9.0)
    assert more.value is not None
    assert first.value is not None
    assert more.bound is not None
    assert (more.value, -more.bound) < (first.value, -first.bound)


@pytest.mark.parametrize("method", ["checkmate", "dtr", "griewank", "pofo"])
def test_published_methods_count_their_work(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Point("linear", graphs.M4, 60).problem()
    first = plan_by(method, problem, Settings(2.0, 1e-3))
    clock = time.monotonic
    began_s = clock()
    # The computer's clock runs a hundred times as fast.
    monkeypatch.setattr(time, "monotonic", lambda: began_s + 100 * (clock() - began_s))
    assert same(first, plan_by(method, problem, Settings(2.0, 1e-3)))
    assert first.statements


def test_deadlines_and_interrupts_work_with_counted_work() -> None:
    late = Point("linear", graphs.M4, 50, deadline=1.2).problem()
    assert counted(late).stopped_by in ("proof", "gap")

    def progress(value: float | None, bound: float, gap: float | None, elapsed_s: float) -> None:
        if value is not None:
            raise KeyboardInterrupt

    plan = counted(TRAINING.problem(), progress=progress)
    assert plan.stopped_by == "interrupt"
    assert plan.statements


def test_the_clock_of_searches() -> None:
    assert work.counted_s() is None
    work.add(1.0)
    assert work.counted_s() is None
    with work.counting():
        watch = Stopwatch(2.0)
        work.add(0.5)
        with work.counting(from_s=7.0):  # goes on with the outer count
            work.add(0.25)
        assert (work.now_s(), watch.left_s) == (0.75, 1.25)
        work.move_to(None)
        work.move_to(3.0)
        assert watch.left_s == 0.0
    assert work.counted_s() is None
    assert abs(work.now_s() - time.monotonic()) < 60


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_wrong_work_limit_is_refused(limit: float) -> None:
    with pytest.raises(BadInput, match="work limit"):
        api.solve(TRAINING.problem(), work_limit=limit)
