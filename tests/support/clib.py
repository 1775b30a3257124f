"""The C kernels as a shared library, called through cffi with NumPy arrays.

They use the longest vectors of this computer, unless POET_KERNEL_FLAGS in the environment replaces
the compiler's options for that. If POET_SANITIZE names a compiler, it builds them with its address
and undefined-behaviour sanitizers; the process then needs their library preloaded.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi
import numpy as np
from poet_host import isa
from poet_host.firmware_build.compile import compiled
from poet_host.firmware_build.native import vector_flags
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource

FLAGS = ["-std=c11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
FLAGS += ["-Wdouble-promotion", "-Wshadow"]
SANITIZE = ["-O1", "-g", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"]


def compile_kernels(output: Path, *flags: str) -> None:
    """All kernels, with the flags that every target has and these, into one file."""
    firmware = resource("firmware")
    sources = [str(path) for path in c_files(firmware / "kernels")]
    include = f"-I{firmware / 'include'}"
    command = ["cc", *FLAGS, *flags, include, *sources, "-o", str(output), "-lm"]
    subprocess.run(command, check=True, env={**os.environ, "LD_PRELOAD": ""})


@cache
def _ffi() -> cffi.FFI:
    """Knows struct poet_call as kernel.h declares it, and struct poet_op."""
    header = (resource("firmware") / "include" / "poet" / "kernel.h").read_text(encoding="utf-8")
    found = re.search(r"struct poet_call \{.*?\};", header, flags=re.S)
    assert found is not None
    call = re.sub(r"/\*.*?\*/", "", found[0], flags=re.S)
    ffi = cffi.FFI()
    ffi.include(isa.ffi())
    ffi.cdef(call.replace("POET_INPUTS", str(isa.constants()["POET_INPUTS"])))
    ffi.cdef("typedef void poet_kernel_fn(const struct poet_call *call);")
    ffi.cdef("poet_kernel_fn *poet_kernel(uint8_t code);")
    ffi.cdef("float poet_exp(float x); float poet_log(float x); float poet_tanhf(float x);")
    ffi.cdef("float poet_erff(float x); float poet_logistic(float x);")
    ffi.cdef("float poet_power(float x, uint32_t n);")
    return ffi


@cache
def library() -> Any:
    """All kernels, compiled once for all processes."""
    firmware = resource("firmware")
    vectors = os.environ.get("POET_KERNEL_FLAGS", " ".join(vector_flags())).split()
    sanitizing = os.environ.get("POET_SANITIZE", "")
    sanitize = SANITIZE if sanitizing else []
    flags = (*FLAGS, "-fPIC", "-shared", *vectors, *sanitize, f"-I{firmware / 'include'}")
    os.environ.pop("LD_PRELOAD", None)  # for this process, not for the compiler
    built = compiled(
        "libkernels.so",
        [sanitizing or "cc", *flags],
        c_files(firmware / "kernels"),
        sorted(path for kind in ("*.h", "*.def") for path in firmware.rglob(kind)),
        ["-lm"],
        missing="no C compiler",
    )
    return _ffi().dlopen(str(built))


def record(op: str, sink: str, attrs: Mapping[str, int | float], inputs: int) -> Any:
    """struct poet_op of a call."""
    found = _ffi().new("struct poet_op *", {"input_count": inputs})
    found.kernel = isa.by_name("KERNEL")[op].code
    found.sink = isa.by_name("SINK")[sink].code
    for field, value in attrs.items():
        setattr(found, field, value)
    return found


def bytes_of(value: Any) -> bytes:
    """The bytes of a struct."""
    return bytes(_ffi().buffer(value))


@dataclass(frozen=True)
class Part:
    """What a call of a part of an operator has in addition, as struct poet_call does."""

    whole: Mapping[str, int | float]  # fields of the whole operator
    first: bool
    last: bool
    index: int
    sums: np.ndarray | None = None  # of a kernel with a sink
    number: int = 0  # of the pass
    # `row`, `in_plane` and `out_plane` of struct poet_call
    row: int = 0
    planes: tuple[int, int] = (0, 0)


def call(
    op: str,
    sink: str,
    attrs: Mapping[str, int | float],
    inputs: Sequence[np.ndarray],
    step: int,
    out: np.ndarray,
    part: Part | None = None,
) -> None:
    """Run a C kernel on these arrays."""
    ffi = _ffi()
    part = part or Part(attrs, first=True, last=True, index=0)
    op_record = record(op, sink, attrs, len(inputs))
    whole = record(op, sink, part.whole, len(inputs))
    fields = {"first": part.first, "last": part.last, "index": part.index, "step": step}
    fields |= {"pass": part.number, "row": part.row}
    fields |= dict(zip(("in_plane", "out_plane"), part.planes, strict=True))
    made = ffi.new("struct poet_call *", {"op": op_record, "whole": whole, **fields})
    for i, array in enumerate(inputs):
        getattr(made, "in")[i] = ffi.cast("void *", array.ctypes.data)
    made.out = ffi.cast("void *", out.ctypes.data)
    if part.sums is not None:
        made.sums = ffi.cast("float *", part.sums.ctypes.data)
    library().poet_kernel(op_record.kernel)(made)


def run(
    op: str,
    sink: str,
    attrs: Mapping[str, int | float],
    inputs: Sequence[np.ndarray],
    step: int,
    shape: tuple[int, ...],
    *,
    overwrites: int | None = None,
) -> np.ndarray:
    """The output of one C kernel, written over input `overwrites` or into new memory.

    Fails if the kernel leaves an element unwritten or changes another input.
    """
    copies = [np.array(array, order="C") for array in inputs]
    out = unwritten(shape) if overwrites is None else copies[overwrites]
    call(op, sink, attrs, copies, step, out)
    assert is_written(out), f"{op} leaves elements unwritten"
    for i, (before, after) in enumerate(zip(inputs, copies, strict=True)):
        assert i == overwrites or same_bits(before, after), f"{op} changes input {i}"
    return out.reshape(shape)


def unwritten(shape: tuple[int, ...]) -> np.ndarray:
    """Memory in which `is_written` finds elements that nothing was written to."""
    return np.full(shape, 0x7FC0DEAD, np.uint32).view(np.float32)


def is_written(array: np.ndarray) -> bool:
    return not bool((array.view(np.uint32) == 0x7FC0DEAD).any())


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shapes and equal bit patterns (so 0 and -0 differ)."""
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))
