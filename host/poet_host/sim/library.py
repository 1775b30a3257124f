"""The chip models, compiled on first use against the installed Unicorn."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from ..errors import PoetError

SOURCES = Path(__file__).parent / "chip"
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared"),
    *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
)


def unicorn_folder() -> Path:
    """Folder of the installed Unicorn, with its headers and its library."""
    spec = importlib.util.find_spec("unicorn")
    if spec is None or not spec.submodule_search_locations:
        raise PoetError(
            "simulated boards need Unicorn, which is not installed: "
            "try `pip install poet-host[sim]`, or the board `native`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "poet-host"


def build_library() -> Path:
    """Compile the chip models (once per content) and return the shared library."""
    unicorn = unicorn_folder()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise PoetError("the chip models are C and no C compiler was found: try `apt install gcc`")
    sources = sorted(SOURCES.glob("*.c"))
    digest = hashlib.sha256(" ".join((compiler, str(unicorn), *FLAGS)).encode())
    for path in (*sources, *sorted(SOURCES.glob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    target = _cache_folder() / f"chips-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    library = next((unicorn / "lib").glob("libunicorn.*"), None)
    for name in ("libunicorn.so.2", "libunicorn.2.dylib"):
        if (unicorn / "lib" / name).exists():
            library = unicorn / "lib" / name
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        command = [compiler, *FLAGS, f"-I{unicorn / 'include'}", "-o", str(built)]
        command += [*map(str, sources), str(library), f"-Wl,-rpath,{unicorn / 'lib'}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PoetError(f"the chip models do not compile here:\n{done.stderr}")
        built.replace(target)
    return target


@cache
def chips() -> tuple[Any, Any]:
    """(ffi, lib) of the chip models; `chip/api.h` says what they offer."""
    ffi = cffi.FFI()
    text = (SOURCES / "api.h").read_text()
    ffi.cdef("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return ffi, ffi.dlopen(str(build_library()))
