"""Compute the powers of a board from the log of a meter (Nordic's Power Profiler).

The board holds each of its states (compute, write, read) for some seconds, and rests before and
after each state. The states are found in the log by their duration, so the board needs no wires
except those of the meter. The powers are computed from the mean current in each state, and from the
times in which the processor was awake and storage moved data.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import isa
from ..device.device import Device
from ..errors import BadInput, reason
from ..files import MOST_BYTES, opened
from .profile import Power

STATE_US = 2e6  # planned time of a state
REST_S = 1.0  # rest between states
LOOK_S = 0.5  # time between two checks of the log's size
# Longest accepted log. With a wrong time in a log, the bins could need too much memory.
LONGEST_MS = 24 * 3600e3
LARGEST_UA = 1e9  # largest accepted current
BIN_MS = 10.0  # currents are averaged over bins of this length
MERGED_MS = 200.0  # a shorter rest counts as part of the activity around it
SHORTEST_MS = 500.0  # a shorter period of activity is ignored
LENGTH_TOLERANCE = 0.1  # accepted difference between a period and a state, relative to the state
EDGE = 0.05  # share of a period to ignore at its beginning and at its end
TRANSFER_BYTES = 8184  # size of a transfer in the states write and read
MAX_REPEAT = 65_535  # runs in one request
_HEADER_CHARACTERS = 4096  # largest length of a log's first line
Array = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """A power state that the board has held. All times are by the board's clock."""

    name: str
    time_us: float  # duration
    storage_us: float  # time in which storage was read or written
    awake_us: float  # time in which the processor was awake


def hold_states(
    device: Device, rest: Callable[[], None] = lambda: time.sleep(REST_S)
) -> tuple[State, ...]:
    """Let the board compute, write and read, each for some seconds. Return the three states.

    `rest` is called before and after each state. The board's storage must be formatted. No
    block of the storage that a model uses is overwritten.
    """
    states = []
    rest()
    for hold in (_compute, partial(_transfer, "write"), partial(_transfer, "read")):
        states.append(hold(device))
        rest()
    return tuple(states)


def _compute(device: Device) -> State:
    size = 64
    code = isa.by_name("KERNEL")["linear"].code
    attrs = {"n": 1, "c": size, "h": 1, "w": 1, "k": size, "oh": 1, "ow": 1}
    op = isa.pack_op(code, 0, [0, 1], 2, None, attrs)
    values = np.random.default_rng(0).standard_normal(size * (size + 1)).astype("<f4")
    device.probe_write(0, values.tobytes())
    offsets = [0, 4 * size, 4 * size * (size + 1), 0]
    repeat = _long_enough(lambda count: device.us(device.probe_op(op, offsets, repeat=count)))
    time_us = device.us(device.probe_op(op, offsets, repeat=repeat))
    return State("compute", time_us, 0.0, time_us)


def _transfer(name: Literal["write", "read"], device: Device) -> State:
    """Let the board write or read its storage without a pause. Return the times of this state.

    The times include the processor's work between the transfers.
    """
    size = min(TRANSFER_BYTES, int(device.info.arena_bytes) // 4 * 4)
    write = name == "write"

    def moved_us(count: int) -> float:
        return device.us(device.probe_transfer(write, size, repeat=count)[0])

    repeat = _long_enough(moved_us)
    ticks, awake_ticks = device.probe_transfer(write, size, repeat=repeat)
    return State(name, device.us(ticks), device.us(ticks), device.us(awake_ticks))


def _long_enough(run_us: Callable[[int], float]) -> int:
    """Return the number of runs that together take STATE_US, but at most MAX_REPEAT."""
    count, took_us = 4, run_us(4)
    while took_us < STATE_US / 20 and count < MAX_REPEAT:
        count = min(MAX_REPEAT, 4 * count)
        took_us = run_us(count)
    return int(min(MAX_REPEAT, STATE_US * count / max(took_us, 1.0) + 1))


def wait_for(path: Path) -> None:
    """Wait until a log exists and has stopped growing."""
    size = -1
    while True:
        now = path.stat().st_size if path.is_file() else 0
        if now and now == size:
            return
        size = now
        time.sleep(LOOK_S)


def read_log(path: Path) -> tuple[Array, Array]:
    """Return the times (ms) and currents (uA) of a log. Raises BadInput if the log is invalid.

    The log has the columns `Timestamp(ms)` and `Current(uA)`. Digital channels are ignored.
    """
    try:
        with opened(path, MOST_BYTES) as raw, TextIOWrapper(raw, encoding="utf-8-sig") as file:
            names = [name.strip() for name in file.readline(_HEADER_CHARACTERS).split(",")]
            if names[:2] != ["Timestamp(ms)", "Current(uA)"]:
                raise BadInput(
                    f"{path} is not a log of a power profiler: its first line must begin with "
                    "Timestamp(ms),Current(uA). Export the log from nRF Connect's Power Profiler"
                )
            found = np.loadtxt(file, delimiter=",", usecols=(0, 1), ndmin=2)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read as a meter's log ({reason(error)}): export the log again"
        ) from error
    if len(found) < 2 or not np.isfinite(found).all() or (np.diff(found[:, 0]) <= 0).any():
        raise BadInput(
            f"{path}: the log needs two rows or more of finite numbers, and its times must "
            "increase: export the log again"
        )
    if not np.ptp(found[:, 0]) <= LONGEST_MS or np.abs(found[:, 1]).max() > LARGEST_UA:
        raise BadInput(
            f"{path}: the log is longer than a day, or has a current above "
            f"{LARGEST_UA / 1e6:g} A: export the log again"
        )
    return found[:, 0], found[:, 1]


def powers(times_ms: Array, currents_ua: Array, states: Sequence[State], supply_mv: float) -> Power:
    """Return the powers (uW) from a log of `states`. Raises BadInput if the log lacks a state."""
    bins = _binned(times_ms, currents_ua)
    base_ua, threshold_ua = _baseline(bins)
    periods = _periods(bins > threshold_ua)
    start = _matching(periods, [state.time_us / 1e3 for state in states])
    uw = supply_mv / 1e3
    base_uw, above = base_ua * uw, {}
    for state, (begin, end) in zip(states, periods[start:], strict=False):
        edge = int(EDGE * (end - begin)) + 1
        above[state.name] = float(bins[begin + edge : end - edge].mean()) * uw - base_uw
    compute_uw = above["compute"]
    storage = {
        state.name: (above[state.name] - compute_uw * state.awake_us / state.time_us)
        * state.time_us
        / state.storage_us
        for state in states
        if state.storage_us
    }
    found = Power(compute_uw, storage["read"], storage["write"], base_uw)
    by_state = {"compute": compute_uw, **storage, "rest": base_uw}
    negative = [name for name, power_uw in by_state.items() if power_uw < 0]
    if negative:
        raise BadInput(
            f"the power computed from the meter's log is negative in: {', '.join(negative)}. "
            "Perhaps the meter does not measure the SD card's current: supply the card through the "
            "meter too"
        )
    return found


def _binned(times_ms: Array, currents_ua: Array) -> Array:
    """Return the mean current of each bin of the log. An empty bin repeats the previous bin."""
    index = ((times_ms - times_ms[0]) / BIN_MS).astype(int)
    count = np.bincount(index)
    total = np.bincount(index, weights=currents_ua)
    last = np.maximum.accumulate(np.where(count > 0, np.arange(len(count)), 0))
    return np.asarray((total / np.maximum(count, 1))[last], dtype=float)


def _baseline(bins: Array) -> tuple[float, float]:
    """Return the current at rest, and the current above which the board is active.

    The 10th percentile is a current at rest, because rests fill about a third of the log.
    """
    quiet = float(np.percentile(bins, 10))
    threshold = 1.05 * quiet + 50.0
    return float(bins[bins <= threshold].mean()), threshold


def _periods(active: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the periods of activity, each as (its first bin, the bin after its last bin)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], active, [False])).astype(int)))
    merged: list[tuple[int, int]] = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if merged and (begin - merged[-1][1]) * BIN_MS < MERGED_MS:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return [(begin, end) for begin, end in merged if (end - begin) * BIN_MS >= SHORTEST_MS]


def _matching(periods: Sequence[tuple[int, int]], wanted_ms: Sequence[float]) -> int:
    """Return the index of the period in which the board held the first state.

    The periods of the states are recognised by their lengths. If the lengths fit at several places
    of the log, the latest place counts.
    """
    lengths = [(end - begin) * BIN_MS for begin, end in periods]
    for start in range(len(periods) - len(wanted_ms), -1, -1):
        if all(
            abs(length - wanted) <= LENGTH_TOLERANCE * wanted + 2 * BIN_MS
            for length, wanted in zip(lengths[start:], wanted_ms, strict=False)
        ):
            return start
    seen = ", ".join(f"{length / 1e3:.2f}" for length in lengths[:12]) or "none"
    held = ", ".join(f"{wanted / 1e3:.2f}" for wanted in wanted_ms)
    raise BadInput(
        f"the board computed, wrote and read for {held} s, but the meter's log shows activity for "
        f"{seen} s. "
        "Start recording before the command starts, and stop when the command asks for the log"
    )
