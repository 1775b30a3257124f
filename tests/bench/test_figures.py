"""Figures of a sweep: which are drawn, from which points; about 10 s."""

from dataclasses import replace
from pathlib import Path

import pytest
from poet_host.baselines.registry import METHODS
from poet_host.compare.sweep import Case, Point, Store, sweep
from support.chains import residual, with_parameters

from bench import figures as drawing
from bench.methods import PROPERTIES, properties
from bench.paper.points import solved

PNG = b"\x89PNG\r\n\x1a\n"


def point_of(method: str, ram_bytes: int, deadline_us: float | None = None) -> Point:
    case = Case("three layers", "", "", with_parameters())
    return Point(case, method, ram_bytes, deadline_us, 30.0, 0.0)


def test_all_figures_are_drawn_of_a_finished_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    limits = [(ram, limit) for limit in (None, 50.0) for ram in (160, 80)]
    wanted = [point_of(method, *limit) for limit in limits for method in METHODS]
    sweep(wanted, store, jobs=2)
    store.write_table()
    assert drawing.main([str(tmp_path)]) == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"methods.png", "energy-three_layers.png", "timeline-three_layers.png"} <= names
    assert {"poet-capuchin-three_layers.png", "poet-pofo-three_layers.png"} <= names
    assert {"deadline-three_layers-160.png", "deadline-three_layers-80.png"} <= names
    assert all(path.read_bytes()[:8] == PNG for path in (tmp_path / "figures").iterdir())
    assert (tmp_path / "methods.md").read_text().count("\n") == 2 + len(METHODS)
    assert drawing.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_every_method_has_a_look_of_its_own() -> None:
    assert tuple(drawing.STYLES) == METHODS
    styles = list(drawing.STYLES.values())
    assert len({style.colour for style in styles}) == len(styles)
    assert len({style.marker for style in styles}) == len(styles)  # legible in grey


def test_properties_count_what_was_really_done(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = [
        point_of("checkpoint-all", 160), point_of("checkpoint-all", 72),
        point_of("checkpoint-all", 60), point_of("chen-sqrt", 160), point_of("capuchin", 72),
    ]  # fmt: skip
    found = [(point, solved(point, store)) for point in wanted]
    rows = {row[0]: dict(zip(PROPERTIES, row, strict=True)) for row in properties(found)}
    kept = rows["checkpoint-all"]
    assert (kept["planned"], kept["infeasible"], kept["extended"]) == ("2 of 3", "1", "1")
    assert (kept["recomputed"], kept["paged in"]) == ("0.0", "0.0")
    assert float(rows["chen-sqrt"]["recomputed"]) > 0
    residuals = Point(Case("residual", "", "", residual()), "pofo", 200, None, 5.0, 0.0)
    assert properties([(residuals, solved(residuals, store))])[0][8] == "1"


def test_boards_stand_side_by_side_and_deadlines_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    graph = with_parameters()
    costs = [graph, replace(graph, nodes=tuple(replace(n, energy_uj=7.0) for n in graph.nodes))]
    cases = [Case("a/b", *pair) for pair in zip("ab", ("paper", "paper"), costs, strict=True)]
    assert cases[0].keeping is not None
    limit_us = 2 * (cases[0].keeping.time_us or 0.0)
    wanted = [
        Point(case, "checkpoint-all", ram, limit, 5.0, 0.0)
        for case in cases for ram in (160, 72) for limit in (None, limit_us)
    ]  # fmt: skip
    found = [(point, solved(point, store)) for point in wanted]
    assert set(drawing.figures(found)) == {
        "energy-a_b-paper.png", "energy-a_b-paper-2x.png",
        "deadline-a_b-paper-160.png", "deadline-a_b-paper-72.png", "methods.png",
    }  # fmt: skip


def test_figures_of_points_without_any_plan_are_drawn_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted = [point_of(method, ram) for method in ("poet", "pofo") for ram in (40, 44)]
    found = [(point, solved(point, store)) for point in wanted]
    assert all(result.row["plan"] is None for _, result in found)
    files = drawing.figures(found)
    assert set(files) == {"energy-three_layers.png", "poet-pofo-three_layers.png", "methods.png"}
