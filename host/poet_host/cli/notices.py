"""What several commands say of data, boards and cards, beside their own results."""

from typing import Any

from .. import api
from ..run.data import Dataset
from ..schedule.schedule import Schedule
from .console import say


def say_classes(dataset: Dataset) -> None:
    """Which numbers a table's words became: another table may have others."""
    if dataset.classes:
        say(f"classes: {', '.join(f'{i} {name}' for i, name in enumerate(dataset.classes))}")


def say_replaced(held: Any, schedule: Schedule) -> None:
    """What becomes of the weights of another model on a card that `held`, its board's hello, told
    of."""
    if held.committed_model not in (0, schedule.model.crc):
        say(
            f"the card held the weights of another model after {held.committed_step} steps: they "
            "are replaced"
        )


def say_emulated(connection: api.Connection) -> None:
    """Whose times they are, where they are not the board's."""
    if connection.is_emulated:
        say(
            f"QEMU executes the program of {connection.board.name} here: results are the board's, "
            "times are not"
        )
