"""What happens between or during steps on a board: other commands, Ctrl-C, and resets."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from card.test_card import alone
from poet_host.api import connection as connections
from poet_host.device.device import PLAN
from poet_host.device.link import Link
from poet_host.errors import BadInput, BoardError, PoetWarning
from poet_host.graph.weights import start_values
from poet_host.run.log import Log
from poet_host.run.run import Step
from poet_host.run.train import load_schedule
from poet_host.schedule.schedule import Schedule
from run import test_staying as staying
from support import whole_runs as runs

STEPS = 7


@cache
def in_flash() -> Schedule:
    """A schedule without storage, whose weights are committed after 100 steps."""
    profile = runs.profile().without_card()
    problem = poet.problem(runs.digits(), profile, ram="100%", storage=False)
    schedule: Schedule = poet.encode(runs.digits(), profile, problem.keep_everything)
    assert not schedule.model.storage
    return schedule


def on_card() -> Schedule:
    """A schedule that commits after every third step."""
    return staying.schedule("digits", 3)


@pytest.mark.parametrize("make", [in_flash, on_card])
def test_commands_between_two_steps_find_all_steps_and_change_none(
    make: Callable[[], Schedule],
) -> None:
    schedule = make()
    with runs.board(schedule) as connection:
        training = poet.begin_training(schedule, connection, "digits")
        for step in range(1, STEPS + 1):
            training.step(more=True)
            if step == 2:
                found = poet.predict(schedule, "digits", connection=connection, samples=5)
                weights = training.weights()
                wanted = poet.predict(schedule, "digits", weights=weights, samples=5)
                assert found.outputs.tobytes() == wanted.outputs.tobytes()
                assert training.saved == 2
            if step == 4:
                poet.evaluate(schedule, connection, "digits", samples=5)
            if step == 5:
                poet.read_card(schedule, connection)
        run = training.finish()
    assert runs.same(run, runs.train(schedule, steps=STEPS))


def test_an_evaluation_after_each_step_changes_no_weight() -> None:
    schedule = in_flash()
    with runs.board(schedule) as connection:

        def evaluate(step: Step, last: int) -> None:
            poet.evaluate(schedule, connection, "digits", samples=2)

        run = poet.train(
            schedule, connection, "digits", steps=STEPS,
            on_step=evaluate,
        )  # fmt: skip
    assert runs.same(run, runs.train(schedule, steps=STEPS))


def test_a_resumed_training_begins_after_uncommitted_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, begun, begin = in_flash(), list[int](), Log.begin

    def noted(log: Log, about: Any, from_step: int, *rest: Any) -> None:
        begun.append(from_step)
        begin(log, about, from_step, *rest)

    monkeypatch.setattr(Log, "begin", noted)
    with runs.board(schedule) as connection:
        training = poet.begin_training(schedule, connection, "digits")
        training.step()
        training.step()
        run = poet.train(schedule, connection, "digits", steps=4, resume=True)
    assert begun == [0, 2]
    assert [step.step for step in run.steps] == [3, 4]
    assert runs.same(run, runs.train(schedule, steps=4))


def test_a_board_can_be_used_after_an_upload_that_did_not_end() -> None:
    """As Ctrl-C leaves it: a schedule is loaded, and nothing is committed."""
    schedule = runs.small()
    with runs.board(schedule) as connection:
        load_schedule(connection.device, schedule)
        values = start_values(schedule.graph, 0)
        poet.evaluate(schedule, connection, "digits", weights=values, samples=2)
        with pytest.raises(BadInput, match="no trained weights"):
            poet.train(schedule, connection, "digits", steps=2, resume=True)


def test_steps_that_an_evaluation_finds_lost_are_not_reported_as_done() -> None:
    schedule = in_flash()
    with runs.board(schedule) as connection:
        training = poet.begin_training(schedule, connection, "digits")
        for _ in range(3):
            training.step()
        connection.device.reset()
        poet.evaluate(schedule, connection, "digits", samples=2)
        for end in (training.step, training.finish, training.save, training.weights):
            with pytest.raises(BoardError, match="--resume") as caught:
                end()
            assert (caught.value.name, caught.value.detail) == ("wrong_step", 0)
        run = poet.train(schedule, connection, "digits", steps=4, resume=True)
    assert runs.same(run, runs.train(schedule, steps=4))


def test_steps_that_the_board_cannot_commit_are_kept_or_trained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = in_flash()
    with runs.board(schedule) as connection:
        training = poet.begin_training(schedule, connection, "digits")
        training.step()
        with monkeypatch.context() as patch:
            patch.setattr(connection.device, "save", refuse)
            with pytest.raises(BoardError) as caught:
                poet.evaluate(schedule, connection, "digits", samples=2)
            assert caught.value.name == "page_damaged"
        save, refusals = connection.device.save, iter((refuse, refuse))
        monkeypatch.setattr(connection.device, "save", lambda: next(refusals, save)())
        run = poet.train(schedule, connection, "digits", steps=2, resume=True)
        assert run.steps[0].step == 1
    assert runs.same(run, runs.train(schedule, steps=2))


def refuse() -> None:
    raise BoardError("the board refused save", "page_damaged")


@pytest.mark.parametrize("command", ["train", "read", "evaluate", "predict", "write"])
def test_another_schedule_of_the_model_does_not_end_a_job(command: str, card: Path) -> None:
    schedule, other = runs.schedule(runs.digits(), "100%", "poet"), runs.schedule(runs.digits())
    assert len(schedule.plan_part) != len(other.plan_part)
    with runs.board(schedule, card) as connection:
        poet.write_card(schedule, connection, "digits", steps=3)
    with runs.board(other, card) as connection:
        if command == "train":
            with pytest.raises(BadInput, match="unfinished job"):
                poet.train(other, connection, "digits", steps=2)
        elif command == "write":
            with pytest.raises(BadInput, match="a job of"):
                poet.write_card(other, connection, "digits", steps=10**7, resume=True)
        elif command == "read":
            assert poet.read_card(other, connection)[0] is not None
        elif command == "evaluate":
            poet.evaluate(other, connection, "digits", samples=2)
        else:
            poet.predict(other, "digits", connection=connection, samples=2)
    assert poet.check_card(card).problems == ()
    alone(schedule, card, 3)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`interrupt(n)` sends Ctrl-C during the n-th step from now on."""
    left, request = 0, Link.request_long

    def step(link: Link, code: int, payload: bytes, *rest: Any) -> bytes:
        nonlocal left
        left -= 1
        if left:
            return request(link, code, payload, *rest)
        link._send(link._next_sequence(), code, payload)
        time.sleep(0.002)  # the board computes
        raise KeyboardInterrupt

    def at(number: int) -> None:
        nonlocal left
        left = number
        monkeypatch.setattr(Link, "request_long", step)

    return at


def test_ctrl_c_during_an_evaluation_puts_the_schedule_back(
    interrupt: Callable[[int], None],
) -> None:
    graph: Any = poet.load("resnet18-cifar")  # a step takes longer than the host's next request
    schedule = runs.schedule(graph)
    with runs.board(schedule) as connection:
        training = poet.begin_training(schedule, connection, "synthetic:3x32x32:10")
        training.step()
        interrupt(1)
        with pytest.raises(KeyboardInterrupt):
            poet.evaluate(schedule, connection, "synthetic:3x32x32:10", samples=1)
        assert connection.device.holds(PLAN, 0, schedule.plan_part)


def test_ctrl_c_during_a_validation_empties_the_card(
    interrupt: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph: Any = poet.load("resnet18-cifar")
    plan = runs.plan(graph, "100%", "keep-everything")
    monkeypatch.setattr(connections, "_fitting", lambda *_: plan)
    with runs.board(runs.schedule(graph)) as connection:
        interrupt(2)
        with pytest.raises(KeyboardInterrupt):
            connection.validate(graph, runs.profile())
        assert not connection.device.hello().committed_model


def test_a_board_that_is_reset_more_often_than_it_commits_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with poet.connect("native", arena_bytes=1 << 18) as connection:
        device, run, steps = connection.device, connection.device.step, 0

        def step(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps % 5 == 0:
                device.reset()
            return run(*arguments)

        monkeypatch.setattr(device, "step", step)
        with pytest.warns(PoetWarning), pytest.raises(BoardError, match="step 0 4 times"):
            poet.train(in_flash(), connection, "digits", steps=9)
        assert steps == 20
        steps = 0
        with pytest.warns(PoetWarning):
            done = poet.train(in_flash(), connection, "digits", steps=9, commit_every=2)
    assert done.last_step == 9


@pytest.mark.parametrize("resets", [3, 4])
def test_a_board_that_is_reset_again_at_once_returns_three_times(
    resets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runs.board(in_flash()) as connection:
        device, run, requests = connection.device, connection.device.step, 0

        def step(*arguments: Any) -> Any:
            nonlocal requests
            requests += 1
            if 3 <= requests < 3 + resets:
                device.reset()
            return run(*arguments)

        monkeypatch.setattr(device, "step", step)
        ended = nullcontext() if resets == 3 else pytest.raises(BoardError, match="step 0 4 times")
        with pytest.warns(PoetWarning) as warned, ended:
            done = poet.train(in_flash(), connection, "digits", steps=4)
    assert len(warned) == 3
    assert resets > 3 or runs.same(done, runs.train(in_flash(), steps=4))
