"""What several commands say about data and boards, in addition to their own results."""

from .. import api
from ..run.classes import Classes
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
