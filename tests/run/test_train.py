"""The training loop: stopped, resumed, unplugged, not finite, wrong weights; what it says."""

import json
import math
from collections import namedtuple
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import api
from poet_host.data.fitted import FittedData, fit
from poet_host.errors import BadInput, BoardError, LinkBroken, PoetWarning
from poet_host.graph.weights import Weights, check_continued, start_values
from poet_host.profile.profile import board_power
from poet_host.run.energy import energy_uj, mean_energy_uj, planned_part
from poet_host.run.run import Commit, Run, Step, Traced, weights_sha256
from poet_host.run.trace import KEPT, Trace
from poet_host.run.train import Diverged, Training, train
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.lanes_example import run_of

Record = namedtuple("Record", "statement kind begin end")


def digits() -> FittedData:
    return fit(poet.load_data("digits"), runs.small().graph)


def straight(steps: int) -> Run:
    return runs.train(runs.small(), steps=steps)


# Stopping and going on.


def test_a_resumed_run_has_the_same_bits_as_one_run(card: Path) -> None:
    first = runs.train(runs.small(), storage=card, steps=2)
    second = runs.train(runs.small(), storage=card, steps=5, resume=True)
    assert [step.step for step in (*first.steps, *second.steps)] == [1, 2, 3, 4, 5]
    whole = straight(5)
    assert runs.same(second, whole)
    assert [s.loss for s in whole.steps] == [s.loss for s in (*first.steps, *second.steps)]


def test_a_run_may_resume_with_another_plan(card: Path) -> None:
    runs.train(runs.schedule(runs.digits()), storage=card, steps=2)
    assert runs.same(runs.train(runs.small(), storage=card, steps=4, resume=True), straight(4))


def test_a_stop_ends_after_the_step_with_its_weights() -> None:
    seen: list[int] = []
    run = runs.train(
        runs.small(), steps=9, on_step=lambda step, total: seen.append(step.step),
        stopped=lambda: len(seen) == 3,
    )  # fmt: skip
    assert run.ended == "interrupted"
    assert seen == [1, 2, 3]
    assert runs.same(run, straight(3))


def test_a_stop_after_the_last_step_has_no_effect() -> None:
    assert runs.train(runs.small(), steps=1, stopped=lambda: True).ended == "done"


def test_a_run_without_remaining_steps_returns_the_weights(card: Path) -> None:
    runs.train(runs.small(), storage=card, steps=2)
    again = runs.train(runs.small(), storage=card, steps=2, resume=True)
    assert again.steps == ()
    assert again.energy_uj is None
    assert runs.same(again, straight(2))


def test_without_committed_weights_there_is_nothing_to_resume(card: Path) -> None:
    with pytest.raises(BadInput, match="no trained weights of resnet-digits"):
        runs.train(runs.small(), storage=card, steps=2, resume=True)


def test_weights_of_another_model_are_not_resumed(card: Path) -> None:
    runs.train(runs.schedule(runs.digits(0.9, 0.0005)), storage=card, steps=1)
    with pytest.raises(BadInput, match="weights of"):
        runs.train(runs.small(), storage=card, steps=2, resume=True)


def test_a_killed_board_breaks_the_link_and_loses_nothing(card: Path) -> None:
    with (
        api.start_board("native", card, 64 * 1024) as running,
        poet.connect(running.port) as connection,
    ):
        training = Training(connection.device, runs.small(), digits())
        training.step()
        training.step()
        running.kill()
        with pytest.raises(LinkBroken, match=r"weights of step 2 or 3.*--resume"):
            training.step()
    assert runs.same(runs.train(runs.small(), storage=card, steps=4, resume=True), straight(4))


# The next batch.


@pytest.mark.parametrize("name", ["busy", "storage_failed"])
def test_a_board_may_refuse_the_next_batch_during_a_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy board gets the batch after the step, when failures of the card are raised too."""
    with runs.board(runs.small()) as connection:
        device = connection.device
        training = Training(device, runs.small(), digits())
        write, run = device.write, device.step
        running = False

        def refuse(*arguments: Any) -> None:
            if running:
                raise BoardError("the board refused write", name)
            write(*arguments)

        def step(number: int, first: int, count: int, meanwhile: Any) -> Any:
            nonlocal running
            result, running = run(number, first, count), True
            if meanwhile:
                meanwhile()
            running = False
            return result

        monkeypatch.setattr(device, "write", refuse)
        monkeypatch.setattr(device, "step", step)
        if name == "busy":
            assert runs.same(train(training, 3), straight(3))
            return
        with pytest.raises(BoardError, match="refused write"):
            train(training, 3)
        assert [step.step for step in training.done] == [1]
        assert runs.same(training.finish("interrupted"), straight(1))


# Losses of nan and infinity.


def test_an_infinite_loss_keeps_the_last_good_weights() -> None:
    graph = runs.digits(learning_rate=1e30)
    schedule = runs.schedule(graph, "100%", "keep-everything")
    with pytest.raises(Diverged, match=r"diverged at step \d+") as caught:
        runs.train(schedule, steps=20)
    run = caught.value.run
    assert run.ended == "not_finite"
    assert 1 <= run.last_step < 20
    assert runs.same(run, runs.train(schedule, steps=run.last_step))


# What does not fit.


def test_a_board_without_enough_ram_refuses_the_schedule() -> None:
    with (
        poet.connect("native", arena_bytes=8192) as connection,
        pytest.raises(BoardError, match="smaller --ram") as caught,
    ):
        poet.train(runs.small(), connection, "digits", steps=1)
    assert caught.value.name == "arena_small"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("fc.nothing", np.zeros(3), r"no parameter fc\.nothing.*conv1\.weight"),
        ("fc.bias", np.zeros(3), r"fc.bias has shape \(3,\), but resnet-digits .*\(10,\)"),
        ("fc.bias", np.full(10, np.nan), "fc.bias of resnet-digits holds NaN"),
    ],
)
def test_starting_weights_are_checked(name: str, values: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        runs.train(runs.small(), steps=1, weights={name: values.astype(np.float32)})


def test_training_starts_with_the_given_weights() -> None:
    start = start_values(runs.digits(), seed=7)
    given = runs.train(runs.small(), steps=2, weights=start)
    assert runs.same(given, runs.train(runs.small(), steps=2, weights=start, seed=0))
    assert not runs.same(given, straight(2))


@cache
def pulled() -> Schedule:
    return runs.schedule(api.load("resnet-digits", momentum=0.9, proximal=0.5))


def from_file(path: Path, run: Run) -> Weights:
    graph = pulled().graph
    poet.save_weights(path, graph, run.weights, run.last_step)
    return poet.load_weights(path, graph)


def test_a_new_run_begins_with_a_new_optimiser() -> None:
    """States of the optimiser and starting weights of the run before play no part."""
    first = runs.train(pulled(), steps=2).weights
    plain = {name: value for name, value in first.items() if ":" not in name}
    runs_of = [runs.train(pulled(), steps=2, weights=given) for given in (first, plain)]
    assert runs.same(*runs_of)
    for name, value in plain.items():
        if f"{name}:anchor" in first:
            assert np.array_equal(runs_of[0].weights[f"{name}:anchor"], value)


def test_weights_with_all_states_continue_as_one_run(tmp_path: Path) -> None:
    first = runs.train(pulled(), steps=2)
    more = runs.train(pulled(), steps=4, weights=first.weights, first_step=2)
    assert runs.same(more, runs.train(pulled(), steps=4))
    weights = from_file(tmp_path / "w.safetensors", first)  # which has no starting weights
    with pytest.raises(BadInput, match="--proximal"):
        runs.train(pulled(), steps=4, weights=weights, first_step=2)


def test_adam_without_its_averages_warns() -> None:
    graph = runs.texts()
    weights = start_values(graph, 0)
    check_continued(graph, weights, 0)
    with pytest.warns(PoetWarning, match="no state of the optimiser"):
        check_continued(graph, weights, 2)
    name = next(name for name in weights if name.endswith(":exp_avg"))
    check_continued(graph, weights | {name: np.ones_like(weights[name])}, 2)


def test_a_first_step_needs_weights() -> None:
    with pytest.raises(BadInput, match="first_step"):
        runs.train(runs.small(), steps=4, first_step=2)


def test_frozen_weights_do_not_change() -> None:
    graph = api.load("resnet-digits", train="last:2")
    trained = {node.name for node in graph.trainable}
    start = start_values(graph, seed=0)
    run = runs.train(runs.schedule(graph), steps=2)
    changed = {name for name in start if start[name].tobytes() != run.weights[name].tobytes()}
    assert changed == trained
    assert 0 < len(trained) < len(start)


# What a run says about itself.


def test_a_run_as_json_has_everything_but_the_weights() -> None:
    run = straight(3)
    saved = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert saved["format"] == "poet-run"
    assert [step["loss"] for step in saved["steps"]] == [step.loss for step in run.steps]
    assert saved["peak_bytes"] == run.peak_bytes > 0
    assert saved["weights_sha256"] == weights_sha256(run.weights)
    assert len(saved["trace"]) == len(run.trace)
    assert "weights" not in saved
    assert saved["energy_uj"] > 0
    assert saved["total_energy_uj"] > saved["energy_uj"]


def test_a_run_is_saved_and_loaded(tmp_path: Path) -> None:
    run = straight(3)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run.to_json()))
    assert Run.load(path, run.weights) == run
    assert Run.load(path).to_json()["weights_sha256"] is None  # they have a file of their own


def test_a_trace_has_the_times_of_the_latest_step() -> None:
    run = straight(3)
    trace = run.trace
    assert [row.statement for row in trace] == list(range(len(trace)))
    assert all(0 <= row.begin_us <= row.end_us <= run.steps[-1].time_us for row in trace)
    processor = [row for row in trace if not row.op.startswith("page")]
    assert all(a.end_us <= b.begin_us for a, b in pairwise(processor))


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("trace", 0, "begin_us"), "soon", r"trace\[0\]\.begin_us"),
        (("trace", 0, "statement"), 1.5, r"trace\[0\]\.statement"),
        (("steps", 1, "loss"), True, r"steps\[1\]\.loss"),
        (("steps", 1, "loss"), math.nan, r"steps\[1\]\.loss"),
        (("steps", 1, "time_us"), None, r"steps\[1\]\.time_us"),
        (("steps", 1, "time_us"), 10**400, r"steps\[1\]\.time_us"),
        (("plan_crc",), "x", r"\.plan_crc"),
        (("ended",), "x" * 5000, r"\.ended"),
        (("energy_uj",), [], r"\.energy_uj"),
        (("steps",), 7, r"\.steps"),
        (("trace", 0), 7, r"trace\[0\]"),
    ],
)
def test_a_run_of_other_values_is_refused(
    tmp_path: Path, where: tuple[Any, ...], value: object, words: str
) -> None:
    saved = json.loads(json.dumps(straight(3).to_json()))
    inner = saved
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(saved))
    with pytest.raises(BadInput, match=f"run.json, at .*{words}: ") as caught:
        Run.load(path)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "run.json"),
        ('{"format": "poet-plan"}', "run.json"),
        ('{"format": "poet-run", "version": 2}', "version 2"),
        ('{"format": "poet-run", "version": 1}', "key is missing"),
        ("{", "not JSON"),
    ],
)
def test_files_that_are_not_runs_are_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=words):
        Run.load(path)


def test_the_digest_depends_on_names_shapes_and_bits() -> None:
    base = {"a": np.array([0.0, 1.0], np.float32), "b": np.ones((2, 2), np.float32)}
    others: list[dict[str, Any]] = [
        {**base, "a": np.array([-0.0, 1.0], np.float32)},
        {**base, "b": np.ones((1, 4), np.float32)},
        {"c": base["a"], "b": base["b"]},
        {"a": base["a"]},
    ]
    assert weights_sha256(dict(reversed(base.items()))) == weights_sha256(base)
    assert len({weights_sha256(weights) for weights in (base, *others)}) == 5


def test_costs_of_a_step_are_means_with_the_commits_to_flash() -> None:
    """One step of four waits for a card, and one commit follows the last step."""
    power = board_power(api.load_board("mkr1000"))
    steps = tuple(
        Step(i + 1, 0.5, time_us, 90.0, 0.0, 4.0, 0.0, 0.0, 0.0, 6.0, 64)
        for i, time_us in enumerate((100.0, 100.0, 100.0, 500.0))
    )
    commits = (Commit(4, 40.0, 3),)
    above_uj, total_uj = mean_energy_uj(steps, commits, power)
    assert above_uj == pytest.approx(210 * power.compute_uw / 1e6, rel=1e-12)
    assert total_uj == pytest.approx(210 * (power.compute_uw + power.base_uw) / 1e6, rel=1e-12)
    run = replace(run_of(), steps=steps, commits=commits)
    costs_us = (run.time_us, run.measured_time_us, run.overhead_us)
    assert costs_us == pytest.approx((210, 190, 20), rel=1e-12)
    saved = run.to_json()
    assert costs_us == (saved["time_us"], saved["measured_time_us"], saved["overhead_us"])
    old = replace(run, statistic="median")
    assert (old.time_us, old.measured_time_us, old.overhead_us) == (100, 90, 10)
    # After a reset, the board knows only the loss of the step before.
    unknown = (*steps, Step(5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0))
    assert replace(run, steps=unknown).measured_time_us == run.measured_time_us
    assert mean_energy_uj(unknown, (), power) == mean_energy_uj(steps, (), power)
    bare = replace(run, steps=())
    assert (bare.time_us, bare.measured_time_us, bare.overhead_us) == (None, None, None)


def test_energy_is_the_time_in_each_state_multiplied_by_its_power() -> None:
    board = api.load_board("mkr1000")
    trace = (
        Traced("compute", "a", False, True, 100.0, 0, 0.0, 100.0),
        Traced("compute", "a", True, True, 50.0, 1, 0.0, 50.0),
        Traced("page_in", "w", False, False, 10.0, 2, 0.0, 10.0),
        Traced("page_out", "a", False, True, 20.0, 3, 0.0, 20.0),
        Traced("wait", "", False, False, 1000.0, 4, 0.0, 1000.0),
        Traced("free", "a", False, True, 1000.0, 5, 0.0, 1000.0),
    )
    step = Step(1, 0.5, 2000.0, 150.0, 30.0, 5.0, 1840.0, 10.0, 25.0, 7.0, 64, 4.0, 1.0, 5.0)
    above, total = energy_uj(step, board_power(board))
    power = board.power
    awake_uw = power.processor_active_uw - power.processor_sleep_uw
    expected = 160 * awake_uw + 10 * power.storage_read_uw + 25 * power.storage_write_uw
    assert above == pytest.approx(expected / 1e6, rel=1e-12)
    assert total == pytest.approx(above + 2000 * board.base_power_uw / 1e6, rel=1e-12)
    # Without the overhead: 12 us, of which the processor slept 4.
    expected = 152 * awake_uw + 9 * power.storage_read_uw + 20 * power.storage_write_uw
    planned = planned_part(step, board_power(board))
    assert planned == pytest.approx((1988.0, expected / 1e6), rel=1e-12)
    assert Run.counts(SimpleNamespace(trace=trace)) == {  # type: ignore[arg-type]
        "computes": 2, "recomputes": 1, "page_ins": 1, "page_outs": 1,
        "activation_recomputes": 1, "activation_page_ins": 0, "activation_page_outs": 1,
    }  # fmt: skip


class FixedClock:
    """In place of a device: a tick is a microsecond."""

    def us(self, ticks: float) -> float:
        return ticks


@pytest.mark.parametrize("capacity", [1, 7, 60, 100_000])
def test_a_window_of_the_trace_moves_over_the_whole_plan(capacity: int) -> None:
    schedule = runs.small()
    trace = Trace(schedule, schedule.graph, capacity)
    statements = len(trace.statements)
    windows = -(-statements // capacity)
    for step in range(windows):
        assert not all(trace.ticks)
        first, size = trace.window(step)
        assert size <= capacity
        trace.add(Record(i, 0, 2**32 - 5, i) for i in range(first, first + size))
    assert all(trace.ticks)
    times = [row.time_us for row in trace.traced(FixedClock())]  # type: ignore[arg-type]
    assert times == [i + 5 for i in range(statements)]
    assert trace.window(windows) == trace.window(0)


def test_a_trace_of_hours_goes_on_where_ticks_wrap_around() -> None:
    trace = Trace(runs.small(), runs.digits(), 4)
    begins_us = [i * 10**9 for i in range(len(trace.statements))]
    for first in range(0, len(begins_us), 4):
        rows = list(enumerate(begins_us))[first : first + 4]
        trace.add(Record(i, 0, at % 2**32, (at + 10**9) % 2**32) for i, at in rows)
    found = trace.traced(FixedClock())  # type: ignore[arg-type]
    assert [row.begin_us for row in found] == begins_us
    assert all(row.end_us - row.begin_us == row.time_us == 10**9 for row in found)


def test_a_board_without_trace_has_no_window() -> None:
    trace = Trace(runs.small(), runs.digits(), 0)
    assert trace.window(3) == (0, 0)
    assert not all(trace.ticks)
    assert trace.traced(FixedClock()) == ()  # type: ignore[arg-type]


def test_times_of_a_statement_are_the_mean_of_the_latest() -> None:
    trace = Trace(runs.small(), runs.digits(), 10)
    for i in range(KEPT + 4):
        trace.add([Record(0, 0, 0, 1000 if i < 4 else 6 if i % 4 else 18)])
    assert trace.traced(FixedClock())[0].time_us == 9  # type: ignore[arg-type]
