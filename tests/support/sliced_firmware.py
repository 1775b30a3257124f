"""The serial firmware of a board, with steps in slices: sim/programs/sliced_steps.c."""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from poet_host.firmware_build.recipe import find_compiler, recipe
from poet_host.isa import kernel_masks
from support.sim_helper import FOLDER

WRAP = FOLDER / "sliced_steps.c"


def sliced_firmware(board: str, folder: Path, kernels: Collection[str]) -> Path:
    """Build the image in `folder`. The library needs RAM of the cached blocks."""
    made = recipe(board, [f"{name}={value}" for name, value in kernel_masks(kernels).items()])
    sizes = made.include[-1] / "sizes.h"
    text = re.sub(r"(?<=BOARD_CACHE )\d+", lambda it: str(int(it[0]) - 2), sizes.read_text())
    (folder / "sizes.h").write_text(text)
    include = [f"-I{it}" for it in (folder, *made.include)]
    compiler, objects = find_compiler(made), []
    for number, source in enumerate((*made.sources, WRAP)):
        like = made.sources[-1] if source == WRAP else source
        flags = [flag for flag in made.flags(like) if flag != "-DPOET_LIBRARY=0"]
        objects.append(str(folder / f"{number}-{source.stem}.o"))
        command = [compiler, *flags, *include, "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    image = folder / f"{board}.elf"
    link = [compiler, *made.core, *made.link, "-Wl,--wrap=poet_step"]
    link += [*(f"-L{it}" for it in made.script_folders), f"-T{made.script}"]
    link += [*objects, *(f"-l{it}" for it in made.libraries), "-o", str(image)]
    subprocess.run(link, check=True)
    return image
