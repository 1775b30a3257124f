"""What several commands say about data and boards, and the RAM that they give a native board."""

from pathlib import Path

from .. import api
from ..data.classes import Classes
from ..run.card import arena_of_card
from ..schedule.schedule import Schedule
from .console import say


def say_classes(classes: Classes) -> None:
    """Say which number each word of a table has."""
    if classes:
        say(f"classes: {', '.join(f'{i} {name}' for i, name in enumerate(classes))}")


def say_emulated(connection: api.Connection) -> None:
    """Whose times they are, where they are not the board's."""
    if connection.is_emulated:
        say(
            f"QEMU executes the program of {connection.board.name} here: results are the board's, "
            "times are not"
        )


def arena_bytes(schedule: Schedule, port: str | None, storage: Path | None) -> int | None:
    """RAM of a native board for a schedule; None for other boards, which have their own.

    It also suffices for the plan on the card `storage`, whose weights may have another layout.
    """
    if port not in (None, "native"):
        return None
    needed: int = schedule.meta["plan"]["ram_bytes"]
    if storage is None or not storage.is_file():
        return needed
    with api.connect("native", storage=storage) as connection:
        return max(needed, arena_of_card(connection.device))
