"""Powers of a board from a meter's log, as Nordic's Power Profiler exports it.

The board is brought into each of its states for some seconds, with rest in between, and the
periods of activity in the log are found by how long they last: no wire but the meter's own is
needed. Powers follow from the mean current in each, and from how long the board, by its own
clock, was awake and moved data.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import isa
from ..device.device import Device
from ..errors import BadInput, reason
from .profile import Power

STATE_US = 2e6  # how long each state is held, at least
REST_S = 1.0
LOOK_S = 0.5
LONGEST_MS = 24 * 3600e3  # of a log: a stray time would make bins without end
LARGEST_UA = 1e9
BIN_MS = 10.0  # of the log: currents are looked at in means over so long
MERGED_MS = 200.0  # rests that are shorter belong to what is around them
SHORTEST_MS = 500.0  # of a period of activity
TOLERANCE = 0.1  # relative, of its length
EDGE = 0.05  # of a period that is left out at either end
TRANSFER_BYTES = 8184
MAX_REPEAT = 65_535
Array = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """What the board did for `time_us`: how long of it storage was read or written, and how long
    the processor was awake."""

    name: str
    time_us: float
    storage_us: float
    awake_us: float


def hold_states(
    device: Device, rest: Callable[[], None] = lambda: time.sleep(REST_S)
) -> tuple[State, ...]:
    """Compute, write and read, each for some seconds, with `rest` before, between and after.

    The storage must hold a store; nothing that a model uses is written.
    """
    states = []
    rest()
    for hold in (_compute, _write, _read):
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


def _write(device: Device) -> State:
    return _transfer(device, "write", True)


def _read(device: Device) -> State:
    return _transfer(device, "read", False)


def _transfer(device: Device, name: str, write: bool) -> State:
    """Transfers follow one another without a pause: the state lasts as long as they do, and what
    the processor does in between."""
    size = min(TRANSFER_BYTES, int(device.info.arena_bytes) // 4 * 4)

    def moved_us(count: int) -> float:
        return device.us(device.probe_transfer(write, size, repeat=count)[0])

    repeat = _long_enough(moved_us)
    ticks, awake_ticks = device.probe_transfer(write, size, repeat=repeat)
    return State(name, device.us(ticks), device.us(ticks), device.us(awake_ticks))


def _long_enough(run_us: Callable[[int], float]) -> int:
    """How often to run something so that it lasts STATE_US, or as often as one request can."""
    count, took_us = 4, run_us(4)
    while took_us < STATE_US / 20 and count < MAX_REPEAT:
        count = min(MAX_REPEAT, 4 * count)
        took_us = run_us(count)
    return int(min(MAX_REPEAT, STATE_US * count / took_us + 1))


def wait_for(path: Path) -> None:
    """Return when a log is there and has stopped growing."""
    size = -1
    while True:
        now = path.stat().st_size if path.is_file() else 0
        if now and now == size:
            return
        size = now
        time.sleep(LOOK_S)


def read_log(path: Path) -> tuple[Array, Array]:
    """Milliseconds and microamperes of a log; raises BadInput that names the file.

    The columns `Timestamp(ms)` and `Current(uA)`; the digital channels behind them are not needed.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            names = [name.strip() for name in file.readline().split(",")]
            if names[:2] != ["Timestamp(ms)", "Current(uA)"]:
                raise BadInput(
                    f"{path} is no log of a power profiler: its first line must begin with "
                    "Timestamp(ms),Current(uA), as nRF Connect's Power Profiler exports it"
                )
            found = np.loadtxt(file, delimiter=",", usecols=(0, 1), ndmin=2)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as a meter's log: {reason(error)}") from error
    if len(found) < 2 or not np.isfinite(found).all() or (np.diff(found[:, 0]) <= 0).any():
        raise BadInput(f"{path}: the times of a log must increase, and be finite: export it again")
    if not np.ptp(found[:, 0]) <= LONGEST_MS or np.abs(found[:, 1]).max() > LARGEST_UA:
        raise BadInput(
            f"{path}: it has a time more than a day from the others, or a current beyond "
            f"{LARGEST_UA / 1e6:g} A: export it again"
        )
    return found[:, 0], found[:, 1]


def powers(times_ms: Array, currents_ua: Array, states: Sequence[State], supply_mv: float) -> Power:
    """Powers (uW) from the states that a log shows. Raises BadInput if it does not show them."""
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
    if min(found.compute_uw, found.page_in_uw, found.page_out_uw, found.base_uw) < 0:
        raise BadInput(
            "the meter's log shows less current in a state than at rest: is the card supplied "
            "through the meter too?"
        )
    return found


def _binned(times_ms: Array, currents_ua: Array) -> Array:
    """Mean currents of bins, those without a sample as the one before."""
    index = ((times_ms - times_ms[0]) / BIN_MS).astype(int)
    count = np.bincount(index)
    total = np.bincount(index, weights=currents_ua)
    last = np.maximum.accumulate(np.where(count > 0, np.arange(len(count)), 0))
    return np.asarray((total / np.maximum(count, 1))[last], dtype=float)


def _baseline(bins: Array) -> tuple[float, float]:
    """Current at rest, and what is more than that: rests are about a third of the log or more."""
    quiet = float(np.percentile(bins, 10))
    threshold = 1.05 * quiet + 50.0
    return float(bins[bins <= threshold].mean()), threshold


def _periods(active: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last bin (excluded) of each period of activity."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], active, [False])).astype(int)))
    merged: list[tuple[int, int]] = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if merged and (begin - merged[-1][1]) * BIN_MS < MERGED_MS:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return [one for one in merged if (one[1] - one[0]) * BIN_MS >= SHORTEST_MS]


def _matching(periods: Sequence[tuple[int, int]], wanted_ms: Sequence[float]) -> int:
    """Where in the log the last periods are that last as long as the states did."""
    lengths = [(end - begin) * BIN_MS for begin, end in periods]
    for start in range(len(periods) - len(wanted_ms), -1, -1):
        if all(
            abs(length - wanted) <= TOLERANCE * wanted + 2 * BIN_MS
            for length, wanted in zip(lengths[start:], wanted_ms, strict=False)
        ):
            return start
    seen = ", ".join(f"{length / 1e3:.2f}" for length in lengths[:12]) or "none"
    held = ", ".join(f"{wanted / 1e3:.2f}" for wanted in wanted_ms)
    raise BadInput(
        f"the meter's log does not show the board's states ({held} s of activity, one after the "
        f"other), but periods of {seen} s: record from before the command starts until it asks "
        "for the log"
    )
