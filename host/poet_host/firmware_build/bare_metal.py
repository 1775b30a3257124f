"""Build the firmware image of a bare-metal board, in the user's cache folder."""

from collections.abc import Collection
from pathlib import Path

from .. import isa
from .compile import compiled
from .recipe import find_compiler, recipe


def build_firmware(board: str, kernels: Collection[str] | None = None) -> Path:
    """Return the ELF image of a board, compiled if it is not in the cache.

    `kernels`: the names of the kernels that it has; None: all for which the chip has room.
    Raises BadInput for a board without a bare-metal port, and PoetError if the cross compiler is
    missing or fails.
    """
    masks = None
    if kernels is not None:
        masks = [f"{name}={value}" for name, value in isa.kernel_masks(kernels).items()]
    made = recipe(board, masks)
    compiler = find_compiler(made)
    include = [f"-I{folder}" for folder in made.include]
    return compiled(
        f"{board}.elf",
        [
            *(compiler, *made.core, *made.link),
            *(f"-L{folder}" for folder in made.script_folders),
            f"-T{made.script}",
        ],
        made.sources,
        made.headers,
        [f"-l{name}" for name in made.libraries],
        objects=[[compiler, *made.flags(source), *include] for source in made.sources],
        missing=f"{made.compiler} is no longer there: install it again",
    )
