"""What people write as a RAM budget or a deadline, as numbers."""

import math
import re
from fractions import Fraction

from ..errors import BadInput

_RAM = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*(KiB|MiB|GiB|B|%)?", re.I)
_UNITS = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
MOST_BYTES = 2**53  # whole numbers that JSON can carry exactly


def ram_bytes(text: str | int, keep_all_bytes: int | None) -> int:
    """Bytes of `24576`, `24KiB`, `1MiB`, or `50%` of what keep-everything needs, if known."""
    found = _RAM.fullmatch(str(text).strip())
    if not found:
        raise BadInput(f"RAM budget {text!r}: write bytes, as 24576, or 24KiB, or 50%")
    if found[2] == "%" and keep_all_bytes is None:
        raise BadInput(f"RAM budget {text!r}: nothing to take per cent of; write bytes, as 24576")
    # A fraction, because 33.3 % of 1000 bytes are 333 of them, not 332.
    number, unit = Fraction(found[1]), (found[2] or "").lower()
    size = number / 100 * (keep_all_bytes or 0) if unit == "%" else number * _UNITS[unit]
    return _bounded(size, f"RAM budget {text!r}")


def size_bytes(text: str, what: str) -> int:
    """Bytes of `24576`, `24KiB` or `1MiB`, of `what`."""
    found = _RAM.fullmatch(text.strip())
    if not found or found[2] == "%":
        raise BadInput(f"{what} {text!r}: write bytes, as 24576, or 24KiB, or 64MiB")
    return _bounded(Fraction(found[1]) * _UNITS[(found[2] or "").lower()], f"{what} {text!r}")


def _bounded(size: Fraction, what: str) -> int:
    if size > MOST_BYTES:
        raise BadInput(f"{what}: the most is {MOST_BYTES} bytes")
    return int(size)


def deadline_us(text: str | float | None, keep_all_us: float | None) -> float | None:
    """Microseconds of `1.2x` (of keep-everything's time), `15` or `15ms`, `15000us`, `none`."""
    if text is None or str(text).strip().lower() == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(x|ms|us)?", str(text).strip(), re.I)
    if not found:
        raise BadInput(f"deadline {text!r}: write milliseconds, as 15, or 1.2x, or none")
    number, unit = float(found[1]), (found[2] or "").lower()
    if unit == "x" and keep_all_us is None:
        raise BadInput(f"deadline {text!r}: nothing to take a multiple of; write milliseconds")
    limit = number * {"x": keep_all_us or 0.0, "us": 1.0}.get(unit, 1e3)
    if not (math.isfinite(limit) and limit > 0):
        raise BadInput(f"deadline {text!r}: a deadline is a positive number")
    return limit
