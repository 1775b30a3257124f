"""`poet-host solve`: charge and hours of a whole training, and --finish-in."""

from pathlib import Path

import pytest
from support.command import Command

BAD, INFEASIBLE = 2, 5
SOLVE = ("solve", "linear", "--board", "mkr1000", "--method", "keep-everything", "--ram", "100%")
DATA = ("--data", "synthetic:784:10")
HOURS_US = 3600e6


def test_hours_and_charge_of_a_training(poet_host: Command) -> None:
    whole = ("--epochs", 3, "--battery", "2000mAh@3V")
    result = poet_host(*SOLVE, *DATA, *whole, "--json").json
    needs = result["training"]
    one = poet_host(*SOLVE, *DATA, "--json").json["training"]
    assert needs["steps"] == 3 * one["steps"] > 3
    assert needs["time_us"] == pytest.approx(3 * one["time_us"])
    assert needs["step_energy_uj"] > result["total_energy_uj"]
    assert needs["battery_j"] == pytest.approx(2 * 3 * 3600)
    assert needs["charge_mah"] == pytest.approx(needs["energy_j"] / 3 / 3.6)
    table = poet_host(*SOLVE, *DATA, *whole).out
    assert f"{needs['steps']:,} steps" in table
    assert "mAh at 3 V" in table
    assert "a full battery lasts" in table
    assert "with commits" in table
    in_flash = ("solve", "resnet-digits", "--board", "nano_33_iot", "--no-storage", "--ram", "1MiB")
    few = (*in_flash, "--method", "keep-everything", "--data", "digits")
    assert "without commits" in poet_host(*few).out


def test_a_battery_without_data_counts_steps(poet_host: Command) -> None:
    needs = poet_host(*SOLVE, "--battery", "1Wh", "--json").json["training"]
    assert needs["steps"] == 1
    assert "a full battery lasts" in poet_host(*SOLVE, "--battery", "1Wh").out
    assert "training" not in poet_host(*SOLVE, "--json").json


def test_a_training_is_in_time_or_refused(poet_host: Command) -> None:
    needs = poet_host(*SOLVE, *DATA, "--json").json["training"]
    hours = needs["time_us"] / HOURS_US
    in_time = poet_host(*SOLVE, *DATA, "--finish-in", f"{hours * 1.1:.6f}h", "--json")
    assert in_time.code == 0
    assert in_time.json["deadline_us"] * needs["steps"] < hours * 1.1 * HOURS_US
    late = poet_host(*SOLVE, *DATA, "--finish-in", f"{hours * 0.9:.6f}h")
    late.fails(INFEASIBLE, "time")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--epochs", 3), ("--epochs", "--data")),
        (("--finish-in", "8h"), ("--finish-in", "--data")),
        ((*DATA, "--finish-in", "8"), ("'8'", "8h")),
        ((*DATA, "--finish-in", "8h", "--deadline", "1.2x"), ("--deadline", "exclude")),
        ((*DATA, "--finish-in", "1s"), ("--finish-in", "commit")),
        (("--battery", "2000"), ("'2000'", "2000mAh")),
        (("--data", "synthetic:7:10"), ("784",)),
    ],
)
def test_wrong_options(
    poet_host: Command, options: tuple[object, ...], named: tuple[str, ...]
) -> None:
    poet_host(*SOLVE, *options).fails(BAD, *named)


def test_no_data_fits_a_cost_graph(poet_host: Command, costs: Path) -> None:
    solve = ("solve", costs, "--ram", "1MiB", "--method", "keep-everything")
    poet_host(*solve, *DATA).fails(BAD, "cost graph", "--data")
    assert poet_host(*solve, "--battery", "1Wh", "--json").json["training"]["steps"] == 1
