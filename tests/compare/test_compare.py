"""`compare`: the table, what is never solved twice, interruptions; about 20 s."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poet_host.baselines.registry import METHODS
from poet_host.compare import pool
from poet_host.compare.sweep import COLUMNS, Case, Point, Store, solve_job, sweep
from poet_host.device.board import load_board
from poet_host.plan.costgraph import dump_cost_graph, load_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify
from poet_host.profile.profile import estimate_profile
from support.chains import chain, residual, with_parameters
from support.command import Command, Process

QUICK = "checkpoint-all,chen-sqrt,griewank"


def saved(graph: CostGraph, folder: Path) -> Path:
    path = folder / f"{graph.name.replace(' ', '-')}.graph.json"
    path.write_text(json.dumps(dump_cost_graph(graph)))
    return path


def point(method: str = "checkpoint-all", time_limit_s: float = 5.0) -> Point:
    case = Case("three layers", "", "", with_parameters())
    return Point(case, method, 160, None, time_limit_s, 0.0)


def test_a_signal_waits_until_all_processes_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit` starts processes: an exception within it would leave one that nobody ends."""
    started = []

    def submit(pool: object, job: object, point: object) -> None:
        signal.raise_signal(signal.SIGINT)
        started.append(point)

    monkeypatch.setattr(pool.ProcessPoolExecutor, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        sweep([point(), point("griewank")], Store(tmp_path), jobs=2)
    assert len(started) == 2


def no_solving(*arguments: object) -> None:
    raise AssertionError("nothing was left to be solved")


@pytest.mark.slow
def test_all_methods_are_compared_and_every_plan_can_be_checked(
    poet_host: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, graph = tmp_path / "out", saved(with_parameters(), tmp_path)
    command = ("compare", graph, "--budgets", "100%,80", "--deadlines", "none,2x", "-o", out)
    compared = poet_host(*command, "--time-limit", 30, "--json")
    assert compared.code == 0
    rows = compared.json["points"]
    assert [(r["method"], r["ram_bytes"], r["deadline_us"] is None) for r in rows] == [
        (method, ram, free) for free in (True, False) for ram in (160, 80) for method in METHODS
    ]
    assert {row["status"] for row in rows} <= {"optimal", "feasible", "infeasible", "unknown"}
    assert sum(row["plan"] is not None for row in rows) > 3 * len(METHODS)
    for row in rows:
        assert tuple(row) == COLUMNS
        if row["plan"]:
            costs = load_cost_graph(out / row["graph"])
            plan = plan_from_json(json.loads((out / row["plan"]).read_text()))
            totals = verify(Problem(costs, row["ram_bytes"], row["deadline_us"]), plan)
            assert totals.energy_uj == row["energy_uj"]
            assert (totals.time_us, totals.peak_bytes) == (row["time_us"], row["peak_bytes"])
    table = json.loads((out / "table.json").read_text())
    key = json.dumps
    assert sorted(map(key, table)) == sorted(map(key, rows))
    with (out / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == [row["method"] for row in table]
    assert tuple(lines[0]) == COLUMNS
    best = {r["method"]: r["energy_uj"] for r in rows if r["ram_bytes"] == 80 and r["plan"]}
    assert all(best["poet"] <= energy for energy in best.values())

    # The same again solves nothing, and says the same.
    monkeypatch.setattr(pool, "_processes", no_solving)
    again = poet_host(*command, "--time-limit", 30, "--json")
    assert again.json == compared.json
    assert json.loads((out / "table.json").read_text()) == table
    assert not (out / "figures").exists()


@pytest.mark.slow
def test_without_a_folder_a_table_is_shown_and_notes_below(
    poet_host: Command, tmp_path: Path
) -> None:
    graphs = saved(with_parameters(), tmp_path), saved(residual(), tmp_path)
    shown = poet_host("compare", *graphs, "--budgets", "72", "--methods", QUICK, "-j", 1)
    assert shown.code == 0
    assert "three layers" in shown.out
    planned = [line.split() for line in shown.out.splitlines() if " feasible" in line]
    assert planned
    assert all(words[-1].isdigit() for words in planned)  # bytes of the peak
    assert "inapplicable" in shown.out
    assert "chen-sqrt does not apply to residual" in shown.out.replace("\n", " ")
    assert "* parameters and data leave RAM between uses" in shown.out


@pytest.mark.slow
def test_boards_profiles_and_models_are_multiplied(poet_host: Command) -> None:
    command = ("compare", "linear", "--board", "mkr1000,rpi4b", "--board", "jetson_tx2")
    more = ("--profile", "paper,estimate", "--budgets", "100%", "--methods", "checkpoint-all")
    rows = poet_host(*command, *more, "--json").json["points"]
    assert {(row["board"], row["profile"]) for row in rows} == {
        (board, kind)
        for board in ("mkr1000", "rpi4b", "jetson_tx2")
        for kind in ("paper", "estimate")
    }
    assert len(rows) == len({row["energy_uj"] for row in rows}) == 6


@pytest.mark.slow
def test_profiles_of_one_file_name_differ(poet_host: Command, tmp_path: Path) -> None:
    files = [tmp_path / name / "profile.json" for name in ("before", "after")]
    for file in files:
        file.parent.mkdir()
        replace(estimate_profile(load_board("mkr1000")), kind="measured").save(file)
    profiles = ",".join(map(str, files))
    limits = ("--budgets", "100%", "--methods", "checkpoint-all", "--json")
    rows = poet_host("compare", "linear", "--profile", profiles, *limits).json["points"]
    assert [row["profile"] for row in rows] == [str(file) for file in files]
    (row,) = poet_host("compare", "linear", "--profile", files[0], *limits).json["points"]
    assert row["profile"] == "profile"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "'MODEL...'"),
        (("G", "--methods", "best"), "best"),
        (("G", "--methods", ","), "--methods"),
        (("G", "--budgets", "12XB"), "12XB"),
        (("G", "--deadlines", "soon"), "soon"),
        (("G", "--board", "mkr1000"), "omit --board"),
        (("G", "-o", "G"), "is a file"),
        (("G", "-o", "G/within"), "-o"),
        (("G", "--jobs", "0"), "--jobs"),
        (("linear",), "--board NAME"),
        (("linear", "--profile", "paper"), "--board NAME"),
        (("linear", "--board", "native", "--profile", "paper"), "native"),
        (("linear", "--board", "mkr1000", "--profile", "p.json"), "omit --board"),
        (("linear", "--profile", "p.json"), "p.json"),
    ],
)
def test_wrong_input_is_refused(
    poet_host: Command, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    graph = saved(chain([8] * 4), tmp_path)
    given = [graph if word == "G" else word.replace("G/", f"{graph}/") for word in arguments]
    result = poet_host("compare", *given)
    result.fails(2, named)
    assert result.out == ""


# What is finished.


def test_a_point_is_known_by_all_that_its_plan_depends_on() -> None:
    first = point()
    nodes = list(first.case.costs.nodes)
    nodes[4] = replace(nodes[4], energy_uj=1.5)
    other = replace(first.case, costs=replace(first.case.costs, nodes=tuple(nodes)))
    different = [
        replace(first, method="dtr"),
        replace(first, ram_bytes=164),
        replace(first, deadline_us=100.0),
        replace(first, time_limit_s=6.0),
        replace(first, gap=0.1),
        replace(first, case=other),
        replace(first, case=replace(first.case, board="twin")),
    ]
    assert len({other.key for other in (first, *different)}) == 8
    assert point().key == first.key


def test_what_is_damaged_or_does_not_hold_is_solved_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = [point(method) for method in ("checkpoint-all", "chen-sqrt", "dtr", "griewank")]
    for job in wanted:
        store.add(job, solve_job(job.job))
    assert all(map(store.find, wanted))
    plans = sorted((tmp_path / "plans").iterdir())
    plans[0].unlink()
    text = plans[1].read_text()
    plans[1].write_text(text.replace('"page_out"', '"free"', 1))  # no plan any more
    (tmp_path / "points" / f"{wanted[3].key}.json").write_text("{")
    assert sum(store.find(job) is not None for job in wanted) == 1
    assert len(store.write_table()) == 3
    seen: list[tuple[int, int]] = []
    results = sweep(wanted, store, progress=lambda done, total, word: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(result.plan is not None for result in results)
    assert all(map(store.find, wanted))


def test_points_that_are_the_same_are_solved_once(tmp_path: Path) -> None:
    first, second = sweep([point(), point()], Store(tmp_path))
    assert first == second
    assert len(list((tmp_path / "points").iterdir())) == 1


def test_the_table_has_one_row_for_a_point_the_one_wanted_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    short, long = point(), point(time_limit_s=6.0)
    for wanted in (short, long, short):
        sweep([wanted], store)
        (row,) = store.write_table()
        assert wanted.key in row["plan"]
    assert len(list((tmp_path / "points").iterdir())) == 2


def test_the_table_keeps_points_that_differ_only_in_their_costs(tmp_path: Path) -> None:
    """Another batch size has the model's name, and two profiles may have one file name."""
    first, store = point(), Store(tmp_path)
    costs = replace(first.case.costs, base_power_uw=1.0)
    other = replace(first, case=replace(first.case, costs=costs))
    sweep([first, other], store)
    assert {row["graph"] for row in store.write_table()} == {
        f"graphs/three_layers-{it.case.digest}.graph.json" for it in (first, other)
    }


@pytest.mark.slow
def test_ctrl_c_leaves_the_table_and_a_rerun_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = Process(
        long_command(tmp_path, f"{QUICK},poet-remat"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_points(process, out, 3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert nobody_left(process.pid)
    rows = json.loads((out / "table.json").read_text())
    assert {row["method"] for row in rows} == set(QUICK.split(","))
    before = {path: path.stat().st_mtime_ns for path in (out / "plans").iterdir()}
    again = subprocess.run(
        long_command(tmp_path, f"{QUICK},dtr"),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "4 finished points" in again.stderr
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


@pytest.mark.slow
def test_nobody_goes_on_when_the_command_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        long_command(tmp_path, "checkpoint-all,poet-remat"), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_points(process, tmp_path / "out", 1)
    finally:
        process.kill()
    process.wait(timeout=10)
    assert nobody_left(process.pid)


def long_command(folder: Path, methods: str) -> list[str]:
    """A `compare` with points that take long to solve."""
    sizes = [64 + 8 * (k % 5) for k in range(120)]
    graph = saved(chain(sizes, [1.0 + k % 7 for k in range(120)]), folder)
    return [
        sys.executable, "-m", "poet_host", "compare", str(graph), "-o", str(folder / "out"),
        "-j", "1", "--methods", methods, "--budgets", "1500", "--time-limit", "300",
    ]  # fmt: skip


def wait_for_points(process: "subprocess.Popen[Any]", out: Path, count: int) -> None:
    """Return while the point after the first `count` is solved."""
    deadline = time.monotonic() + 60
    while len(list((out / "points").glob("*.json"))) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)


def nobody_left(group: int) -> bool:
    """Are all processes of a group gone, within ten seconds?"""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_operators_that_exceed_a_budget_stream_if_the_method_can(
    poet_host: Command, tmp_path: Path
) -> None:
    command = ("compare", "linear", "--board", "mkr1000", "--budgets", "100%,4KiB", "-o", tmp_path)
    compared = poet_host(*command, "--methods", "poet,checkpoint-all", "--gap", 0.01, "--json")
    assert compared.code == 0
    whole, whole_by_others, streamed, streamed_by_others = compared.json["points"]
    assert streamed["ram_bytes"] == 4096
    assert streamed_by_others["status"] == "infeasible"
    modes = []
    for row in (whole, streamed):
        costs = load_cost_graph(tmp_path / row["graph"])
        plan = plan_from_json(json.loads((tmp_path / row["plan"]).read_text()))
        verify(Problem(costs, row["ram_bytes"]), plan)
        modes.append([it.mode for it in plan.statements if it.op == "compute"])
    assert not any(modes[0])
    assert any(modes[1])
    assert whole["graph"] == whole_by_others["graph"] == streamed_by_others["graph"]
    again = poet_host(*command, "--methods", "poet", "--gap", 0.01, "--json")
    assert again.json["points"] == [whole, streamed]
