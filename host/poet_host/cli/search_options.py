"""Options of the commands that search for plans."""

from dataclasses import dataclass

import click

from ..errors import BadInput
from ..plan.problem import DEFAULT_OBJECTIVE, OBJECTIVES, Objective
from ..solver.settings import DEFAULT_SETTINGS
from ..work import UNITS_PER_S
from .declared import option
from .options import FiniteRange


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search minimises, and when it ends."""

    objective: Objective = option(
        type=click.Choice(OBJECTIVES), default=DEFAULT_OBJECTIVE, show_default=True, metavar="WHAT",
        help="What the plan minimises: energy (all that the battery loses in a step), "
        "added-energy (the same without the power of the sleeping board) or time.",
    )  # fmt: skip
    time_limit: float | None = option(
        type=FiniteRange(0.1), show_default="60", metavar="S",
        help="Time limit of making a plan, in seconds: pricing of streamed operators and search. "
        "Methods other than poet's count their work instead, in seconds of an idle computer.",
    )  # fmt: skip
    work_limit: float | None = option(
        type=FiniteRange(1), metavar="N",
        help="Stop after N units of counted work, instead of --time-limit. The searches run in "
        "turn, and equal input gives equal plans on every computer. 1,000 units take roughly a "
        "second.",
    )  # fmt: skip

    def limit(self) -> tuple[float, bool]:
        """Return the limit in seconds, and whether these are seconds of counted work."""
        if self.work_limit is None:
            default_s = DEFAULT_SETTINGS.time_limit_s
            return (default_s if self.time_limit is None else self.time_limit), False
        if self.time_limit is not None:
            raise BadInput("--time-limit and --work-limit exclude each other: omit one")
        return self.work_limit / UNITS_PER_S, True
