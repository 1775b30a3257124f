"""The library in a program for one schedule: its flash, and its RAM without arena and stack.

python -m support.small_library    renew the table in docs/reference/memory.md (make ledger)
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from poet_host import api, isa
from poet_host.firmware_build.image import read_elf
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.schedule.schedule import Schedule
from support import toy, toy_forward
from support.sim_helper import FIRMWARE, build, build_library

KIND = "in RAM"
STEPS = 3
# What a build for one schedule leaves out, with the flags that many users have.
SMALL = ("-DPOET_SMALL=1", "-DPOET_STREAMS=0", "-DPOET_CARDS=0",
         f"-DPOET_ROWS_CRC={isa.fingerprint()}u", "-Os")  # fmt: skip
CORES = {"m0plus": "Cortex-M0+", "m4f": "Cortex-M4F"}
RESIDENTS = 8  # of sim/programs/program.c
PAGE = Path("docs/reference/memory.md")
BEGIN, END = "<!-- library: made by `make ledger` -->\n", "<!-- end of library -->"


# Of a map of the linker: the section of an object file, its bytes, and the file.
SECTION = re.compile(r"^ \.(?:text|rodata|data)\S*\s+0x\S+\s+0x(\S+) (\S+)$", re.M)


@dataclass(frozen=True)
class Sizes:
    flash_bytes: int  # of the library alone
    compiler_bytes: int  # of the compiler's own functions
    ram_bytes: int  # of the runtime for `gestures`
    symbols: Collection[str]


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


def gestures() -> Schedule:
    """A network for windows of an accelerometer: 3 x 128 numbers, two convolutions, 5 classes."""
    b = Builder("gestures", data=(1, 3, 1, 128))
    x = b.conv2d(b.data, 8, (1, 9), stride=(1, 2), padding=(0, 4))
    x = b.maxpool2d(b.relu(x), (1, 2))
    x = b.relu(b.conv2d(x, 24, (1, 5), stride=(1, 2), padding=(0, 2)))
    graph = training_graph(b.model(b.softmax_xent(b.linear(b.global_avgpool(x), 5))), Sgd(0.05))
    problem = api.problem(graph, "mkr1000", ram="1MiB", storage=False)
    return api.encode(graph, api.estimate_profile("mkr1000"), api.keep_everything(problem.graph))


def kernels() -> set[str]:
    """The kernels of resnet-digits."""
    return {node.op for node in api.load("resnet-digits") if not node.stored}


def sizes(core: str, folder: Path, library: list[str], used: Collection[str]) -> Sizes:
    """The sizes of program.c with the kernels in `used`. `folder` has its toy.h."""
    masks = (f"-D{name}={value}" for name, value in isa.kernel_masks(used).items())
    table = (*masks, str(FIRMWARE / "kernels" / "table.c"))
    rest = [path for path in library if not path.endswith("/table.o")]
    found = folder / "program.map"
    include = (f"-I{folder}", f"-I{FIRMWARE / 'include'}", f"-Wl,-Map={found}")
    image = read_elf(build(core, "program.c", folder, *include, "-Wl,--gc-sections", *table, *rest))
    of = {name: size for name, (_, size) in image.objects.items()}
    _, _, placed = found.read_text().partition("Linker script and memory map")
    files = [(int(size, 16), path) for size, path in SECTION.findall(placed)]
    kept = sum(size for size, path in files if path in library)
    lent = sum(size for size, path in files if ".a(" in path)
    header, tensors = gestures().header, len(gestures().model.tensors)
    ram = of["board"] + of["cache"] + of["queue"] * max(header.queue_max, 1)
    ram += of["residents"] // RESIDENTS * header.resident_max + (tensors + 31) // 32 * 4
    # With the table of kernels.
    return Sizes(kept + of["kernels"], lent, ram, image.symbols.keys())


def row_of(text: str, name: str) -> str:
    """The row of the table in the page `text` that begins with this name."""
    return next(line for line in text.splitlines() if line.startswith(f"| {name}"))


def table() -> str:
    """The table of docs/reference/memory.md."""
    found: list[list[Sizes]] = []
    for core in CORES:
        with TemporaryDirectory() as name:
            folder = Path(name)
            write_toy(folder)
            small = build_library(core, folder / "small", *SMALL)
            whole = build_library(core, folder / "whole", "-Os")
            found.append([
                sizes(core, folder, whole, isa.kernels()),
                sizes(core, folder, small, kernels()),
            ])  # fmt: skip
    columns = [[*map(str, CORES.values())]]
    columns += [[f"{each[i].flash_bytes:,}" for each in found] for i in (0, 1)]
    columns += [[f"{each[1].compiler_bytes:,}" for each in found]]
    columns += [[f"{each[1].ram_bytes:,}" for each in found]]
    names = ("bytes", "flash, all kernels, without the macros", "flash, kernels of resnet-digits",
             "- and functions of the compiler", "RAM of the runtime")  # fmt: skip
    lines = [f"| {' | '.join((name, *row))} |" for name, row in zip(names, columns, strict=True)]
    return "\n".join([lines[0], "|---|---:|---:|", *lines[1:], ""])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
