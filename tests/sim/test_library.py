"""The library has the bits of the host on simulated chips and on QEMU's cores.

Every kernel, and an application with a schedule in program flash that fits 16 KB of RAM.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from poet_host import api, isa
from poet_host.firmware_build.image import read_elf
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.schedule.schedule import Schedule
from support import clib, kernel_parts, toy, toy_forward
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
from support.toy_boards import truth

INCLUDE = f"-I{FIRMWARE / 'include'}"
KIND = "in RAM"
STEPS = 3
# What a build for one schedule leaves out, with the flags that many users have.
SMALL = ("-DPOET_SMALL=1", "-DPOET_STREAMS=0", "-DPOET_CARDS=0",
         f"-DPOET_ROWS_CRC={isa.fingerprint()}u", "-Os")  # fmt: skip
# With the kernels of resnet-digits, and what program.c prints.
MOST_FLASH = {"m0plus": 43_500, "m4f": 47_500}
MOST_RAM = 2_560  # of the runtime for the gestures, without arena and stack
TOY = ("model", "plan", "forward_model", "forward_plan", "sample", "value", "sizes")
RESIDENTS = 8  # of sim/programs/program.c


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


def array(name: str, data: bytes) -> str:
    numbers = ",".join(map(str, data))
    return f"static const uint8_t {name}[] = {{{numbers}}};\n"


def write_toy(folder: Path) -> None:
    """Write what sim/programs/program.c includes: the toy's schedules, and tensors of seed 1."""
    schedule, values = toy_forward.program(KIND), toy.values(1, KIND)
    forward = schedule.forward
    assert forward is not None
    text = "#include <stdint.h>\n"
    text += array("model", schedule.model_part) + array("plan", schedule.plan_part)
    text += array("forward_model", forward.model_part) + array("forward_plan", forward.plan_part)
    text += array("sample", toy_forward.sample(KIND, 1))
    text += "".join(array(f"value_{n}", data) for n, data in enumerate(values))
    names = ",".join(f"value_{n}" for n in range(len(values)))
    text += f"static const uint8_t *const values[] = {{{names}}};\n"
    text += f"static const uint32_t sizes[] = {{{','.join(str(len(it)) for it in values)}}};\n"
    arena = max(it.header.arena_bytes for it in (schedule, forward))
    text += f"enum {{ ARENA_BYTES = {arena}, STEPS = {STEPS}, "
    text += f"OUTPUT_BYTES = {toy_forward.OUTPUT_BYTES} }};\n"
    (folder / "toy.h").write_text(text)


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


@needs_compiler
@needs_qemu
@pytest.mark.parametrize("core", list(CORES))
def test_an_application_has_the_bits_of_the_host(core: str, tmp_path: Path) -> None:
    """Compiled with no options but those of the core, -std=gnu11 -O2."""
    for elf in programs(core, tmp_path, build_library(core, tmp_path / "library")):
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


def gestures() -> Schedule:
    """A network for windows of an accelerometer: 3 x 128 numbers, two convolutions, 5 classes."""
    b = Builder("gestures", data=(1, 3, 1, 128))
    x = b.conv2d(b.data, 8, (1, 9), stride=(1, 2), padding=(0, 4))
    x = b.maxpool2d(b.relu(x), (1, 2))
    x = b.relu(b.conv2d(x, 24, (1, 5), stride=(1, 2), padding=(0, 2)))
    graph = training_graph(b.model(b.softmax_xent(b.linear(b.global_avgpool(x), 5))), Sgd(0.05))
    problem = api.problem(graph, "mkr1000", ram="1MiB", storage=False)
    return api.encode(graph, api.estimate_profile("mkr1000"), api.keep_everything(problem.graph))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("core", list(CORES))
def test_a_build_for_one_schedule_is_small(core: str, tmp_path: Path) -> None:
    library = build_library(core, tmp_path / "library", *SMALL)
    for elf in programs(core, tmp_path, library):
        here = run(bare(core, elf))
        assert here.code == 0, here.message
        check_application(here.text)

    used = {node.op for node in api.load("resnet-digits") if not node.stored}
    masks = (f"-D{name}={value}" for name, value in isa.kernel_masks(used).items())
    table = (*masks, str(FIRMWARE / "kernels" / "table.c"))
    rest = [path for path in library if not path.endswith("/table.o")]
    options = (f"-I{tmp_path}", INCLUDE, "-Wl,--gc-sections", *table, *rest)
    image = read_elf(build(core, "program.c", tmp_path, *options))
    sizes = {name: size for name, (_, size) in image.objects.items()}
    data = sum(size for name, size in sizes.items() if name.startswith(TOY))
    assert len(image.flash()[1]) - data <= MOST_FLASH[core]
    assert {"poet_conv2d", "poet_step", "poet_infer"} <= image.symbols.keys()
    assert not {"poet_gelu", "poet_run_nest", "poet_rows", "poet_few"} & image.symbols.keys()

    header, tensors = gestures().header, len(gestures().model.tensors)
    ram = sizes["board"] + sizes["cache"] + sizes["queue"] * max(header.queue_max, 1)
    ram += sizes["residents"] // RESIDENTS * header.resident_max + (tensors + 31) // 32 * 4
    assert ram <= MOST_RAM
