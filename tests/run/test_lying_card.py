"""A card that lied about a block of the newest step: what follows begins at the step before."""

from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
import torch
from card.test_card import alone, read
from card.test_card_export import change, place_of
from poet_host import api
from poet_host.errors import BoardError
from poet_host.schedule.model import CURRENT
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from torch import nn

STEPS, LAST = 3, 5


def lie(card: Path, schedule: Schedule) -> None:
    """Damage a trailer of the newest step, as if the card had not written its block."""
    model = schedule.model
    number = next(i for i, tensor in enumerate(model.tensors) if tensor.place == CURRENT)
    change(card, *place_of(card, model, number))


def resumed(first: Schedule, other: Schedule, card: Path, data: Any) -> None:
    """Train by one schedule, let the card lie, and resume by the other."""
    before = runs.train(first, data, steps=STEPS - 1).weights
    runs.train(first, data, storage=card, steps=STEPS)
    lie(card, first)
    moved: list[int] = []
    with poet.connect("native", storage=card, arena_bytes="1MiB") as connection:
        run = poet.train(
            other, connection, data, steps=LAST, resume=True,
            before_moving=lambda weights, step: moved.append(step),
        )  # fmt: skip
    assert [step.step for step in run.steps] == [*range(STEPS, LAST + 1)]
    assert set(moved) <= {STEPS - 1}
    straight = runs.train(other, data, steps=LAST, weights=before, first_step=STEPS - 1)
    assert runs.same(run, straight)


@pytest.mark.parametrize("options", [{}, {"learning_rate": 0.005}, {"batch": 2}])
def test_a_training_resumes_at_the_step_before(options: Any, card: Path) -> None:
    first, other = (runs.schedule(api.load("resnet-digits", **it)) for it in ({}, options))
    assert (first.model.crc != other.model.crc) == bool(options)
    resumed(first, other, card, "digits")


def test_a_training_with_another_loss_resumes_at_the_step_before(card: Path) -> None:
    torch.manual_seed(0)
    module, both = nn.Linear(6, 2), []
    for weights in ("1,5", "5,1"):
        loss = f"cross-entropy:class_weights={weights}"
        graph = poet.load(module, torch.randn(2, 6), batch=2, loss=loss)
        both.append(runs.schedule(graph))
    assert both[0].model.crc == both[1].model.crc
    data = {"x": torch.randn(12, 6), "y": torch.arange(12) % 2}
    resumed(both[0], both[1], card, data)


def test_a_job_begins_after_the_step_before(card: Path) -> None:
    schedule = runs.small()
    runs.train(schedule, storage=card, steps=STEPS)
    lie(card, schedule)
    with runs.board(schedule, card) as connection:
        state = poet.write_card(schedule, connection, "digits", steps=LAST, resume=True)
    assert (state.first, state.committed, state.last) == (STEPS - 1, STEPS - 1, LAST)
    alone(schedule, card, LAST)
    straight, weights = runs.train(schedule, steps=LAST).weights, read(schedule, card)[1]
    assert all(straight[name].tobytes() == weights[name].tobytes() for name in weights)


def test_a_training_resumes_on_the_board_that_found_the_damage(card: Path) -> None:
    schedule = runs.small()
    with runs.board(schedule, card) as connection:
        training = poet.begin_training(schedule, connection, "digits")
        for _ in range(STEPS):
            training.step()
        lie(card, schedule)
        with pytest.raises(BoardError) as caught:
            training.weights()
        assert caught.value.name == "page_damaged"
        run = poet.train(schedule, connection, "digits", steps=LAST, resume=True)
    assert runs.same(run, runs.train(schedule, steps=LAST))
