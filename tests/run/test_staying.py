"""Weights that stay in RAM from step to step: trainings give the same bits for every interval."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from card.test_card import alone, read, texts_data, write
from poet_host.data.datasets import Dataset
from poet_host.errors import BadInput
from poet_host.run.train import Diverged
from poet_host.schedule.decode import initial_offsets
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.card_image import newest_commit
from support.command import Command

STEPS = 7
MODELS: dict[str, tuple[Any, str]] = {
    "digits": (runs.digits, "60%"),
    "momentum": (lambda: runs.digits(momentum=0.9), "130%"),
    "texts": (runs.texts, "100%"),
}


@cache
def schedule(model: str, every: int) -> Schedule:
    make, ram = MODELS[model]
    problem = poet.problem(make(), runs.profile(), ram=ram, commit_every=every)
    return poet.encode(make(), poet.solve(problem, work_limit=600))


def data(model: str) -> Dataset | str:
    return texts_data() if model == "texts" else "digits"


def committed(card: Path) -> int:
    return int(newest_commit(card)["now"]["step"])


@pytest.mark.parametrize("model", MODELS)
def test_weights_do_not_depend_on_the_interval(model: str, card: Path) -> None:
    often, seldom = schedule(model, 1), schedule(model, 3)
    assert initial_offsets(seldom)
    assert seldom.header.commit_every == 3
    wanted = runs.train(runs.schedule(MODELS[model][0]()), data(model), steps=STEPS)
    assert runs.same(runs.train(often, data(model), steps=STEPS), wanted)
    seen: list[int] = []
    run = runs.train(
        seldom,
        data(model),
        storage=card,
        steps=STEPS,
        on_step=lambda *_: seen.append(committed(card)),
    )
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    assert runs.same(run, wanted)
    assert committed(card) == STEPS  # a training commits at its end
    assert run.commit_every == 3
    with pytest.raises(poet.BadInput, match="commits after every 3 steps"):
        runs.train(seldom, data(model), steps=1, commit_every=5)
    with pytest.raises(poet.BadInput, match="'first' or 'last', not 'start'"):
        run.loss("start")  # type: ignore[arg-type]
    report = poet.check_card(card)
    assert report.problems == ()
    assert {found.commit_every for found in report.commits if found.step} == {3}


def test_an_interrupted_training_commits_and_continues(card: Path) -> None:
    plan = schedule("digits", 3)
    run = runs.train(plan, storage=card, steps=STEPS, stopped=lambda: committed(card) == 3)
    assert (run.ended, committed(card)) == ("interrupted", run.last_step)
    again = runs.train(plan, storage=card, steps=STEPS, resume=True)
    assert runs.same(again, runs.train(plan, steps=STEPS))


def test_a_training_that_diverges_keeps_the_last_commit_and_continues(card: Path) -> None:
    plan = schedule("digits", 3)
    x, y = np.ones((40, 1, 8, 8), np.float32), np.arange(40) % 10
    x[16:20] = 3e38  # the batch of step 5
    with runs.board(plan, card) as board:
        with pytest.raises(Diverged, match="step 5") as caught:
            poet.train(plan, board, (x, y), steps=8, shuffle=False)
        assert (committed(card), caught.value.run.last_step) == (3, 3)
        assert "those of step 3" in str(caught.value)
        x[16:20] = 1
        again = poet.train(plan, board, (x, y), steps=8, shuffle=False, resume=True)
    for run in (caught.value.run, again):
        assert runs.same(run, runs.train(plan, (x, y), steps=run.last_step, shuffle=False))


@pytest.mark.parametrize("model", MODELS)
def test_a_board_alone_commits_as_the_plan_says(model: str, card: Path) -> None:
    plan = schedule(model, 3)
    write(plan, card, data(model), steps=STEPS, seed=3)
    alone(plan, card, 3)  # which may end between two commits
    assert committed(card) in (3, 6, STEPS)
    alone(plan, card, STEPS)
    state, weights = read(plan, card)
    straight = runs.train(plan, data(model), steps=STEPS, seed=3)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)
    assert state.losses.tolist() == [step.loss for step in straight.steps]


def test_a_board_that_has_trained_predicts_with_given_weights_next_to_frozen_ones() -> None:
    graph = poet.load("resnet-digits", train="fc.bias")
    problem = poet.problem(graph, runs.profile(), ram="50%", commit_every=3)
    plan = poet.encode(graph, poet.solve(problem, work_limit=300))
    assert plan.forward
    homes = initial_offsets(plan.forward)
    assert "fc.bias" in homes
    assert "conv1.weight" not in homes  # frozen
    with runs.board(plan) as board:
        how: Any = {"weights": poet.train(plan, board, "digits", steps=2).weights, "samples": 2}
        there, here = (poet.predict(plan, "digits", connection=it, **how) for it in (board, None))
    assert there.outputs.tobytes() == here.outputs.tobytes()


def test_an_interval_that_no_board_has_is_refused() -> None:
    problem = poet.problem(runs.digits(), runs.profile(), ram="130%", commit_every=1 << 16)
    with pytest.raises(BadInput, match="65,535 steps"):
        poet.encode(runs.digits(), poet.solve(problem, work_limit=300))


def test_the_option_is_for_cards_when_solving_only(tmp_path: Path, poet_host: Command) -> None:
    path = tmp_path / "m.poet"
    schedule("digits", 3).save(path)
    train = (
        "train",
        path,
        "--port",
        "native",
        "--data",
        "digits",
        "--steps",
        1,
        "--save-weights",
        tmp_path / "w.safetensors",
    )
    poet_host(*train, "--commit-every", 5).fails(2, "--commit-every")
    assert "every 3 steps" in poet_host("show", path).out
    assert poet_host("show", path, "--html", tmp_path / "m.html").code == 0


def test_checks_of_written_weights_are_counted_in_steps(train: Any, tmp_path: Path) -> None:
    done = train(schedule("digits", 3), "--steps", 4, "--run", tmp_path / "run.json")
    commits = poet.Run.load(tmp_path / "run.json").steps[2].readback_every
    assert commits
    assert [f"{3 * commits:,}"] == re.findall(r"checks of the written weights +(\S+)", done.out)


def test_a_comparison_names_the_writes_of_what_stays(
    train: Any, tmp_path: Path, poet_host: Command
) -> None:
    run = tmp_path / "run.json"
    for named, made in ((True, schedule("digits", 3)), (False, runs.schedule(runs.digits()))):
        assert train(made, "--steps", 4, "--run", run).code == 0
        shown = poet_host("show", tmp_path / "trained.poet", "--run", run).out
        assert ("writes of what stays" in shown) == named
