"""Build the native board: the firmware as a program for this computer, or for a Linux board.

The system's C compiler compiles the same runtime and kernels as for other boards, into the user's
cache. For a board that runs Linux (its board.toml has a `target`), the program is cross-compiled.
QEMU runs a cross-compiled program on a computer with another processor.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..device.board import load_board, names
from ..errors import BadInput, PoetError
from ..resources import resource
from .compile import compiled
from .recipe import c_files

# The compiler must not contract or reorder sums, so that every target rounds them alike.
# GCC for AArch64 would reorder instructions so that sums do not fit into the registers.
FLAGS = (
    "-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-schedule-insns", "-pthread"
)  # fmt: skip
# Vectors of x86-64 processors, the longest ones first: the name that Linux gives them is also that
# of the compiler's option.
_VECTORS = ("avx512f", "avx2", "avx")
_SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", "-DPOET_POISON")  # fmt: skip


def boards_run_here() -> bool:
    """Return True if this system can run native and simulated boards. Windows cannot."""
    return find_spec("termios") is not None


def check_system() -> None:
    """Raise BadInput on a system that cannot run native and simulated boards."""
    if not boards_run_here():
        raise BadInput(
            "simulated and native boards need Linux, macOS or WSL: name the port of a real board, "
            "for example --port COM3, or run poet-host in WSL"
        )


def linux_boards() -> list[str]:
    """Return the names of the boards whose firmware is a program for Linux, sorted."""
    return [name for name in names() if load_board(name).target]


def build_native(sanitize: bool = False, target: str = "") -> Path:
    """Return the native board's program, compiled if it is not in the cache.

    `sanitize`: compile with the address and undefined-behaviour sanitizers. `target`: cross-compile
    for this kind of computer, such as aarch64-linux-gnu, and link statically. Raises PoetError if
    the C compiler is missing or fails.
    """
    flags = _SANITIZE if sanitize else ()
    if target:
        flags = (*flags, "-static")
    else:
        check_system()
        flags = (*flags, *vector_flags())
    folders = ("src", "kernels", "port/native")
    return _build("poet-native", folders, flags, *_compiler(target))


def build_library(sanitize: bool = False) -> Path:
    """Return a shared library of runtime and kernels, compiled if it is not in the cache."""
    flags = ("-shared", "-fPIC", *vector_flags(), *(_SANITIZE if sanitize else ()))
    return _build("libpoet.so", ("src", "kernels"), flags, *_compiler())


def vector_flags() -> tuple[str, ...]:
    """Return the compiler's option for the longest vectors of floats of this computer."""
    try:
        found = Path("/proc/cpuinfo").read_text().split()
    except OSError:  # not Linux
        return ()
    return next(((f"-m{name}",) for name in _VECTORS if name in found), ())


def _compiler(target: str = "") -> tuple[list[str], str]:
    """Return the compile command for a target, and advice how to install the compiler."""
    if not target or _is_here(target):
        return os.environ.get("CC", "").split() or ["cc"], "'apt install gcc' or set CC"
    debian = {"aarch64": "arm64"}.get(_arch(target), _arch(target))
    return [f"{target}-gcc"], f"'apt install gcc-{target} libc6-dev-{debian}-cross'"


def cross_tools(target: str) -> tuple[str, str]:
    """Return the paths of the compiler and the emulator for a target.

    The path of the emulator is empty if this computer needs none. Raises PoetError, with advice
    what to install, if one of these tools is missing.
    """
    (compiler, *_), advice = _compiler(target)
    path = shutil.which(compiler)
    if path is None:
        raise PoetError(f"the compiler {compiler} is not on the PATH: try {advice}")
    asked = [path, "-print-file-name=libc.a"]
    library = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise PoetError(
            f"the compiler {path} cannot find the C library that programs are linked with: try "
            f"{advice}"
        )
    return path, "".join(runner(target))


def _arch(target: str) -> str:
    return target.split("-")[0]


def _is_here(target: str) -> bool:
    """Return True if this computer runs programs for the target without an emulator."""
    return platform.system() == "Linux" and platform.machine() == _arch(target)


def runner(target: str) -> list[str]:
    """Return the command of the emulator for `target`: QEMU, or [] if none is needed."""
    if not target or _is_here(target):
        return []
    arch = _arch(target)
    for name in (f"qemu-{arch}", f"qemu-{arch}-static"):
        if found := shutil.which(name):
            return [found]
    raise PoetError(
        f"no emulator for {arch} was found on the PATH (qemu-{arch}): try 'apt install qemu-user'"
    )


def _build(
    name: str, folders: Sequence[str], flags: Sequence[str], compiler: list[str], advice: str
) -> Path:
    firmware = resource("firmware")
    return compiled(
        name,
        [*compiler, *FLAGS, *flags, f"-I{firmware / 'include'}"],
        [path for folder in folders for path in c_files(firmware / folder)],
        (path for pattern in ("*.h", "*.def") for path in sorted(firmware.rglob(pattern))),
        ["-lm"],
        missing=f"no C compiler: {compiler[0]} is not on the PATH. The native board is compiled "
        f"on this computer: try {advice}",
    )
