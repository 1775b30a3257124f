"""Scaling: the unit in which HiGHS sees an objective.

HiGHS's tolerances are absolute. In this unit, energies of 1e-8 J do not vanish in them. All costs
would vanish next to a much larger one, so what no solution of interest can pay is left out. If such
a solution is not known yet, bounds that are not much larger than the tolerances are lowered.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..plan.problem import TOLERANCE

if TYPE_CHECKING:
    from .program import Program

OBJECTIVE_SCALE = 1000.0  # the largest coefficient of a scaled objective
DUAL_TOLERANCE = 1e-7  # HiGHS's error of a scaled bound, for each column


def within(program: "Program", value: float) -> "Program":
    """Return the program without binary variables that alone cost more than `value`: each is 0.

    All solutions of at most this value remain, if no cost is negative.
    """
    worst = value * (1 + TOLERANCE)
    dear = [i for i, cost in enumerate(program.cost) if cost > worst and program.is_integer[i]]
    cost, upper = program.cost[:], program.upper[:]
    for column in dear:
        cost[column] = upper[column] = 0.0
    return replace(program, cost=cost, upper=upper) if dear else program


@dataclass(frozen=True)
class Scale:
    """The objective that HiGHS sees is `factor` times that of the program."""

    factor: float
    columns: int

    @classmethod
    def of(cls, program: "Program") -> "Scale":
        largest = max([abs(program.offset), *map(abs, program.cost)])
        return cls(OBJECTIVE_SCALE / largest if largest > 0 else 1.0, len(program.cost))

    def bound(self, scaled: float) -> float:
        """Return a bound of the program's objective, which is not negative."""
        if 0.0 < scaled * TOLERANCE < DUAL_TOLERANCE:
            scaled = max(0.0, scaled - self.columns * DUAL_TOLERANCE)
        return scaled / self.factor
