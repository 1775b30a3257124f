"""No option of a compiler and no mode of a processor changes results unseen."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from poet_host.resources import resource
from support.compiler import compiler
from support.float_modes import MODES, PROCESSOR, USUAL, mode_setter
from support.memory_board import MemoryBoard, card, refusal
from support.sim_helper import bare, build, run
from support.toy_boards import load, trained, weights

FIRMWARE = resource("firmware")
PRINTS = """
#include <stdio.h>
#include "poet/exact.h"
int main(void) { return puts(poet_is_exact() ? "exact" : "inexact") < 0; }
"""


def answer(folder: Path, command: str, include: Path = FIRMWARE / "include") -> str:
    """Compile the test of the library and print what it finds on this computer."""
    name, *options = command.split()
    (folder / "prints.c").write_text(PRINTS)
    made, built = folder / "exact.o", folder / "prints"
    source = FIRMWARE / "kernels" / "exact.c"
    compile_it = [compiler(name), *options, f"-I{include}", "-c", str(source), "-o", str(made)]
    subprocess.run(compile_it, check=True)
    link = ["cc", f"-I{include}", str(folder / "prints.c"), str(made), "-o", str(built)]
    subprocess.run(link, check=True)
    return subprocess.run([built], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif("fma" not in PROCESSOR, reason="the processor has no fused operations")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("gcc -std=gnu11 -O2 -mfma", "exact"),
        ("gcc -std=gnu11 -O3 -mfma -ffp-contract=fast -ffast-math", "exact"),
        ("clang -std=gnu11 -O2 -mfma", "exact"),
        ("clang -O2 -mfma -ffp-contract=fast", "inexact"),
        ("clang -O2 -ffast-math", "inexact"),
        ("clang -O2 -ffinite-math-only", "inexact"),
        ("clang -O2 -fassociative-math -fno-signed-zeros -fno-trapping-math", "inexact"),
        ("clang -O2 -freciprocal-math", "inexact"),
        ("clang -O2 -fno-signed-zeros", "inexact"),
        ("gcc -O2 -mfpmath=387", "inexact"),
    ],
)
def test_options_are_prevented_or_noticed(command: str, expected: str, tmp_path: Path) -> None:
    assert answer(tmp_path, command) == expected


@pytest.mark.skipif("fma" not in PROCESSOR, reason="the processor has no fused operations")
@pytest.mark.parametrize("options", ["-mfma", "-ffast-math", "-mfma -ffp-contract=fast"])
def test_what_the_header_prevents_would_be_noticed(options: str, tmp_path: Path) -> None:
    text = (FIRMWARE / "include/poet/exact.h").read_text()
    (tmp_path / "poet").mkdir()
    without = re.sub(r"#ifdef __clang__.*?#endif", "", text, count=1, flags=re.S)
    (tmp_path / "poet" / "exact.h").write_text(without)
    assert answer(tmp_path, f"gcc -std=gnu11 -O2 {options}", tmp_path) == "inexact"


@pytest.mark.parametrize("option", ["-freciprocal-math", "-fno-signed-zeros"])
def test_the_header_keeps_gccs_quotients_and_zeros(option: str) -> None:
    """Which exact.c does not test, since GCC has macros for these options."""
    text = """#include "poet/exact.h"
    float quotient(float x) { return x / 3.0f; }
    float sum(float x) { return x + 0.0f; }
    """
    command = [compiler("gcc"), "-O2", f"-I{FIRMWARE / 'include'}", "-S", "-o", "-", "-xc", "-"]
    plain, other = (
        subprocess.run([*command, *it], input=text, capture_output=True, text=True, check=True)
        for it in ([], [option])
    )
    assert other.stdout == plain.stdout


@pytest.mark.skipif("sse2" not in PROCESSOR, reason="the processor has another register of modes")
@pytest.mark.parametrize("mode", MODES)
def test_a_board_refuses_modes_that_change_results(mode: int, tmp_path: Path) -> None:
    set_mode = mode_setter(tmp_path)
    board, other, fresh = trained(card()), trained(card()), MemoryBoard(card())
    fresh.format()

    def refused(call: object, *arguments: object) -> str:
        set_mode(USUAL | mode)
        try:
            return refusal(call, *arguments).name  # type: ignore[arg-type]
        finally:
            set_mode(USUAL)

    assert refused(load, fresh) == "inexact"
    assert refused(board.step, 1) == "inexact"
    assert board.step(1)["loss"] == other.step(1)["loss"]
    assert refused(load, board) == "inexact"
    assert refusal(board.step, 2).name == "no_schedule"
    load(board)
    assert weights(board) == weights(other)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no cross compiler")
@pytest.mark.parametrize("core", ["m0plus", "m4f"])
def test_modes_of_an_fpu_are_noticed(core: str, tmp_path: Path) -> None:
    flags = [f"-I{FIRMWARE / 'include'}", str(FIRMWARE / "kernels" / "exact.c")]
    found = run(bare(core, build(core, "modes.c", tmp_path, *flags)))
    wrong = "no" if core == "m4f" else "yes"  # a Cortex-M0+ has no FPU
    assert (found.code, found.text.split()) == (0, ["yes", *[wrong] * 7])
