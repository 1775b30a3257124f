"""Changed rates in a solved schedule: training as in PyTorch with the same changes."""

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.data.fitted import batch_of_step, fit
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values, to_named as poet_names
from poet_host.reference.rates import factor_of
from poet_host.schedule.decode import decode
from poet_host.schedule.rates import factors, with_rates
from poet_host.schedule.schedule import parse
from support import whole_runs as runs
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

FIRST, LAST = 4, 9
OPTIMISERS: dict[str, Any] = {
    "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
    "nesterov": partial(torch.optim.SGD, nesterov=True), "rmsprop": torch.optim.RMSprop,
}  # fmt: skip


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"optimizer": "sgd", "lr": 0.1}, {"lr": 0.01}),
        ({"optimizer": "sgd", "lr": 0.1}, {"lr": 0.03, "weight_decay": 0.2}),
        ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, {"lr": 0.01, "momentum": 0.5}),
        (
            {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
            {"weight_decay": 0.01, "momentum": 0.0},
        ),
        ({"optimizer": "adam", "lr": 0.01}, {"lr": 0.001}),
        ({"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}, {"weight_decay": 0.0}),
        ({"optimizer": "adamw", "lr": 0.01}, {"lr": 0.001, "weight_decay": 0.3}),
        (
            {"optimizer": "nesterov", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
            {"weight_decay": 0.01, "momentum": 0.5},
        ),
        (
            {"optimizer": "rmsprop", "lr": 0.003, "weight_decay": 0.1},
            {"lr": 0.001, "weight_decay": 0.2},
        ),
    ],
)
def test_resumed_training_with_other_rates_agrees_with_pytorch(
    before: dict[str, Any], after: dict[str, Any], train: Any, tmp_path: Path, card: Path
) -> None:
    net = module()
    kind, rates = before["optimizer"], {k: v for k, v in before.items() if k != "optimizer"}
    options = {{"lr": "learning_rate"}.get(name, name): rate for name, rate in rates.items()}
    name = "momentum" if "momentum" in rates and kind == "sgd" else kind
    graph = api.load(net, torch.zeros(4, 1, 8, 8), optimizer=name, **options)
    schedule = runs.schedule(graph)

    def trained(*more: object) -> Any:
        done = train(schedule, "--storage", card, *more)
        assert done.code == 0, done.err
        return poet.load_weights(tmp_path / "w.safetensors", graph)

    trained("--steps", FIRST)
    options = [word for k, v in after.items() for word in ("--" + k.replace("_", "-"), v)]
    found = trained("--steps", LAST, "--resume", *options)

    optimiser = OPTIMISERS[kind](net.parameters(), **rates)
    data = fit(poet.load_data("digits"), graph)
    for step in range(LAST):
        if step == FIRST:
            optimiser.param_groups[0].update(after)
        x, y = batch_of_step(data, graph.batch, 0, step)
        optimiser.zero_grad()
        functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y, dtype=torch.long)).backward()
        optimiser.step()
    named = poet_names(graph, found)
    for key, value in net.state_dict().items():
        assert np.allclose(named[key], value.detach(), rtol=1e-4, atol=1e-6), key


@pytest.mark.slow
def test_rates_change_the_operators_but_not_the_plan() -> None:
    schedule = runs.schedule(runs.digits(0.9, 0.0005), "60%", "poet")
    other = with_rates(schedule, learning_rate=0.5)
    assert decode(other) == decode(schedule)
    assert other.model.crc != schedule.model.crc
    assert other.meta["options"]["learning_rate"] == 0.5
    assert with_rates(schedule, learning_rate=None, warmup=0) is schedule
    changed = runs.digits(0.9, 0.0005, 0.5)
    assert other.graph.nodes == runs.schedule(changed).graph.nodes


@pytest.mark.parametrize(
    ("schedule", "rates", "words"),
    [
        ((0.0, 0.0), {"momentum": 0.5}, "without momentum"),
        ((0.9, 0.0), {"weight_decay": 0.1}, "without weight decay"),
        ((0.9, 0.0), {"momentum": 1.0}, "momentum is 1.0"),
        ((0.9, 0.0), {"learning_rate": float("inf")}, "learning_rate is inf"),
    ],
)
def test_rates_that_a_schedule_does_not_have(schedule: Any, rates: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        with_rates(runs.schedule(runs.digits(*schedule)), **rates)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-1, keepdim=True)


def test_a_gradient_of_a_layer_with_the_name_of_a_rate_keeps_its_factor() -> None:
    net = nn.Sequential(OrderedDict(fc=nn.Linear(6, 4), decay=Centred(), out=nn.Linear(4, 3)))
    kinds: dict[str, Any] = {"momentum": {}, "rmsprop": {"weight_decay": 0.1}}
    schedules = {
        kind: runs.schedule(
            api.load(net, torch.zeros(2, 6), loss="cross-entropy", optimizer=kind, **options)
        )
        for kind, options in kinds.items()
    }
    with pytest.raises(BadInput, match="without weight decay"):
        with_rates(schedules["momentum"], weight_decay=0.5)
    changed = with_rates(schedules["rmsprop"], weight_decay=0.5).graph
    assert changed["fc.weight:decay"].attrs["factor"] == 0.5
    assert changed["fc:grad:decay"].op == "scale"
    assert changed["fc:grad:decay"].attrs["factor"] == 0.25


SCHEDULES: dict[str, Any] = {
    "constant": lambda by: lr_scheduler.ConstantLR(by, 1.0),
    "step:37:0.5": lambda by: lr_scheduler.StepLR(by, 37, 0.5),
    "cosine": lambda by: lr_scheduler.CosineAnnealingLR(by, 200),
    "cosine:200:0.01": lambda by: lr_scheduler.CosineAnnealingLR(by, 200, 0.01),
    "linear:150:0.2": lambda by: lr_scheduler.LinearLR(by, 1.0, 0.2, 150),
}


@pytest.mark.parametrize("warmup", [0, 1, 77])
@pytest.mark.parametrize("how", SCHEDULES)
def test_factors_are_those_of_pytorch(how: str, warmup: int) -> None:
    by = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    wanted = SCHEDULES[how](by)
    if warmup:
        warm = lr_scheduler.LambdaLR(by, lambda done: (done + 1) / warmup)
        wanted = lr_scheduler.SequentialLR(by, [warm, wanted], [warmup])
    found = factors(how, warmup, 200 + warmup)
    for step in range(1, 201 + warmup):
        assert np.isclose(factor_of(found, step), by.param_groups[0]["lr"], rtol=1e-6, atol=0), step
        by.step()
        wanted.step()


def test_a_board_has_the_rates_of_the_reference_also_after_a_resume(card: Path) -> None:
    graph = runs.digits(0.9)
    schedule, last = runs.schedule(graph, "60%", "poet"), 14
    for how in ("cosine:8:0.1", "step:2:0.5", "linear"):
        options: dict[str, Any] = {"lr_schedule": how, "warmup": 3}
        run = runs.train(schedule, steps=last, **options)
        data = fit(poet.load_data("digits"), graph)
        wanted = runs.trained_by_reference(
            graph, start_values(graph, 0), data, last, factors(how, 3, last)
        )
        assert all(wanted[name].tobytes() == run.weights[name].tobytes() for name in run.weights)
    plain = runs.train(schedule, steps=last)
    assert not runs.same(plain, run)
    begun = {"cosine:8": 5, "step:2:0.5": 9}
    for how, steps in begun.items():
        straight = runs.train(schedule, steps=last, lr_schedule=how)
        with runs.board(schedule, card) as connection:
            poet.train(
                schedule, connection, "digits", steps=steps, lr_schedule=how, erase_card=True
            )
        with runs.board(schedule, card) as connection:
            resumed = poet.train(
                schedule, connection, "digits", steps=last, lr_schedule=how, resume=True
            )
        assert runs.same(straight, resumed)


def test_a_changed_schedule_keeps_its_forward_program_and_its_layout() -> None:
    schedule = runs.small()
    changed = with_rates(schedule, 1000, lr_schedule="cosine", warmup=10)
    again = parse(changed.to_bytes())
    assert [rate.steps for rate in again.model.rates] == [10, 990, 2**32 - 1]
    assert decode(again) == decode(schedule)
    assert (again.forward is None) == (schedule.forward is None)


@pytest.mark.parametrize(
    ("how", "warmup", "words"),
    [
        ("cosin", 0, "but must be constant, step:EVERY"),
        ("step", 0, "but must be constant, step:EVERY"),
        ("constant:5", 0, "but must be constant"),
        ("cosine:1e3", 0, "such as step:1000:0.5"),
        ("cosine:0", 0, "the steps must be 1 or more"),
        ("linear:10:nan", 0, "the factor from 0 to 1"),
        ("step:1:0.99", 0, "boards keep at most 253: choose more steps"),
        ("constant", -1, "warmup is -1"),
    ],
)
def test_schedules_of_the_rate_that_do_not_exist(how: str, warmup: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        factors(how, warmup, 1000)
