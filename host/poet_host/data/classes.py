"""Names of classes. When training begins, each word that is a label in a table gets a number.

The names are stored with the weights, in the file of weights and on the card. In every later table,
a class has the number that its name had first. For some samples, the CRC-32 of the table row and
its class are stored too. If a later table has these rows with exchanged names, it is refused.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadInput, quoted

Array = np.ndarray[Any, np.dtype[Any]]
EXAMPLES = 4  # number of samples of each class whose CRC-32 is stored


class Classes(tuple[str, ...]):
    """Names of classes, in the order of their numbers. Empty if the labels are plain numbers.

    `examples` maps the CRC-32 of a row to its class.
    """

    examples: Mapping[int, int]

    def __new__(
        cls, names: Iterable[str] = (), examples: Mapping[int, int] | None = None
    ) -> "Classes":
        given = tuple(names) if isinstance(names, Iterable) else (names,)
        if not all(isinstance(name, str) and name for name in given):
            raise BadInput(f"names of classes must be texts, not {quoted(given)}")
        if len(set(given)) < len(given):
            raise BadInput(f"names of classes must differ: {_listed(given)}")
        made = super().__new__(cls, given)
        made.examples = examples or {}
        return made

    def to_json(self) -> dict[str, Any] | None:
        """Return the names and at most EXAMPLES examples of each class, or None without names."""
        kept: dict[str, int] = {}
        counts = [0] * len(self)
        for crc, number in sorted(self.examples.items()):
            if counts[number] < EXAMPLES:
                counts[number] += 1
                kept[f"{crc:08x}"] = number
        return {"names": list(self), "examples": kept} if self else None


NO_NAMES = Classes()


def classes_from_json(value: Any) -> Classes:
    """Return the classes in the JSON of a file or card.

    Raises BadInput, ValueError, TypeError or KeyError if the JSON is wrong.
    """
    if value is None:
        return NO_NAMES
    names = value["names"]
    examples = {int(crc, 16): number for crc, number in dict(value["examples"]).items()}
    if not all(
        isinstance(example, int) and 0 <= example < len(names) for example in examples.values()
    ):
        raise ValueError("an example has a class without a name")
    return Classes(names, examples)


def examples_of(rows: Array, labels: Array) -> dict[int, int]:
    """Return a map from the CRC-32 of each sample in `rows` to the sample's class.

    A sample that occurs with two classes is left out.
    """
    found: dict[int, int] = {}
    twice = set()
    for row, label in zip(np.ascontiguousarray(rows, np.float32), labels.tolist(), strict=True):
        crc = zlib.crc32(row.tobytes())
        if found.setdefault(crc, label) != label:
            twice.add(crc)
    return {crc: label for crc, label in found.items() if crc not in twice}


def numbers_by(known: Classes, found: Classes, where: str) -> Array:
    """Return, for each class in `found`, its number in `known`.

    Raises BadInput, with a message that begins with `where`, if a name in `found` is not in
    `known`, or if the examples that both have show that names were exchanged.
    """
    new = [name for name in found if name not in known]
    if new:
        raise BadInput(
            f"{where}: the class {quoted(new[0])} is new; the weights know {_listed(known)}. "
            "Correct the names, or train new weights"
        )
    numbers = [known.index(name) for name in found]
    exchanged = _exchanged(known, {crc: numbers[c] for crc, c in found.examples.items()})
    if exchanged:
        old, now = (quoted(known[number]) for number in exchanged)
        raise BadInput(
            f"{where}: its classes were renamed; rows that were {old} in training are {now} here. "
            "Use the names of the training data, or train new weights"
        )
    return np.asarray(numbers, dtype=np.int32)


def _exchanged(known: Classes, found: Mapping[int, int]) -> tuple[int, int] | None:
    """Return a renamed class, as (number in `known`, number in `found`), if names were exchanged.

    Names were exchanged if two or more classes have other numbers in `found`, and all rows of a
    class still have one number. If someone corrects the labels of single rows, the rows of a class
    have two numbers.
    """
    became: dict[int, set[int]] = {}
    for crc, number in known.examples.items():
        if crc in found:
            became.setdefault(number, set()).add(found[crc])
    moved = [(old, min(now)) for old, now in became.items() if now != {old}]
    targets = {number for now in became.values() for number in now}
    exchanged = len(moved) > 1 and len(targets) == len(became)
    return moved[0] if exchanged and all(len(now) == 1 for now in became.values()) else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(quoted(name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
