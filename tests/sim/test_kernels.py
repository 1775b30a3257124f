"""Every kernel on both cores, here and on QEMU: the bits of the host."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from poet_host import isa
from support import clib
from support.kernel_cases import Case, check, samples
from support.sim_helper import CORES, bare, build, needs_compiler, needs_qemu, qemu, run

FIRMWARE = Path(__file__).parents[2] / "firmware"


def words(case: Case) -> np.ndarray:
    """One row of cases.h, as sim_firmware/kernels.c reads it."""
    op = clib.record(case.op, case.sink, case.attrs, len(case.inputs))
    head = [case.step, -1 if case.overwrites is None else case.overwrites]
    head += [int(np.prod(case.shape)), len(case.inputs), *(array.size for array in case.inputs)]
    parts = [np.array(head, np.int32), np.frombuffer(clib.bytes_of(op), np.int32)]
    parts += [np.ascontiguousarray(array).view(np.int32).ravel() for array in case.inputs]
    return np.concatenate(parts).view(np.uint32)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = samples()
    assert {case.op for case in found} == {row.name for row in isa.rows("KERNEL")} - {"none"}
    return found


def test_the_samples_have_one_result(cases: list[Case]) -> None:
    for case in cases:
        check(case)


@needs_compiler
@needs_qemu
@pytest.mark.parametrize("core", list(CORES))
def test_every_kernel_has_the_bits_of_the_host(
    core: str, cases: list[Case], tmp_path: Path
) -> None:
    numbers = ",".join(f"{word}u" for case in cases for word in words(case))
    (tmp_path / "cases.h").write_text(
        f"#include <stdint.h>\nstatic const uint32_t cases[] = {{{numbers}}};\n"
    )
    kernels = [str(path) for path in sorted((FIRMWARE / "kernels").glob("*.c"))]
    elf = build(core, "kernels.c", tmp_path, f"-I{tmp_path}", f"-I{FIRMWARE / 'include'}", *kernels)
    wanted = [f"{case.op} {case.sink} {zlib.crc32(case.c().tobytes()):08x}" for case in cases]
    code, text = qemu(core, elf)
    here = run(bare(core, elf), slices=1000)
    assert (code, here.code) == (0, 0), text + here.message
    for found in (here.text, text):
        lines = found.splitlines()
        assert len(lines) == len(cases)
        named = [f"{c.op} {c.sink} {line}" for c, line in zip(cases, lines, strict=True)]
        assert named == wanted
