"""Builds the firmware image of a bare-metal board with the system's cross compiler."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..resources import resource
from .compile import compiled
from .elf import read_elf
from .machine import simulated_boards

COMPILER = "arm-none-eabi-gcc"
# Sums in one order on every target: no contraction, no reassociation.
FLAGS = (
    *("-std=c11", "-O2", "-g", "-ffp-contract=off", "-fno-math-errno", "-ffunction-sections"),
    *("-fdata-sections", "-Wall", "-Wextra", "-Werror", "-fstack-usage", "-nostartfiles"),
    *("--specs=nano.specs", "--specs=nosys.specs", "-Wl,--gc-sections"),
    "-Wl,--no-warn-rwx-segments",
)
CORES = {
    "samd21": ("-mcpu=cortex-m0plus", "-mthumb"),
    "nrf52840": ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
}


def build_firmware(board: str) -> Path:
    """The ELF image that would be flashed, compiled if it is not in the cache yet.

    Raises BadInput for a board that has no bare-metal port, PoetError if there is no cross
    compiler or it fails.
    """
    if board not in simulated_boards():
        raise BadInput(
            f"{board} has no firmware image: choose one of {', '.join(simulated_boards())}"
        )
    chip = tomllib.loads((resource("boards") / board / "chip.toml").read_text("utf-8"))["chip"]
    firmware = resource("firmware")
    port, common = firmware / "port" / chip, firmware / "port" / "common"
    folders = (firmware / "src", firmware / "kernels", common, port)
    command = [COMPILER, *CORES[chip], *FLAGS]
    command += [f"-I{folder}" for folder in (firmware / "include", common, port)]
    command += [f"-L{common}", f"-T{port / chip}.ld"]
    return compiled(
        f"{board}.elf",
        command,
        [path for folder in folders for path in sorted(folder.glob("*.c"))],
        sorted(path for path in firmware.rglob("*") if path.suffix in (".h", ".def", ".ld")),
        ["-lm"],
        missing=f"{COMPILER} is not on the PATH, and {board} runs true firmware: "
        "try 'apt install gcc-arm-none-eabi', or the board native",
    )


# What each variable is for, in the words of the ledger.
PURPOSES = {
    "board": "runtime state",
    "cache": "cached blocks of storage",
    "frame": "serial frame",
    "queue": "transfer queue",
    "trace": "trace",
    "residents": "tables of tensors",
    "bitmap": "tables of tensors",
    "lane": "transfer lane with its block buffer",
    "wire": "SD driver",
    "card": "SD driver",
    "ring": "serial ring",
    "sending": "serial ring",
    "base": "DMA descriptors",
    "written_back": "DMA descriptors",
    "bounce": "DMA buffer in a RAM block of its own",
}


@dataclass(frozen=True)
class Ledger:
    """Where the memory of a board goes: bytes of flash, and of RAM by purpose."""

    flash_bytes: int
    ram: dict[str, int]

    @property
    def arena_bytes(self) -> int:
        return self.ram["arena"]


def memory_ledger(image: Path) -> Ledger:
    """Read a firmware image's ledger from its sections and symbols."""
    elf = read_elf(image)
    ram = {"arena": elf.sections[".arena"][1], "stack": elf.sections[".stack"][1]}
    first = ".data", ".bss", ".spim3"
    total = sum(elf.sections[name][1] for name in first if name in elf.sections)
    for name, (address, size_bytes) in elf.objects.items():
        inside = any(
            at <= address < at + size
            for section, (at, size) in elf.sections.items()
            if section in first
        )
        if inside and name in PURPOSES:
            purpose = PURPOSES[name]
            ram[purpose] = ram.get(purpose, 0) + size_bytes
    ram["rest"] = total + ram["arena"] + ram["stack"] - sum(ram.values())
    return Ledger(sum(len(data) for _, data in elf.segments), ram)
