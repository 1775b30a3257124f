"""Names of classes: the words that are labels in a table, each with the number of its class.

The names are stored with the weights, in the weights file and on the card. So a name has the same
number in every later table. For some samples, the CRC-32 of the table row and the class are stored
too. A later table is refused if these rows show that class names have been exchanged.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadInput, quoted

Array = np.ndarray[Any, np.dtype[Any]]
EXAMPLES = 4  # maximum number of samples per class whose CRC-32 is stored


class Classes(tuple[str, ...]):
    """Names of classes, in the order of their numbers. Empty if the labels are plain numbers.

    `examples` maps the CRC-32 of a table row to the number of the row's class.
    """

    examples: Mapping[int, int]

    def __new__(
        cls, names: Iterable[str] = (), examples: Mapping[int, int] | None = None
    ) -> "Classes":
        given = tuple(names) if isinstance(names, Iterable) else (names,)
        if not all(isinstance(name, str) and name for name in given):
            raise BadInput(f"names of classes must be non-empty texts, not {quoted(given)}")
        if len(set(given)) < len(given):
            raise BadInput(f"two classes have the same name: {_listed(given)}. Rename one of them")
        made = super().__new__(cls, given)
        made.examples = examples or {}
        return made

    def to_json(self) -> dict[str, Any] | None:
        """Return the names, and at most EXAMPLES of `examples` per class; None without names."""
        kept: dict[str, int] = {}
        counts = [0] * len(self)
        for crc, number in sorted(self.examples.items()):
            if counts[number] < EXAMPLES:
                counts[number] += 1
                kept[f"{crc:08x}"] = number
        return {"names": list(self), "examples": kept} if self else None


NO_NAMES = Classes()


def classes_from_json(value: Any) -> Classes:
    """Return the classes from their JSON in a weights file or on a card.

    Raises BadInput, ValueError, TypeError or KeyError if the JSON is wrong.
    """
    if value is None:
        return NO_NAMES
    names = value["names"]
    examples = {int(crc, 16): number for crc, number in dict(value["examples"]).items()}
    if not all(
        isinstance(example, int) and 0 <= example < len(names) for example in examples.values()
    ):
        raise ValueError(
            f"a stored sample has a class number without a name: there are {len(names)} class "
            "names, numbered from 0. Use an undamaged copy of the weights"
        )
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
    """Return, for each class in `found`, the number of the class with the same name in `known`.

    Raises BadInput if a name in `found` is not in `known`, or if rows that are examples in both
    show that names were exchanged. The argument `where` names the data in the message.
    """
    new = [name for name in found if name not in known]
    if new:
        raise BadInput(
            f"{where}: the weights were trained without the class {quoted(new[0])}. Their classes "
            f"are {_listed(known)}. Correct the names, or train new weights"
        )
    numbers = [known.index(name) for name in found]
    exchanged = _exchanged(known, {crc: numbers[c] for crc, c in found.examples.items()})
    if exchanged:
        old, now = (quoted(known[number]) for number in exchanged)
        raise BadInput(
            f"{where}: classes were renamed. Rows with the label {old} in training now have the "
            f"label {now}. Use the names of the training data, or train new weights"
        )
    return np.asarray(numbers, dtype=np.int32)


def _exchanged(known: Classes, found: Mapping[int, int]) -> tuple[int, int] | None:
    """Return an exchanged class as (old number, new number); None if no names were exchanged.

    `known.examples` maps the CRC-32 of a row to its class number in training, `found` to its class
    number now. Names were exchanged if all rows of a class have the same number now, rows of
    different classes have different numbers now, and two or more classes have another number than
    in training. Otherwise, labels of single rows were corrected.
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
