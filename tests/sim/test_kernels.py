"""Every kernel on both cores, here and on QEMU, with and without assembly: the bits of the host."""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from poet_host import isa
from support import clib, kernel_parts
from support.kernel_cases import Case, check, make, samples
from support.sim_helper import CORES, bare, build, needs_compiler, needs_qemu, qemu, run

FIRMWARE = Path(__file__).parents[2] / "firmware"


@dataclass(frozen=True)
class Row:
    """A call of a kernel, and the bytes of its result on this computer."""

    name: str
    words: np.ndarray  # as sim/programs/kernels.c reads them
    result: bytes


def row(case: Case, call: kernel_parts.Call) -> Row:
    part, before = call.part, [array.copy() for array in call.inputs]
    begun = (call.out if part.sums is None else part.sums).copy()
    clib.call(case.op, case.sink, call.attrs, call.inputs, case.step, call.out, part)
    kept = part.sums is not None and not part.last
    result = part.sums if kept else call.out
    inside = [i for i, array in enumerate(call.inputs) if array is call.out]
    flags = part.first | part.last << 1 | kept << 2 | part.number << 3
    head = [case.step, *(inside or [-1]), flags, part.index, result.size, len(before)]
    head += [array.size for array in before]
    words = [np.array(head, np.int32)]
    for attrs in (call.attrs, part.whole):
        op = clib.record(case.op, case.sink, attrs, len(before))
        words.append(np.frombuffer(clib.bytes_of(op), np.int32))
    for array in before if part.first else [*before, begun]:
        words.append(np.ascontiguousarray(array).view(np.int32).ravel())
    return Row(f"{case.op} {case.sink}", np.concatenate(words).view(np.uint32), result.tobytes())


# Sums that go over c, k or n, and are wide enough for tiles.
SUMS = {"n": 2, "c": 4, "h": 2, "w": 4, "k": 6, "oh": 2, "ow": 4, "groups": 1, "variant": 0,
        "kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1,
        "epsilon": 0.1, "factor": 0.5}  # fmt: skip


def in_halves(case: Case) -> kernel_parts.Cut:
    """Cut the first field that sums go over in two."""
    first = kernel_parts.cuttable(case)[1][:1]

    def cut(name: str, size: int) -> list[range]:
        half = size // 2 if name in first else 0
        return [range(half), range(half, size)] if half else [range(size)]

    return cut


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Whole calls of every kernel, and calls that halve sums."""
    found = []
    for case in samples():
        calls = kernel_parts.calls(case, kernel_parts.whole, clib.unwritten(case.shape))
        found += [row(case, call) for call in calls]
    for kernel in isa.kernels().values():
        if any(name.startswith("+") for name in kernel.parts):
            for sizes in ({"n": 1}, {"n": 8, "h": 2, "w": 2, "oh": 2, "ow": 2}):
                case = make(kernel.name, SUMS | sizes, 1, sink="sgd" if kernel.has_sink else "none")
                calls = kernel_parts.calls(case, in_halves(case), clib.unwritten(case.shape))
                found += [row(case, call) for call in calls]
    assert {row.name.split()[0] for row in found} == {*isa.kernels()}
    return found


def test_the_samples_have_one_result() -> None:
    for case in samples():
        check(case)


@needs_compiler
@needs_qemu
@pytest.mark.parametrize("flag", ["-UPOET_PORTABLE", "-DPOET_PORTABLE"])
@pytest.mark.parametrize("core", list(CORES))
def test_every_kernel_has_the_bits_of_the_host(
    core: str, flag: str, rows: list[Row], tmp_path: Path
) -> None:
    numbers = ",".join(f"{word}u" for row in rows for word in row.words)
    (tmp_path / "cases.h").write_text(
        f"#include <stdint.h>\nstatic const uint32_t cases[] = {{{numbers}}};\n"
    )
    kernels = [str(path) for path in sorted((FIRMWARE / "kernels").rglob("*.c"))]
    include = f"-I{FIRMWARE / 'include'}"
    elf = build(core, "kernels.c", tmp_path, f"-I{tmp_path}", include, flag, *kernels)
    wanted = [f"{row.name} {zlib.crc32(row.result):08x}" for row in rows]
    code, text = qemu(core, elf)
    here = run(bare(core, elf), slices=1000)
    assert (code, here.code) == (0, 0), text + here.message
    for found in (here.text, text):
        lines = found.splitlines()
        assert len(lines) == len(rows)
        named = [f"{row.name} {line}" for row, line in zip(rows, lines, strict=True)]
        assert named == wanted
