"""Builds the test programs in sim_firmware and runs them, here and on QEMU."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from poet_host.sim.chip_library import chips
from poet_host.sim.elf import load_elf

FOLDER = Path(__file__).parents[1] / "sim" / "programs"
CORES = {
    "m0plus": ["-mcpu=cortex-m0plus"],
    "m4f": ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"],
}
MARK, WRITE, EXIT = 0x1000, 0x04, 0x20

needs_compiler = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="arm-none-eabi-gcc is missing"
)
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None, reason="qemu-system-arm is missing"
)


def build(core: str, source: str, folder: Path, *options: str) -> Path:
    """Compile one test program for a core; `options` go to the compiler."""
    name = hashlib.sha256(" ".join((core, source, *options)).encode()).hexdigest()[:12]
    target = folder / f"{Path(source).stem}-{name}.elf"
    command = ["arm-none-eabi-gcc", *CORES[core], "-mthumb", "-O2", "-g", "-std=gnu11"]
    command += ["-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused", "-Werror"]
    command += ["-ffreestanding", "-nostartfiles", "--specs=nosys.specs", f"-T{FOLDER / 'test.ld'}"]
    command += ["-Wl,--no-warn-rwx-segments", *options, "-o", str(target)]
    command += [str(FOLDER / "startup.c"), str(FOLDER / source), "-lm"]
    subprocess.run(command, check=True)
    return target


@dataclass
class Outcome:
    """What a program printed and how it ended, with the meter at its marks."""

    code: int = -1
    text: str = ""
    result: str = ""
    message: str = ""
    cycles: int = 0
    instructions: int = 0
    exceptions: int = 0
    asleep_ticks: int = 0
    ticks: int = 0
    marks: list[int] = field(default_factory=list)


RESULTS = ["slice", "idle", "breakpoint", "reset", "power cut", "fault"]


def run(
    machine: object,
    *,
    slice_ticks: int = 10_000_000,
    slices: int = 100,
    between: Callable[[object], None] | None = None,
) -> Outcome:
    """Run a machine until it ends, serving its semihosting calls."""
    ffi, lib = chips()
    out = Outcome()
    meter = ffi.new("struct machine_meter *")
    for _ in range(slices):
        result = lib.machine_run(machine, slice_ticks)
        out.result = RESULTS[result]
        lib.machine_meter(machine, meter)
        for name in ("cycles", "instructions", "exceptions", "asleep_ticks", "ticks"):
            setattr(out, name, getattr(meter, name))
        if out.result == "breakpoint":
            operation, argument = (lib.machine_register(machine, i) for i in (0, 1))
            if operation == MARK:
                out.marks.append(out.cycles)
            elif operation == WRITE:
                out.text += peek_text(machine, argument)
            elif operation == EXIT:
                out.code = int.from_bytes(peek(machine, argument + 4, 4), "little")
                out.result = "exit"
                break
            lib.machine_continue(machine, 0)
        elif out.result != "slice":
            out.message = ffi.string(lib.machine_message(machine)).decode()
            break
        if between:
            between(machine)
    return out


def peek(machine: object, address: int, size: int) -> bytes:
    ffi, lib = chips()
    data = ffi.new("uint8_t[]", size)
    assert lib.machine_peek(machine, address, data, size)
    return bytes(data)


def peek_text(machine: object, address: int) -> str:
    text = b""
    while not text.endswith(b"\0"):
        text += peek(machine, address + len(text), 1)
    return text[:-1].decode()


def bare(core: str, elf: Path) -> object:
    """A chip with the core's own peripherals only, loaded and reset."""
    ffi, lib = chips()
    machine = ffi.gc(lib.bare_new(core == "m4f", 192 * 1024, 16384), lib.machine_free)
    load_elf(machine, elf)
    lib.machine_reset(machine)
    return machine


def qemu(core: str, elf: Path) -> tuple[int, str]:
    """Run on QEMU (microbit or mps2-an386); (exit code, printed text)."""
    board = {"m0plus": "microbit", "m4f": "mps2-an386"}[core]
    command = ["qemu-system-arm", "-M", board, "-nographic", "-monitor", "none"]
    command += ["-serial", "none", "-icount", "shift=0", "-kernel", str(elf)]
    command += ["-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr
