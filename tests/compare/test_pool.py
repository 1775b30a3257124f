"""Points in processes that are killed, and on a cluster."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import LocalCluster
from poet_host.api.comparing import compare_methods
from poet_host.compare.pool import cluster, solve_all
from poet_host.compare.sweep import Store, solve_job, sweep
from poet_host.errors import BadInput, PoetError
from poet_host.plan.problem import Problem
from support import killed
from support.chains import with_parameters
from support.command import Command

from .test_compare import point

KILLS = {"a": 0, "once": 1, "b": 0, "always": 99, "c": 0, "d": 0}


def test_a_point_whose_process_is_killed_is_begun_again_at_most_twice(tmp_path: Path) -> None:
    found = dict(solve_all(killed.jobs(tmp_path, KILLS), killed.solve, 2, None))
    assert found.pop("always") == "3 times"
    assert found == {key: {"plan": str(tmp_path / key)} for key in KILLS if key != "always"}
    calls = killed.calls(tmp_path)
    assert calls["always"] == 3
    assert calls["once"] == 2
    assert max(calls[key] for key in "abcd") <= 2  # those that ran next to it


def test_the_other_points_are_saved_when_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [point(), point("griewank")]
    lost = points[0].key
    answers = [(lost, "3 times"), (points[1].key, solve_job(points[1].job))]
    monkeypatch.setattr("poet_host.compare.sweep.solve_all", lambda *_: (it for it in answers))
    with pytest.raises(PoetError, match="bytes, checkpoint-all ended 3 times, perhaps"):
        sweep(points, Store(tmp_path))
    assert [row["method"] for row in Store(tmp_path).rows()] == ["griewank"]


def test_a_worker_with_another_planner_is_refused() -> None:
    with pytest.raises(BadInput, match="same version of poet-host"):
        solve_job({**point().job, "planner": "other"})


def test_a_worker_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its planner omits exact searches, so it may find another plan."""
    monkeypatch.setattr("poet_host.compare.sweep.library", lambda: ("ffi", "lib"))
    job = point().job
    monkeypatch.setattr("poet_host.compare.sweep.library", lambda: None)
    with pytest.raises(BadInput, match="a C compiler on both"):
        solve_job(job)


def test_an_executor_of_the_caller_solves_the_points(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert [it.row["method"] for it in sweep([point()], Store(tmp_path), pool=pool)] == [
            "checkpoint-all"
        ]
    with pytest.raises(PoetError, match="the executor that solves the points failed"):
        sweep([point("griewank")], Store(tmp_path), pool=pool)  # it is shut down


@contextmanager
def workers() -> Iterator[str]:
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, processes=True
    ) as running:
        yield running.scheduler_address


@pytest.mark.slow
def test_a_cluster_solves_the_points_and_repeats_those_of_a_killed_worker(tmp_path: Path) -> None:
    with workers() as address, cluster(address) as pool:
        # Dask counts each death of a worker for all jobs that it has: the last job dies alone.
        last = {"always": KILLS["always"]}
        others = {key: kills for key, kills in KILLS.items() if key not in last}
        found = dict(solve_all(killed.jobs(tmp_path, others), killed.solve, 1, pool))
        assert found == {key: {"plan": str(tmp_path / key)} for key in others}
        [(_, ended)] = solve_all(killed.jobs(tmp_path, last), killed.solve, 1, pool)
        assert ended == "as often as the cluster repeats it"
        problem = Problem(with_parameters(), 160)
        points = [(problem, method, "") for method in ("checkpoint-all", "griewank", "poet")]
        there = compare_methods(points, pool=pool)
        wrong = replace(point(), method="none")
        with pytest.raises(PoetError, match="there is no method 'none'"):
            sweep([wrong], Store(tmp_path / "store"), pool=pool)
    here = compare_methods(points)
    same = ("method", "status", "energy_uj", "time_us", "peak_bytes")
    assert [[row[key] for key in same] for row in there] == [
        [row[key] for key in same] for row in here
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--scheduler", "nonsense"), "no scheduler of Dask answers there"),
        (("--scheduler", "tcp://127.0.0.1:8786", "-j", 2), "omit --jobs"),
    ],
)
def test_a_cluster_that_is_not_there(
    poet_host: Command, more: tuple[object, ...], message: str
) -> None:
    refused = poet_host("compare", "linear", "--board", "mkr1000", "--budgets", "100%", *more)
    assert refused.code == 2
    assert message in refused.err
