"""Program: a mixed-integer program as arrays, and its minimisation with HiGHS."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from operator import lt
from typing import Any, Literal

import highspy
import numpy as np

from .. import work
from ..plan.problem import TOLERANCE, CostNode
from .scaling import OBJECTIVE_SCALE, Scale, within
from .workers import ends_within

INFINITY = float("inf")
# A worker ends itself if HiGHS takes longer than the time limit x LATE_FACTOR + LATE_S.
LATE_FACTOR, LATE_S = 1.5, 5.0
# The same for counted work, whose seconds do not end HiGHS. Only a hang takes so long.
COUNTED_HANG_S = 600.0
# Counted work: of each iteration of HiGHS, of each non-zero that it reads, and of the part of a
# search that ends with a look at its limits: a constant, and for each column that may vary.
ITERATION_S, NONZERO_S = 400e-6, 1.5e-6
CHECK_S, CHECK_S_PER_COLUMN = 1e-3, 15e-6
ROW_TOLERANCE = 1e-6  # of a row's sum, in `Program.violated_rows`
MAX_ATTAINABLE_BITS = 1 << 25  # largest number of bit operations in `attainable`

Values = Any  # NumPy array: the value of each column in a solution
Term = tuple[int, float]  # column, coefficient
Outcome = Literal["optimal", "stopped", "infeasible"]
_Highs: Any = highspy.Highs
OnProgress = Callable[[float, Values | None], bool]
"""Called with the bound, and with each better solution. True stops the search."""
ReceiveSolution = Callable[[], Values | None]
"""Returns a solution of another search for the solver to use; None if there is no new solution."""


@dataclass(frozen=True)
class Result:
    """The result of a minimisation."""

    outcome: Outcome
    values: Values | None  # None: no solution was found
    objective: float
    bound: float  # lower bound of the objective, valid even if the search was stopped


@dataclass
class Program:
    """Minimise offset + cost x, where lower <= x <= upper and row_lower <= A x <= row_upper."""

    offset: float = 0.0
    cost: "array[float]" = field(default_factory=lambda: array("d"))
    is_integer: bytearray = field(default_factory=bytearray)
    lower: "array[float]" = field(default_factory=lambda: array("d"))
    upper: "array[float]" = field(default_factory=lambda: array("d"))
    row_starts: "array[int]" = field(default_factory=lambda: array("i", [0]))
    columns: "array[int]" = field(default_factory=lambda: array("i"))
    coefficients: "array[float]" = field(default_factory=lambda: array("d"))
    row_lower: "array[float]" = field(default_factory=lambda: array("d"))
    row_upper: "array[float]" = field(default_factory=lambda: array("d"))

    def binary(self, cost: float = 0.0) -> int:
        """Add a variable in {0, 1} and return its column."""
        return self._column(cost, 0.0, 1.0, True)

    def number(self, cost: float, lower: float, upper: float) -> int:
        """Add a variable that need not be integral and return its column."""
        return self._column(cost, lower, upper, False)

    def _column(self, cost: float, lower: float, upper: float, is_integer: bool) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.cost) - 1

    def row(self, terms: Iterable[Term], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """Add the constraint lower <= sum of coefficient x column <= upper.

        Terms of the same column are added up, because HiGHS refuses a row that has a column twice.
        """
        sums: dict[int, float] = {}
        for column, coefficient in terms:
            sums[column] = sums.get(column, 0.0) + coefficient
        self.columns.extend(sums.keys())
        self.coefficients.extend(sums.values())
        self.row_starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def knapsack(self, columns: Sequence[int], sizes: Sequence[int], capacity: int) -> None:
        """Add the constraint sum of size x column <= capacity, unless it always holds.

        The capacity is lowered to the largest sum of sizes that it allows.
        """
        capacity = attainable(sizes, capacity)
        if capacity < 0:
            self.make_infeasible()
        elif sum(sizes) > capacity:
            self.at_most(zip(columns, sizes, strict=True), capacity, capacity)

    def at_most(self, terms: Iterable[Term], limit: float, scale: float) -> None:
        """Add the constraint sum of coefficient x column <= limit, in units of `scale` / 1000.

        The solver's tolerance is absolute. In these units, the tolerance is below 1 byte or 1 us.
        """
        unit = max(scale, 1.0) / OBJECTIVE_SCALE
        self.row([(column, size / unit) for column, size in terms if size], upper=limit / unit)

    def make_infeasible(self) -> None:
        """Add a row that no solution satisfies."""
        self.row([], lower=1.0)

    def objective(self, values: Values) -> float:
        """Return what the program minimises, for these values of the columns."""
        return self.offset + float(np.dot(np.array(self.cost), values))

    def violated_rows(self, values: Values) -> list[int]:
        """Return the rows whose constraints the values of the columns violate."""
        terms = np.array(self.coefficients) * values[np.array(self.columns, dtype=np.int64)]
        rows = np.repeat(np.arange(len(self.row_lower)), np.diff(self.row_starts))
        sums = np.bincount(rows, terms, len(self.row_lower))
        lower = np.array(self.row_lower) - ROW_TOLERANCE
        upper = np.array(self.row_upper) + ROW_TOLERANCE
        return np.flatnonzero((sums < lower) | (sums > upper)).tolist()

    def fix(self, column: int, value: float) -> None:
        self.lower[column] = self.upper[column] = value

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the numbers of columns, rows and non-zeros."""
        return len(self.cost), len(self.row_lower), len(self.columns)


@dataclass(frozen=True)
class TimeLimits:
    """What a program must know about the time of a step."""

    deadline_us: float | None = None
    value_per_us: float = 0.0  # part of the objective
    least_us: float = 0.0  # no plan takes less
    alone_us: float = 0.0  # in which no plan computes, because it waits for transfers


NO_LIMITS = TimeLimits()


@dataclass
class LaneTimes:
    """The busy times of both lanes in a program, each a constant plus terms.

    A program that minimises time has a variable for the time of a step. It is at least the busy
    time of each lane, and the time of all computations plus the time in which nothing is computed.
    """

    computing_us: float = 0.0
    transferring_us: float = 0.0  # of the processor
    transfers_us: float = 0.0  # of the other lane
    computing: list[Term] = field(default_factory=list)
    transferring: list[Term] = field(default_factory=list)
    transfers: list[Term] = field(default_factory=list)
    commits: list[Term] = field(default_factory=list)  # of the step that commits, after both lanes
    column: int = -1  # of the time of a step; -1: the program has none
    unit_us: float = 1.0  # of this variable
    rows: list[tuple[list[Term], float]] = field(default_factory=list)  # terms, constant

    def compute(self, processor_us: float, transfers_us: float, column: int | None = None) -> None:
        """Add a computation, which may occupy both lanes. `column` None: it always takes place."""
        if column is None:
            self.computing_us += processor_us
            self.transfers_us += transfers_us
            return
        self.computing.append((column, processor_us))
        if transfers_us:
            self.transfers.append((column, transfers_us))

    def page_in(self, node: CostNode, column: int) -> None:
        self.transferring.append((column, node.page_in_cpu_us))
        self.transfers.append((column, node.page_in_us))

    def page_out(self, node: CostNode, column: int | None = None) -> None:
        """Add the time of a page-out. `column` None: the page-out always takes place."""
        if column is None:
            self.transferring_us += node.page_out_cpu_us
            self.transfers_us += node.page_out_us
        else:
            self.store(node.page_out_cpu_us, node.page_out_us, column)

    def store(self, processor_us: float, transfers_us: float, column: int) -> None:
        """Add what puts a tensor on storage, with its times in both lanes."""
        self.transferring.append((column, processor_us))
        self.transfers.append((column, transfers_us))

    def add_to(self, program: Program, limits: TimeLimits) -> None:
        """Add constraints: no lane is busy for longer than the step takes."""
        self.rows = [
            (self.computing + self.transferring, self.computing_us + self.transferring_us),
            (self.transfers, self.transfers_us),
        ]
        if limits.alone_us:
            self.rows.append((self.computing, self.computing_us + limits.alone_us))
        deadline_us = limits.deadline_us
        if not limits.value_per_us:
            for terms, constant_us in self.rows:
                assert deadline_us is not None
                program.at_most([*terms, *self.commits], deadline_us - constant_us, deadline_us)
            return
        scale_us = max(limits.least_us, self.computing_us, 1.0)
        self.unit_us = scale_us / OBJECTIVE_SCALE
        self.column = program.number(
            limits.value_per_us * self.unit_us,
            limits.least_us * (1 - TOLERANCE) / self.unit_us,
            INFINITY if deadline_us is None else deadline_us / self.unit_us,
        )
        for terms, constant_us in self.rows:
            step = (self.column, -self.unit_us)
            program.at_most([*terms, step], -constant_us, scale_us)
        if deadline_us is not None and self.commits:
            program.at_most([*self.commits, (self.column, self.unit_us)], deadline_us, deadline_us)

    def fill(self, program: Program, values: Values) -> None:
        """Set the value of the time of a step to the least that the other values allow."""
        if self.column >= 0:
            busy_us = max(
                constant_us + sum(time_us * values[column] for column, time_us in terms)
                for terms, constant_us in self.rows
            )
            values[self.column] = max(program.lower[self.column], busy_us / self.unit_us)


def attainable(sizes: Sequence[int], capacity: int) -> int:
    """Return the largest sum of a subset of the sizes that does not exceed the capacity.

    Return the capacity itself if the computation would take too long.
    """
    unit = gcd(*sizes)
    if capacity <= 0 or unit == 0 or sum(sizes) <= capacity:
        return capacity
    if capacity // unit * len(sizes) > MAX_ATTAINABLE_BITS:
        return capacity
    mask = (1 << (capacity // unit + 1)) - 1
    sums = 1
    for size in sizes:
        sums |= (sums << size // unit) & mask
    return (sums.bit_length() - 1) * unit


def minimise(
    program: Program,
    time_limit_s: float,
    *,
    gap: float = 0.0,
    absolute_gap: float = 0.0,
    worst: float = INFINITY,
    initial: Values | None = None,
    integer: bool = True,
    presolve: bool = True,
    on_progress: OnProgress = lambda bound, values: False,
    receive: ReceiveSolution | None = None,
) -> Result:
    """Minimise with one thread and a fixed seed, so that equal input gives equal output.

    `gap`, `absolute_gap`: stop at this relative or absolute distance from the bound. `worst`: leave
    out solutions that are worse if that makes tolerances finer (scaling.py). `initial`: values to
    start from, if they are a solution. `integer` False: solve the linear relaxation.
    `presolve` False: HiGHS does not simplify the program first. The time limit cannot end that, so
    a worker whose HiGHS is far beyond its time limit ends itself. Counted work limits iterations
    or, of an integer program, how often HiGHS looks at its limits: its iterations are not known
    before it ends.
    """
    if not program.cost:
        return _without_columns(program)
    program = within(program, worst)
    scale = Scale.of(program)
    counted = work.counted_s() is not None
    solver: Any = _Highs()
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 1,
        "time_limit": INFINITY if counted else max(time_limit_s, 0.0),
        "presolve": "choose" if presolve else "off",
        "mip_rel_gap": gap,
        "mip_abs_gap": max(OBJECTIVE_SCALE * TOLERANCE / 10, absolute_gap * scale.factor),
        "mip_feasibility_tolerance": 1e-7,
        "primal_feasibility_tolerance": 1e-8,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(highs_model(program, scale.factor, integer))
    if initial is not None:
        solver.setSolution(len(initial), np.arange(len(initial), dtype=np.int32), initial)
    limit_s = time_limit_s if counted else INFINITY
    most_checks, most_iterations = _most_checks(program, limit_s), limit_s / ITERATION_S
    callbacks = _Callbacks(scale, integer, on_progress, receive, most_checks, most_iterations)
    callbacks.add_to(solver)
    with ends_within(COUNTED_HANG_S if counted else time_limit_s * LATE_FACTOR + LATE_S):
        solver.run()
    iterations = max(solver.getInfo().simplex_iteration_count, 0)
    work.add(iterations * ITERATION_S + program.shape[2] * NONZERO_S)
    return _result(solver, scale, integer)


@dataclass
class _Callbacks:
    """What HiGHS calls while it runs."""

    scale: Scale
    integer: bool
    on_progress: OnProgress
    receive: ReceiveSolution | None
    most_checks: float
    most_iterations: float
    checks: int = 0  # how often HiGHS has looked at its limits

    def add_to(self, solver: Any) -> None:
        if not self.integer:
            solver.cbSimplexInterrupt += self.on_interrupt
            return
        solver.cbMipInterrupt += self.on_interrupt
        solver.cbMipImprovingSolution += self.on_solution
        if self.receive is not None:
            solver.cbMipUserSolution += self.on_user_solution

    def on_interrupt(self, event: Any) -> None:
        out = event.data_out
        self.checks += self.integer
        has_worked = out.simplex_iteration_count > self.most_iterations
        bound = self.scale.bound(out.mip_dual_bound) if self.integer else -INFINITY
        if self.on_progress(bound, None) or has_worked or self.checks > self.most_checks:
            event.data_in.user_interrupt = 1

    def on_solution(self, event: Any) -> None:
        values = np.array(event.data_out.mip_solution)
        self.on_progress(self.scale.bound(event.data_out.mip_dual_bound), values)

    def on_user_solution(self, event: Any) -> None:
        values = self.receive() if self.receive is not None else None
        if values is not None:
            event.data_in.setSolution(values)


def _most_checks(program: Program, limit_s: float) -> float:
    """Return how often HiGHS may look at its limits within counted work."""
    free = int(sum(map(lt, program.lower, program.upper)))
    return limit_s / (CHECK_S + CHECK_S_PER_COLUMN * free)


def highs_model(program: Program, scale: float, integer: bool) -> highspy.HighsLp:
    """Return the program for HiGHS, with the objective multiplied by `scale`."""
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
    lp.a_matrix_.start_ = np.array(program.row_starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(program.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(program.coefficients)
    if integer:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[whole] for whole in program.is_integer]
    return lp


def _without_columns(program: Program) -> Result:
    feasible = all(
        low <= TOLERANCE and high >= -TOLERANCE
        for low, high in zip(program.row_lower, program.row_upper, strict=True)
    )
    if feasible:
        return Result("optimal", np.zeros(0), program.offset, program.offset)
    return Result("infeasible", None, INFINITY, INFINITY)


def _result(solver: Any, scale: Scale, integer: bool) -> Result:
    status, info = solver.getModelStatus(), solver.getInfo()
    kinds = highspy.HighsModelStatus
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return Result("infeasible", None, INFINITY, INFINITY)
    done = status == kinds.kOptimal
    scaled = info.objective_function_value
    objective = scaled / scale.factor
    bound = scale.bound(info.mip_dual_bound if integer else scaled if done else -INFINITY)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Result("stopped", None, INFINITY, bound)
    values = np.array(solver.getSolution().col_value)
    return Result("optimal" if done else "stopped", values, objective, bound)
