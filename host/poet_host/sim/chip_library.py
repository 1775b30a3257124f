"""Compile the chip models in C on first use, for the installed Unicorn, and load programs."""

import importlib.util
import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cffi

from ..errors import BadInput, PoetError
from ..firmware_build.compile import compiled, declarations
from ..firmware_build.image import Image, read_elf

SOURCES = Path(__file__).parent / "chip"
# Only the functions of api.h are exported: the compiler inlines and calls others directly.
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
)


def unicorn_folder() -> Path:
    """Return the folder that holds the installed Unicorn's headers and its library."""
    spec = importlib.util.find_spec("unicorn")
    if spec is None or not spec.submodule_search_locations:
        raise PoetError(
            "simulated boards need Unicorn, which is not installed: "
            "try `pip install poet-host[sim]`, or use the board `native`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def emulator() -> str:
    """Return name and version of the emulator. Raises PoetError if the emulator does not load."""
    unicorn_folder()
    try:
        chips()
    except OSError as error:
        raise PoetError(
            f"Unicorn does not load ({error}): try `pip install --force-reinstall unicorn`"
        ) from error
    return f"Unicorn {version('unicorn')}, with the models of chips"


def build_chip_library() -> Path:
    """Return the shared library of the chip models, compiled if it is not in the cache."""
    unicorn = unicorn_folder()
    library = next((unicorn / "lib").glob("libunicorn.*"), None)
    for name in ("libunicorn.so.2", "libunicorn.2.dylib"):
        if (unicorn / "lib" / name).exists():
            library = unicorn / "lib" / name
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "cc"
    return compiled(
        "chips.so",
        [compiler, *FLAGS, f"-I{unicorn / 'include'}"],
        sorted(SOURCES.glob("*.c")),
        sorted(SOURCES.glob("*.h")),
        [str(library), f"-Wl,-rpath,{unicorn / 'lib'}"],
        missing="no C compiler for the chip models was found: try 'apt install gcc'",
    )


@cache
def chips() -> tuple[Any, Any]:
    """Return (ffi, lib) of the chip models; `chip/api.h` declares their functions."""
    ffi = cffi.FFI()
    ffi.cdef(declarations(SOURCES / "api.h"))
    return ffi, ffi.dlopen(str(build_chip_library()))


def load_elf(machine: Any, path: Path) -> Image:
    """Load an image into the memory of a struct machine (chip/api.h), and return the image.

    The simulation stops if the stack grows below the symbol `__stack_limit`. At a reset, the chip
    reads the vector table at the image's lowest address, as if a boot loader started the image.
    """
    _, lib = chips()
    image = read_elf(path)
    for address, data in image.segments:
        if not lib.machine_load(machine, address, data, len(data)):
            raise BadInput(
                f"{path}: the segment at 0x{address:08x} ({len(data)} bytes) lies outside the "
                "chip's memory: use an image that is built for this board"
            )
    lib.machine_set_stack_limit(machine, image.symbols.get("__stack_limit", 0))
    lib.machine_set_start(machine, min(address for address, _ in image.segments))
    return image
