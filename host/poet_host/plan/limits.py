"""Read RAM budgets and deadlines as users write them, and make the Problem with these limits."""

import math
import re
from fractions import Fraction

from ..device.board import load_board, names
from ..errors import BadInput
from ..profile.profile import Profile
from ..sizes import SIZE, bounded, size_bytes
from .problem import DEFAULT_OBJECTIVE, CostGraph, Objective, Problem

MIN_RAM_BYTES = 4  # the size of one number
_OR_A_SHARE = ", or a share of what keep-everything needs, such as 50%"


def problem_of(
    costs: CostGraph,
    ram: str | float | None = None,
    deadline: str | float | None = None,
    profile: Profile | None = None,
    objective: Objective = DEFAULT_OBJECTIVE,
) -> Problem:
    """Make the problem of planning `costs` within `ram` and `deadline`, as users write them.

    `ram`: see ram_bytes; None means the arena of the profile's board. `deadline`: see deadline_us.
    `profile`: the profile from which `costs` was made; None for a cost graph from a file.
    Raises BadInput if a limit is missing, cannot be read, is smaller than one number (4 bytes), or
    refers to a keep-everything plan that the graph does not have.
    """
    keep = costs.keep_everything
    if ram is not None:
        budget = ram_bytes(ram, keep.peak_bytes if keep else None)
    elif profile is None:
        raise BadInput(f"{costs.name} is a cost graph, which has no board: add --ram")
    elif profile.board not in names():
        raise BadInput(f"the board of the profile, {profile.board}, is unknown: add --ram")
    else:
        budget = load_board(profile.board).arena_bytes
    if profile is not None and budget < MIN_RAM_BYTES:
        raise BadInput(
            f"RAM budget {ram!r} is {budget:,} bytes, but one number takes {MIN_RAM_BYTES} bytes: "
            f"write bytes, such as 24576{_OR_A_SHARE}"
        )
    limit_us = deadline_us(deadline, keep.time_us if keep else None)
    return Problem(costs, budget, limit_us, profile, objective)


def check_arena(size: int, profile: Profile) -> None:
    """Raise BadInput if `size` exceeds the arena of the profile's board.

    A board that is a computer has no such limit.
    """
    if profile.board not in names():
        return
    board = load_board(profile.board)
    if size > board.arena_bytes and not board.is_computer:
        raise BadInput(
            f"a RAM budget of {size:,} bytes exceeds the arena of {board.name}, which has "
            f"{board.arena_bytes:,} bytes. Leave out --ram to plan for the arena, or add "
            "--beyond-arena to make a schedule that this board cannot run"
        )


def ram_bytes(limit: str | float, keep_all_bytes: int | None) -> int:
    """Return the bytes of a RAM budget: `24576`, `24KiB`, `24KB` (24,000), `1MiB` or `50%`.

    A share such as `50%` is a share of the keep-everything plan's RAM. It is rounded down to whole
    bytes. Raises BadInput for any other text, and for a size that is not a whole number of bytes.
    """
    text, what = str(limit).strip(), f"RAM budget {limit!r}"
    found = SIZE.fullmatch(text)
    if not found or found[2] != "%":
        return size_bytes(text, "RAM budget", _OR_A_SHARE)
    if keep_all_bytes is None:
        raise BadInput(
            f"{what}: a share refers to the plan that keeps every tensor in RAM, but the graph has "
            "no such plan. Write bytes, such as 24576"
        )
    # A Fraction is exact: 33.3 % of 1000 bytes are 333 bytes. With floats, the result is 332.
    return bounded(int(Fraction(found[1]) / 100 * keep_all_bytes), what)


def deadline_us(text: str | float | None, keep_all_us: float | None) -> float | None:
    """Convert a deadline (`15`, `15ms`, `15000us` or `1.2x`) to microseconds, and `none` to None.

    `15` means milliseconds. `1.2x` is a multiple of the keep-everything plan's time. Raises
    BadInput for any other text.
    """
    if text is None or str(text).strip().lower() == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(x|ms|us)?", str(text).strip(), re.I)
    if not found:
        raise BadInput(
            f"deadline {text!r}: write milliseconds (such as 15), a multiple of the step time with "
            "all tensors in RAM (such as 1.2x), or none"
        )
    number, unit = float(found[1]), (found[2] or "").lower()
    if unit == "x" and keep_all_us is None:
        raise BadInput(
            f"deadline {text!r}: a multiple refers to the plan that keeps every tensor in RAM, but "
            "the graph has no such plan. Write milliseconds, such as 15"
        )
    limit = number * {"x": keep_all_us or 0.0, "us": 1.0}.get(unit, 1e3)
    if not (math.isfinite(limit) and limit > 0):
        raise BadInput(f"deadline {text!r}: the deadline must be a positive number")
    return limit


def slice_us(text: str | float | None) -> float | None:
    """Convert the time of a slice (`10`, `10ms`, `10000us`) to microseconds, and `none` to None.

    `10` means milliseconds. Raises BadInput for any other text.
    """
    try:
        return deadline_us(text, None)
    except BadInput:
        raise BadInput(
            f"slice {text!r}: write milliseconds above 0, such as 10ms, or none"
        ) from None
