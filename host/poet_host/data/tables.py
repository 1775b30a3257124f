"""Read a table (CSV) row by row into typed arrays, not into lists of all cells."""

import csv
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import TextIOWrapper
from math import isfinite
from pathlib import Path

import numpy as np

from ..errors import BadInput, quoted
from ..files import not_utf8, opened
from ..graph.weights import Array
from .files import Arrays

_EXACT = 2**53  # 64-bit floats represent every whole number up to this one exactly
_MOST_LINE = 1 << 22  # characters of a line: 150,528 numbers of an image need 3 million
_MOST_NAMES = 1 << 16  # different labels that are words


@dataclass
class _Labels:
    """The labels so far: numbers, or words and the order in which each one was first seen."""

    are_numbers: bool = True
    values: "array[float]" = field(default_factory=lambda: array("d"))
    has_point: bool = False  # a number was written with a decimal point
    names: dict[str, int] = field(default_factory=dict)

    def add(self, label: str, where: str) -> None:
        """Add a label. Raises BadInput if it is not like the first one."""
        if not label:
            raise BadInput(
                f"{where}: the last column, the label, is empty: complete or delete the row"
            )
        is_number = _is_number(label)
        if not self.values:
            self.are_numbers = is_number
        if is_number != self.are_numbers:
            raise BadInput(
                f"{where}: this label and the first label must both be numbers or both be words. "
                "If the first row is a header row, use --header yes"
            )
        if is_number:
            if not isfinite(value := float(label)):
                raise BadInput(
                    f"{where}: the label is not a finite number: correct or delete the row"
                )
            self.values.append(value)
            self.has_point |= "." in label
            return
        self.values.append(self.names.setdefault(label, len(self.names)))
        if len(self.names) > _MOST_NAMES:
            raise BadInput(
                f"{where}: the last column has more than {_MOST_NAMES:,} different words: move the "
                "label to the last column"
            )

    def only_first_is_alone(self) -> bool:
        """Return whether labels are words, and of all of them only the first occurs once."""
        counts = np.bincount(np.frombuffer(self.values).astype(int)) if self.names else np.ones(1)
        return bool(len(counts) > 1 and counts[0] == 1 and (counts[1:] > 1).all())

    def result(self) -> tuple[Array, tuple[str, ...]]:
        """Return the array of labels, and the names of the classes if labels are words."""
        values: Array = np.frombuffer(self.values)
        if not self.are_numbers:
            names = tuple(sorted(self.names))
            numbers = {name: number for number, name in enumerate(names)}
            in_order = np.array([numbers[name] for name in self.names], np.int32)
            return in_order[values.astype(np.int32)], names
        exact = bool((values == np.floor(values)).all()) and np.abs(values).max() <= _EXACT
        if exact and not self.has_point:
            return values.astype(np.int64), ()
        with np.errstate(over="ignore"):  # a later check refuses infinity
            return values.astype(np.float32)[:, None], ()


def read_csv(
    path: Path, header: bool | None = None, values: int | None = None
) -> tuple[Arrays, tuple[str, ...]]:
    """Read a table. Each row is a sample, and the last column is its label.

    If labels may be missing, `values` is the number of values of a sample: a table with so many
    columns has no labels.

    Returns the arrays, and the names of the classes if labels are words. `header`: whether the
    first row is a header row; None: it is a header row if it contains only words. Columns are
    separated by comma, semicolon or tab. Labels that are whole numbers are classes, other numbers
    are targets of a regression. Labels that are words are classes, numbered in alphabetical order.
    """
    x, labels = array("f"), _Labels()
    columns, rows, may_be_header = 0, 0, False
    for line, cells in _rows(path, least=1 if values == 1 else 2):
        if not columns:
            columns = len(cells)
            end = columns if columns == values else -1
            words = any(cells[:end]) and not any(_is_number(cell) for cell in cells)
            if words if header is None else header:
                continue
            numbers = cells if _is_number(cells[-1]) else cells[:-1]
            if header is None and len(cells) > 3 and numbers == [*map(str, range(len(numbers)))]:
                raise BadInput(
                    f"data {path}, line {line}: this row counts the columns: use --header yes if "
                    "it is a header row, and --header no if it is a sample"
                )
            may_be_header = header is None and len({*cells}) == columns
        where = f"data {path}, line {line}"
        if len(cells) != columns:
            raise BadInput(
                f"{where}: it has {len(cells)} columns, but the first line has {columns}: complete "
                "or delete the row"
            )
        try:
            if "_" in "".join(cells[:end]):  # which `float` takes as a separator of digits
                raise ValueError
            x.extend(map(float, cells[:end]))
        except ValueError:
            raise _not_a_number(where, cells) from None
        rows += 1
        if end < 0:
            labels.add(cells[-1], where)
    if not rows:
        raise BadInput(f"data {path}: the file has a header row and no samples: add rows")
    if may_be_header and labels.only_first_is_alone():
        raise BadInput(
            f"data {path}: the label of the first row occurs only there, and each other label more "
            "than once: use --header yes if it is a header row, and --header no if it is a sample"
        )
    found = {"x": np.frombuffer(x, np.float32).reshape(rows, -1)}
    if end > 0:
        return found, ()
    y, names = labels.result()
    return {**found, "y": y}, names


def _rows(path: Path, least: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty.

    Raises BadInput if the first row has fewer than `least` columns, or if there is no row.
    """
    end = 0  # number of lines up to the end of the last complete row
    is_empty = True
    with opened(path) as raw, TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        try:
            separator = max(",;\t", key=_first_line(path, file).count)
            reader = csv.reader(_lines(path, file), delimiter=separator, strict=True)
            for row in reader:
                end = reader.line_num
                cells = [cell.strip() for cell in row]
                if not any(cells):
                    continue
                if is_empty and len(cells) < least:
                    break
                is_empty = False
                yield end, cells
        except csv.Error as error:
            raise BadInput(
                f"data {path}, line {end + 1}: this is not valid CSV ({error}): check the "
                "quotation marks"
            ) from error
        except UnicodeDecodeError as error:
            raise not_utf8(path) from error
    if is_empty:
        raise BadInput(
            f"data {path}: rows need at least two columns, separated by comma, semicolon or tab. "
            "The last column is the label"
        )


def _first_line(path: Path, file: TextIOWrapper) -> str:
    first = next((line for line in _lines(path, file) if line.strip(" \r\n")), "")
    file.seek(0)
    return first


def _lines(path: Path, file: TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a file. Raises BadInput for a line that is too long for a sample."""
    number = 0
    while line := file.readline(_MOST_LINE):
        number += 1
        if len(line) == _MOST_LINE:
            raise BadInput(
                f"data {path}, line {number}: the line has more than {_MOST_LINE:,} characters: "
                "write one sample in each line, or use an .npz file for large samples"
            )
        yield line


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _not_a_number(where: str, cells: list[str]) -> BadInput:
    column = next(i for i, cell in enumerate(cells, 1) if not _is_number(cell))
    return BadInput(
        f"{where}, column {column}: {quoted(cells[column - 1])} is not a number. Only the last "
        "column and a header row (--header yes) may contain words"
    )
