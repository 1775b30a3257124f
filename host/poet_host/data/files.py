"""Data sets in files: .npz, or a folder of .npy files. Headers are checked before data is read."""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from ..errors import BadInput, listed
from ..files import opened
from ..graph.weights import Array

Arrays = dict[str, Array]
Check = Callable[[Arrays], object]

NAMES = ("x", "y", "x_test", "y_test")
_ALSO = {"x_train": "x", "y_train": "y"}  # names that Keras uses
_ADDRESSABLE_BYTES = 2**63 - 1
_ADVICE_FOR_OTHERS = (
    " Load other files than images and sounds in Python, and save them with "
    "numpy.savez('data.npz', x=samples, y=labels)"
)
_MOST_MEMBERS = 10_000  # entries of an .npz file
_UNREADABLE = (  # exceptions of NumPy and zipfile for damaged, encrypted or unknown files
    OSError, TypeError, ValueError, EOFError, RuntimeError, OverflowError, SyntaxError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(
    path: Path,
    check: Check,
    labels: bool = True,
    wanted: tuple[str, ...] = NAMES,
    more: tuple[str, ...] = (),
) -> Arrays:
    """Read the arrays x, y, x_test and y_test of an .npz file.

    `check` is called before the data is read, with arrays that have the right types and shapes, but
    whose elements are all zeros and take no memory. If labels are not needed (`labels` is False),
    y and y_test may be missing, and a .npy file is read as x. `wanted`: the arrays to read instead,
    if the samples have parts; then `check` finds what is missing. `more`: other arrays to read.
    """
    advice = (
        "this is not a readable .npz file of plain arrays. Save x and y with numpy.savez. If the "
        "file is a table, its name must end in .csv"
    )
    with opened(path) as file, _refused(path, advice):
        single = _header(file, path.stat().st_size, f"data {path}")
        if single is not None and not labels:
            check({"x": single})
            file.seek(0)
            return {"x": _array(file)}
        if single is not None:
            raise BadInput(
                f"data {path}: the file holds a single array. Save x and y with numpy.savez, or "
                "put x.npy and y.npy into a folder"
            )
        with zipfile.ZipFile(file) as archive:
            members = {found.filename.removesuffix(".npy"): found for found in archive.filelist}
            if len(members) > _MOST_MEMBERS:
                raise BadInput(
                    f"data {path}: the file has {len(members):,} entries. Save only x, y, x_test "
                    "and y_test"
                )
            names = _names(list(members), wanted) | {name: name for name in more if name in members}
            headers = {}
            for name, ours in names.items():
                with archive.open(members[name]) as stream:
                    header = _header(stream, members[name].file_size, f"data {path}")
                if header is None:
                    raise BadInput(
                        f"data {path}: the entry {name} is not an array. Save arrays with "
                        "numpy.savez"
                    )
                headers[ours] = header
            others = [name for name in members if name not in names]
            check(headers if wanted != NAMES else _checked(path, headers, others, labels))
            return {ours: _array(archive.open(members[name])) for name, ours in names.items()}


def read_folder(
    path: Path, check: Check, labels: bool = True, wanted: tuple[str, ...] = NAMES
) -> Arrays:
    """Read x.npy, y.npy and, if samples are held out, x_test.npy and y_test.npy.

    `check`, `labels`, `wanted`: see `read_npz`.
    """
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    names = _names(list(files), wanted)
    headers = {}
    for name, ours in names.items():
        with _npy(files[name]) as file:
            header = _header(file, files[name].stat().st_size, f"data {files[name]}")
            if header is None:
                if zipfile.is_zipfile(file):
                    raise BadInput(
                        f"data {files[name]}: this is an .npz file, not a .npy file. Save an array "
                        "with numpy.save"
                    )
                raise ValueError("no .npy file")
        headers[ours] = header
    others = [name for name in files if name not in names]
    check(headers if wanted != NAMES else _checked(path, headers, others, labels))
    arrays = {}
    for name, ours in names.items():
        with _npy(files[name]) as file:
            arrays[ours] = _array(file)
    return arrays


@contextmanager
def _npy(path: Path) -> Iterator[IO[bytes]]:
    advice = "this is not a readable .npy file of plain numbers. Save the array with numpy.save"
    with opened(path) as file, _refused(path, advice):
        yield file


@contextmanager
def _refused(path: Path, advice: str) -> Iterator[None]:
    """Raise BadInput with `advice` for an exception that a damaged file causes."""
    try:
        yield
    except _UNREADABLE as error:
        raise BadInput(f"data {path}: {advice}") from error
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        raise BadInput(
            f"data {path}: it holds more numbers than the memory of this computer{reason}: use "
            "fewer samples"
        ) from error


def _header(file: IO[bytes], size_bytes: int, where: str) -> Array | None:
    """Return zeros, which take no memory, in type and shape of an .npy file of `size_bytes`.

    Returns None if the file is not an .npy file. Raises BadInput, or an exception of _UNREADABLE,
    if it is damaged, has less data than its header says, or holds objects.
    """
    if file.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return None
    version = tuple(file.read(2))
    if version not in _HEADERS:
        raise ValueError("another version of .npy files")
    shape, _, dtype = _HEADERS[version](file)
    data_bytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or data_bytes > _ADDRESSABLE_BYTES:
        raise ValueError("objects, or a shape that no array has")
    position = file.seek(0, os.SEEK_CUR)
    if position + data_bytes > size_bytes:
        raise BadInput(
            f"{where}: a header announces {data_bytes:,} bytes of numbers, but only "
            f"{size_bytes - position:,} follow: the file is incomplete, or was too large for a "
            "computer's memory. Save it again"
        )
    return np.broadcast_to(np.zeros((), dtype), shape)


def _array(stream: IO[bytes]) -> Array:
    with stream:
        found: Array = npy.read_array(stream, allow_pickle=False)
    return found


def _names(given: list[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Return a map from the names of given arrays to those of wanted ones.

    Other names are left out. If there is no x, x_train is used as x. The same holds for y.
    """
    ours = {name: name for name in wanted if name in given}
    also = {a: name for a, name in _ALSO.items() if a in given and name in wanted}
    return ours | {a: name for a, name in also.items() if name not in ours}


def _checked(path: Path, arrays: Arrays, others: list[str], labels: bool) -> Arrays:
    """Return `arrays`. Raises BadInput if x or y is missing, or only one of x_test and y_test.

    `others`: names of further arrays, which only the error message lists. If `labels` is False, y
    and y_test may both be missing.
    """
    found = set(arrays)
    if not labels and not found & {"y", "y_test"}:
        found |= {f"y{name[1:]}" for name in found}
    if not {"x", "y"} <= found or ("x_test" in found) != ("y_test" in found):
        more = "" if arrays or others else _ADVICE_FOR_OTHERS
        raise BadInput(
            f"data {path}: found {listed(sorted([*arrays, *others])) or 'no arrays'}, but the data "
            f"must hold x and y, and either both or neither of x_test and y_test.{more}"
        )
    return arrays
