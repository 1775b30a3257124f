"""Whole trainings: batteries and durations as users write them, and the deadline of a step."""

import pytest
from poet_host.api import costs_of, load_graph
from poet_host.device.board import load_board
from poet_host.errors import BadInput
from poet_host.plan.keepall import keep_everything
from poet_host.plan.whole_training import (
    battery_of,
    duration_text,
    duration_us,
    step_deadline_us,
    whole_training,
)
from poet_host.profile.profile import estimate_profile

PROFILE = estimate_profile(load_board("mkr1000"))
COSTS = costs_of(load_graph("resnet-digits"), PROFILE)


@pytest.mark.parametrize(
    ("text", "energy_j", "voltage_v"),
    [
        ("2000mAh", 2 * 3.7 * 3600, 3.7),
        ("2Ah@3V", 2 * 3 * 3600, 3.0),
        ("500 mah @ 1.2 v", 0.5 * 1.2 * 3600, 1.2),
        ("7.4Wh", 7.4 * 3600, 3.7),
        ("740mWh", 0.74 * 3600, 3.7),
    ],
)
def test_a_battery(text: str, energy_j: float, voltage_v: float) -> None:
    battery = battery_of(text)
    assert (battery.energy_j, battery.voltage_v) == pytest.approx((energy_j, voltage_v))
    assert battery.charge_mah(battery.voltage_v * 3600) == pytest.approx(1000)


@pytest.mark.parametrize("text", ["", "2000", "-1mAh", "0mAh", "1Ah@0V", "7Wh@3V!", "nanmAh"])
def test_other_texts_are_not_batteries(text: str) -> None:
    with pytest.raises(BadInput, match="--battery"):
        battery_of(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90min", 5400), ("8h", 28800), ("1.5 d", 129600)]
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration_us(text) == seconds * 1e6


@pytest.mark.parametrize("text", ["", "8", "0h", "-1h", "8 hours", "infh"])
def test_other_texts_are_not_durations(text: str) -> None:
    with pytest.raises(BadInput, match="--finish-in"):
        duration_us(text)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0, "0 s"), (1e3, "0.00100 s"), (45e6, "45.0 s"), (5.4e9, "1.50 h"), (1e14, "1,157 d")],
)
def test_a_duration_has_three_digits(time_us: float, text: str) -> None:
    assert duration_text(time_us) == text


def test_steps_within_the_deadline_finish_in_time() -> None:
    keep = keep_everything(COSTS)
    assert keep.time_us is not None
    for share in (1.001, 1.01, 1.1, 2, 40):
        finish_us = 1000 * keep.time_us * share
        try:
            deadline_us = step_deadline_us(finish_us, 1000, COSTS, PROFILE, stays=True)
        except BadInput:
            continue
        commit_us, _ = PROFILE.commit(COSTS.kept_sizes, deadline_us)
        assert 1000 * (deadline_us + commit_us) <= finish_us * (1 + 1e-12)


def test_a_training_that_cannot_even_commit_is_refused() -> None:
    with pytest.raises(BadInput, match=r"1,000 steps.*commit"):
        step_deadline_us(1e3, 1000, COSTS, PROFILE, stays=True)


def test_a_whole_training_is_its_steps_and_commits() -> None:
    keep = keep_everything(COSTS)
    assert keep.time_us is not None
    assert keep.total_energy_uj is not None
    commit_us, commit_uj = PROFILE.commit(COSTS.kept_sizes, keep.time_us)
    training = whole_training(keep, 7, COSTS, PROFILE)
    assert training.time_us == pytest.approx(7 * (keep.time_us + commit_us))
    commit_uj += COSTS.base_power_uw * commit_us / 1e6
    assert training.energy_j == pytest.approx(7 * (keep.total_energy_uj + commit_uj) / 1e6)
    figures = training.to_json(battery_of("1Wh"))
    assert figures["battery_share"] == pytest.approx(training.energy_j / 3600)
    assert figures["charge_mah"] == pytest.approx(training.energy_j / 3.6 / 3.7)
