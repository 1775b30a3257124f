"""The firmware's assembly for the two cores, compared with C on the host.

The assembly in firmware/kernels/m0plus and m4f computes floats and sums of products. That
in crc32.c and in spi.c of the nRF52840 copies blocks and computes CRCs. Both must give the host's
bits. `mutants` changes one instruction at a time; each change must change a result.

    python -m support.floats sums 4000 7        compare part `sums`, 4,000 batches, seed 7
    python -m support.floats mutate CORE TABLE  write a row for each function
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from poet_host.resources import resource
from poet_host.sim.chip_library import chips, load_elf
from poet_host.sim.simulated_chip import RESULTS
from support.sim_helper import FOLDER, WRITE, build, peek_text, qemu


@dataclass(frozen=True)
class Part:
    """A part of a test program."""

    core: str
    source: str
    number: int


PARTS = {
    "operations": Part("m0plus", "floats.c", 0),
    "sums": Part("m0plus", "floats.c", 1),
    "special sums": Part("m0plus", "floats.c", 2),
    "polynomials": Part("m0plus", "floats.c", 3),
    "comparisons": Part("m0plus", "floats.c", 4),
    "chains": Part("m0plus", "chains.c", 0),
    "tiles": Part("m4f", "tiles.c", 0),
    "strips": Part("m4f", "tiles.c", 1),
    "special tiles": Part("m4f", "tiles.c", 2),
    "transfers": Part("m4f", "transfers.c", 0),
}
# The functions in assembly, and the part that calls them.
ASSEMBLY = {
    "m0plus": {
        "poet_dots": "sums",
        "poet_horner": "polynomials",
        "poet_chain_enter": "chains",
        "poet_chain_code": "chains",
        "poet_chain_code_end": "chains",
        "__aeabi_fmul": "operations",
        "__aeabi_fadd": "operations",
        "__aeabi_fsub": "operations",
    },
    "m4f": {
        **{f"poet_block_{kind}": "tiles" for kind in ("uu", "ub", "ug", "bu")},
        **{f"poet_block_{kind}": "tiles" for kind in ("bb", "gg", "up", "un")},
        **{f"poet_{name}": "strips" for name in ("strips", "rows_ahead", "rows_back", "outer")},
        **{f"poet_{name}": "strips" for name in ("eight", "dot", "axpy", "three")},
        **dict.fromkeys(("add_words", "block_crc", "copy_block"), "transfers"),
    },
}
NOP = 0x46C0  # mov r8, r8
SLICE_TICKS, SLICES = 1_000_000, 20  # far more than a batch takes
BATCHES = 400  # after which every mutant has been found


def _options(part: str, batches: int, seed: int) -> list[str]:
    values = {"PART": PARTS[part].number, "BATCHES": batches, "SEED": f"{seed}u"}
    return [f"-D{name}={value}" for name, value in values.items()]


def _sources(part: str) -> list[str]:
    """The files of the firmware that a part needs, and options to compile them."""
    firmware, core = resource("firmware"), PARTS[part].core
    if part == "transfers":
        folders = ("include", "src", "port/common", "port/nrf52840")
        options = ["-ffunction-sections", "-Wl,--gc-sections", "-DPOET_LIBRARY=0"]
        return [*options, *(f"-I{firmware / folder}" for folder in folders)]
    kernels = firmware / "kernels"
    names = sorted(str(path) for path in (kernels / core).glob("*.c"))
    others = [str(kernels / "tile.c"), str(kernels / "mathf.c")]
    return [f"-I{kernels}", f"-I{firmware / 'include'}", *names, *others]


def program(part: str, batches: int, seed: int, folder: Path, *options: str) -> Path:
    """Build the program of a part for its core."""
    core = PARTS[part].core
    flags = (*_options(part, batches, seed), *options, *_sources(part))
    return build(core, PARTS[part].source, folder, *flags)


def expected(part: str, batches: int, seed: int, folder: Path) -> list[str]:
    """The lines that the program of a part prints on this computer."""
    binary = folder / f"{part}-{batches}-{seed}"
    command = ["cc", "-std=gnu11", "-O1", "-ffp-contract=off", *_options(part, batches, seed)]
    command += [
        str(FOLDER / PARTS[part].source),
        *_sources(part),
        "-o",
        str(binary),
        "-lm",
    ]
    subprocess.run(command, check=True)
    return subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()


def on_qemu(part: str, elf: Path) -> list[str]:
    code, text = qemu(PARTS[part].core, elf)
    assert code == 0, text
    return text.split()


@dataclass(frozen=True)
class Ran:
    """What a program did on the simulated core."""

    lines: list[str]  # what it printed, then how it ended
    cycles: int


def ran(
    part: str,
    elf: Path,
    patch: tuple[int, bytes] | None = None,
    wanted: list[str] | None = None,
) -> Ran:
    """Run the program of a part until it ends, prints a line that differs from `wanted`, or prints
    nothing for SLICES slices.

    `patch`: an address and bytes to write there before the start.
    """
    ffi, lib = chips()
    machine = ffi.gc(lib.bare_new(PARTS[part].core == "m4f", 224 * 1024, 16384), lib.machine_free)
    load_elf(machine, elf)
    if patch is not None:
        assert lib.machine_load(machine, patch[0], patch[1], len(patch[1]))
    lib.machine_reset(machine)
    meter = ffi.new("struct machine_meter *")
    found: list[str] = []
    left = SLICES
    while left and (wanted is None or found == wanted[: len(found)]):
        result = RESULTS[lib.machine_run(machine, SLICE_TICKS)]
        if result == "breakpoint":
            operation, argument = (lib.machine_register(machine, i) for i in (0, 1))
            if operation != WRITE:
                found.append("exit")
                break
            found.append(_text(machine, argument))
            left = SLICES
            lib.machine_continue(machine, 0)
        elif result == "slice":
            left -= 1
        else:
            found.append(result)
            break
    lib.machine_meter(machine, meter)
    return Ran(found, meter.cycles)


def _text(machine: Any, address: int) -> str:
    try:
        return peek_text(machine, address).strip()
    except (AssertionError, UnicodeDecodeError):
        return "no text"


@dataclass(frozen=True)
class Mutant:
    """One instruction, replaced by one without an effect."""

    function: str
    part: str
    offset: int  # bytes from the start of the function
    instruction: str
    address: int  # where the program's image has it
    size_bytes: int

    @property
    def line(self) -> str:
        return f"{self.function} +{self.offset} {self.instruction}"

    @property
    def patch(self) -> tuple[int, bytes]:
        return self.address, NOP.to_bytes(2, "little") * (self.size_bytes // 2)

    def found(self, elf: Path, good: Ran) -> str:
        """How the mutant differs from the program that did `good`; empty if it does not."""
        bad = ran(self.part, elf, self.patch, good.lines)
        if bad.lines != good.lines:
            return f"batch {len(bad.lines) - 1}"
        return "slower" if bad.cycles > good.cycles else ""


@cache
def _listing(elf: Path) -> str:
    command = ["arm-none-eabi-objdump", "-d", "-j", ".text", "-j", ".data", str(elf)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def _symbols(elf: Path) -> dict[str, int]:
    command = ["arm-none-eabi-nm", str(elf)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3}


def mutants(elf: Path, function: str, part: str) -> list[Mutant]:
    """One mutant for each instruction of a function in assembly."""
    symbols = _symbols(elf)
    at_run = 0
    if symbols["data_start"] <= symbols[function]:  # code in RAM is copied there by the start
        at_run = symbols["data_load"] - symbols["data_start"]
    _, _, text = _listing(elf).partition(f"<{function}>:\n")
    found = []
    for line in text.partition("\n\n")[0].splitlines():
        place, code, *words = line.split("\t")
        if not words or words[0].startswith((".word", ".short", "nop")):
            continue
        address, size_bytes = int(place.rstrip(":"), 16), 2 * len(code.split())
        name = " ".join(words).partition(";")[0].partition("<")[0].strip()
        offset = address - symbols[function]
        found.append(Mutant(function, part, offset, name, address + at_run, size_bytes))
    return found


def mutate(
    output: TextIO, functions: Mapping[str, str], every: int = 1, batches: int = BATCHES
) -> list[str]:
    """Write how many mutants of each function are found, or only of each `every`-th instruction;
    then those that change only the time or nothing. Return those that change nothing."""
    folder = Path(tempfile.mkdtemp(prefix="poet-floats-"))
    parts = dict.fromkeys(functions.values())
    elfs = {part: program(part, batches, 1, folder) for part in parts}
    unchanged = {part: ran(part, elf) for part, elf in elfs.items()}
    slower, missed = [], []
    print("function             part        mutants  wrong  slower  missed", file=output)
    for function, part in functions.items():
        elf, good = elfs[part], unchanged[part]
        tried = {
            mutant: mutant.found(elf, good) for mutant in mutants(elf, function, part)[::every]
        }
        late = [mutant.line for mutant, found in tried.items() if found == "slower"]
        none = [mutant.line for mutant, found in tried.items() if not found]
        counts = [len(tried), len(tried) - len(late) - len(none), len(late), len(none)]
        row = "".join(f"{count:{width}}" for count, width in zip(counts, (7, 7, 8, 8), strict=True))
        print(f"{function:20} {part:11} {row}", file=output, flush=True)
        slower += late
        missed += none
    print("", *(f"slower: {line}" for line in slower), sep="\n", file=output)
    print(*(f"MISSED: {line}" for line in missed), sep="\n", file=output)
    return missed


def _main() -> int:
    if sys.argv[1] != "mutate":
        folder = Path(tempfile.mkdtemp(prefix="poet-floats-"))
        part, batches, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        good = ran(part, program(part, batches, seed, folder))
        same = good.lines == [*expected(part, batches, seed, folder), "exit"]
        print(f"{part}: {batches:,} batches, seed {seed}: {'equal' if same else 'DIFFERENT'}")
        return 0 if same else 1
    with open(sys.argv[3], "w", encoding="utf-8") as output:
        missed = mutate(output, ASSEMBLY[sys.argv[2]])
    print(*missed, f"{len(missed)} mutants were not found", sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(_main())
