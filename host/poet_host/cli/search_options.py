"""Options of the commands that search for plans."""

import click

from ..errors import BadInput
from ..plan.problem import DEFAULT_OBJECTIVE, OBJECTIVES
from ..solver.settings import DEFAULT_SETTINGS
from ..work import UNITS_PER_S
from .options import FiniteRange

time_limit_option = click.option(
    "--time-limit", type=FiniteRange(0.1), show_default="60", metavar="S",
    help="Time limit of making a plan, in seconds: pricing of streamed operators and search. "
    "Methods other than poet's count their work instead, in seconds of an idle computer.",
)  # fmt: skip
work_limit_option = click.option(
    "--work-limit", type=FiniteRange(1), metavar="N",
    help="Stop after N units of counted work, instead of --time-limit. The searches run in turn, "
    "and equal input gives equal plans on every computer. 1,000 units take roughly a second.",
)  # fmt: skip
objective_option = click.option(
    "--objective", type=click.Choice(OBJECTIVES), default=DEFAULT_OBJECTIVE, show_default=True,
    metavar="WHAT",
    help="What the plan minimises: energy (all that the battery loses in a step), added-energy "
    "(the same without the power of the sleeping board) or time.",
)  # fmt: skip


def search_limit(time_limit_s: float | None, work_limit: float | None) -> tuple[float, bool]:
    """Return the limit of a search in seconds, and whether these are seconds of counted work."""
    if work_limit is None:
        return (DEFAULT_SETTINGS.time_limit_s if time_limit_s is None else time_limit_s), False
    if time_limit_s is not None:
        raise BadInput("--time-limit and --work-limit exclude each other: omit one")
    return work_limit / UNITS_PER_S, True
