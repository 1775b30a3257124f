"""The firmware with one of its precautions taken out, to show that a rule of the model needs it."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from poet_host.firmware_build.recipe import Recipe, find_compiler, recipe
from poet_host.resources import resource

Change = tuple[str, str]
_FOLDER = tempfile.TemporaryDirectory(prefix="poet-reverted-")


def changed_copy(source: Path, folder: Path, file: str, old: str, new: str) -> Path:
    """Copy `source` into `folder`. In `file` of the copy, replace `old` once."""
    copy = Path(shutil.copytree(source, folder / source.name))
    text = (copy / file).read_text()
    assert old in text, (file, old)
    (copy / file).write_text(text.replace(old, new, 1))
    return copy


def _compile(made: Recipe, source: Path, like: Path, to: Path) -> None:
    """Compile `source` as the firmware compiles its source `like`."""
    include = [f"-I{folder}" for folder in (*made.include, like.parent)]
    command = [find_compiler(made), *made.flags(like), *include, "-c", str(source), "-o", str(to)]
    subprocess.run(command, check=True)


@cache
def _objects(board: str) -> dict[Path, Path]:
    """Compile all sources of a board once; the object file of each."""
    made = recipe(board)
    found = {}
    for number, source in enumerate(made.sources):
        found[source] = Path(_FOLDER.name) / f"{board}-{number}.o"
        _compile(made, source, source, found[source])
    return found


def without(folder: Path, board: str, changes: Mapping[str, Sequence[Change]]) -> Path:
    """Build the firmware after changes: by C file of firmware/port, pairs of old and new text."""
    made = recipe(board)
    objects = dict(_objects(board))
    for file, pairs in changes.items():
        path = resource("firmware") / "port" / file
        text = path.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        changed, objects[path] = folder / path.name, folder / f"{path.stem}.o"
        changed.write_text(text)
        _compile(made, changed, path, objects[path])
    image = folder / f"{board}.elf"
    where = [f"-L{folder}" for folder in made.script_folders]
    link = [find_compiler(made), *made.core, *made.link, *where, f"-T{made.script}"]
    libraries = [f"-l{name}" for name in made.libraries]
    parts = [str(objects[source]) for source in made.sources]
    subprocess.run([*link, *parts, *libraries, "-o", str(image)], check=True)
    return image
