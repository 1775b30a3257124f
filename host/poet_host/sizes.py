"""Read numbers of bytes as people write them: 24576, "24KiB", "64MiB"."""

import re
from fractions import Fraction
from numbers import Integral

from .errors import BadInput
from .schema import LARGEST_WHOLE

SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*|%)", re.I)
_UNITS = {
    "": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
}  # fmt: skip


def size_bytes(text: str, what: str, also: str = "") -> int:
    """Return the number of bytes that a text such as `24576`, `24KiB`, `24KB` or `1MiB` states.

    `what` is the name of the size in an error. `also` is added at the end of an error's advice.
    """
    what = f"{what} {text!r}"
    found = SIZE.fullmatch(text.strip())
    unit = found[2].lower() if found else ""
    if found and unit in ("k", "m", "g"):
        binary, decimal = (f"{found[1]}{unit.upper()}{end}" for end in ("iB", "B"))
        raise BadInput(
            f"{what} is ambiguous: write {binary} (powers of 1024) or {decimal} (powers of 1000)"
        )
    if not found or unit not in _UNITS:
        raise BadInput(
            f"{what} is not valid: write a number of bytes, such as 24576, or a size, such as "
            f"24KiB or 64MiB{also}"
        )
    size = Fraction(found[1]) * _UNITS[unit]
    if size.denominator != 1:
        raise BadInput(f"{what} is not a whole number of bytes: write bytes, such as 24576{also}")
    return bounded(int(size), what)


def bounded(size: int, what: str) -> int:
    if size > LARGEST_WHOLE:
        raise BadInput(f"{what} is too large: use at most {LARGEST_WHOLE:,} bytes")
    return size


def as_bytes(size: int | str, what: str) -> int:
    """Return the number of bytes of `size`: a number, or a text such as "64KiB".

    `what` is the name of the size in an error.
    """
    if isinstance(size, str):
        return size_bytes(size, what)
    if not isinstance(size, Integral) or isinstance(size, bool):
        raise BadInput(
            f"{what} {size!r} is not valid: write a number of bytes, such as 24576, or a size, "
            "such as 24KiB"
        )
    return int(size)
