"""Read and write files. Errors name the file; a file is written completely or not at all."""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import BadInput, PoetError, quoted, reason
from .temporary import temporary_file

MOST_BYTES = 2 << 30  # largest accepted file; no .onnx file may be larger
MOST_TEXT_BYTES = 256 << 20  # of a text that is read whole, whose values need a multiple of this
_MOST_LINKS = 40  # that one path may follow, as on Linux
_WRITING = ".poet-writing-"  # name prefix of the folders of files that are being written


def write_whole(path: Path | str, data: bytes | str, mode: int | None = None) -> None:
    """Write a file completely: write under a temporary name next to `path`, then rename.

    If `path` is a symbolic link, the file at `target` is replaced. Data for devices and pipes is
    written directly. Text is written as UTF-8. `mode`: permissions of the file (None:
    those of the replaced file, or of a new file). Raises PoetError if the file cannot be written.
    """
    path = Path(path)
    check_name(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    try:
        if is_stream(path):
            with opened_stream(path) as stream:
                write_all(stream, raw)
            return
        with replacement(path, mode) as new:
            new.write_bytes(raw)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "choose a path in a folder that exists and that you may write to"
        raise PoetError(
            f"{path} cannot be written ({_reason(error)}): "
            f"{'free some space, or choose a path on another disk' if is_full else advice}"
        ) from error


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Write a line of JSON: see write_whole. Raises ValueError for nan and infinity."""
    write_whole(path, json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def replacement(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield the path of a new file, which is renamed to `path` after the `with` block.

    If the block fails, or the process is killed, `path` stays as it was. Once renamed, the new file
    survives a power cut. Raises BadInput if `path` is a folder, OSError if it cannot be written.
    """
    path = target(path)
    if path.is_dir() and not path.is_symlink():
        raise BadInput(f"{path} cannot be written, because it is a folder: name a file")
    with temporary_file(path.parent, _WRITING) as new:
        yield new
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is None and path.exists() and not path.is_symlink():
            mode = path.stat().st_mode & 0o777
        if mode is not None:
            new.chmod(mode)
        new.replace(path)
        if os.name != "nt":  # Windows cannot open folders
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def target(path: Path) -> Path:
    """Return the file that a write to `path` replaces, after symbolic links.

    A link of another user in a folder where all users may write, such as /tmp, is not followed: it
    could point to any file of this user. The link itself is replaced. Nor is the link of an open
    file of this process, such as /dev/stdout.
    """
    path = Path(os.path.realpath(path.parent), path.name)
    for _ in range(_MOST_LINKS):
        if not path.is_symlink() or _is_foreign(path) or _is_open_here(path):
            return path
        to = path.parent / path.readlink()
        path = Path(os.path.realpath(to.parent), to.name)
    return path  # the links form a loop


def _is_foreign(link: Path) -> bool:
    """Return True for a link that a user without rights in its sticky folder could have made.

    The kernel has the same rule (fs.protected_symlinks), but only for links that it follows.
    """
    folder, owner = link.parent.stat(), link.lstat().st_uid
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    return bool(shared) and owner not in (os.geteuid(), folder.st_uid)


def try_to_write(folder: Path, size_bytes: int = 0) -> None:
    """Write a file of this size to a folder, and remove it. Raises OSError if that fails."""
    with temporary_file(folder, _WRITING) as new, new.open("wb") as file:
        file.write(bytes(size_bytes))
        file.flush()
        os.fsync(file.fileno())


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all data to an unbuffered file, part by part if one call cannot write all of it.

    Raises OSError if the file cannot be written.
    """
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def is_stream(path: Path) -> bool:
    """Return True for a device or pipe, which a file must not replace, and for /dev/stdout.

    The latter may be a file to which a shell has redirected several commands.
    """
    is_other = path.exists() and not path.is_file() and not path.is_dir()
    to = target(path)
    return _is_open_here(to) or (is_other and not to.is_symlink())


def opened_stream(path: Path) -> BinaryIO:
    """Open a stream for writing, without a buffer. Raises OSError if it cannot be opened."""
    if _is_open_here(to := target(path)):  # what has been written to it stays
        return open(int(to.name), "wb", buffering=0, closefd=False)
    return path.open("wb", buffering=0)


def _is_open_here(link: Path) -> bool:
    """Return True for a link such as /proc/1234/fd/1, if 1234 is this process."""
    return link.name.isdecimal() and str(link.parent) == os.path.realpath("/proc/self/fd")


@contextmanager
def opened(path: Path | str, most_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most_bytes` for reading (None: of any size).

    Every file that a user names is opened here, or at least checked. Raises BadInput, with the
    path, if the file is missing, unreadable or too large, or if it is a folder, a device or a pipe,
    which may have no end. An OSError in the `with` block becomes BadInput too.
    """
    if not isinstance(path, str | os.PathLike):
        raise BadInput(f"pass the path of a file, not a {type(path).__name__}")
    check_name(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise BadInput(
                f"{path} is a device or a pipe, which cannot be read as a file: name a regular file"
            )
        if most_bytes is not None and found.st_size > most_bytes:
            raise BadInput(
                f"{path} has {found.st_size:,} bytes, but such a file has at most {most_bytes:,}: "
                "check the name"
            )
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({_reason(error)}): check the name") from error


def check_name(path: Path | str) -> None:
    """Raise BadInput for a name that no file can have."""
    if "\0" in str(path):
        raise BadInput(f"{path} contains a NUL character, which no file name has: check the name")
    # A schedule or a log could not name such a file.
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        raise BadInput(f"{path} is not text in UTF-8: rename the file")


def check_readable(path: Path | str, most_bytes: int | None = None) -> None:
    """Raise BadInput as `opened` does. Call this before another package opens the path."""
    with opened(path, most_bytes):
        pass


def read_bytes(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file. Raises BadInput as `opened` does."""
    with opened(path, most_bytes) as file:
        return file.read()


def read_text(path: Path | str) -> str:
    """Return the UTF-8 text of a file, without a byte order mark.

    Raises BadInput, with the path, if the file cannot be read or is not UTF-8.
    """
    try:
        return read_bytes(path, MOST_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def not_utf8(path: Path | str) -> BadInput:
    """Return the error for a text file that is not UTF-8."""
    return BadInput(f"{path} is not a text file in UTF-8: save it as UTF-8, or check the name")


def read_json(path: Path | str) -> Any:
    """Return the value in a JSON file. Raises BadInput as `parse_json` does."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text. Raises BadInput if the text is not valid JSON.

    `where` names the source of the text in the error. An object with the same key twice is an
    error, because one of the two values would be lost.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in found if keys.count(key) > 1)
            raise BadInput(
                f"{where}: an object has the key {quoted(twice)} twice: delete one of them"
            )
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{where}, line {error.lineno}: this is not JSON ({error.msg}): check the file"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not text in UTF-8: save it as UTF-8") from error
    except RecursionError as error:
        raise BadInput(f"{where}: the JSON is nested too deeply: check the file") from error
    except ValueError as error:  # Python cannot read an integer with thousands of digits
        raise BadInput(f"{where}: a number has too many digits: check the file") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raises BadInput if the text is not valid TOML.

    `where` names the source of the text in the error.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: this is not TOML ({reason(error)}): check the file") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
