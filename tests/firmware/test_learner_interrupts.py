"""Calls of a learner from an interrupt, on both cores."""

import shutil
from pathlib import Path

import pytest
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource
from support.sim_helper import bare, build, run


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no cross compiler")
@pytest.mark.parametrize("core", ["m0plus", "m4f"])
def test_a_call_from_an_interrupt_is_refused(core: str, tmp_path: Path) -> None:
    firmware = resource("firmware")
    folders = [firmware / it for it in ("src", "kernels")]
    sources = [str(path) for folder in folders for path in c_files(folder)]
    options = ["-Os", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-fno-builtin"]
    include = [f"-I{firmware / it}" for it in ("include", "src")]
    found = run(bare(core, build(core, "learner.c", tmp_path, *options, *include, *sources)))
    first, inside = found.text.split()[:11], found.text.split()[11:]
    assert (found.code, first) == (0, ["package", *["closed"] * 10])
    assert inside == ["reentered"] * 11
