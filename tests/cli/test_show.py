"""`poet-host show`: listing, page, trace and picture, of a plan and of a recorded run."""

import json
from pathlib import Path
from typing import Any

import pytest
from poet_host.schedule.listing import rows
from poet_host.schedule.schedule import Schedule
from support import toy
from support import whole_runs as runs
from support.command import Command


@pytest.fixture
def poet(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A schedule, and a run of it."""
    folder = tmp_path_factory.mktemp("trained")
    schedule = runs.schedule(runs.digits())
    schedule.save(folder / "digits.poet")
    told = runs.train(schedule, steps=2).to_json()
    (folder / "run.json").write_text(json.dumps(told))
    return folder / "digits.poet", folder / "run.json"


def test_the_listing_has_the_run_beside_it(poet: Command, trained: tuple[Path, Path]) -> None:
    schedule, run = trained
    shown = poet("show", schedule, "--run", run)
    assert shown.code == 0
    head = next(line for line in shown.out.splitlines() if line.strip().startswith("#"))
    assert head.split()[:7] == ["#", "begins", "us", "takes", "us", "took", "us"]
    assert "2 steps on native, medians" in shown.out
    assert "between statements" in shown.out
    assert "a step without commit and answers to the host" in shown.out
    conv = next(line for line in shown.out.splitlines() if line.split()[:1] == ["conv2d"])
    assert conv.endswith("%  ")
    plain = poet("show", schedule)
    assert "took us" not in plain.out


def test_everything_is_written_at_once(
    poet: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    html, trace, png = (tmp_path / name for name in ("p.html", "t.json", "p.png"))
    shown = poet("show", schedule, "--run", run, "--html", html, "--trace", trace, "--png", png)
    assert (shown.code, shown.out) == (0, "")
    assert [f"wrote {path}" for path in (html, trace, png)] == shown.err.splitlines()
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert "{{" not in page.split('<script type="application/json"')[0]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    assert png.read_bytes().startswith(b"\x89PNG")


def test_json_tells_what_was_predicted_and_measured(
    poet: Command, trained: tuple[Path, Path]
) -> None:
    schedule, run = trained
    shown = poet("show", schedule, "--run", run, "--json").json
    told = json.loads(run.read_text())
    assert shown["run"]["steps"] == 2
    assert shown["run"]["energy_uj"] == told["energy_uj"]
    conv = next(row for row in shown["run"]["comparison"] if row["what"] == "conv2d")
    computed = [one for one in rows(Schedule.load(schedule)) if one.what.startswith("conv2d(")]
    assert conv["count"] == len(computed) > 2
    measured = [told["trace"][one.index]["time_us"] for one in computed]
    assert conv["measured_us"] == pytest.approx(sum(measured))
    predicted = sum(one.time_us for one in computed if one.time_us)
    assert conv["predicted_us"] == pytest.approx(predicted)
    assert "run" not in poet("show", schedule, "--json").json


def damaged(run: Path, to: Path, **changes: Any) -> Path:
    to.write_text(json.dumps({**json.loads(run.read_text()), **changes}))
    return to


def test_a_run_on_another_board_is_compared_without_errors_of_prediction(
    poet: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    other = damaged(run, tmp_path / "other.json", board="mkr1000")
    shown = poet("show", schedule, "--run", other)
    assert "2 steps on mkr1000, medians; the plan is for native" in shown.out
    conv = next(line for line in shown.out.splitlines() if line.split()[:1] == ["conv2d"])
    assert "%" not in conv


def test_wrong_runs_are_refused_in_a_sentence(
    poet: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    trace = json.loads(run.read_text())["trace"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"plan_crc": 1}, "is a run of another schedule (resnet-digits on native, plan 00000001"),
        ({"trace": []}, "has no trace"),
        ({"trace": trace[3:]}, "3 of "),
        (
            {"trace": [*trace[1:], {**trace[0], "node": "fc"}]},
            "statement 0",
        ),
        ({"trace": [{"op": "compute"}]}, "$.trace[0].node: "),
        ({"steps": "many"}, "$.steps: "),
        ({"format": "other"}, "is no run"),
    ]
    for changes, words in cases:
        path = damaged(run, tmp_path / "bad.json", **changes)
        shown = poet("show", schedule, "--run", path, "--html", tmp_path / "p.html")
        assert (shown.code, shown.out) == (2, "")
        assert shown.err.count("\n") == 1
        assert f"{path}" in shown.err
        assert words in shown.err
    for name, content in (("half.json", run.read_text()[:500]), ("bytes.json", "\0")):
        (tmp_path / name).write_text(content)
        shown = poet("show", schedule, "--run", tmp_path / name)
        assert shown.code == 2
        assert f"{name}, line 1: this is no JSON" in shown.err
    shown = poet("show", schedule, "--run", tmp_path / "none.json")
    assert shown.code == 2
    assert "none.json cannot be read" in shown.err
    shown = poet("show", schedule, "--run", schedule)
    assert shown.code == 2
    assert not (tmp_path / "p.html").exists()


def test_wrong_outputs_are_refused_in_a_sentence(
    poet: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    for option in ("--html", "--trace", "--png"):
        shown = poet("show", schedule, option, tmp_path / "none" / "file")
        assert shown.code == 2
        assert f"there is no folder {tmp_path / 'none'}" in shown.err
        shown = poet("show", schedule, "--run", run, option, run)
        assert shown.code == 2
        assert "is read by this command too" in shown.err
    shown = poet("show", schedule, "--html", tmp_path / "a", "--trace", tmp_path / "a")
    assert shown.code == 2
    assert "is written by this command too" in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_without_costs_has_a_listing_but_no_page(poet: Command, tmp_path: Path) -> None:
    toy.schedule().save(tmp_path / "toy.poet")
    shown = poet("show", tmp_path / "toy.poet")
    assert shown.code == 0
    assert "takes ms" not in shown.out
    for option in ("--html", "--trace", "--png"):
        shown = poet("show", tmp_path / "toy.poet", option, tmp_path / "file")
        assert shown.code == 2
        assert shown.err.count("\n") == 1
        assert "costs" in shown.err
