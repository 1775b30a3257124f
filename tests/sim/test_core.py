"""The simulated core: cycles, exceptions and refused accesses; QEMU is a second judge."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from poet_host.errors import BadInput
from poet_host.firmware_build.image import read_elf
from poet_host.sim.chip_library import chips, load_elf
from support.instructions import illegal_instructions
from support.sim_helper import CORES, bare, build, needs_compiler, needs_qemu, qemu, run

pytestmark = needs_compiler
both = pytest.mark.parametrize("core", list(CORES))


# Cycles of the stretches in cycles.c, in order, from the tables of the manuals.
STRETCHES = {
    "m0plus": [0, 4, 30, 8, 6, 6, 3],
    "m4f": [0, 4, 39, 5, 6, 6, 4, 2, 3, 4, 14, 5, 9, 5],
}


@both
def test_stretches_take_the_cycles_of_the_manual(core: str, tmp_path: Path) -> None:
    outcome = run(bare(core, build(core, "cycles.c", tmp_path)))
    taken = [b - a for a, b in zip(outcome.marks[::2], outcome.marks[1::2], strict=True)]
    assert [t - taken[0] for t in taken] == STRETCHES[core]


# Cycles for one multiply-accumulate of a naive product without wait states: about 250 in
# soft float (each operand pair costs differently), 10 to 12 with the FPU (as the compiler
# addresses the operands).
ANCHORS = {"m0plus": (225, 275), "m4f": (10.0, 12.7)}


def product_hash() -> int:
    n, state, a, b = 16, 1, np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    for i in range(n):
        for j in range(n):
            state = (state * 1664525 + 1013904223) % 2**32
            a[i, j] = np.float32(np.uint32(state).astype(np.int32)) * np.float32(2**-31)
            shifted = np.uint32(state << 7 & 0xFFFFFFFF).astype(np.int32)
            b[j, i] = np.float32(shifted) * np.float32(2**-30)
    c = np.zeros((n, n), np.float32)
    for k in range(n):
        c += a[:, k : k + 1] * b[k : k + 1, :]
    value = 2166136261
    for bits in c.view(np.uint32).ravel():
        value = (value ^ int(bits)) * 16777619 % 2**32
    return value


@both
def test_a_multiply_accumulate_costs_as_much_as_measured_elsewhere(
    core: str, tmp_path: Path
) -> None:
    outcome = run(bare(core, build(core, "matmul.c", tmp_path, "-ffp-contract=off")))
    cycles = (outcome.marks[1] - outcome.marks[0]) / 16**3
    low, high = ANCHORS[core]
    assert low < cycles < high
    assert outcome.text == f"{product_hash():08x}\n"


@needs_qemu
@both
def test_exceptions_come_in_the_order_that_qemu_gives(core: str, tmp_path: Path) -> None:
    outcome = run(bare(core, build(core, "exceptions.c", tmp_path)))
    assert qemu(core, build(core, "exceptions.c", tmp_path, "-DQEMU")) == (0, outcome.text)
    assert (outcome.code, outcome.text) == (0, "1sSpaAcPb234aAcb567t8\n")
    assert outcome.exceptions == 9
    assert outcome.asleep_ticks > 1900  # the second WFI waits for SysTick's 2001 ticks


def pulse(machine: object) -> None:
    _, lib = chips()
    lib.machine_irq(machine, 0, True)
    lib.machine_irq(machine, 0, False)


@needs_qemu
@both
def test_interrupts_anywhere_change_no_result(core: str, tmp_path: Path) -> None:
    plain = run(bare(core, build(core, "stress.c", tmp_path)))
    lines = plain.text.splitlines()
    assert lines[1:] == ["00000000"] * 3
    ticking = run(bare(core, build(core, "stress.c", tmp_path, "-DTICKS=500")))
    assert ticking.text.splitlines()[:2] == lines[:2]
    assert ticking.exceptions > 300
    elf = build(core, "stress.c", tmp_path, "-DTICKS=997")
    handler = 1800 if core == "m0plus" else 150  # more than the handlers take themselves
    for ticks in (1, 61, 149):  # ticks between requests, in addition to SysTick
        stressed = run(bare(core, elf), slice_ticks=handler + ticks, slices=10**6, between=pulse)
        assert stressed.code == 0
        assert stressed.text.splitlines()[:2] == lines[:2]
        assert int(stressed.text.splitlines()[3], 16) > 200
    assert qemu(core, build(core, "stress.c", tmp_path, "-DQEMU", "-DTICKS=500")) == (
        0,
        "\n".join(lines[:2]) + "\n",
    )


@both
def test_slices_do_not_change_the_cycles(core: str, tmp_path: Path) -> None:
    elf = build(core, "stress.c", tmp_path, "-DTICKS=1000")
    whole = run(bare(core, elf))
    sliced = run(bare(core, elf), slice_ticks=777, slices=10**6)
    assert (sliced.cycles, sliced.ticks, sliced.exceptions, sliced.text) == (
        whole.cycles,
        whole.ticks,
        whole.exceptions,
        whole.text,
    )


REFUSED = {
    1: "unaligned access",
    2: "write to flash at 0x00001000",
    3: "read of 4 bytes at 0x51000000: the chip has nothing there",
    4: "the model of the system control space does not cover register offset 0xd3c",
    5: "the stack overflows",
    6: "illegal instruction",
    9: "jump to 0x30000000, where no code is",
    10: "the process stack is not modelled",
}
REFUSED_BY_CORE = {
    "m0plus": {
        7: "an instruction that this core does not have",
        11: "does not cover register offset 0x400 in that width",
    },
    "m4f": {8: "a floating-point instruction before CPACR enables the FPU"},
}


@both
@pytest.mark.parametrize("case", range(1, 12))
def test_forbidden_accesses_stop_with_a_reason(core: str, case: int, tmp_path: Path) -> None:
    outcome = run(bare(core, build(core, "strict.c", tmp_path, f"-DCASE={case}")))
    expected = (REFUSED | REFUSED_BY_CORE[core]).get(case)
    if case == 1 and core == "m4f":
        expected = None  # the M4 allows unaligned words
    if case == 8 and core == "m0plus":
        expected = "the model of the system control space does not cover register offset 0xd88"
    if expected is None:
        assert (outcome.result, outcome.code) == ("exit", 0)
    else:
        outcome.fails(expected)
        assert "program counter 0x" in outcome.message


@both
def test_a_fault_names_its_instruction(core: str, tmp_path: Path) -> None:
    elf = build(core, "strict.c", tmp_path, "-DCASE=4")
    outcome = run(bare(core, elf))
    command = ["arm-none-eabi-objdump", "-d", "--disassemble=main", str(elf)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stores = [line.split(":")[0].strip() for line in listing.splitlines() if "\tstr" in line]
    assert len(stores) == 1
    assert f"program counter 0x{int(stores[0], 16):08x}," in outcome.message


@needs_qemu
@pytest.mark.parametrize("case", range(13, 19))
def test_the_m4_checks_the_alignment_of_some_instructions(case: int, tmp_path: Path) -> None:
    """LDRD, LDM, VLDR, VLDM, STRD, and one that its condition skips; QEMU agrees."""
    outcome = run(bare("m4f", build("m4f", "strict.c", tmp_path, f"-DCASE={case}")))
    there = qemu("m4f", build("m4f", "strict.c", tmp_path, f"-DCASE={case}", "-DQEMU"))
    if case == 18:
        assert (outcome.result, outcome.code) == ("exit", 0)
        assert there == (0, "")
    else:
        outcome.fails("unaligned access by an instruction that needs a multiple of 4")
        assert there == (3, "hard fault\n")


@both
def test_code_in_ram_runs_and_may_be_replaced(core: str, tmp_path: Path) -> None:
    outcome = run(bare(core, build(core, "strict.c", tmp_path, "-DCASE=12")))
    assert (outcome.result, outcome.code) == ("exit", 12)


@both
@pytest.mark.parametrize("case", [2, 6, 9])
def test_the_program_can_handle_a_fault(core: str, case: int, tmp_path: Path) -> None:
    _, lib = chips()
    machine = bare(core, build(core, "strict.c", tmp_path, f"-DCASE={case}"))
    lib.machine_take_faults(machine, True)
    outcome = run(machine)
    assert (outcome.text, outcome.code) == ("hard fault\n", 3)


@both
def test_scan_finds_instructions_the_core_lacks(core: str, tmp_path: Path) -> None:
    assert illegal_instructions(read_elf(build(core, "stress.c", tmp_path)), m4=core == "m4f") == []
    foreign = read_elf(build("m4f", "stress.c", tmp_path))
    assert len(illegal_instructions(foreign, m4=False)) > 50
    it = read_elf(build("m0plus", "strict.c", tmp_path, "-DCASE=7"))
    assert [half for _, half in illegal_instructions(it, m4=False)] == [0xBF08]


def test_an_image_for_other_memory_is_refused(tmp_path: Path) -> None:
    ffi, lib = chips()
    elf = build("m0plus", "cycles.c", tmp_path)
    small = ffi.gc(lib.bare_new(False, 8192, 8192), lib.machine_free)
    load_elf(small, elf)
    other = tmp_path / "other.elf"
    other.write_bytes(b"not an image")
    with pytest.raises(BadInput, match="not a 32-bit"):
        read_elf(other)
    host = tmp_path / "host.elf"
    host.write_bytes(elf.read_bytes()[:18] + b"\x3e\x00" + elf.read_bytes()[20:])
    with pytest.raises(BadInput, match="another processor"):
        read_elf(host)
    big = build("m0plus", "cycles.c", tmp_path, "-DPAD", "-Wl,--section-start=.text=0x3000")
    with pytest.raises(BadInput, match="lies outside the chip's memory"):
        load_elf(small, big)
