"""The stack that a learner needs in images of a user, and the RAM of its struct."""

import subprocess
from pathlib import Path

import pytest
from fuzz.learner_chip_cuts import BOARDS, build
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.ledger import ledger_text, memory_ledger
from poet_host.firmware_build.stack import deepest_call
from poet_host.package.sizes import LEARNER_BYTES, STACK_BYTES
from poet_host.resources import resource
from support.sim_helper import CORES, needs_compiler


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("board", BOARDS)
def test_the_stack_of_an_application_has_a_bound(board: str, tmp_path: Path) -> None:
    elf = build(board, tmp_path)
    image, found = read_elf(elf), memory_ledger(board, elf)
    deepest = deepest_call(image, "poet_learner_")
    assert found.stack_bound_bytes is not None
    assert 1000 < deepest <= min(STACK_BYTES[BOARDS[board][0]], found.stack_bound_bytes)
    assert found.stack_bound_bytes <= found.ram["stack"]

    small = build(board, tmp_path, "-Wl,--defsym=APPLICATION_STACK_BYTES=1024")
    assert "APPLICATION_STACK_BYTES" in ledger_text([memory_ledger(board, small)])


@needs_compiler
@pytest.mark.parametrize("core", list(CORES))
def test_a_learner_has_the_bytes_that_a_package_states(core: str) -> None:
    source = f"""#include "poet/learner.h"
_Static_assert(sizeof(struct poet_learner) == {LEARNER_BYTES}, "");"""
    subprocess.run(
        ["arm-none-eabi-gcc", "-mthumb", *CORES[core], f"-I{resource('firmware') / 'include'}",
         "-fsyntax-only", "-xc", "-"],
        input=source, text=True, check=True,
    )  # fmt: skip
