"""Compile sources if their content has changed, and keep the results in the user's cache."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import PoetError


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
    contains the compiler's first error.
    """
    if shutil.which(command[0]) is None:
        raise PoetError(missing)
    version = subprocess.run(
        [command[0], "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL
    ).stdout
    key = hashlib.sha256(repr((*command, *libraries, *objects)).encode() + version)
    for path in (*sources, *headers):
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    target = _cache_folder() / f"{key.hexdigest()[:20]}-{name}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        built = Path(folder) / name
        inputs = [f"{n}.o" for n in range(len(objects))] or [str(path) for path in sources]
        steps = [
            [*step, "-c", str(source), "-o", made]
            for step, source, made in zip(objects, sources, inputs, strict=False)
        ]
        for step in (*steps, [*command, *inputs, *libraries, "-o", str(built)]):
            done = subprocess.run(step, capture_output=True, text=True, check=False, cwd=folder)
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines()
                first = next((line for line in lines if "error" in line), "no message")
                raise PoetError(
                    f"{command[0]} cannot compile {name} ({first}): install a compiler for C11, "
                    "such as gcc 9 or clang 10"
                )
        built.replace(target)
    return target


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "poet-host"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoetError(
            f"the cache folder {folder} cannot be created ({error.strerror}): set XDG_CACHE_HOME "
            "to a folder with write permission"
        ) from error
    return folder
