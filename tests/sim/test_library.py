"""The library has the bits of the host on simulated chips and on QEMU's cores.

Every kernel, and an application with a schedule in program flash that fits 16 KB of RAM.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from poet_host import isa
from support import clib, kernel_parts, small_library, toy_forward
from support.kernel_cases import Case, check, make, samples
from support.sim_helper import (
    CORES,
    FIRMWARE,
    OTHER_CORES,
    bare,
    build,
    build_library,
    needs_compiler,
    needs_qemu,
    qemu,
    run,
    words,
)
from support.small_library import KIND, STEPS, write_toy
from support.toy_boards import truth

INCLUDE = f"-I{FIRMWARE / 'include'}"
# With the kernels of resnet-digits.
MOST_FLASH = {"m0plus": 40_000, "m4f": 45_000}
MOST_RAM = 2_560  # of the runtime for the gestures, without arena and stack


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
        # Parts of a walk along time do not fit these chips.
        if "STEPS" not in kernel.rules and any(name.startswith("+") for name in kernel.parts):
            for sizes in ({"n": 1}, {"n": 8, "h": 2, "w": 2, "oh": 2, "ow": 2}):
                case = make(kernel.name, SUMS | sizes, 1, sink="sgd" if kernel.has_sink else "none")
                calls = kernel_parts.calls(case, in_halves(case), clib.unwritten(case.shape))
                found += [row(case, call) for call in calls]
    assert {row.name.split()[0] for row in found} == {*isa.kernels()}
    return found


def write_cases(rows: list[Row], folder: Path) -> None:
    """Write what sim/programs/kernels.c includes."""
    numbers = ",".join(f"{word}u" for row in rows for word in row.words)
    (folder / "cases.h").write_text(
        f"#include <stdint.h>\nstatic const uint32_t cases[] = {{{numbers}}};\n"
    )


def check_cases(rows: list[Row], text: str) -> None:
    """Assert that kernels.c has printed the bits of the host for each row."""
    wanted = [f"{row.name} {zlib.crc32(row.result):08x}" for row in rows]
    lines = text.splitlines()
    assert len(lines) == len(rows)
    assert [f"{row.name} {line}" for row, line in zip(rows, lines, strict=True)] == wanted


def programs(core: str, folder: Path, library: list[str]) -> list[Path]:
    """Build the application, with storage of 15 blocks, without it, and in slices."""
    write_toy(folder)
    options = [f"-I{folder}", INCLUDE, "-Wl,--gc-sections", *library]
    kinds = ((), ("-DARENA_ONLY",), ("-DSLICED",))
    return [build(core, "program.c", folder, *options, *it) for it in kinds]


def check_application(text: str) -> None:
    """Assert that program.c has printed outputs and weights of the host after each step."""
    wanted: list[int] = []
    for pair in truth(KIND)[1 : STEPS + 1]:
        outputs = toy_forward.truth(pair[0], toy_forward.sample(KIND, 1))
        wanted += [*np.frombuffer(outputs, "<u4").tolist(), *map(zlib.crc32, pair)]
    assert words(text) == wanted


def test_the_samples_have_one_result() -> None:
    for case in samples():
        check(case)


@needs_compiler
@needs_qemu
@pytest.mark.parametrize("flag", ["-UPOET_PORTABLE", "-DPOET_PORTABLE", "-DPOET_SMALL=1"])
@pytest.mark.parametrize("core", list(CORES))
def test_every_kernel_has_the_bits_of_the_host(
    core: str, flag: str, rows: list[Row], tmp_path: Path
) -> None:
    write_cases(rows, tmp_path)
    kernels = [str(path) for path in sorted((FIRMWARE / "kernels").rglob("*.c"))]
    elf = build(core, "kernels.c", tmp_path, f"-I{tmp_path}", INCLUDE, flag, *kernels)
    code, text = qemu(core, elf)
    here = run(bare(core, elf), slices=1000)
    assert (code, here.code) == (0, 0), text + here.message
    check_cases(rows, here.text)
    check_cases(rows, text)


@pytest.mark.slow
@needs_compiler
@needs_qemu
@pytest.mark.parametrize("options", [[], ["-flto=1"]], ids=["plain", "lto"])
@pytest.mark.parametrize("core", list(CORES))
def test_an_application_has_the_bits_of_the_host(
    core: str, options: list[str], tmp_path: Path
) -> None:
    """Compiled with no options but those of the core, -std=gnu11 -O2. It also calls libm."""
    (tmp_path / "calls.c").write_text(
        "#include <math.h>\nfloat call(float x);\nfloat call(float x) { return sinf(x) + x; }\n"
    )
    library = build_library(core, tmp_path / "library", *options)
    library += [*options, str(tmp_path / "calls.c"), "-Wl,-u,call"]
    for elf in programs(core, tmp_path, library):
        here, there = run(bare(core, elf)), qemu(core, elf)
        assert (here.code, there[0]) == (0, 0), there[1] + here.message
        check_application(here.text)
        check_application(there[1])


@pytest.mark.parametrize("core", list(OTHER_CORES))
def test_other_cores_have_the_bits_of_the_host(core: str, rows: list[Row], tmp_path: Path) -> None:
    """The rows of the table in docs/how-to/add-board.md, half of them with -O2, half with -Os."""
    optimise = ("-O2", "-Os")[list(OTHER_CORES).index(core) % 2]
    library = build_library(core, tmp_path / "library", optimise)
    write_cases(rows, tmp_path)
    options = [f"-I{tmp_path}", INCLUDE, "-Wl,--gc-sections", *library]
    code, text = qemu(core, build(core, "kernels.c", tmp_path, *options))
    assert code == 0, text
    check_cases(rows, text)
    for elf in programs(core, tmp_path, library):
        code, text = qemu(core, elf)
        assert code == 0, text
        check_application(text)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("core", list(CORES))
def test_a_build_for_one_schedule_is_small(core: str, tmp_path: Path) -> None:
    library = build_library(core, tmp_path / "library", *small_library.SMALL)
    for elf in programs(core, tmp_path, library):
        here = run(bare(core, elf))
        assert here.code == 0, here.message
        check_application(here.text)

    found = small_library.sizes(core, tmp_path, library, small_library.kernels())
    assert {"poet_conv2d", "poet_step", "poet_infer"} <= found.symbols
    assert not {"poet_gelu", "poet_run_nest", "poet_rows", "poet_few"} & found.symbols
    assert found.flash_bytes <= MOST_FLASH[core]
    assert found.ram_bytes <= MOST_RAM
    text = small_library.PAGE.read_text()
    assert f"{found.flash_bytes:,}" in small_library.row_of(text, "flash, kernels of resnet-digits")
    assert f"{found.ram_bytes:,}" in small_library.row_of(text, "RAM of the runtime")
