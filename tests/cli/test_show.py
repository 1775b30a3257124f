"""`poet-host show`: listing, page, trace and picture, of a plan and of a recorded run."""

import json
from pathlib import Path
from typing import Any

import pytest
from poet_host.schedule.rates import with_rates
from poet_host.schedule.schedule import Schedule
from poet_host.view.comparison import compare_run
from poet_host.view.lanes import views_of
from poet_host.view.listing import rows
from support import toy, whole_runs as runs
from support.command import Command, spawn


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a schedule and of a run of it."""
    folder = tmp_path_factory.mktemp("trained")
    schedule = runs.schedule(runs.digits())
    schedule.save(folder / "digits.poet")
    run = runs.train(schedule, steps=2)
    (folder / "run.json").write_text(json.dumps(run.to_json()))
    return folder / "digits.poet", folder / "run.json"


def test_the_listing_has_the_times_of_the_run(
    poet_host: Command, trained: tuple[Path, Path]
) -> None:
    schedule, run = trained
    shown = poet_host("show", schedule, "--run", run)
    assert shown.code == 0
    head = next(line for line in shown.out.splitlines() if line.strip().startswith("#"))
    assert head.split()[:6] == ["#", "begins", "us", "takes", "us", "took"]
    assert head.split()[6] in ("us", "ms")  # a busy computer is slow
    assert "mean of 2 steps on native" in shown.out
    assert "between statements" in shown.out
    assert "a step without commit and host" in shown.out
    conv = next(line for line in shown.out.splitlines() if line.split()[:1] == ["conv2d"])
    assert conv.endswith("%  ")
    plain = poet_host("show", schedule)
    assert "took us" not in plain.out


@pytest.mark.slow
def test_everything_is_written_at_once(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    html, trace, png = (tmp_path / name for name in ("p.html", "t.json", "p.png"))
    shown = poet_host(
        "show", schedule, "--run", run, "--html", html, "--trace", trace, "--png", png
    )
    assert (shown.code, shown.out) == (0, "")
    assert [f"wrote {path}" for path in (html, trace, png)] == shown.err.splitlines()
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert "{{" not in page.split('<script type="application/json"')[0]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    assert png.read_bytes().startswith(b"\x89PNG")


def test_json_has_predictions_and_measurements(
    poet_host: Command, trained: tuple[Path, Path]
) -> None:
    schedule, run = trained
    shown = poet_host("show", schedule, "--run", run, "--json").json
    saved = json.loads(run.read_text())
    assert shown["run"]["steps"] == 2
    assert shown["run"]["energy_uj"] == saved["energy_uj"]
    conv = next(row for row in shown["run"]["comparison"] if row["what"] == "conv2d")
    computed = [row for row in rows(Schedule.load(schedule)) if row.what.startswith("conv2d(")]
    assert conv["count"] == len(computed) > 2
    measured = [saved["trace"][row.index]["time_us"] for row in computed]
    assert conv["measured_us"] == pytest.approx(sum(measured))
    predicted = sum(row.time_us for row in computed if row.time_us)
    assert conv["predicted_us"] == pytest.approx(predicted)
    assert "run" not in poet_host("show", schedule, "--json").json


def test_a_streamed_operator_is_predicted_once() -> None:
    schedule, data = runs.in_columns()
    [plan] = views_of(schedule)
    assert any(bar.kind == "streamed" for bar in plan.bars)
    found = compare_run(schedule, plan, runs.train(schedule, data, steps=1))
    assert sum(row.predicted_us or 0 for row in found) == pytest.approx(
        sum(row.time_us for row in rows(schedule) if row.time_us)
    )


def test_a_run_with_other_rates_is_one_of_the_schedule(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also if the rates changed twice, as on a card."""
    schedule, run = Schedule.load(trained[0]), tmp_path / "run.json"
    given = with_rates(schedule, learning_rate=0.5)
    done = runs.train(given, steps=1, lr=0.02, lr_schedule="cosine")
    done.save(run)
    assert done.plan_crc == schedule.header.crc != given.header.crc
    assert "a step without" in poet_host("show", trained[0], "--run", run).out


def changed(run: Path, to: Path, **changes: Any) -> Path:
    to.write_text(json.dumps({**json.loads(run.read_text()), **changes}))
    return to


def test_predictions_for_another_board_have_no_errors(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    other = changed(run, tmp_path / "other.json", board="mkr1000")
    shown = poet_host("show", schedule, "--run", other)
    assert "mean of 2 steps on mkr1000; the plan is for native" in shown.out
    conv = next(line for line in shown.out.splitlines() if line.split()[:1] == ["conv2d"])
    assert "%" not in conv


def test_wrong_runs_are_refused(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    trace = json.loads(run.read_text())["trace"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"plan_crc": 1}, "00000001"),
        ({"trace": []}, "no trace"),
        ({"trace": trace[3:]}, "3 of "),
        ({"trace": [*trace[1:], {**trace[0], "node": "fc"}]}, "statement 0"),
        ({"trace": [{"op": "compute"}]}, "$.trace[0].node: "),
        ({"steps": "many"}, "$.steps: "),
        ({"format": "other"}, "bad.json"),
    ]
    for changes, words in cases:
        path = changed(run, tmp_path / "bad.json", **changes)
        shown = poet_host("show", schedule, "--run", path, "--html", tmp_path / "p.html")
        shown.fails(2, path, words)
        assert shown.out == ""
        assert shown.err.count("\n") == 1
    for name, content in (("half.json", run.read_text()[:500]), ("bytes.json", "\0")):
        (tmp_path / name).write_text(content)
        poet_host("show", schedule, "--run", tmp_path / name).fails(2, f"{name}, line 1: ", "JSON")
    poet_host("show", schedule, "--run", tmp_path / "none.json").fails(2, "none.json")
    poet_host("show", schedule, "--run", schedule).fails(2)
    assert not (tmp_path / "p.html").exists()


def test_wrong_outputs_are_refused(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    for option in ("--html", "--trace", "--png"):
        out = tmp_path / "none" / "file"
        poet_host("show", schedule, option, out).fails(2, out, f"folder {tmp_path / 'none'}")
        poet_host("show", schedule, "--run", run, option, run).fails(2, run, "reads")
    shown = poet_host("show", schedule, "--html", tmp_path / "a", "--trace", tmp_path / "a")
    shown.fails(2, tmp_path / "a", "writes")
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_without_costs_has_a_listing_but_no_page(
    poet_host: Command, tmp_path: Path
) -> None:
    toy.schedule().save(tmp_path / "toy.poet")
    shown = poet_host("show", tmp_path / "toy.poet")
    assert shown.code == 0
    assert "takes ms" not in shown.out
    for option in ("--html", "--trace", "--png"):
        shown = poet_host("show", tmp_path / "toy.poet", option, tmp_path / "file")
        shown.fails(2, "cost")
        assert shown.err.count("\n") == 1


@pytest.mark.slow
def test_pictures_are_drawn(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    schedule, png, html = (tmp_path / name for name in ("s.poet", "s.png", "s.html"))
    assert poet_host("solve", costs, "--ram", 24, "-o", schedule).code == 0
    shown = poet_host("show", schedule, "--png", png, "--html", html)
    assert shown.code == 0
    assert shown.out == ""
    assert png.read_bytes().startswith(b"\x89PNG")
    assert html.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    schedule = tmp_path / "s.poet"
    assert poet_host("solve", costs, "--ram", 24, "-o", schedule).code == 0
    process = spawn("show", schedule)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=20)


@pytest.mark.slow
def test_an_inference_is_shown_as_a_step_is(
    poet_host: Command, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    schedule, run = trained
    html, trace, png = (tmp_path / name for name in ("p.html", "t.json", "p.png"))
    shown = poet_host("show", schedule, "--forward", "--html", html, "--trace", trace, "--png", png)
    assert (shown.code, shown.out) == (0, "")
    assert "resnet-digits, an inference" in html.read_text()
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert "fc" in names
    assert not any(name.startswith("grad:") for name in names)
    assert png.read_bytes().startswith(b"\x89PNG")
    listed = poet_host("show", schedule, "--forward")
    assert "in RAM at the start: sample at" in listed.out
    refused = poet_host("show", schedule, "--forward", "--run", run)
    assert (refused.code, "omit one of the two" in refused.err) == (2, True)
