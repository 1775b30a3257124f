"""Files that a command writes: their options, and checks before hours of work."""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import BadInput
from ..files import is_stream, target, try_to_write
from .declared import argument, option

# Known suffixes of file formats, which poet-host or other programs use.
SUFFIXES = frozenset(
    f".{name}"
    for name in (
        "poet", "json", "onnx", "safetensors", "pt", "pth", "h5", "keras", "tflite", "npz", "npy",
        "csv", "img", "html", "png",
    )
)  # fmt: skip
_SMALL_BYTES = 1 << 16  # size of a schedule, about
_PROBE_BYTES = 1 << 22  # maximum size of the temporary file that tests the disk

WRITTEN_FILE = click.Path(dir_okay=False, path_type=Path)


def output_file(*flags: str, suffix: str = "", is_strict: bool = True) -> Any:
    """Declare an option that names a file to write. The name must end in `suffix`.

    Several suffixes are joined by " or ". The option raises BadInput for any other suffix. If
    `is_strict` is False, it does so only for the suffix of another known file format (SUFFIXES).
    Streams such as /dev/stdout may have any name.
    """
    return option(*flags, show_default="not written", **_written_file(suffix, is_strict))


def output_argument(metavar: str, suffix: str) -> Any:
    """Declare an argument that names a file to write, as `output` does; it is not strict."""
    return argument(metavar=metavar, **_written_file(suffix, False))


def _written_file(suffix: str, is_strict: bool) -> dict[str, Any]:
    def checked(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and not path.name:
            raise BadInput(f"{option.opts[0]}: the name of the file is empty. Name a file")
        if path is None or not suffix or path.suffix in suffix.split(" or ") or is_stream(path):
            return path
        if is_strict or path.suffix in SUFFIXES:
            raise BadInput(f"{path}: the name of the {option.opts[0]} file must end in {suffix}")
        return path

    return {"type": WRITTEN_FILE, "callback": checked}


def check_writable(*paths: Path | None, read: Sequence[Path | str | None] = ()) -> None:
    """Raise BadInput if one of `paths` cannot be written. Call this before hours of work.

    `read`: the files that the command reads. Raises BadInput, too, if one of `paths` is such a file
    or if two of `paths` are the same file.
    """
    used = {os.path.realpath(path): "reads" for path in read if path is not None}
    for path in paths:
        if path is None:
            continue
        real = str(target(path))
        if use := used.get(real):
            raise BadInput(f"{path}: this command also {use} the file. Write to another file")
        used[real] = "writes"
        if path.is_dir():
            raise BadInput(f"{path} cannot be written, because it is a folder. Name a file")
        if is_stream(path):
            continue
        folder = Path(real).parent
        if not folder.is_dir():
            raise BadInput(f"{path} cannot be written: the folder {path.parent} does not exist")
        try:
            try_to_write(folder, _SMALL_BYTES)  # a full disk takes an empty file
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        # Use realpath, because Path.resolve raises RuntimeError if symbolic links form a loop.
        if path.is_symlink() and Path(os.path.realpath(path)).is_symlink():
            raise BadInput(f"{path} cannot be written: its symbolic links form a loop")


def check_space(sizes: Mapping[Path, int]) -> None:
    """Raise BadInput if a disk has too little space. `sizes`: the bytes of each file to write."""
    needed: dict[int, int] = {}  # by disk, in bytes
    for path, size_bytes in sizes.items():
        if is_stream(path):
            continue
        folder = target(path).parent
        disk = folder.stat().st_dev
        needed[disk] = needed.get(disk, 0) + size_bytes
        try:
            if shutil.disk_usage(folder).free < needed[disk]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try_to_write(folder, min(size_bytes, _PROBE_BYTES))  # only a write reveals a disk quota
        except OSError as error:
            raise BadInput(
                f"{path} cannot be written: {error.strerror}. The file needs {size_bytes:,} bytes: "
                "free some space, or write to another disk"
            ) from error
