"""The library's C files are layers: a file uses functions and data of earlier files only.

A reader can start at the first file and never has to look ahead. Kernels come first: they use
nothing of the runtime, which reaches them through `table.c`. Ports have no layer here: the
library reaches them only through `struct poet_port`.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource

# Lowest first. `kernels/*.c` stands for the operator families, of which none uses another.
ORDER = (
    "kernels/exact.c",  # a test of compiler and processor
    "kernels/m0plus/horner_m0plus.c",  # polynomials of the Cortex-M0+
    "kernels/mathf.c",  # exp, log, tanh, erf
    "kernels/m0plus/slow_m0plus.c",  # float operations of the Cortex-M0+
    "kernels/m0plus/soft_m0plus.c",
    "kernels/m0plus/chain_m0plus.c",  # operations on each element of arrays
    "kernels/m0plus/chain_steps_m0plus.c",
    "kernels/m0plus/dot_m0plus.c",  # sums of products of the Cortex-M0+
    "kernels/m4f/tile_m4f.c",  # the same of the Cortex-M4F
    "kernels/m4f/strip_m4f.c",
    "kernels/m4f/axpy_m4f.c",
    "kernels/m4f/lanes_m4f.c",
    "kernels/vector/tile_vector.c",  # the same of processors with vectors of floats
    "kernels/tile.c",  # sums of products
    "kernels/m0plus/lanes_m0plus.c",  # the same, and convolutions, of the Cortex-M0+
    "kernels/few.c",  # sums with few terms or lanes
    "kernels/sink.c",  # from a gradient to a parameter's update
    "kernels/axis.c",  # the axes of a convolution
    "kernels/depthwise.c",  # convolutions with one channel in a group
    "kernels/vector/conv_vector.c",  # convolutions in vectors
    "kernels/vector/grad_vector.c",  # gradients of their weights
    "kernels/recurrent.c",  # the walk of gradients along time
    "kernels/*.c",
    "kernels/table.c",  # from a kernel's number to its function
    "src/crc32.c",
    "src/cobs.c",  # framing of bytes
    "src/isa.c",  # rows of isa.def and their fingerprint
    "src/shape.c",  # operand sizes of each operator
    "src/port.c",  # functions of the port, and their defaults
    "src/progress.c",  # trace and stop request of a step
    "src/pieces.c",  # how tensors are cut
    "src/map.c",  # where blocks lie on storage without gaps
    "src/store.c",  # blocks of the partition, commits
    "src/mount.c",  # finds and formats the partition
    "src/parts.c",  # the parts of a schedule, in checked copies
    "src/model.c",  # records of tensors and operators
    "src/slots.c",  # slots of tensors, their generations and digest
    "src/tensors.c",  # bytes of a tensor, piece by piece
    "src/bits.c",  # bit stream of the plan
    "src/arena.c",  # ranges of RAM in use
    "src/nest_shape.c",  # nests of the plan, and their laws
    "src/nest_cells.c",  # the cells of a nest
    "src/rows.c",  # which rows of a table a nest renews
    "src/nest_compute.c",  # its computations
    "src/pager.c",  # queue of transfers
    "src/nest.c",  # runs a nest
    "src/planned.c",  # what the plan has done so far
    "src/computing.c",  # statements that compute
    "src/decoder.c",  # statements of the plan
    "src/weights.c",  # weights that stay in RAM
    "src/load.c",
    "src/interpreter.c",  # one training step
    "src/forward.c",  # inference between two steps
    "src/slices.c",  # the same step, and saves, in slices
    "src/objects.c",  # what the host writes and reads
    "src/begin.c",  # the commit of what the host has written
    "src/samples.c",  # what a device keeps to train on
    "src/learner_text.c",  # a sentence about each result of a learner
    "src/learner_device.c",  # what an application lends to it
    "src/learner_work.c",  # its steps and saves, in slices
    "src/learner_weights.c",  # tensors that the application reads and writes
    "src/learner_open.c",
    "src/learner.c",  # a device that learns from its own samples
    "src/job.c",  # training without a host
    "src/probe.c",  # measurements
    "src/server.c",  # messages
    "src/alone.c",  # a job without a host
)

# The headers that each folder may include, in addition to those of the C library.
INCLUDES = {
    "kernels": r"poet/(exact|kernel|isa|records|small)\.[a-z]+"
    r"|(\.\./)?((m0plus|m4f|vector)/)?\w+_(m0plus|m4f|vector)\.h"
    r"|(\.\./)?(mathf|tile|sink|axis|few|depthwise|sums|recurrent)\.h",
    "src": r"poet/\w+\.(h|def)|(runtime|plan|storage|samples|learning)\.h",
    "include/poet": r"(poet/)?\w+\.(h|def)",
}


# These functions return an int that is not an error.
NO_ERROR = {"poet_asked_to_stop", "poet_serve_poll", "letter_of", "ready", "usage"}


def layer(path: str) -> int:
    """Index of a file in ORDER."""
    if path.startswith("kernels/") and path not in ORDER:
        path = "kernels/*.c"
    return ORDER.index(path)


@cache
def symbols(path: str, text: str) -> tuple[set[str], set[str]]:
    """The names that a C file defines for others, and those that it uses of others.

    Compiled once for each text: libraries may differ in C files, not in headers.
    """
    firmware = resource("firmware")
    include = [f"-I{firmware / it}" for it in ("include", "src")]
    with TemporaryDirectory() as folder:
        built = Path(folder) / "built.o"
        command = ["cc", "-std=c11", *include, "-xc", "-c", "-", "-o", built]
        here = (firmware / path).parent  # where it looks for headers first
        subprocess.run(command, input=text, text=True, check=True, cwd=here)
        listed = subprocess.run(
            ["nm", "-g", "-P", built], check=True, capture_output=True, text=True
        )
    defined: set[str] = set()
    used: set[str] = set()
    for line in listed.stdout.splitlines():
        name, kind = line.split()[:2]
        (used if kind in "Uw" else defined).add(name)
    return defined, used


def upward_uses(firmware: Path) -> list[str]:
    """Each use of a symbol that is not defined in an earlier layer, as text."""
    sources = [path for room in ("kernels", "src") for path in c_files(firmware / room)]
    paths = {path.relative_to(firmware).as_posix(): path for path in sources}
    found = {name: symbols(name, path.read_text("utf-8")) for name, path in paths.items()}
    home = {name: path for path, (defined, _) in found.items() for name in defined}
    return [
        f"{path} uses {name} of {home[name]}"
        for path, (_, used) in found.items()
        for name in sorted(used)
        if name in home and layer(home[name]) >= layer(path)
    ]


def foreign_includes(firmware: Path) -> list[str]:
    """Each #include "..." that INCLUDES does not allow, as text."""
    return [
        f"{path.relative_to(firmware).as_posix()} includes {name}"
        for room, allowed in INCLUDES.items()
        for path in sorted((firmware / room).rglob("*.[ch]"))
        for name in re.findall(r'^#include "(.*)"', path.read_text(encoding="utf-8"), re.M)
        if not re.fullmatch(allowed, name)
    ]


def unchecked(firmware: Path) -> set[str]:
    """The functions that return an error which a caller can ignore."""
    found = []
    for path in sorted(firmware.rglob("*.[ch]")):
        declared = r"^[\w() ]*" if path.suffix == ".h" else r"^[\w() ]*\bstatic [\w() ]*"
        text = path.read_text(encoding="utf-8")
        found += re.findall(rf"({declared})\bint\s+(\w+)\(", text, re.M)
    names = {name for before, name in found if "POET_CHECKED" not in before} - NO_ERROR
    # Applications may ignore the results of learner.h, as C programmers expect.
    return {name for name in names if not name.startswith("poet_learner_")}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A copy of the library to break."""
    copy = tmp_path / "firmware"
    for room in INCLUDES:
        shutil.copytree(resource("firmware") / room, copy / room)
    return copy


@pytest.mark.slow
def test_a_file_uses_only_files_of_lower_layers() -> None:
    assert upward_uses(resource("firmware")) == []


def test_every_file_of_the_runtime_has_a_layer() -> None:
    firmware = resource("firmware")
    here = {
        path.relative_to(firmware).as_posix()
        for room in ("kernels", "src")
        for path in c_files(firmware / room)
    }
    assert {path for path in here if path.startswith("src/")} <= set(ORDER)
    assert set(ORDER) - here == {"kernels/*.c"}


def test_no_file_includes_what_its_folder_may_not_know() -> None:
    assert foreign_includes(resource("firmware")) == []


@pytest.mark.slow
def test_a_call_of_a_later_file_is_found(broken: Path) -> None:
    with (broken / "src" / "store.c").open("a") as file:
        file.write("int poet_wrong(struct poet *p) { return poet_begin(p, 0); }\n")
    assert upward_uses(broken) == ["src/store.c uses poet_begin of src/begin.c"]


@pytest.mark.slow
def test_a_call_between_two_operator_families_is_found(broken: Path) -> None:
    with (broken / "kernels" / "pool.c").open("a") as file:
        file.write("void poet_wrong(const struct poet_call *call) { poet_relu(call); }\n")
    assert upward_uses(broken) == ["kernels/pool.c uses poet_relu of kernels/activation.c"]


def test_a_kernel_that_includes_the_runtime_is_found(broken: Path) -> None:
    (broken / "kernels" / "new.c").write_text('#include "runtime.h"\n#include <math.h>\n')
    assert foreign_includes(broken) == ["kernels/new.c includes runtime.h"]


@pytest.mark.parametrize("path", ["include/poet/poet.h", "src/store.c"])
def test_a_caller_cannot_ignore_an_error(broken: Path, path: str) -> None:
    assert unchecked(resource("firmware")) == set()
    with (broken / path).open("a") as file:
        file.write("static int poet_wrong(struct poet *p);\n")
    assert unchecked(broken) == {"poet_wrong"}


def test_a_call_that_ignores_an_error_does_not_compile() -> None:
    text = '#include "poet/poet.h"\nvoid call(struct poet *p) { poet_mount(p); }\n'
    include = f"-I{resource('firmware/include')}"
    command = ["cc", "-Werror", include, "-c", "-o", "/dev/null", "-xc", "-"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert "poet_mount" in ran.stderr
