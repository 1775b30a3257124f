"""The search over states: its plans are the best ones, and its C code is sound."""

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import poet_host as poet
import pytest
from poet_host.firmware_build.compile import LIBRARY_FLAGS, library_of
from poet_host.packing.packing_search import search as search_packing
from poet_host.plan.events import Candidate, candidate_of
from poet_host.plan.problem import OBJECTIVES, Problem
from poet_host.solver.states import bound, states
from poet_host.solver.states.exact import search_states
from support.cost_graphs import problem_of, training
from support.mode_graphs import fused, mode_graph, mode_problem, staying, timed_mode_problems
from support.oracle import cheapest
from support.plans import task_of

FOLDER = Path(states.__file__).parent


def small_problems(seed: int) -> Iterator[Problem]:
    """Problems with modes, fused modes, deadlines, and tensors that stay."""
    yield mode_problem(seed, 6)
    yield mode_problem(seed, 6, is_fused=True)
    yield from timed_mode_problems(seed, 5)
    yield from timed_mode_problems(seed, 5, is_fused=True)
    graph = staying(mode_graph(seed, 6) if seed % 2 else training(seed, 7), seed)
    graph = replace(graph, base_power_uw=2e5 * (seed % 4))
    yield replace(problem_of(graph, seed), objective=OBJECTIVES[seed % 3])


def compare_with_oracle(problem: Problem) -> str:
    """Compare the result with the best of all plans. Return its kind."""
    found, best = search_states(task_of(problem), 1_000_000, lambda: False), cheapest(problem)
    assert found is not None
    assert (found.events is None) == (best is None)
    if found.events is None or best is None:
        return "none"
    value = pytest.approx(best.value(problem), rel=1e-9, abs=1e-9)
    assert found.value == value
    plan = candidate_of(problem, found.events, placed=False, time_limit_s=5.0, effort="none")
    assert isinstance(plan, Candidate)
    assert task_of(problem).value(plan) == value
    kinds = {event.op for event in found.events} | {event.mode for event in found.events}
    return "stays" if "start" in kinds else "modes" if kinds & {1, 2, 3} else "mode 0"


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_the_best_plan_is_that_of_the_oracle(first: int) -> None:
    seeds = range(first, 8 if first == 0 else 120)
    kinds = Counter(compare_with_oracle(it) for seed in seeds for it in small_problems(seed))
    assert set(kinds) == {"none", "stays", "modes", "mode 0"}
    assert min(kinds.values()) > 2, kinds


def large_state_problems(seed: int) -> Iterator[Problem]:
    """Problems with storage, with modes, fused modes, and tensors that stay."""
    yield mode_problem(seed, 7, "added-energy")
    yield mode_problem(seed, 7, "added-energy", is_fused=True)
    for commit_every in (1, 3, 100):
        graph = mode_graph(seed, 6) if seed % 2 else training(seed, 7)
        graph = staying(fused(graph, seed) if seed % 3 else graph, seed)
        graph = replace(graph, commit_every=commit_every)
        yield replace(problem_of(graph, seed), objective="added-energy")


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_no_bound_of_large_tensors_is_too_high(first: int) -> None:
    """More tensors count in each search, and in the last one all."""
    equal = compared = 0
    for seed in range(first, 8 if first == 0 else 120):
        for problem in large_state_problems(seed):
            task = task_of(problem)
            best = search_states(task, 1_000_000, lambda: False)
            assert best is not None
            if best.value == math.inf or not problem.graph.storage:
                continue
            found = [it for it, _ in bound.bounds(task, lambda: math.inf, lambda: False)]
            if not found:  # all tensors that are read have 0 bytes
                continue
            assert max(found) <= best.value * (1 + 1e-9) + 1e-9, seed
            equal += max(found) == pytest.approx(best.value)
            compared += 1
    assert equal > 0.6 * compared > 0


def test_a_bound_ends_at_the_best_known_value() -> None:
    """Paths that cost more are left out."""
    for seed in (1, 3, 5):
        task = task_of(mode_problem(seed, 7, "added-energy"))
        *_, last = bound.bounds(task, lambda: 1.0, lambda: False)
        assert last[0] == 1.0


def test_states_bound_where_ram_holds_few_large_tensors() -> None:
    costs = poet.costs_of(poet.load("resnet8-cifar"), poet.estimate_profile("nrf52840_dk"))
    for ram_bytes, holds_few in ((220 << 10, True), (1 << 20, False)):
        problem = Problem(costs, ram_bytes, objective="added-energy")
        assert bound.holds_few(task_of(problem)) == holds_few
        assert not bound.holds_few(task_of(replace(problem, deadline_us=1e9)))


def test_limits_end_the_search_without_a_result() -> None:
    task = task_of(mode_problem(3, 7))
    assert search_states(task, 1_000_000, lambda: False) is not None
    few_nodes = replace(task, policy=replace(task.policy, max_exact_nodes=3))
    assert search_states(few_nodes, 1_000_000, lambda: False) is None


def test_the_c_code_compiles_without_warnings(tmp_path: Path) -> None:
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
    output = tmp_path / "state.so"
    subprocess.run(
        ["cc", *LIBRARY_FLAGS, *warnings, *FOLDER.glob("state_*.c"), "-o", output], check=True
    )


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined behaviour, in a process with the library of the sanitizers."""
    library = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    program = (
        "from poet_host.firmware_build import compile\n"
        "compile.LIBRARY_FLAGS += ('-fsanitize=undefined,address', '-fno-sanitize-recover=all')\n"
        "from solver.test_states import *\n"
        "import os; os.environ.pop('LD_PRELOAD')\n"
        "print(*{compare_with_oracle(it) for it in small_problems(1)})\n"
        "for it in large_state_problems(1):\n"
        "    print(*bound.bounds(task_of(it), lambda: math.inf, lambda: False))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = os.environ | {
        "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": path,
        "XDG_CACHE_HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_without_a_compiler_there_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    library_of.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert states.library() is None
    assert search_packing([], 0) is None
    assert search_states(task_of(mode_problem(3)), 1_000_000, lambda: False) is None
    library_of.cache_clear()
