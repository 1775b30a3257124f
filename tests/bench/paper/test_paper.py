"""`make paper` on the smallest model: do the report's numbers follow from its table? About 25 s."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poet_host.baselines.registry import plan_by
from poet_host.compare.sweep import Point, Result, Store, solve_job
from poet_host.device.board import load_board
from poet_host.files import read_json, write_whole
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import Problem
from poet_host.plan.verify import PlanError, verify
from poet_host.profile.profile import estimate_profile
from poet_host.solver.settings import Settings

from bench import graphs
from bench.commits import statement
from bench.paper import __main__ as paper, check as paper_check
from bench.paper.claims import no_plan_but_poet, views
from bench.paper.evidence import ranked_pairs, ranked_rows, streamed_rows
from bench.paper.points import Scope, points, ram_of, reference_case, streamed_case
from bench.paper.second_look import beaten, better, once_more, shared

KINDS: tuple[graphs.Kind, ...] = ("estimate", "estimate-20mA")  # a card of 100 mA, of 20 mA
METHODS = "poet,poet-paging,poet-remat,dtr,capuchin,pofo"
ARGUMENTS = (
    "--models", "linear", "--boards", "jetson_tx2", "--parts", "paper,pofo,floor",
    "--methods", METHODS, "--limit", "3", "--jobs", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of the finished points, and of the report."""
    finished, out = tmp_path_factory.mktemp("finished"), tmp_path_factory.mktemp("report")
    assert paper.main([*ARGUMENTS, "--finished", str(finished), "-o", str(out)]) == 0
    return finished, out


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def lines(folder: Path, begin: str) -> dict[str, list[str]]:
    """The rows of the report's tables that begin with a text, by their third column."""
    text = (folder / "REPORT.md").read_text(encoding="utf-8")
    found = [row for row in text.splitlines() if row.startswith(f"| {begin}")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in found]
    return {row[2]: row for row in cells}


@pytest.mark.slow
def test_every_row_is_a_plan_that_the_verifier_accepts(made: tuple[Path, Path]) -> None:
    finished, out = made
    rows = [row for row in rows_of(out) if row["plan"]]
    assert len(rows) > 5 * 6
    for row in rows:
        costs = load_cost_graph(finished / row["graph"])
        plan = plan_from_json(read_json(finished / row["plan"]))
        deadline_us = float(row["deadline_us"]) if row["deadline_us"] else None
        bare = replace(plan, bound=None, gap=None, status="feasible")
        totals = verify(Problem(costs, int(row["ram_bytes"]), deadline_us), bare)
        assert totals.energy_uj == float(row["energy_uj"])


@pytest.mark.slow
def test_cited_plans_are_kept_and_checked(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = made
    kept = list((out / "plans").iterdir())
    assert len(kept) >= 5
    assert paper_check.check(out) >= len(kept)  # a plan may stand in several rows
    assert paper_check.main([str(out)]) == 0
    assert "plans verified" in capsys.readouterr().out
    for part in ("graphs", "plans"):
        (tmp_path / part).mkdir()
        for path in (out / part).iterdir():
            write_whole(tmp_path / part / path.name, path.read_bytes())
    text = (out / "table.csv").read_text().splitlines()
    row = next(row for row in rows_of(out) if (out / row["plan"]).is_file() and row["plan"])
    wrong = [line.replace(row["energy_uj"], "1.5") for line in text]
    write_whole(tmp_path / "table.csv", "\n".join(wrong) + "\n")
    with pytest.raises(PlanError, match="its row says"):
        paper_check.check(tmp_path)
    assert paper_check.main([str(tmp_path)]) == 1
    assert paper_check.main([str(tmp_path / "nowhere")]) == 1
    assert paper_check.main([]) == 2


@pytest.mark.slow
def test_claims_follow_from_the_table(made: tuple[Path, Path]) -> None:
    _, out = made
    energy: dict[tuple[str, str], float] = {}
    for row in rows_of(out):
        if row["model"] == "ref-linear" and row["plan"] and not row["deadline_us"]:
            energy[row["ram_bytes"], row["method"]] = float(row["energy_uj"])
    found = lines(out, "Less energy than DTR")
    assert set(found) == {"its graphs, its constants"}  # POFO's points have no DTR
    _, published, _, ours = found["its graphs, its constants"]
    assert published == "up to 35 %"
    savings = [
        1 - uj / energy[ram, "dtr"]
        for (ram, method), uj in energy.items()
        if method == "poet" and (ram, "dtr") in energy
    ]
    assert f"up to {100 * max(savings):.1f} %" in ours
    assert not lines(out, "Energy overhead")
    for row in lines(out, "Size of a schedule").values():
        assert "bytes, median" in row[3]
    text = (out / "REPORT.md").read_text(encoding="utf-8")
    assert statement() in text
    origins = lines(out, "its graphs, its constants | 9 |")
    assert len(origins) == 1  # of 5 points, one at the floor, and three next to POFO's
    counts = [int(word.split()[-1]) for word in next(iter(origins)).split(", ")]
    assert sum(counts) == 9


@pytest.mark.slow
def test_a_second_run_solves_nothing_and_says_the_same(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, out = made
    monkeypatch.setattr("poet_host.compare.pool._processes", None)
    paper.main([*ARGUMENTS, "--finished", str(finished), "-o", str(tmp_path)])
    assert rows_of(tmp_path) == rows_of(out)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {path.name for path in (out / "figures").iterdir()}
    assert names == {"eight-layers.png", "energy-ref-linear-paper.png"}


def test_the_plans_of_the_committed_report_hold() -> None:
    kept = {path.name for path in (paper.REPORT / "plans").iterdir()}
    rows = {Path(row["plan"]).name for row in rows_of(paper.REPORT) if row["plan"]}
    assert kept <= rows
    assert paper_check.check(paper.REPORT) >= len(kept) > 40


def test_words_that_are_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--models", "--boards", "--methods", "--parts"):
        assert paper.main([option, "none", "--finished", str(tmp_path), "-o", str(tmp_path)]) == 2
        assert f"{option}: there is no none" in capsys.readouterr().err


def test_every_model_has_its_floor_and_budgets_above_it() -> None:
    case = reference_case("linear", "rpi4b", "paper")
    assert ram_of(case, 0.0) == largest_operator_bytes(case.costs) == 3256
    assert case.keeping is not None
    assert ram_of(case, 1.0) == case.keeping.peak_bytes


def test_constants_of_the_repository_change_energies_of_computing_alone() -> None:
    """40.1 MFLOP a joule against 2 GFLOP/s at 3 W: 16.6 times as much."""
    ours, theirs = (
        graphs.reference("resnet18-cifar", "rpi4b", kind) for kind in ("paper", "repository")
    )
    for one, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert replace(other, energy_uj=one.energy_uj) == one
        assert other.energy_uj == pytest.approx(16.62 * one.energy_uj, rel=1e-3)


def test_realistic_constants_are_the_boards_estimates() -> None:
    graph = graphs.reference("linear", "nrf52840_dk", "estimate")
    profile = estimate_profile(load_board("nrf52840_dk"))
    flop = 2 * 784 * 10  # of the first layer
    node = graph.nodes[1]
    assert node.time_us == pytest.approx(
        profile.rates.base_us + profile.rates.us_per_mac * flop / 2, rel=0.01
    )
    assert node.page_in_us == profile.transfer(node.bytes, "page").page_in_us
    assert graph.base_power_uw == profile.power.base_uw
    assert graph.nodes[0].time_us == 0.0


def test_variants_change_transfers_alone() -> None:
    """As in the repository's chipsets.py: RPiNoCache, and `mem_power_scale`."""
    usual, nocache, dear = (
        graphs.reference("resnet18-cifar", "rpi4b", kind) for kind in ("paper", "nocache", "x10")
    )
    both = graphs.reference("resnet18-cifar", "rpi4b", "nocache-x10")
    for i, node in enumerate(usual.nodes):
        out_us = 4235.32 + node.bytes / 17.1
        assert nocache.nodes[i].page_out_us == pytest.approx(out_us)
        assert nocache.nodes[i].page_out_uj == pytest.approx(out_us * 0.15)
        assert dear.nodes[i].page_in_uj == pytest.approx(10 * node.page_in_uj)
        assert both.nodes[i].page_out_uj == pytest.approx(out_us * 1.5)
        for other in (nocache, dear, both):
            assert other.nodes[i].energy_uj == node.energy_uj
            assert other.nodes[i].page_in_us == node.page_in_us


def test_a_frugal_card_needs_a_fifth_of_the_power() -> None:
    usual, frugal = (graphs.profile_of("nrf52840_dk", kind) for kind in KINDS)
    assert frugal.power.page_in_uw == frugal.power.page_out_uw == 66_000
    assert usual.power.page_in_uw == 330_000
    assert replace(frugal, power=usual.power) == usual


def test_the_story_of_figure_2() -> None:
    """Cheap layers are computed again, dear layers are paged; neither alone needs as little."""
    costs = graphs.eight_layers()
    energies = {}
    for method in ("poet", "poet-paging", "poet-remat"):
        plan = plan_by(
            method, Problem(costs, graphs.EIGHT_LAYERS_RAM, objective="added-energy"),
            Settings(10.0, 0.0),
        )  # fmt: skip
        assert plan.status == "optimal"
        energies[method] = plan.energy_uj
        if method == "poet":
            computed = Counter(it.node for it in plan.statements if it.op == "compute")
            assert {name for name, times in computed.items() if times > 1} == {"L2", "L3"}
            assert {it.node for it in plan.statements if it.op == "page_out"} == {"L5", "L6"}
    assert energies["poet"] < min(energies["poet-paging"], energies["poet-remat"])


def test_pairs_that_turn_with_the_current_of_the_card(tmp_path: Path) -> None:
    store, scope = Store(tmp_path), Scope(limit_s=3.0)
    found = []
    for kind in KINDS:
        case = reference_case("linear", "nrf52840_dk", kind)
        for method in ("poet-paging", "poet-remat"):
            point = scope.point(case, method, ram_of(case, 0.05))
            found.append((point, store.add(point, solve_job(point.job))))
    assert len(list(ranked_pairs(found))) == 1
    assert not list(ranked_rows(found))  # pages are dear with any card
    point, result = found[2]
    found[2] = (point, Result(result.row | {"energy_uj": 0.5}, result.plan))
    (row,) = ranked_rows(found)
    assert row[1:6] == ("ref-linear", "nrf52840_dk", "3,464", "added", "poet-paging, poet-remat")
    assert row[7].startswith("0.00, ")


def test_no_plan_counts_only_where_it_is_proved(few: list[tuple[Point, Result]]) -> None:
    for status, counted in (("unknown", 0), ("infeasible", 2)):
        lost = [(p, without_plan(r, status=status) if p.method == "dtr" else r) for p, r in few]
        settings = list(views(lost)[0].of())
        assert no_plan_but_poet(settings, "dtr") == counted


def test_streamed_steps_stand_below_the_floor(tmp_path: Path) -> None:
    scope = Scope(models=("resnet18-cifar",), boards=("nrf52840_dk",))
    case = streamed_case("resnet18-cifar", "nrf52840_dk", 96 * 1024)
    point = replace(scope.point(case, "poet", 96 * 1024, objective="energy"), time_limit_s=5.0)
    result = Store(tmp_path).add(point, solve_job(point.job))
    (row,) = streamed_rows([(point, result)])
    assert row[:4] == ("resnet18-cifar", "nrf52840_dk", "96", "176")
    assert float(row[7]) > 1.0  # MB moved
    assert "| ref-" not in paper.floors([(point, result)])


# Second looks.


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Point, Result]]:
    """`linear` on the TX2 by the planner's methods, in two budgets."""
    store = Store(tmp_path_factory.mktemp("few"))
    scope = Scope(("linear",), ("jetson_tx2",), ("poet", "poet-paging", "dtr"), ("paper",), 3.0)
    wanted = [point for point in points(scope, store) if point.ram_bytes in (3464, 6376)]
    return [(point, store.add(point, solve_job(point.job))) for point in wanted]


def without_plan(result: Result, **changes: Any) -> Result:
    return Result(result.row | {"plan": None, "energy_uj": None, "gap": None} | changes, None)


def test_a_plan_for_less_ram_serves_for_more(few: list[tuple[Point, Result]]) -> None:
    lost = [
        (p, without_plan(r, status="unknown") if (p.method, p.ram_bytes) == ("poet", 6376) else r)
        for p, r in few
    ]
    by = {(p.method, p.ram_bytes): r for p, r in shared(lost)}
    given, taken = by["poet", 6376], by["poet", 3464]
    assert given.row["energy_uj"] == taken.row["energy_uj"]
    assert given.row["plan"] == taken.row["plan"]
    assert (given.row["status"], given.row["gap"]) == ("feasible", None)
    assert given.row["note"] == "the plan of poet for 3,464 bytes"
    assert given.row["ram_bytes"] == 6376
    dtr = [(p, without_plan(r, status="unknown") if p.method == "dtr" else r) for p, r in few]
    assert [r.plan for p, r in shared(dtr) if p.method == "dtr"] == [None, None]


def test_plans_are_not_shared_the_other_way(few: list[tuple[Point, Result]]) -> None:
    """Not with a narrower method, less RAM, an earlier deadline, or against a proof."""
    for keep in (("poet", 3464), ("poet", 6376)):
        alone = [
            (p, r if (p.method, p.ram_bytes) == keep else without_plan(r, status="unknown"))
            for p, r in few
        ]
        planned = {(p.method, p.ram_bytes) for p, r in shared(alone) if r.plan is not None}
        assert planned == ({keep, ("poet", 6376)} if keep[1] == 3464 else {keep})
    point, result = next((p, r) for p, r in few if p.method == "poet")
    late = replace(point, deadline_us=result.row["time_us"] / 2)
    none = without_plan(result, status="unknown")
    assert shared([(point, result), (late, none)])[1][1] is none
    proved = without_plan(result, status="infeasible")
    assert shared([(point, result), (point, proved)])[1][1] is proved


def test_what_is_open_gets_more_time(few: list[tuple[Point, Result]]) -> None:
    scope = Scope(limit_s=3.0)
    assert once_more(few, scope) == beaten(few, scope) == {}
    for i, (point, result) in enumerate(few):
        changed = list(few)
        changed[i] = (point, Result(result.row | {"gap": 0.02}, result.plan))
        again = once_more(changed, scope)
        assert set(again) == ({i} if point.method != "dtr" else set())
        assert all(point.time_limit_s == 9.0 for point in again.values())
        changed[i] = (point, without_plan(result, status="unknown"))
        assert set(once_more(changed, scope)) == ({i} if point.method == "poet" else set())
        changed[i] = (point, Result(result.row | {"energy_uj": 1e9}, result.plan))
        again = beaten(changed, scope)
        assert set(again) == ({i} if point.method == "poet" else set())
        assert all(point.time_limit_s == 27.0 for point in again.values())
        changed[i] = (point, without_plan(result, status="infeasible"))
        assert beaten(changed, scope) == {}


def test_of_two_plans_the_one_of_less_energy_counts(few: list[tuple[Point, Result]]) -> None:
    (one, first), (two, second) = few[0], few[1]
    low = (one, Result(first.row | {"energy_uj": 1.0}, first.plan))
    high = (two, Result(second.row | {"energy_uj": 2.0}, second.plan))
    assert better(low, high) is better(high, low) is low
    none = (two, without_plan(second))
    assert better(low, none) is better(none, low) is low
    assert better(none, none) is none
