"""Other programs are measured on the simulated chips, and wrong files are named."""

import sys
from pathlib import Path

import pytest
from support.sim_helper import FOLDER, build, needs_compiler

from bench.program import Measured, main, measure, report

CHIPS = {"mkr1000": "m0plus", "nrf52840_dk": "m4f"}
# Of subtract, compare and branch. The SAMD21 starts without wait states, the nRF52840 without a
# cache.
CYCLES = {"mkr1000": 4, "nrf52840_dk": 9}
ITERATIONS, LOCAL_BYTES = 1000, 256
PROGRAM = f"""
#include "test.h"
static volatile uint32_t used[8];
int main(void) {{
  volatile uint8_t local[{LOCAL_BYTES}];
  local[0] = (uint8_t)used[0];
  for (volatile int i = 0; i < CALLS; i++) {{
    uint32_t n = {ITERATIONS};
    __asm volatile("1: sub %0, #1\\n cmp %0, #0\\n bne 1b" : "+l"(n) : : "cc");
  }}
  while (SLEEPS)
    __asm volatile("wfi");
  return local[0];
}}
"""


def program(core: str, folder: Path, calls: int = 1, sleeps: int = 0) -> Path:
    source = folder / "program.c"
    source.write_text(PROGRAM)
    return build(core, str(source), folder, f"-I{FOLDER}", f"-DCALLS={calls}", f"-DSLEEPS={sleeps}")


@needs_compiler
@pytest.mark.parametrize(("board", "core"), CHIPS.items())
def test_two_programs_differ_by_one_call(board: str, core: str, tmp_path: Path) -> None:
    once, twice = (measure(board, program(core, tmp_path, calls)) for calls in (1, 2))
    expected = CYCLES[board] * ITERATIONS
    assert twice.cycles - once.cycles == pytest.approx(expected, rel=0.02)
    assert once.flash_bytes == twice.flash_bytes
    assert once.ram_bytes == 32
    assert once.stack_bytes is not None
    assert LOCAL_BYTES <= once.stack_bytes < LOCAL_BYTES + 100


@needs_compiler
def test_a_program_without_end_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = program("m0plus", tmp_path, sleeps=1)
    with pytest.raises(SystemExit) as ended:
        main(["mkr1000", str(path)])
    assert ended.value.code == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("path", ["no.elf", sys.executable])
def test_a_file_without_an_image_is_named(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mkr1000", path])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert path in printed.err
    assert not printed.out


def test_a_stack_without_limit_is_not_measured() -> None:
    last = report([Measured("a.elf", 1_234, 5, 6, None)]).splitlines()[-1]
    assert last == "| a.elf | 1,234 | 5 | 6 | - |"
