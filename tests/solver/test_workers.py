"""The processes in which the solver runs: they end, stop, fail and are replaced as promised."""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import Problem
from poet_host.plan.verify import verify
from poet_host.solver.bound_search import search_bounds
from poet_host.solver.portfolio import Portfolio
from poet_host.solver.primal_search import search_plans
from poet_host.solver.search import Task
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve
from poet_host.solver.workers import POOL, Channel, Pool, ends_within
from support.command import Process, spawn
from support.cost_graphs import random_problem
from support.oracle import smallest_energy
from support.processor_time import solve_timed

from bench import graphs
from bench.points import Point

BERT = graphs.INSTANCES / "ref-bert-m4.graph.json"
SOON_S = 20.0  # for what takes well under a second on an idle machine


def wait_for(what: Callable[[], Any]) -> Any:
    """The first true value within SOON_S."""
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def processes() -> list[tuple[int, int]]:
    """Process and parent of all that run; what is dead but not yet waited for does not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                found.append((int(path.parent.name), int(parent)))
    return found


def children(process: "subprocess.Popen[str]") -> list[int]:
    return [pid for pid, parent in processes() if parent == process.pid]


def running(pids: list[int]) -> set[int]:
    return {pid for pid, _ in processes()} & set(pids)


def poet(*arguments: object) -> Process:
    """The command line in a process of its own."""
    return spawn(*arguments, start_new_session=True)


def press_ctrl_c(process: "subprocess.Popen[str]") -> None:
    """As a terminal does: for the whole group of processes."""
    os.killpg(process.pid, signal.SIGINT)


def workers_of(process: "subprocess.Popen[str]", count: int) -> list[int]:
    return wait_for(lambda: found if len(found := children(process)) >= count else None)


def bert(percent: int) -> Problem:
    return Point("bert", graphs.M4, percent).problem()


def hang(channel: Channel) -> None:
    channel.emit("begun", os.getpid())
    time.sleep(60)


def until_stopped(channel: Channel) -> None:
    channel.emit("begun", os.getpid())
    while not channel.is_stopped():
        time.sleep(0.01)


def fail(*arguments: object) -> None:
    raise ValueError("no such luck")


def die(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def pool() -> Any:
    own = Pool()
    yield own
    for worker in own._idle:
        worker.end()


@pytest.mark.slow
def test_workers_die_with_a_parent_that_is_killed() -> None:
    process = poet("solve", BERT, "--ram", "10%", "--time-limit", "60")
    workers = workers_of(process, 2)
    assert running(workers) == set(workers)
    process.kill()
    process.communicate()
    wait_for(lambda: not running(workers))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_command_writes_the_best_plan_so_far(
    sent: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    process = poet("solve", BERT, "--ram", "10%", "--plan", path, "--time-limit", 60, "--json")
    workers = workers_of(process, 2)  # the bound search starts after the first plans
    os.killpg(process.pid, sent)
    out, error = process.communicate(timeout=SOON_S)
    assert process.returncode == 128 + sent, error
    assert "interrupted" in error
    assert "Traceback" not in error
    plan = plan_from_json(json.loads(path.read_text()))
    assert plan.status == "feasible"
    assert plan.gap is not None
    assert plan.gap > 0
    assert json.loads(out)["gap"] == plan.gap
    verify(bert(10), plan)
    wait_for(lambda: not running(workers))


@pytest.mark.slow
def test_interrupted_command_without_a_plan_says_so() -> None:
    process = poet("solve", BERT, "--ram", "12%", "--method", "poet-remat", "--time-limit", "60")
    workers_of(process, 1)  # that has yet to begin
    press_ctrl_c(process)
    _, error = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, error
    assert "interrupted" in error
    assert "no plan" in error
    assert "Traceback" not in error


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [None, 1.2])
def test_interrupted_solve_returns_the_best_plan_and_solves_again(deadline: float | None) -> None:
    problem = Point("bert", graphs.M4, 10, deadline=deadline).problem()
    interrupt = interrupt_after(0.3)

    def progress(energy_uj: float | None, *_: object) -> None:
        if energy_uj is not None and not interrupt.ident:
            interrupt.start()

    plan = solve(problem, Settings(time_limit_s=60, progress=progress))
    interrupt.join()
    assert plan.solve_s < 60 / 2  # it does not go on until time is out
    if plan.statements:
        assert plan.gap is not None
        assert plan.gap > 0
        verify(problem, plan)
    else:
        assert deadline is not None
        assert plan.status == "unknown"
    assert_solves(3)


def interrupt_after(time_s: float) -> threading.Timer:
    # A KeyboardInterrupt is lost within the clean-up of an object, such as earlier tests' tensors.
    gc.collect()
    return threading.Timer(time_s, lambda: os.kill(os.getpid(), signal.SIGINT))


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["RAM", "deadline"])
def test_an_interrupt_ends_the_search_for_limits_that_would_do(limit: str) -> None:
    graph = Point("bert", graphs.M4, 10).graph()
    problem = (
        Problem(replace(graph, storage=False), 1)
        if limit == "RAM"
        else replace(bert(10), deadline_us=1.0)
    )
    interrupt = interrupt_after(1.0)
    interrupt.start()
    plan = solve(problem, Settings(time_limit_s=60))
    interrupt.join()
    assert plan.status in ("infeasible", "unknown")
    assert plan.solve_s < 60 / 2


def assert_solves(seed: int) -> None:
    problem = random_problem(seed)
    plan = solve(problem, Settings(placed=False, time_limit_s=SOON_S))
    best_uj = smallest_energy(problem)
    assert (plan.status == "infeasible") == (best_uj is None)
    assert plan.energy_uj == (None if best_uj is None else pytest.approx(best_uj))


def test_an_idle_worker_is_used_again(pool: Pool) -> None:
    first = pool.take()
    first.search(until_stopped)
    kind, pid = first.receive()
    assert kind == "begun"
    pool.give_back(first)
    second = pool.take()
    assert second is first
    second.search(until_stopped)
    assert second.receive() == ("begun", pid)
    assert pool.take() is not second
    pool.give_back(second)


def test_a_solve_leaves_its_workers_for_the_next() -> None:
    assert_solves(5)
    before = list(POOL._idle)
    assert before
    assert_solves(7)
    assert POOL._idle == before


@pytest.mark.slow
def test_a_worker_that_does_not_stop_is_ended(pool: Pool) -> None:
    worker = pool.take()
    worker.search(hang)
    _, pid = worker.receive()
    pool.give_back(worker)
    assert not pool._idle
    wait_for(lambda: not running([pid]))


def test_an_idle_worker_that_died_is_replaced() -> None:
    assert_solves(5)
    idle = list(POOL._idle)
    for worker in idle:
        os.kill(worker._process.pid, signal.SIGKILL)
    # `ps` shows a process as dead while threads of it still end.
    wait_for(lambda: not any(worker.alive for worker in idle))
    assert_solves(7)


def test_a_worker_that_dies_in_a_search_is_an_error(pool: Pool) -> None:
    worker = pool.take()
    worker.search(hang)
    _, pid = worker.receive()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed"):
        worker.receive()
    worker.send("nothing")
    pool.give_back(worker)
    assert not pool._idle


def test_a_failing_search_is_an_error_that_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet_host.solver.portfolio.search_plans", fail)
    with pytest.raises(RuntimeError, match=r"(?s)in fail.*no such luck"):
        solve(random_problem(5), Settings(time_limit_s=SOON_S))
    monkeypatch.undo()
    assert_solves(5)


def search_with_a_hang(task: Task, channel: Channel) -> None:
    """Find a plan, then hang as HiGHS's presolve does, unless presolve is off."""
    if task.presolve:
        search_plans(task, Channel(channel.emit, lambda: True))
        with ends_within(0.1):
            time.sleep(SOON_S)
    search_plans(task, channel)


def test_a_search_whose_solver_ignores_its_limit_starts_again_without_presolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poet_host.solver.portfolio.search_plans", search_with_a_hang)
    for seed in (7, 9):  # which have plans
        assert_solves(seed)


def bounds_with_a_hang(
    task: Task, best: Any, is_relaxed: bool, learnt: Any, channel: Channel
) -> None:
    if task.presolve:
        with ends_within(0.1):
            time.sleep(SOON_S)
    search_bounds(task, best, is_relaxed, learnt, channel)


@pytest.mark.parametrize(
    ("name", "search"),
    [("search_plans", search_with_a_hang), ("search_bounds", bounds_with_a_hang)],
)
def test_searches_in_turn_go_on_in_another_worker_after_a_hang(
    monkeypatch: pytest.MonkeyPatch, name: str, search: Any
) -> None:
    problem, begun = Point("resnet18-cifar", graphs.M4, 50).problem(), []
    restart = Portfolio._restart
    monkeypatch.setattr(f"poet_host.solver.portfolio.{name}", search)
    monkeypatch.setattr(Portfolio, "_restart", lambda *given: begun.append(restart(*given)))
    plan = solve(problem, Settings(time_limit_s=2.0, counted=True, gap=0.0))
    assert begun
    verify(problem, plan)


def hang_always(task: Task, channel: Channel) -> None:
    with ends_within(0.1):
        time.sleep(SOON_S)


def test_a_search_that_always_hangs_ends_with_a_greedy_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poet_host.solver.portfolio.search_plans", hang_always)
    problem = random_problem(9)
    plan = solve(problem, Settings(time_limit_s=SOON_S))
    assert (plan.status, plan.stopped_by) == ("feasible", "exhausted")
    verify(problem, plan)


def test_only_a_worker_ends_itself() -> None:
    with ends_within(0.0):
        time.sleep(0.05)


@pytest.mark.slow
def test_a_plan_outlives_the_search_for_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet_host.solver.portfolio.search_bounds", die)
    problem = Point("resnet18-cifar", graphs.M4, 20).problem()
    plan = solve(problem, Settings(time_limit_s=SOON_S))
    assert plan.status == "feasible"
    verify(problem, plan)


def test_forked_processes_have_workers_of_their_own() -> None:
    assert_solves(5)
    before = {worker._process.pid for worker in POOL._idle}
    assert before
    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=solve_apart, args=(seed, before)) for seed in (9, 11)]
    for fork in forks:
        fork.start()
    assert_solves(13)
    for fork in forks:
        fork.join(SOON_S)
        assert fork.exitcode == 0
    assert before <= {worker._process.pid for worker in POOL._idle}
    assert_solves(15)


def solve_apart(seed: int, others: set[int]) -> None:
    assert_solves(seed)
    own = {worker._process.pid for worker in POOL._idle}
    assert own
    assert not own & others


@pytest.mark.slow
def test_threads_solve_alongside_each_other() -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(assert_solves, range(20, 28)))
    pids = [worker._process.pid for worker in POOL._idle]
    assert len(set(pids)) == len(pids)


# Processor time of two workers for a time limit of 3 s, with 2 s each to start, to end, and to make
# a last plan if no search found one.
BOTH_WORKERS_S = 2 * (3.0 + 2.0)
KINDS = [
    Point("vgg16-cifar", graphs.M4, 43),
    Point("resnet18-cifar", graphs.M4, 12),
    Point("bert", graphs.M4, 10),
    Point("bert", "rpi4b", 50, deadline=1.05),
    Point("resnet18-cifar", graphs.M4, 70, training=True),
    Point("resnet18-cifar", graphs.M4, 70, training=True, deadline=1.05),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", KINDS, ids=lambda point: f"{point.name} {point.limits}")
def test_time_limits_are_kept(point: Point) -> None:
    problem = point.problem()
    plan, taken_s = solve_timed(problem, Settings(time_limit_s=3.0))
    assert taken_s <= BOTH_WORKERS_S
    if plan.statements:
        verify(problem, plan)


@pytest.mark.slow
def test_time_limit_holds_without_storage_and_for_budgets_that_are_too_small() -> None:
    graph = replace(Point("bert", graphs.M4, 10).graph(), storage=False)
    peak_bytes = keep_everything(graph).peak_bytes
    assert peak_bytes is not None
    _, taken_s = solve_timed(Problem(graph, peak_bytes // 20), Settings(time_limit_s=3.0))
    assert taken_s <= BOTH_WORKERS_S


SOLVE = """
import sys
sys.path[:] = {path!r}
from bench import graphs
from bench.points import Point
from support.cost_graphs import beyond_exhaustive, random_problem
from poet_host.solver.solve import solve
small = [random_problem(seed) for seed in range(5)]
models = [Point("vgg16-cifar", graphs.M4, 50), Point("linear", graphs.M4, 50, deadline=1.2)]
models = [model.problem() for model in models]
for problem in [*small, *map(beyond_exhaustive, small), *models]:
    plan = solve(problem)
    print(plan.status, plan.energy_uj, plan.statements, plan.initial_offsets)
"""


@pytest.mark.slow
def test_fresh_processes_make_the_same_plans() -> None:
    command = [sys.executable, "-c", SOLVE.format(path=sys.path)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (run.stdout.splitlines() for run in runs)
    assert len(first) == 12
    assert first == second
    assert {plan.split()[0] for plan in first} == {"optimal", "infeasible"}
