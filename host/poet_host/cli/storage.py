"""The command `storage`."""

from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from ..sizes import size_bytes
from .console import Answer, say
from .declared import argument, takes
from .written import WRITTEN_FILE


@click.group()
def storage() -> None:
    """Create card images for boards that run on this computer."""


@storage.command()
@takes
def prepare(
    file: Path = argument(type=WRITTEN_FILE),
    size: str = "64MiB",
    force: bool = False,
) -> Answer:
    """Create FILE, a card image with an empty partition for poet-host.

    --size SIZE  Size of the image: bytes, or a size such as 64MiB. The file takes disk space only
        for blocks that have been written.
    --force  Replace an existing file. All weights in it are lost.
    """
    check_image(file)
    if file.exists() and not force:
        held, step = "", api.committed_step(file)
        if step is not None:
            held = (
                f" and holds the weights of step {step:,}: save them with `poet-host card export`"
            )
        raise BadInput(
            f"{file} already exists{held}: choose another name, or replace it with --force"
        )
    image_bytes = size_bytes(size, "--size")
    api.prepare_storage(file, image_bytes)
    say(f"wrote {file}: a card image of {image_bytes:,} bytes")
    return Answer({"file": str(file), "size_bytes": image_bytes})


def check_image(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadInput(
            f"{path} is not a regular file. Write an image file, find the device of the card with "
            "lsblk, unmount it, and copy the image with `sudo dd if=card.img of=/dev/CARD bs=1M "
            "conv=fsync`"
        )
