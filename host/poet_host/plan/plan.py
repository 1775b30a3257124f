"""Plan: the statements that a board executes, and their costs. Plans are saved as JSON."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..errors import BadInput
from ..files import write_json
from ..packing.blocks import aligned
from ..schema import Count, Name, convert, of_format
from .effects import Op as Op, effects_of
from .problem import DEFAULT_OBJECTIVE, TOLERANCE, CostGraph, Objective, Problem

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
StoppedBy = Literal["", "proof", "gap", "exhausted", "time-limit", "work-limit", "interrupt"]
"""Why a search ended. "proof": no better plan exists. "gap": the wanted gap is proved. "exhausted":
nothing is left to try. "interrupt": Ctrl-C. Empty: there was no search."""

FORMAT = "poet-plan"
VERSIONS = (1, 2, 3)


@dataclass(frozen=True)
class Statement:
    """One statement of a plan."""

    op: Op
    node: str  # name of the node
    # Bytes, a multiple of 4. None in a plan that is not placed, and for a streamed output.
    offset: Count | None = None
    workspace_offset: Count | None = None
    mode: Count = 0  # of a compute: the mode in which the node is computed
    # Of a mode that computes more nodes: the offsets of those that are placed, in order.
    also_offsets: tuple[Count, ...] = ()

    def offset_of(self, number: int) -> int | None:
        """Return the offset with this number, if there is one; see `Place`."""
        return dict(enumerate((self.offset, *self.also_offsets))).get(number)


@dataclass(frozen=True)
class Plan:
    """The statements of one training step with their costs: energy, bound, time, peak.

    Without statements (status infeasible or unknown) the costs are None. A plan that is not
    verified yet has no costs either.
    """

    status: Status
    ram_bytes: Count
    deadline_us: float | None = None
    energy_uj: float | None = None
    bound: float | None = None  # lower bound of `value` over all plans, in its unit
    gap: float | None = None  # (value - bound) / value
    time_us: float | None = None
    total_energy_uj: float | None = None  # energy_uj plus base power x time_us
    peak_bytes: Count | None = None
    solve_s: float = 0.0
    statements: tuple[Statement, ...] = ()
    smallest_ram_bytes: Count | None = None  # if infeasible: the smallest budget with a known plan
    smallest_deadline_us: float | None = None  # if infeasible: a deadline with a known plan
    method: str = "poet"
    objective: Objective = DEFAULT_OBJECTIVE  # what was minimised
    # Names and offsets of the tensors that are in RAM when a step begins. Without storage, these
    # are all stored tensors. The offsets are None in a plan that is not placed.
    initial_offsets: tuple[tuple[str, Count | None], ...] = ()
    # What stays in RAM is written once in so many steps; None: nothing stays, or no storage.
    commit_every: Annotated[int, Meta(ge=1)] | None = None
    note: str = ""  # what the plan adds to the published method, or why there is no plan
    stopped_by: StoppedBy = ""
    # The method whose plan was better than those of the search when the search started from it.
    began_from: str = ""
    # The problem that the plan solves. `encode` needs the problem; the JSON of a plan lacks it.
    problem: Problem | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        costs = f", {self.energy_uj:,.1f} uJ" if self.energy_uj is not None else ""
        return (
            f"<Plan by {self.method}: {self.status}, {len(self.statements)} statements within "
            f"{self.ram_bytes:,} bytes{costs}>"
        )

    @property
    def value(self) -> float | None:
        """Return what the objective minimises, in microjoules or microseconds; None: no plan."""
        value: float | None = objective_value(self.objective, self)
        return value

    @property
    def storage(self) -> bool:
        """Return whether the plan is for a board with storage, as `initial_offsets` may show."""
        if self.problem:
            return self.problem.graph.storage
        return self.commit_every is not None or not self.initial_offsets

    def is_within(self, gap: float) -> bool:
        """Return whether the plan's gap is proved to be at most `gap`."""
        return self.gap is not None and self.gap <= gap + TOLERANCE

    def to_json(self, statements: bool = True) -> dict[str, Any]:
        """Return the plan as a JSON object, with or without its statements."""
        top: dict[str, Any] = {"format": FORMAT, "version": _version(self), "status": self.status}
        top |= {"method": self.method}
        top |= {key: getattr(self, key) for key in _ALWAYS}
        if self.objective == "added-energy":
            top["bound_uj"] = self.bound
        top |= {
            "solve_s": self.solve_s,
            "ram_bytes": self.ram_bytes,
            "deadline_us": self.deadline_us,
        }
        top |= {key: getattr(self, key) for key in _WHEN_KNOWN if getattr(self, key) is not None}
        top |= {key: getattr(self, key) for key in _WHEN_NOT_EMPTY if getattr(self, key)}
        if self.initial_offsets:
            top["initial_offsets"] = dict(self.initial_offsets)
        if statements:
            top["statements"] = [_statement(it) for it in self.statements]
        return top

    def save(self, path: Path | str) -> None:
        """Write the plan to a JSON file. Raises PoetError if that fails."""
        write_json(path, self.to_json())

    def with_bound(self, bound: float) -> "Plan":
        """Return the plan with this lower bound, and "optimal" if its value equals the bound."""
        assert self.value is not None
        bound = min(bound, self.value)
        gap = (self.value - bound) / self.value if self.value > 0 else 0.0
        if gap <= TOLERANCE:
            return replace(self, status="optimal", bound=bound, gap=0.0)
        return replace(self, bound=bound, gap=gap)


def plan_of(problem: Problem, status: Status, **more: Any) -> Plan:
    """Return a plan with the limits and the objective of the problem."""
    return Plan(status, problem.ram_bytes, problem.deadline_us, objective=problem.objective, **more)


# The cost that each objective minimises: a name in Plan, in Totals and in tables of plans.
VALUES = {"energy": "total_energy_uj", "added-energy": "energy_uj", "time": "time_us"}


def objective_value(objective: Objective, costs: Any) -> Any:
    """Return the cost that the objective minimises, of a Plan or of verified Totals."""
    return getattr(costs, VALUES[objective])


def start_offsets(graph: CostGraph, plan: Plan) -> dict[str, int | None]:
    """Return the offsets of the tensors that are in RAM at the start, by name.

    With storage, these are what stays from step to step, and batches: the plan's initial offsets.
    Without storage, these are all tensors that no node computes, such as parameters. If the plan
    has no initial offsets, they lie one after another from offset 0 in the graph's order, each at a
    multiple of 4. An offset is None if the plan has initial offsets, but none for that tensor.
    """
    if graph.storage:
        return dict(plan.initial_offsets)
    stored = [node for node in graph.nodes if node.stored]
    if plan.initial_offsets:
        given = dict(plan.initial_offsets)
        return {node.name: given.get(node.name) for node in stored}
    offsets: dict[str, int | None] = {}
    end = 0
    for node in stored:
        offsets[node.name] = end
        end = aligned(end + node.bytes)
    return offsets


def written_by_commits(graph: CostGraph, plan: Plan) -> dict[int, int]:
    """Return the kept nodes that commits write from RAM, each with what stays."""
    starting = {graph.index[name] for name, _ in plan.initial_offsets}
    stored = {i for effect in effects_of(graph, plan.statements) for i in effect.stores}
    return {k: i for k, i in graph.may_commit.items() if i in starting and k not in stored}


def moved_bytes(graph: CostGraph, plan: Plan) -> tuple[int, int]:
    """Return the bytes that a step reads from storage and writes to storage."""
    effects = effects_of(graph, plan.statements)
    return sum(it.moved_in_bytes for it in effects), sum(it.moved_out_bytes for it in effects)


_ALWAYS = ("objective", "energy_uj", "bound", "gap", "time_us", "total_energy_uj", "peak_bytes")
_WHEN_KNOWN = ("smallest_ram_bytes", "smallest_deadline_us", "commit_every")
_WHEN_NOT_EMPTY = ("note", "stopped_by", "began_from")


def _version(plan: Plan) -> int:
    if plan.commit_every is not None:
        return 3
    if any(it.also_offsets for it in plan.statements):
        return 2
    return 1 if plan.problem is None else min(plan.problem.graph.version, 2)


def _statement(statement: Statement) -> dict[str, Any]:
    row = {key: value for key, value in vars(statement).items() if value is not None}
    row["also_offsets"] = list(statement.also_offsets)
    for key in ("mode", "also_offsets"):
        if not getattr(statement, key):
            row.pop(key, None)  # a statement from a file has no attribute of its own for a default
    return row


def plan_from_json(value: Any, where: str = "plan") -> Plan:
    """Read a plan from a parsed JSON value. This checks only the form; `verify` checks the laws.

    A plan that states a `bound_uj` and no objective was made by an older version, which minimised
    the added energy. Raises BadInput. The message begins with the argument `where`, the name of the
    source, such as a file.
    """
    plain = of_format(value, FORMAT, VERSIONS, where, "use a file that `solve --plan` wrote")
    bound_uj = plain.pop("bound_uj", None)
    if bound_uj is not None:
        plain = {"objective": "added-energy", "bound": bound_uj, **plain}
        if plain["objective"] != "added-energy" or plain["bound"] != bound_uj:
            raise BadInput(
                f'{where}: "bound_uj" is the "bound" of the objective added-energy, but this plan '
                f"has another bound or objective: check the file"
            )
    offsets = convert(
        plain.get("initial_offsets", {}), dict[Name, Count | None], f"{where}, initial_offsets"
    )
    plan = convert({**plain, "initial_offsets": list(offsets.items())}, Plan, where)
    for number, statement in enumerate(plan.statements):
        if statement.op == "start":
            raise BadInput(
                f'{where}, statement {number}: the op "start" is unknown. List what is in RAM when '
                'the step begins in "initial_offsets"'
            )
    return plan
