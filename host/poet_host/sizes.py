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


def size_bytes(size: int | str, what: str, also: str = "") -> int:
    """Return a number of bytes, also of a text such as `24576`, `24KiB`, `24KB` or `1MiB`.

    `what` is the name of the size in an error. `also` is added at the end of an error's advice.
    """
    if isinstance(size, Integral) and not isinstance(size, bool):
        return int(size)
    what = f"{what} {size!r}"
    found = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
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
    count = Fraction(found[1]) * _UNITS[unit]
    if count.denominator != 1:
        raise BadInput(f"{what} is not a whole number of bytes: write bytes, such as 24576{also}")
    return bounded(int(count), what)


def bounded(size: int, what: str) -> int:
    if size > LARGEST_WHOLE:
        raise BadInput(f"{what} is too large: use at most {LARGEST_WHOLE:,} bytes")
    return size
