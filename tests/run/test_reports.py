"""What `train` reports: deadlines, predictions, divergence, epochs, validation, full disks."""

import json
import os
import resource
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.cli import console
from poet_host.graph.graph import Graph
from poet_host.run.energy import planned_part
from poet_host.run.run import weights_sha256
from poet_host.run.validate import validate
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import spawn
from support.sim_helper import needs_compiler


def with_deadline(deadline_us: float | None) -> Schedule:
    schedule = runs.schedule(runs.digits())
    plan = {**schedule.meta["plan"], "deadline_us": deadline_us}
    return replace(schedule, meta={**schedule.meta, "plan": plan})


# Deadlines and predictions.


@pytest.mark.parametrize("deadline_us", [1.0, 1e9, None])
def test_a_deadline_is_compared_with_every_step(
    deadline_us: float | None, train: Any, tmp_path: Path
) -> None:
    schedule, run_path = with_deadline(deadline_us), tmp_path / "run.json"
    missed = deadline_us == 1.0
    result = train(schedule, "--steps", 3, "--run", run_path, "--json")
    assert result.code == 0
    run = json.loads(run_path.read_text())
    for found in (result.json, run):
        assert found["deadline_us"] == deadline_us
        assert found["deadline_missed"] is missed
        assert found["deadline_missed_steps"] == 3 * missed
        assert found["predicted_time_us"] == schedule.meta["plan"]["time_us"]
        assert found["predicted_energy_uj"] == schedule.meta["plan"]["energy_uj"]
    parts = [step["time_us"] - step["commit_us"] - step["serving_us"] for step in run["steps"]]
    assert run["measured_time_us"] == pytest.approx(fmean(parts), rel=1e-9)
    assert 0 < run["measured_energy_uj"] < run["energy_uj"] < run["total_energy_uj"]
    strict = train(schedule, "--steps", 3, "--strict-deadline", "--json")
    assert strict.code == (2 if deadline_us is None else missed)
    assert ("error" in strict.json) == (missed or deadline_us is None)
    shown = train(schedule, "--steps", 3).out
    assert ("missed in 3 of 3 steps" in shown) == missed
    assert ("met" in shown) == (deadline_us == 1e9)


@needs_compiler
@pytest.mark.slow
def test_measurements_agree_with_predictions() -> None:
    """Predicted from a profile of the board, which has no pauses of the card: so are most steps.

    25 to 35 ms of the step pass outside of kernels and transfers: of 644 ms, 5.2 %. In some steps,
    the card pauses for 20 ms. Most of nine steps have no pause; of five, sometimes three have. So
    medians are compared, not the run's means.
    """
    graph = runs.digits()
    with poet.connect("sim:mkr1000") as board:
        profile, _ = board.validate(graph, board.profile(graph))
        plan = poet.solve(graph, profile, ram=24_576, gap=0.5, work_limit=60_000)
        run = poet.train(poet.encode(graph, profile, plan), board, "digits", steps=9)
    assert run.predicted_time_us == plan.time_us
    times_us, energies_uj = zip(
        *(planned_part(step, profile.power) for step in run.steps), strict=True
    )
    assert median(times_us) == pytest.approx(plan.time_us, rel=0.06)
    assert median(energies_uj) == pytest.approx(plan.energy_uj, rel=0.05)
    assert run.measured_time_us == fmean(times_us)
    assert run.measured_energy_uj == fmean(energies_uj)


# Divergence.


def wild(learning_rate: float) -> Schedule:
    return runs.schedule(runs.digits(learning_rate=learning_rate))


def test_a_run_that_diverges_keeps_the_last_finite_step(train: Any, tmp_path: Path) -> None:
    run_path, log = tmp_path / "run.json", tmp_path / "run.jsonl"
    result = train(wild(1e30), "--run", run_path, "--log", log, "--json")
    assert result.code == 1
    run = json.loads(run_path.read_text())
    done = len(run["steps"])
    assert 1 <= done < 10
    assert run["ended"] == "not_finite"
    assert result.json["exit_code"] == 1
    assert f"diverged at step {done + 1}" in result.json["error"]
    assert f"diverged at step {done + 1}" in result.err
    weights = poet.load_weights(tmp_path / "w.safetensors", runs.digits())
    assert all(np.isfinite(value).all() for value in weights.values())
    assert weights_sha256(weights) == run["weights_sha256"]
    assert poet.step_of_weights(tmp_path / "w.safetensors") == done
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["ended"] == "not_finite"
    assert f"diverged at step {done + 1}" in last["error"]
    straight = runs.train(wild(1e30), steps=done)
    assert weights_sha256(weights) == weights_sha256(straight.weights)


def test_without_a_finite_step_the_file_of_weights_is_unchanged(train: Any, tmp_path: Path) -> None:
    """The samples are so large that the first loss or the first update overflows."""
    data = poet.load_data("digits")
    np.savez(tmp_path / "large.npz", x=data.x * np.float32(1e30), y=data.y)
    (tmp_path / "w.safetensors").write_bytes(b"before")
    run_path = tmp_path / "run.json"
    result = train(wild(0.02), "--run", run_path, "--json", data=tmp_path / "large.npz")
    assert result.code == 1
    assert "diverged at step 1" in result.err
    assert (tmp_path / "w.safetensors").read_bytes() == b"before"
    assert json.loads(run_path.read_text())["steps"] == []


# Epochs, validation, checkpoints.


def small_data(tmp_path: Path) -> Path:
    data = poet.load_data("digits")
    path = tmp_path / "small.npz"
    np.savez(path, x=data.x[:48], y=data.y[:48], x_test=data.x[50:90], y_test=data.y[50:90])
    return path


def test_without_a_terminal_the_first_and_the_last_epoch_are_lines(
    train: Any, tmp_path: Path
) -> None:
    """In between there is at most one line a second: see tests/cli/test_progress.py."""
    data = small_data(tmp_path)
    lines = train(wild(0.02), "--epochs", 3, data=data).err.splitlines()
    epochs = [line for line in lines if "epoch" in line and "mean loss" in line]
    assert epochs[0].startswith("training resnet-digits: 12 of 36, epoch 1, mean loss")
    assert epochs[-1].startswith("training resnet-digits: 36 of 36, epoch 3, mean loss")


def test_a_long_epoch_is_a_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    with console.progress("training") as report:
        for step in range(1, 301):
            now_s += 1.0
            report(step, 300, "loss 1.0")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [f"training: {step} of 300, loss 1.0" for step in range(60, 301, 60)]


@pytest.mark.slow
def test_each_epoch_is_validated_and_the_best_weights_are_kept(train: Any, tmp_path: Path) -> None:
    data, log = small_data(tmp_path), tmp_path / "run.jsonl"
    result = train(wild(0.3), "--epochs", 6, "--validate", "--log", log, "--json", data=data)
    assert result.code == 0
    found = result.json["validation"]
    assert [(row["epoch"], row["step"]) for row in found] == [(n, 12 * n) for n in range(1, 7)]
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [row["loss"] for row in found]
    assert [row["loss"] for row in logged if row["event"] == "validation"] == losses
    best = min(found, key=lambda row: row["loss"])
    kept = tmp_path / "w.best.safetensors"
    assert result.json["best"] == {**best, "file": str(kept)}
    assert poet.step_of_weights(kept) == best["step"]
    graph = runs.digits()
    weights = poet.load_weights(kept, graph)
    dataset = poet.load_data(data)
    again = validate(graph, weights, dataset, best["epoch"], best["step"])
    assert again.loss == best["loss"]
    assert again.accuracy == best["accuracy"]
    with runs.board(wild(0.3)) as board:  # what the board computes for the same weights
        by_board = poet.evaluate(wild(0.3), board, dataset, weights=weights)
    assert by_board.loss == pytest.approx(again.loss, rel=1e-5)
    assert by_board.accuracy == again.accuracy


def test_numbers_are_validated_by_their_squares() -> None:
    graph: Graph = runs.mixed()
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 3, 8, 8), np.float32), rng.random((4, 4), np.float32)
    schedule = runs.schedule(graph)
    data = poet.Dataset("drawn", x, y, x, y)
    run = runs.train(schedule, data, steps=1)
    found = validate(graph, run.weights, data, 1, 1)
    with runs.board(schedule) as board:
        by_board = poet.evaluate(schedule, board, data, weights=run.weights)
    assert found.loss == pytest.approx(by_board.loss, rel=1e-5)
    assert found.accuracy is None


def test_a_resumed_run_keeps_better_weights_of_the_previous_run(
    train: Any, card: Path, tmp_path: Path
) -> None:
    data = small_data(tmp_path)
    more = ("--storage", card, "--validate", "--json")
    first = train(wild(0.1), *more, "--epochs", 2, data=data).json["best"]
    kept = (tmp_path / "w.best.safetensors").read_bytes()
    worse = train(wild(0.1), *more, "--epochs", 3, "--resume", "--lr", 3, data=data)
    assert worse.json["validation"][0]["loss"] > first["loss"]
    assert worse.json["best"] == first
    assert (tmp_path / "w.best.safetensors").read_bytes() == kept


def test_validation_needs_held_out_samples(train: Any, tmp_path: Path) -> None:
    data = poet.load_data("digits")
    np.savez(tmp_path / "all.npz", x=data.x, y=data.y)
    train(wild(0.02), "--validate", data=tmp_path / "all.npz").fails(2, "--test-split")


@pytest.mark.slow
def test_weights_are_saved_during_training(train: Any, tmp_path: Path) -> None:
    """After a kill, the file has the weights of a whole step."""
    schedule = tmp_path / "m.poet"
    wild(0.02).save(schedule)
    weights = tmp_path / "w.safetensors"
    process = spawn(
        "train", schedule, "--port", "native", "--data", "digits", "--steps", 100000,
        "--save-every", 5, "--save-weights", weights,
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not weights.exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    step = poet.step_of_weights(weights)
    assert step % 5 == 0
    straight = runs.train(wild(0.02), steps=step)
    assert weights_sha256(poet.load_weights(weights, runs.digits())) == weights_sha256(
        straight.weights
    )


def test_a_run_without_remaining_steps_says_so(train: Any, card: Path) -> None:
    assert train(wild(0.02), "--storage", card, "--steps", 3).code == 0
    again = train(wild(0.02), "--storage", card, "--steps", 2, "--resume")
    assert again.code == 0
    assert "nothing to train" in again.err


def test_a_full_disk_is_found_before_training(tmp_path: Path) -> None:
    """A limit of the size of files simulates a full disk."""
    schedule, log = tmp_path / "m.poet", tmp_path / "run.jsonl"
    wild(0.02).save(schedule)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    with spawn(
        "train", schedule, "--port", "native", "--data", "digits", "--steps", 1, "--log", log,
        "--save-weights", tmp_path / "w.safetensors",
        preexec_fn=limit, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:  # fmt: skip
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert "w.safetensors" in err
    assert "training" not in err
    assert not log.exists()
