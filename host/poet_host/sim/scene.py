"""What happens around a simulated board: its sensor's motion, and presses of its button."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files import read_text
from .chip_library import chips
from .chipfile import load_chip

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s)")
_COLUMNS = ("time_s", "ax", "ay", "az")
_STILL = (0.0, 0.0, 0.0, 1.0)
_LARGEST = 1e9  # seconds, or g


@dataclass(frozen=True)
class Scene:
    """The surroundings of a board that needs no host: time passes while its program sleeps."""

    motion: str | None = None  # file for read_motion; None: it lies still, 1 g on the z axis
    presses: tuple[tuple[float, float], ...] = ()  # seconds since power-on, and the duration
    until_s: float | None = None  # simulated time after which the board's process ends


def seconds(text: str, what: str) -> float:
    """Return the seconds of a text such as `3.5s` or `200ms`. `what` names it in an error."""
    if not (found := _TIME.fullmatch(text)):
        raise BadInput(f"{what} {text!r} is not a time: write, for example, 3.5s or 200ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def press(text: str) -> tuple[float, float]:
    """Parse TIME:DURATION of the command line, such as `3.5s:200ms`."""
    at, _, duration = text.partition(":")
    return seconds(at, f"the time in {text!r}"), seconds(duration, f"the duration in {text!r}")


def in_c(scene: Scene, board: str) -> Any:
    """Return the struct scene of chip/api.h, or None if the board has no sensor.

    Raises BadInput if the file of the motion is wrong, or if there is nothing that can move.
    """
    if "i2c" not in load_chip(board).wiring:
        if scene.motion or scene.presses:
            raise BadInput(f"the board {board} has no sensor and no button: choose nano_33_iot")
        return None
    ffi, lib = chips()
    motion = read_motion(Path(scene.motion)) if scene.motion else [_STILL]
    rows = [(round(time_s * 1e9), axes) for time_s, *axes in motion]
    times = [(round(at * 1e9), round((at + duration) * 1e9)) for at, duration in scene.presses]
    arrays = ffi.new("struct motion[]", rows), ffi.new("struct press[]", times)
    return ffi.gc(lib.scene_new(arrays[0], len(rows), arrays[1], len(times)), lib.scene_free)


def read_motion(path: Path) -> list[tuple[float, ...]]:
    """Read a CSV file of acceleration: rows of (time_s, ax, ay, az), the last three in g.

    The header row names these columns, in any order; other columns are ignored. Times are seconds
    since power-on, and ascend. Raises BadInput, with the line, if the file is anything else.
    """
    reader = csv.reader(read_text(path).splitlines())
    try:
        lines = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise BadInput(
            f"{path}, line {reader.line_num}: this is not valid CSV ({error}): check the quotation "
            "marks"
        ) from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    if missing := [name for name in _COLUMNS if name not in header]:
        raise BadInput(
            f"{path} has no column {', '.join(missing)}: name the columns {', '.join(_COLUMNS)} in "
            "its first line (seconds, and g)"
        )
    rows: list[tuple[float, ...]] = []
    for number, line in lines[1:]:
        if not line:
            continue
        where = f"{path}, line {number}"
        try:
            row = tuple(float(line[header.index(name)]) for name in _COLUMNS)
        except (ValueError, IndexError) as error:
            raise BadInput(f"{where}: write a number in each column") from error
        if not all(abs(value) <= _LARGEST for value in row):
            raise BadInput(f"{where}: write times in seconds, and accelerations in g")
        if row[0] < 0 or row[0] <= (rows[-1][0] if rows else -math.inf):
            raise BadInput(f"{where}: times start at 0 or later, and ascend")
        rows.append(row)
    if not rows:
        raise BadInput(f"{path} has no rows of acceleration: add them after its first line")
    return rows
