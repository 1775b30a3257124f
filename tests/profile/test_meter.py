"""Powers are recovered from the meter's log that they produce."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from poet_host import api
from poet_host.api import connection as verbs
from poet_host.device.board import load_board
from poet_host.device.device import Device, connect
from poet_host.errors import BadInput, BoardError, PoetError
from poet_host.graph import models
from poet_host.profile import meter
from poet_host.profile.meter import State, hold_states, powers, read_log
from poet_host.profile.profile import Power, Profile, board_power, estimate_profile
from poet_host.sim.start_board import start_board
from support.command import Command
from support.sim_helper import needs_compiler

GRAPH = models.load("resnet-digits")
SUPPLY_MV = 3300.0
TRUE = Power(11_000.0, 200_000.0, 300_000.0, 5_000.0)
STATES = (
    State("compute", 2.0e6, 0.0, 2.0e6),
    State("write", 2.4e6, 2.4e6, 0.6e6),
    State("read", 2.2e6, 2.2e6, 0.9e6),
)


def state_uw(state: State) -> float:
    """Mean power of a state, from the powers of a profile."""
    storage_uw = {"compute": 0.0, "write": TRUE.page_out_uw, "read": TRUE.page_in_uw}[state.name]
    awake, moving = state.awake_us / state.time_us, state.storage_us / state.time_us
    return TRUE.base_uw + awake * TRUE.compute_uw + moving * storage_uw


def write_log(path: Path, pieces: list[tuple[float, float]]) -> None:
    """A log of (milliseconds, microwatts) one after the other, 1,000 samples a second, noisy."""
    rng = np.random.default_rng(3)
    uw = np.concatenate([np.full(round(ms), power) for ms, power in pieces])
    ua = uw / (SUPPLY_MV / 1e3) * rng.normal(1.0, 0.05, len(uw))
    lines = [f"{i}.000,{value:.3f},00000000\n" for i, value in enumerate(ua)]
    path.write_text("Timestamp(ms),Current(uA),D0-D7\n" + "".join(lines))


def pieces(states: tuple[State, ...] = STATES) -> list[tuple[float, float]]:
    """Other activity, then each state between rests."""
    found = [(700.0, TRUE.base_uw), (900.0, 40_000.0), (1000.0, TRUE.base_uw)]
    for state in states:
        found += [(state.time_us / 1e3, state_uw(state)), (1000.0, TRUE.base_uw)]
    return found


def test_powers_are_found_in_noise_and_after_other_activity(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    write_log(path, pieces())
    found = powers(*read_log(path), STATES, SUPPLY_MV)
    for name in ("compute_uw", "page_in_uw", "page_out_uw", "base_uw"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02)


def test_an_error_lists_the_periods_of_a_log_without_the_states(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    write_log(path, pieces(STATES[:2]))
    with pytest.raises(BadInput, match=r"0\.90, 2\.00, 2\.40 s"):
        powers(*read_log(path), STATES, SUPPLY_MV)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,current\n1,2\n", "its first line must begin with"),
        ("Timestamp(ms),Current(uA)\n1,x\n", "cannot be read"),
        ("Timestamp(ms),Current(uA)\n2,1\n1,1\n", "times .* increase"),
        ("Timestamp(ms),Current(uA)\n", "times .* increase"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_log(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_log(tmp_path / "gone.csv")


@pytest.mark.slow
def test_a_profile_takes_its_powers_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, held = tmp_path / "log.csv", []
    monkeypatch.setattr(meter, "STATE_US", 600_000.0)
    monkeypatch.setattr(meter, "SHORTEST_MS", 50.0)  # a computer is too fast for longer states
    monkeypatch.setattr(meter, "REST_S", 0.0)
    monkeypatch.setattr(meter, "LOOK_S", 0.01)

    def hold(device: Device) -> tuple[State, ...]:
        held.extend(hold_states(device))
        return tuple(held)

    monkeypatch.setattr(verbs, "hold_states", hold)
    with api.connect("native") as connection:
        estimated = estimate_profile(connection.board)
        metered = connection.meter(
            estimated, log, SUPPLY_MV, lambda: write_log(log, pieces(tuple(held)))
        )
    assert [state.name for state in held] == ["compute", "write", "read"]
    assert metered.metered
    assert metered.power.compute_uw == pytest.approx(TRUE.compute_uw, rel=0.02)
    assert metered.power.base_uw == pytest.approx(TRUE.base_uw, rel=0.02)
    conv = GRAPH["conv1"]
    time_us, energy_uj = metered.cost(conv, GRAPH)
    assert energy_uj == pytest.approx(time_us * TRUE.compute_uw / 1e6, rel=0.02)
    metered.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == metered
    # A later profile without a meter keeps the powers.
    assert metered.merged(replace(estimated, commit_us=1.0)).power == metered.power


def test_the_command_line_refuses_wrong_options(tmp_path: Path, poet_host: Command) -> None:
    log = tmp_path / "log.csv"
    base = ("profile", "--port", "native", "-o", tmp_path / "p.json")
    poet_host(*base, "--supply-mv", 3000).fails(2, "--power-log")
    log.write_text("old")
    poet_host(*base, "--power-log", log).fails(2, log)
    same = tmp_path / "p.json"
    poet_host(*base, "--power-log", same).fails(2, same)


@pytest.mark.parametrize(
    ("failing", "option", "error", "code"),
    [
        ("meter", "--power-log={}", BadInput("the log lacks a state"), 2),
        ("validate", "--validate", BoardError("the card was removed", "storage_failed"), 0),
    ],
)
def test_a_profile_is_kept_if_the_meter_or_the_validation_fails(
    monkeypatch: pytest.MonkeyPatch,
    poet_host: Command,
    tmp_path: Path,
    failing: str,
    option: str,
    error: PoetError,
    code: int,
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(api.Connection, failing, fails)
    path = tmp_path / "p.json"
    more = ("-o", path, option.format(tmp_path / "log.csv"))
    assert poet_host("profile", "linear", "--port", "native", *more).code == code
    assert Profile.load(path).operators


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
def test_the_simulators_own_meter_is_recovered(name: str, tmp_path: Path) -> None:
    """Within 4 %: between blocks, the card rests while the driver works."""
    marks: list[tuple[float, float]] = []  # microseconds and microjoules at each rest
    with start_board(name) as board, connect(board.port) as device:

        def rest() -> None:
            device.status()
            marks.append((board.meter.time_us, board.energy.total_uj))

        states = hold_states(device, rest)
    true = board_power(load_board(name))
    log = [(1000.0, true.base_uw)]
    for state, (begin_us, begin_uj), (end_us, end_uj) in zip(
        states, marks, marks[1:], strict=False
    ):
        power_uw = 1e6 * (end_uj - begin_uj) / (end_us - begin_us)
        log += [(state.time_us / 1e3, power_uw), (1000.0, true.base_uw)]
    write_log(tmp_path / "log.csv", log)
    found = powers(*read_log(tmp_path / "log.csv"), states, SUPPLY_MV)
    for field in ("compute_uw", "page_in_uw", "page_out_uw", "base_uw"):
        assert getattr(found, field) == pytest.approx(getattr(true, field), rel=0.04), field
