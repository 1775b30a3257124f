"""The command `storage`."""

from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from ..sizes import size_bytes
from .console import emit, say
from .options import json_option


@click.group()
def storage() -> None:
    """Empty card images, for boards that run here."""


@storage.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--size", default="64MiB", show_default=True, metavar="SIZE")
@click.option("--force", is_flag=True, help="Replace a file that exists: its weights are lost.")
@json_option
def prepare(file: Path, size: str, force: bool, as_json: bool) -> None:
    """Make FILE a card image with an empty poet partition."""
    only_files(file)
    if file.exists() and not force:
        raise BadInput(f"{file} exists: choose another name, or replace it with --force")
    asked_bytes = size_bytes(size, "--size")
    api.prepare_storage(file, asked_bytes)
    say(f"wrote {file}: {asked_bytes:,} bytes, which fill up as they are used")
    if as_json:
        emit({"file": str(file), "size_bytes": asked_bytes})


def only_files(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadInput(
            f"{path} is no file: make an image, see with lsblk which device the card is and that "
            "none of it is mounted, and copy it with `sudo dd if=card.img of=/dev/CARD bs=1M "
            "conv=fsync`"
        )
