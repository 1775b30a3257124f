"""Program: a mixed-integer program as arrays, and its minimisation with HiGHS.

Objectives are scaled before they are passed on: energies of 1e-8 J would vanish in the
absolute tolerances of any solver.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, Literal

import highspy
import numpy as np

INFINITY = float("inf")
SCALE = 1000.0  # the objective's order of magnitude inside the solver
TOLERANCE = 1e-9  # relative, of energies and times

ATTAINABLE_BITS = 1 << 25  # of effort; larger rooms are left as they are

Term = tuple[int, float]
Outcome = Literal["optimal", "stopped", "infeasible"]
_Highs: Any = highspy.Highs
Watch = Callable[[float, "np.ndarray[Any, Any] | None"], bool]
News = Callable[[], "np.ndarray[Any, Any] | None"]


@dataclass(frozen=True)
class Result:
    """`values` None: no solution was found. `bound` holds whatever stopped the search."""

    outcome: Outcome
    values: "np.ndarray[Any, Any] | None"
    objective: float
    bound: float


@dataclass
class Program:
    """Minimise offset + cost x, lower <= x <= upper, row_lower <= A x <= row_upper."""

    offset: float = 0.0
    cost: "array[float]" = field(default_factory=lambda: array("d"))
    lower: "array[float]" = field(default_factory=lambda: array("d"))
    upper: "array[float]" = field(default_factory=lambda: array("d"))
    starts: "array[int]" = field(default_factory=lambda: array("i", [0]))
    columns: "array[int]" = field(default_factory=lambda: array("i"))
    coefficients: "array[float]" = field(default_factory=lambda: array("d"))
    row_lower: "array[float]" = field(default_factory=lambda: array("d"))
    row_upper: "array[float]" = field(default_factory=lambda: array("d"))

    def binary(self, cost: float = 0.0, upper: float = 1.0) -> int:
        """Add a variable in {0, 1} and return its column."""
        self.cost.append(cost)
        self.lower.append(0.0)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, terms: Iterable[Term], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """Add lower <= sum of coefficient x column <= upper."""
        for column, coefficient in terms:
            self.columns.append(column)
            self.coefficients.append(coefficient)
        self._close(lower, upper)

    def knapsack(self, columns: Sequence[int], sizes: Sequence[int], room: int) -> None:
        """Add sum of size x column <= room unless it always holds."""
        if room < 0:
            self.never()
        elif sum(sizes) > room:
            self.at_most(zip(columns, sizes, strict=True), room, room)

    def at_most(self, terms: Iterable[Term], limit: float, scale: float) -> None:
        """Add sum of coefficient x column <= limit, in units of a thousandth of `scale`.

        The solver's tolerance is absolute; so scaled it is less than a byte or microsecond.
        """
        unit = max(scale, 1.0) / SCALE
        self.row([(column, size / unit) for column, size in terms if size], upper=limit / unit)

    def never(self) -> None:
        """Add a row that cannot hold."""
        self.row([], lower=1.0)

    def _close(self, lower: float, upper: float) -> None:
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def fix(self, column: int, value: float) -> None:
        self.lower[column] = self.upper[column] = value

    @property
    def shape(self) -> tuple[int, int, int]:
        """Columns, rows and non-zeros."""
        return len(self.cost), len(self.row_lower), len(self.columns)


def attainable(sizes: Sequence[int], room: int) -> int:
    """The largest sum of some of the sizes that is within the room; the room if unknown."""
    unit = gcd(*sizes)
    if room <= 0 or unit == 0 or sum(sizes) <= room or room // unit * len(sizes) > ATTAINABLE_BITS:
        return room
    mask = (1 << (room // unit + 1)) - 1
    sums = 1
    for size in sizes:
        sums |= (sums << size // unit) & mask
    return (sums.bit_length() - 1) * unit


def minimise(
    program: Program,
    time_limit_s: float,
    *,
    gap: float = 0.0,
    slack: float = 0.0,
    start: "np.ndarray[Any, Any] | None" = None,
    integer: bool = True,
    watch: Watch | None = None,
    news: News | None = None,
) -> Result:
    """Minimise with one thread and a fixed seed, so that equal input gives equal output.

    `start`: a solution to begin from, if it is one. `watch` is called now and then with the
    bound and with each better solution; returning True stops the search. `integer` False:
    the linear relaxation.
    """
    if not program.cost:
        return _without_columns(program)
    largest = max([abs(program.offset), *map(abs, program.cost)])
    scale = SCALE / largest if largest > 0 else 1.0
    solver: Any = _Highs()
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 1,
        "time_limit": max(time_limit_s, 0.0),
        "mip_rel_gap": gap,
        "mip_abs_gap": max(SCALE * TOLERANCE / 10, slack * scale),
        "mip_feasibility_tolerance": 1e-7,
        "primal_feasibility_tolerance": 1e-8,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_highs_model(program, scale, integer))
    if start is not None:
        solver.setSolution(len(start), np.arange(len(start), dtype=np.int32), start)

    def on_interrupt(event: Any) -> None:
        bound = event.data_out.mip_dual_bound / scale if integer else -INFINITY
        if watch is not None and watch(bound, None):
            event.data_in.user_interrupt = 1

    def on_solution(event: Any) -> None:
        if watch is not None:
            watch(event.data_out.mip_dual_bound / scale, np.array(event.data_out.mip_solution))

    def on_chance(event: Any) -> None:
        values = news() if news is not None else None
        if values is not None:
            event.data_in.setSolution(values)

    if integer:
        solver.cbMipInterrupt += on_interrupt
        solver.cbMipImprovingSolution += on_solution
        if news is not None:
            solver.cbMipUserSolution += on_chance
    else:
        solver.cbSimplexInterrupt += on_interrupt
    solver.run()
    return _result(solver, scale, integer)


def _highs_model(program: Program, scale: float, integer: bool) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    columns, rows, _ = program.shape
    lp.num_col_, lp.num_row_ = columns, rows
    lp.offset_ = program.offset * scale
    lp.col_cost_ = np.array(program.cost) * scale
    lp.col_lower_ = np.array(program.lower)
    lp.col_upper_ = np.array(program.upper)
    lp.row_lower_ = np.array(program.row_lower)
    lp.row_upper_ = np.array(program.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(program.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(program.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(program.coefficients)
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    return lp


def _without_columns(program: Program) -> Result:
    feasible = all(
        low <= TOLERANCE and high >= -TOLERANCE
        for low, high in zip(program.row_lower, program.row_upper, strict=True)
    )
    if feasible:
        return Result("optimal", np.zeros(0), program.offset, program.offset)
    return Result("infeasible", None, INFINITY, INFINITY)


def _result(solver: Any, scale: float, integer: bool) -> Result:
    status, info = solver.getModelStatus(), solver.getInfo()
    kinds = highspy.HighsModelStatus
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return Result("infeasible", None, INFINITY, INFINITY)
    done = status == kinds.kOptimal
    objective = info.objective_function_value / scale
    bound = info.mip_dual_bound / scale if integer else (objective if done else -INFINITY)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Result("stopped", None, INFINITY, bound)
    values = np.array(solver.getSolution().col_value)
    return Result("optimal" if done else "stopped", values, objective, bound)
