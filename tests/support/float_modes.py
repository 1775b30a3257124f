"""Modes of an x86-64 processor that change results of floats."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi

PROCESSOR = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
# The bits of MXCSR that flush results and operands to zero, and two that set the rounding mode.
MODES = (1 << 15, 1 << 6, 1 << 13, 1 << 14)
USUAL = 0x1F80
SET_MODE = "#include <xmmintrin.h>\nvoid set_mode(unsigned mode) { _mm_setcsr(mode); }\n"


def mode_setter(folder: Path) -> Callable[[int], Any]:
    """Return a function that sets the register of modes."""
    source, built = folder / "modes.c", folder / "modes.so"
    source.write_text(SET_MODE)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    ffi = cffi.FFI()
    ffi.cdef("void set_mode(unsigned mode);")
    library = ffi.dlopen(str(built))
    return lambda mode: library.set_mode(mode)
