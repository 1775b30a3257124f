"""Names of classes: the words that are labels in a table, each with the number of its class.

The names are stored with the weights, in the weights file and on the card. So a name has the same
number in every later table. For some samples, the CRC-32 of the table row and the class are stored
too. A later table is refused if these rows show that class names have been exchanged.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadInput, quoted
from ..graph.weights import Array
from ..schema import is_unicode

EXAMPLES = 4  # maximum number of samples per class whose CRC-32 is stored


class Examples(Mapping[int, int]):
    """A map from the CRC-32 of a table row to the number of the row's class, in 8 bytes a row."""

    def __init__(self, crcs: Array, numbers: Array) -> None:
        """Store `numbers` of classes by `crcs`, which are different and ascend. Shapes (N,)."""
        self.crcs = np.asarray(crcs, np.uint32)
        self.numbers = np.asarray(numbers, np.int32)

    @staticmethod
    def of(examples: Mapping[int, int]) -> "Examples":
        if isinstance(examples, Examples):
            return examples
        crcs = sorted(examples)
        return Examples(np.array(crcs, np.uint32), np.array([examples[crc] for crc in crcs]))

    def __getitem__(self, crc: int) -> int:
        at = int(np.searchsorted(self.crcs, np.uint32(crc)))
        if at == len(self.crcs) or self.crcs[at] != crc:
            raise KeyError(crc)
        return int(self.numbers[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self.crcs.tolist())

    def __len__(self) -> int:
        return len(self.crcs)

    def few(self, count: int) -> "Examples":
        """Return the `count` rows of each class that have the smallest CRC."""
        by_class = np.argsort(self.numbers, kind="stable")
        numbers = self.numbers[by_class]
        rank = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
        kept = np.sort(by_class[rank < count])
        return Examples(self.crcs[kept], self.numbers[kept])


class Classes(tuple[str, ...]):
    """Names of classes, in the order of their numbers. Empty if the labels are plain numbers."""

    examples: Examples

    def __new__(
        cls, names: Iterable[str] = (), examples: Mapping[int, int] | None = None
    ) -> "Classes":
        given = tuple(names) if isinstance(names, Iterable) else (names,)
        if not all(isinstance(name, str) and name and is_unicode(name) for name in given):
            raise BadInput(f"names of classes must be non-empty Unicode texts, not {quoted(given)}")
        if len(set(given)) < len(given):
            raise BadInput(f"two classes have the same name: {_listed(given)}. Rename one of them")
        made = super().__new__(cls, given)
        made.examples = Examples.of(examples or {})
        return made

    def to_json(self) -> dict[str, Any] | None:
        """Return the names, and at most EXAMPLES of `examples` per class; None without names."""
        kept = {f"{crc:08x}": number for crc, number in self.examples.few(EXAMPLES).items()}
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
    if not all(0 <= crc < 2**32 for crc in examples):
        raise ValueError("a stored sample has a CRC of more than 32 bits")
    if not all(
        isinstance(example, int) and 0 <= example < len(names) for example in examples.values()
    ):
        raise ValueError(
            f"a stored sample has a class number without a name: there are {len(names)} class "
            "names, numbered from 0. Use an undamaged copy of the weights"
        )
    return Classes(names, examples)


def examples_of(rows: Array, labels: Array) -> Examples:
    """Return the CRC-32 and the class of each sample in `rows`.

    A sample that occurs with two classes is left out.
    """
    samples = np.ascontiguousarray(rows, np.float32)
    crcs = np.fromiter((zlib.crc32(row) for row in samples), np.uint32, len(samples))
    found, first, place = np.unique(crcs, return_index=True, return_inverse=True)
    kept = np.ones(len(found), bool)
    kept[place[labels != labels[first][place]]] = False
    return Examples(found[kept], labels[first][kept])


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
    exchanged = _exchanged(known, found.examples, numbers)
    if exchanged:
        old, now = (quoted(known[number]) for number in exchanged)
        raise BadInput(
            f"{where}: classes were renamed. Rows with the label {old} in training now have the "
            f"label {now}. Use the names of the training data, or train new weights"
        )
    return np.asarray(numbers, dtype=np.int32)


def _exchanged(known: Classes, found: Examples, numbers: Sequence[int]) -> tuple[int, int] | None:
    """Return an exchanged class as (old number, new number); None if no names were exchanged.

    `known.examples` has the class number of a row in training, and `numbers` its class number now,
    by its number in `found`. Names were exchanged if all rows of a class have the same number now,
    rows of different classes have different numbers now, and two or more classes have another
    number than in training. Otherwise, labels of single rows were corrected.
    """
    became: dict[int, set[int]] = {}
    for crc, number in known.examples.items():
        if crc in found:
            became.setdefault(number, set()).add(numbers[found[crc]])
    moved = [(old, min(now)) for old, now in became.items() if now != {old}]
    targets = {number for now in became.values() for number in now}
    exchanged = len(moved) > 1 and len(targets) == len(became)
    return moved[0] if exchanged and all(len(now) == 1 for now in became.values()) else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(quoted(name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
