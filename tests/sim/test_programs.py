"""An application of the library with a schedule in program flash, on both cores."""

import zlib
from pathlib import Path

import pytest
from poet_host.firmware_build.compile import c_files
from poet_host.resources import resource
from support import toy
from support.sim_helper import CORES, bare, build, needs_compiler, run, words
from support.toy_boards import truth

FIRMWARE = resource("firmware")
KIND = "in RAM"
STEPS = 3


def array(name: str, data: bytes) -> str:
    numbers = ",".join(map(str, data))
    return f"static const uint8_t {name}[] = {{{numbers}}};\n"


def toy_header() -> str:
    """The toy's schedule and tensors of seed 1 as C."""
    schedule, values = toy.schedule(KIND), toy.values(1, KIND)
    text = "#include <stdint.h>\n"
    text += array("model", schedule.model_part) + array("plan", schedule.plan_part)
    text += "".join(array(f"value_{n}", data) for n, data in enumerate(values))
    names = ",".join(f"value_{n}" for n in range(len(values)))
    text += f"static const uint8_t *const values[] = {{{names}}};\n"
    text += f"static const uint32_t sizes[] = {{{','.join(str(len(it)) for it in values)}}};\n"
    return text + f"enum {{ ARENA_BYTES = {schedule.header.arena_bytes}, STEPS = {STEPS} }};\n"


@needs_compiler
@pytest.mark.parametrize("storage", [(), ("-DARENA_ONLY",)])
@pytest.mark.parametrize("core", list(CORES))
def test_a_program_in_flash_has_the_bits_of_the_host(
    core: str, storage: tuple[str, ...], tmp_path: Path
) -> None:
    """Compiled with no options but -std=gnu11 -O2, and the folders of the headers."""
    (tmp_path / "toy.h").write_text(toy_header())
    folders = [FIRMWARE / name for name in ("include", "src", "kernels")]
    options = [f"-I{folder}" for folder in (tmp_path, *folders[:2])]
    options += ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", *storage]
    sources = [str(path) for folder in folders for path in c_files(folder)]
    found = run(bare(core, build(core, "program.c", tmp_path, *options, *sources)))
    wanted = [zlib.crc32(data) for weights in truth()[1 : STEPS + 1] for data in weights]
    assert (found.code, words(found.text)) == (0, wanted), found.message
