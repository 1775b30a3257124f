"""Compile sources if their content has changed, and keep the results in the user's cache."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from ..errors import PoetError
from ..temporary import temporary_folder

# Of libraries. Products and sums must not be contracted: all computers then search alike.
LIBRARY_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-shared")
# Errors of compilers and linkers, and lines that name no error. The last line of a failed link only
# says that the linker failed.
_ERROR = re.compile(
    "error: |undefined reference|multiple definition|cannot find|overflowed by", re.IGNORECASE
)
_NO_ERROR = re.compile("warning: |error: (ld returned|linker command failed)")


def declarations(header: Path) -> str:
    """Return a C header as cffi can read it: without the lines of the preprocessor."""
    return re.sub("^#.*", "", header.read_text("utf-8"), flags=re.MULTILINE)


def compiled(
    name: str,
    command: Sequence[str],
    sources: Sequence[Path],
    headers: Iterable[Path] = (),
    libraries: Sequence[str] = (),
    *,
    objects: Sequence[Sequence[str]] = (),
    missing: str,
) -> Path:
    """Return the file that `command` builds from `sources`: a new one, or that in the cache.

    `headers` are not compiled, but if one of them changes, the file is built again. `libraries`
    follow the sources in the command. `objects`, if any: one compile command for each of `sources`;
    `command` then links the object files. Two builds at the same time do not disturb each other.

    Raises PoetError if the compiler is missing or fails. Its message is the text `missing`, or
    contains the first error of the compiler or linker.
    """
    if shutil.which(command[0]) is None:
        raise PoetError(missing)
    install = "install a compiler for C11, such as gcc 9 or clang 10"
    try:
        version = subprocess.run(
            [command[0], "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise PoetError(f"{command[0]} does not run ({error.strerror}): {install}") from error
    key = hashlib.sha256(repr((*command, *libraries, *objects)).encode() + version.stdout)
    for path in (*sources, *headers):
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    target = cache / "poet-host" / f"{key.hexdigest()[:20]}-{name}"
    if target.exists():
        return target
    with _folder_for(target) as folder:
        built = folder / name
        inputs = [f"{n}.o" for n in range(len(objects))] or [str(path) for path in sources]
        steps = [
            [*step, "-c", str(source), "-o", made]
            for step, source, made in zip(objects, sources, inputs, strict=False)
        ]
        for step in (*steps, [*command, *inputs, *libraries, "-o", str(built)]):
            done = subprocess.run(
                step, capture_output=True, text=True, check=False, cwd=folder,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
            )  # fmt: skip
            if done.returncode != 0:
                correct = "correct the C sources if you have changed them, or reinstall poet-host"
                raise PoetError(
                    f"{command[0]} cannot compile {name} ({_first_error(done.stderr)}): "
                    f"{install if version.returncode else correct}"
                )
        built.replace(target)
    return target


@cache
def library_of(folder: Path, prefix: str) -> tuple[Any, Any] | None:
    """Return (ffi, lib) of a search in C; None if it cannot be compiled on this computer.

    Its sources and headers in the folder begin with `prefix`. Python calls what the header
    `prefix`_search.h declares.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    ffi = cffi.FFI()
    ffi.cdef(declarations(folder / f"{prefix}_search.h"))
    try:
        sources, headers = sorted(folder.glob(f"{prefix}_*.c")), folder.glob(f"{prefix}_*.h")
        command = [compiler, *LIBRARY_FLAGS]
        path = compiled(f"{prefix}.so", command, sources, sorted(headers), missing="")
        return ffi, ffi.dlopen(str(path))
    except (PoetError, OSError):
        return None


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line and not _NO_ERROR.search(line)]
    lines = lines or ["no message"]
    return next((line for line in lines if _ERROR.search(line)), lines[-1])


@contextmanager
def _folder_for(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, in which the block builds the file that it moves to `target`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target.parent, ".poet-build-") as folder:
            yield folder
    except OSError as error:
        raise PoetError(
            f"{target} cannot be written ({error.strerror}): free some space, or set "
            "XDG_CACHE_HOME to a folder with write permission"
        ) from error
