"""`make paper` on a small model: do the report's numbers follow from its table? About 15 s."""

import csv
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import Problem
from poet_host.plan.verify import verify
from poet_host.run import sweep as sweeping

from bench import paper

METHODS = "poet,poet-paging,dtr,capuchin,pofo"
ARGUMENTS = (
    "--models", "linear", "--boards", "jetson_tx2", "--budgets", "100%,60%",
    "--deadlines", "none", "--methods", METHODS, "--limit", "3", "--jobs", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of the finished points, and of the report."""
    finished, out = tmp_path_factory.mktemp("finished"), tmp_path_factory.mktemp("report")
    paper.main([*ARGUMENTS, "--finished", str(finished), "-o", str(out)])
    return finished, out


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def line(folder: Path, begin: str) -> list[str]:
    text = (folder / "REPORT.md").read_text(encoding="utf-8")
    found = [row for row in text.splitlines() if row.startswith(f"| {begin}")]
    assert len(found) == 1
    return [cell.strip() for cell in found[0].strip("|").split("|")]


@pytest.mark.slow
def test_every_plan_of_the_report_can_be_checked(made: tuple[Path, Path]) -> None:
    finished, out = made
    rows = rows_of(out)
    assert len(rows) == 2 * 2 * 5  # profiles, budgets, methods
    for row in rows:
        assert row["plan"]
        costs = load_cost_graph(finished / row["graph"])
        plan = plan_from_json(sweeping.read_json(finished / row["plan"]))
        totals = verify(Problem(costs, int(row["ram_bytes"])), plan)
        assert totals.energy_uj == float(row["energy_uj"])


@pytest.mark.slow
def test_claims_follow_from_the_table(made: tuple[Path, Path]) -> None:
    _, out = made
    energy = {
        (row["board"], row["profile"], row["ram_bytes"], row["method"]): float(row["energy_uj"])
        for row in rows_of(out)
    }
    _, published, *ours, why = line(out, "Less energy than DTR")
    assert published == "up to 35 %"
    assert why
    for kind, text in zip(("paper", "estimate"), ours, strict=True):
        most = max(
            1 - uj / energy[board, profile, ram, "dtr"]
            for (board, profile, ram, method), uj in energy.items()
            if (board, profile, method) == ("jetson_tx2", kind, "poet")
        )
        assert f"up to {100 * most:.1f} %" in text
        assert "(2 points)" in text
    assert "no plan" in line(out, "Energy overhead")[2]  # ResNet-18 was not swept
    sizes = line(out, "Size of a schedule")[2]
    assert re.fullmatch(r"\d+ to \d+ bytes, median \d+", sizes)


@pytest.mark.slow
def test_the_floor_is_that_of_the_largest_operator(made: tuple[Path, Path]) -> None:
    """fc4: 100 x 200 weights of 4 bytes, updated in place, with the layer's input and gradient."""
    _, out = made
    _, floor, _, largest, fits = line(out, "linear")
    assert int(floor.replace(",", "")) >= 100 * 200 * 4
    assert largest == "fc4.weight:new"
    assert fits == "256 KiB"


@pytest.mark.slow
def test_a_second_run_solves_nothing(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, out = made
    monkeypatch.setattr(sweeping, "_executor", None)
    paper.main([*ARGUMENTS, "--finished", str(finished), "-o", str(tmp_path)])
    assert rows_of(tmp_path) == rows_of(out)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        path.name for path in (out / "figures").iterdir()
    }
