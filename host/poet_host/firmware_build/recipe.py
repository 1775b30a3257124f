"""Read from firmware/build.toml how the firmware of a bare-metal board is built.

This module needs the standard library only, because PlatformIO's builder imports it into its own
Python.
"""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, PoetError
from ..files import parse_toml, read_text
from ..resources import resource


@dataclass(frozen=True)
class Recipe:
    """Paths and flags for building the firmware image of one board."""

    board: str
    chip: str
    compiler: str
    package: str  # PlatformIO's package of the compiler, with its version
    core: tuple[str, ...]  # flags for compiling and linking
    compile: tuple[str, ...]  # flags of compiling
    link: tuple[str, ...]  # flags of linking
    libraries: tuple[str, ...]
    include: tuple[Path, ...]
    sources: tuple[Path, ...]  # in the order of linking
    script: Path  # linker script
    script_folders: tuple[Path, ...]
    optimise: dict[Path, str]  # optimisation flags of sources, or of folders of sources

    def flags(self, source: Path) -> tuple[str, ...]:
        """Return the flags for compiling one source, without the folders of headers (-I)."""
        how = next(self.optimise[it] for it in (source, *source.parents) if it in self.optimise)
        return (*self.core, *self.compile, *how.split())

    @property
    def headers(self) -> list[Path]:
        """Return all files that the sources and the linker script may include."""
        suffixes = (".h", ".def", ".ld")
        found = (p for p in resource("firmware").rglob("*") if p.suffix in suffixes)
        return sorted(found)


def c_files(folder: Path) -> list[Path]:
    """Return the C files of a folder and of folders in it, by name: this is the order of linking.

    A file that moves between folders does not change an image.
    """
    return sorted(folder.rglob("*.c"), key=lambda path: path.name)


def simulated_boards() -> list[str]:
    """Return the names of the boards with a bare-metal port and a simulated chip, sorted."""
    return sorted(path.parent.name for path in resource("boards").glob("*/chip.toml"))


def recipe(board: str, defines: Sequence[str] | None = None) -> Recipe:
    """Return the recipe of a board, with macros (`NAME=value`). None: those of the standard image.

    Raises BadInput if the board has no bare-metal port, or a name that its firmware cannot send.
    """
    if board not in simulated_boards():
        raise BadInput(
            f"the board {board} has no firmware image: choose one of "
            f"{', '.join(simulated_boards())}"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,16}", board):
        raise BadInput(
            f"boards/{board}: rename the folder, since the name of a board with firmware has at "
            "most 16 characters, which are letters, digits, - and _"
        )
    firmware = resource("firmware")
    table = tomllib.loads((firmware / "build.toml").read_text("utf-8"))
    path = resource("boards") / board / "chip.toml"
    chip = parse_toml(read_text(path), str(path)).get("chip")
    if not isinstance(chip, str) or chip not in table["core"]:
        raise BadInput(f"{path}, at $.chip: the chip must be one of {', '.join(table['core'])}")

    def paths(names: list[str]) -> tuple[Path, ...]:
        return tuple(firmware / name.format(chip=chip) for name in names)

    defines = table["standard"].get(chip, ()) if defines is None else defines
    optimise = table["optimise"] | table["optimise_chip"].get(chip, {})
    return Recipe(
        board,
        chip,
        table["compiler"],
        f"platformio/{table['package']}@{table['package_version']}",
        tuple(table["core"][chip]),
        (*(it.format(board=board) for it in table["compile"]), *(f"-D{it}" for it in defines)),
        tuple(table["link"]),
        tuple(table["libraries"]),
        paths(table["include"]),
        tuple(p for folder in paths(table["sources"]) for p in c_files(folder)),
        paths([table["script"]])[0],
        paths(table["script_folders"]),
        dict(zip(paths(list(optimise)), optimise.values(), strict=True)),
    )


def find_compiler(made: Recipe) -> str:
    """Return the path of the cross compiler: from the PATH, otherwise from PlatformIO's package.

    Raises PoetError, with advice what to install, if neither has the compiler.
    """
    if on_path := shutil.which(made.compiler):
        return on_path
    core = os.environ.get("PLATFORMIO_CORE_DIR")
    packages = (Path(core) if core else Path.home() / ".platformio") / "packages"
    name = made.package.partition("/")[2].partition("@")[0]
    for folder in sorted(packages.glob(f"{name}*"), reverse=True):
        if found := shutil.which(made.compiler, path=str(folder / "bin")):
            return found
    raise PoetError(
        f"the compiler {made.compiler} for {made.board} is not on the PATH: try 'apt "
        "install gcc-arm-none-eabi libnewlib-arm-none-eabi', or, without root, 'pip install "
        f"platformio' and 'pio pkg install --global --tool {made.package}'"
    )


def compiler_tool(name: str) -> str:
    """Return the path of a program next to the cross compiler, which is the same for all boards.

    Raises PoetError, with advice what to install, if it is missing.
    """
    compiler = Path(find_compiler(recipe(simulated_boards()[0])))
    path = compiler.with_name(compiler.name.replace("gcc", name))
    if not path.exists():
        raise PoetError(f"{path} is missing: install {compiler.name} again, which has it")
    return str(path)


def compiler_version(made: Recipe) -> str:
    """Return the compiler's version, such as `12.2.1`. Raises PoetError if it is not installed."""
    asked = [find_compiler(made), "-dumpfullversion"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
