"""The commands for a board without a card."""

from dataclasses import replace
from pathlib import Path

import pytest
from poet_host import api
from poet_host.profile.profile import Profile
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import Command

BAD, INFEASIBLE = 2, 5
SOLVE = (
    "solve",
    "linear",
    "--board",
    "nrf52840_dk",
    "--no-storage",
    "--gap",
    1,
    "--time-limit",
    20,
)


@pytest.mark.slow
def test_too_little_ram_is_refused_with_the_smallest_budget(
    poet_host: Command, tmp_path: Path
) -> None:
    out = tmp_path / "linear.poet"
    refused = poet_host(*SOLVE, "--ram", "64KiB", "-o", out, "--json")
    smallest = refused.json["smallest_ram_bytes"]
    refused.fails(INFEASIBLE, f"{smallest:,} bytes")
    assert not out.exists()
    solved = poet_host(*SOLVE, "-o", out, "--json")
    assert solved.code == 0
    assert solved.json["ram_bytes"] >= smallest > 64 << 10
    assert not Schedule.load(out).model.storage


def test_a_schedule_with_a_card_commits_every_step(poet_host: Command, tmp_path: Path) -> None:
    schedule, weights = tmp_path / "digits.poet", tmp_path / "w.safetensors"
    runs.schedule(runs.digits()).save(schedule)
    poet_host(
        "train", schedule, "-p", "native", "--data", "digits", "--steps", 1,
        "--save-weights", weights, "--commit-every", 2,
    ).fails(BAD, "--commit-every", "resnet-digits", "--no-storage")  # fmt: skip
    assert not weights.exists()


@pytest.mark.slow
def test_a_profile_without_a_card_gives_schedules_without_storage(
    poet_host: Command, tmp_path: Path
) -> None:
    measured, out = tmp_path / "profile.json", tmp_path / "linear.poet"
    profile = ("profile", "linear", "-p", "native", "--no-storage", "-o", measured)
    log = tmp_path / "meter.csv"
    poet_host(*profile, "--power-log", log).fails(BAD, "--power-log", "--no-storage")
    assert poet_host(*profile, "--no-validate", "--json").json["operators"] > 0
    found = Profile.load(measured)
    assert not found.storage
    solve = ("solve", "linear", "--profile", measured, "--ram", "1MiB", "--beyond-arena")
    assert poet_host(*solve, "-o", out, "--json").code == 0
    assert not Schedule.load(out).model.storage
    assert api.costs_of(api.load_graph("linear"), replace(found, storage=True)).storage
