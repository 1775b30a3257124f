"""Data sets in files: .npz, a folder of .npy files, or a table as CSV."""

import csv
import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput, listed, quoted
from ..files import read_text

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

NAMES = ("x", "y", "x_test", "y_test")
_ALSO = {"x_train": "x", "y_train": "y"}  # names that Keras uses
_EXACT = 2**53  # 64-bit floats represent every whole number up to this one exactly
_UNREADABLE = (  # exceptions of NumPy and zipfile for damaged, encrypted or unknown files
    OSError, TypeError, ValueError, EOFError, RuntimeError, OverflowError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


def read_npz(path: Path) -> Arrays:
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise BadInput(
                f"data {path}: the file holds a single array. Save x and y with numpy.savez, or "
                "put x.npy and y.npy into a folder"
            )
        with opened:
            # NumPy returns bytes for an entry of the file that is not an array.
            names = _names(opened.files)
            arrays = {ours: opened[name] for name, ours in names.items()}
            broken = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
            others = [name for name in opened.files if name not in names]
    except _UNREADABLE as error:
        raise BadInput(
            f"data {path}: this is not a readable .npz file of plain arrays. Save x and y with "
            "numpy.savez. If the file is a table, its name must end in .csv"
        ) from error
    except MemoryError as error:
        raise _too_large(path, error) from error
    if broken:
        raise BadInput(
            f"data {path}: the entry {broken[0]} is not an array. Save arrays with numpy.savez"
        )
    return _checked(path, arrays, others)


def read_folder(path: Path) -> Arrays:
    """Read x.npy, y.npy and, if samples are held out, x_test.npy and y_test.npy."""
    arrays, others = {}, []
    files = sorted(path.glob("*.npy"))
    names = _names([file.stem for file in files])
    for file in files:
        if file.stem not in names:
            others.append(file.stem)
            continue
        try:
            array = np.load(file, allow_pickle=False)
        except _UNREADABLE as error:
            raise BadInput(
                f"data {file}: this is not a readable .npy file of plain numbers. Save the array "
                "with numpy.save"
            ) from error
        except MemoryError as error:
            raise _too_large(file, error) from error
        if not isinstance(array, np.ndarray):
            array.close()
            raise BadInput(
                f"data {file}: this is an .npz file, not a .npy file. Save an array with numpy.save"
            )
        arrays[names[file.stem]] = array
    return _checked(path, arrays, others)


def _names(given: list[str]) -> dict[str, str]:
    """Return a map from the names of given arrays to x, y, x_test and y_test.

    Other names are left out. If there is no x, x_train is used as x. The same holds for y.
    """
    ours = {name: name for name in NAMES if name in given}
    return ours | {also: name for also, name in _ALSO.items() if also in given and name not in ours}


def _too_large(path: Path, error: MemoryError) -> BadInput:
    reason = f" ({error})" if str(error) else ""
    return BadInput(
        f"data {path}: it holds more numbers than the memory of this computer{reason}: use fewer "
        "samples"
    )


def _checked(path: Path, arrays: Arrays, others: list[str]) -> Arrays:
    """Return `arrays`. Raises BadInput if x or y is missing, or only one of x_test and y_test.

    `others`: names of further arrays, which only the error message lists.
    """
    if not {"x", "y"} <= arrays.keys() or ("x_test" in arrays) != ("y_test" in arrays):
        raise BadInput(
            f"data {path}: found {listed(sorted([*arrays, *others])) or 'no arrays'}, but the data "
            "must hold x and y, and either both or neither of x_test and y_test"
        )
    return arrays


def read_csv(path: Path, header: bool | None = None) -> tuple[Arrays, tuple[str, ...]]:
    """Read a table. Each row is a sample, and the last column is its label.

    Returns the arrays, and the names of the classes if labels are words. `header`: whether the
    first row is a header row; None: it is a header row if it contains only words. Columns are
    separated by comma, semicolon or tab. Labels that are whole numbers are classes, other numbers
    are targets of a regression. Labels that are words are classes, numbered in alphabetical order.
    """
    rows = _rows(path)
    first = rows[0][1]
    if header is None:
        header = any(first[:-1]) and not any(_is_number(cell) for cell in first)
    if header:
        rows = rows[1:]
    if not rows:
        raise BadInput(f"data {path}: the file has a header row and no samples: add rows")
    with np.errstate(over="ignore"):  # a later check refuses infinity
        x = np.array([_numbers(path, line, cells[:-1]) for line, cells in rows], np.float32)
    labels = [cells[-1] for _, cells in rows]
    if "" in labels:
        raise BadInput(
            f"data {path}, line {rows[labels.index('')][0]}: the last column, the label, is empty: "
            "complete or delete the row"
        )
    if not all(_is_number(label) for label in labels):
        if any(_is_number(label) for label in labels):
            line = next(n for n, cells in rows if _is_number(cells[-1]) != _is_number(labels[0]))
            raise BadInput(
                f"data {path}, line {line}: this label and the first label must both be numbers "
                "or both be words. If the first row is a header row, use --header yes"
            )
        names = tuple(sorted(set(labels)))
        return {"x": x, "y": np.array([names.index(label) for label in labels], np.int32)}, names
    targets = np.array([float(label) for label in labels])
    if not np.isfinite(targets).all():
        line = rows[int(np.argmin(np.isfinite(targets)))][0]
        raise BadInput(
            f"data {path}, line {line}: the label is not a finite number: correct or delete the row"
        )
    exact = bool((targets == np.floor(targets)).all()) and np.abs(targets).max() <= _EXACT
    whole = exact and not any("." in label for label in labels)
    with np.errstate(over="ignore"):
        y = targets.astype(np.int64) if whole else targets.astype(np.float32)[:, None]
    return {"x": x, "y": y}, ()


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the line number and the cells of each row that is not empty."""
    text = read_text(path).removeprefix("\ufeff")
    first = text.lstrip(" \r\n").splitlines()[:1]
    separator = max(",;\t", key="".join(first).count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[tuple[int, list[str]]] = []
    read = 0  # number of lines up to the end of the last complete row
    try:
        for row in reader:
            read = reader.line_num
            if any(cells := [cell.strip() for cell in row]):
                rows.append((read, cells))
    except csv.Error as error:
        raise BadInput(
            f"data {path}, line {read + 1}: this is not valid CSV ({error}): check the quotation "
            "marks"
        ) from error
    if not rows or len(rows[0][1]) < 2:
        raise BadInput(
            f"data {path}: rows need at least two columns, separated by comma, semicolon or tab. "
            "The last column is the label"
        )
    columns = len(rows[0][1])
    for line, cells in rows:
        if len(cells) != columns:
            raise BadInput(
                f"data {path}, line {line}: it has {len(cells)} columns, but the first line has "
                f"{columns}: complete or delete the row"
            )
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(path: Path, line: int, cells: list[str]) -> list[float]:
    for column, cell in enumerate(cells, 1):
        if not _is_number(cell):
            raise BadInput(
                f"data {path}, line {line}, column {column}: {quoted(cell)} is not a number. "
                "Only the last column and a header row (--header yes) may contain words"
            )
    return [float(cell) for cell in cells]
