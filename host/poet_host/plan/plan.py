"""Plan: the statements that a board executes, and what they cost; and both as JSON."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..schema import Count, Name, convert, of_format
from .problem import CostGraph, Problem

Op = Literal["compute", "page_in", "page_out", "free"]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
StoppedBy = Literal["", "proof", "gap", "exhausted", "time-limit", "interrupt"]
"""Why a search ended: nothing better exists; the wanted gap is proved; it has nothing more to try;
its time was over; Ctrl-C."""

FORMAT = "poet-plan"
VERSION = 1


@dataclass(frozen=True)
class Statement:
    """One statement; `node` is a node's name. Offsets are bytes, multiples of 4, or None."""

    op: Op
    node: str
    offset: Count | None = None
    workspace_offset: Count | None = None


@dataclass(frozen=True)
class Plan:
    """A schedule of one training step with its proof: energy, bound, time, peak.

    `status` infeasible or unknown: no statements, and the costs are None; so are those of a
    plan that has not been verified yet.
    `smallest_ram_bytes`: when infeasible, the smallest budget for which a plan is known.
    `initial_offsets`: without storage, names and offsets of the stored tensors, which start
    in RAM; see `start_offsets`. `note`: what was done beyond the published method, or why there
    is no plan. `stopped_by`: what ended the search; empty where nothing was searched.
    """

    status: Status
    ram_bytes: Count
    deadline_us: float | None = None
    energy_uj: float | None = None
    bound_uj: float | None = None
    gap: float | None = None
    time_us: float | None = None
    total_energy_uj: float | None = None
    peak_bytes: Count | None = None
    solve_s: float = 0.0
    statements: tuple[Statement, ...] = ()
    smallest_ram_bytes: Count | None = None
    smallest_deadline_us: float | None = None
    method: str = "poet"
    initial_offsets: tuple[tuple[str, Count], ...] = ()
    note: str = ""
    stopped_by: StoppedBy = ""
    # That the plan solves, for encode; not a part of a file.
    problem: Problem | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        costs = f", {self.energy_uj:,.1f} uJ" if self.energy_uj is not None else ""
        return (
            f"<Plan by {self.method}: {self.status}, {len(self.statements)} statements within "
            f"{self.ram_bytes:,} bytes{costs}>"
        )


def start_offsets(graph: CostGraph, plan: Plan) -> dict[str, int | None]:
    """Where the tensors sit that are in RAM at the start, by name.

    These are the stored tensors of a graph without storage. A plan that does not say has
    them side by side from 0 in the graph's order, each beginning at a multiple of 4; None:
    the plan names others, but not this one.
    """
    if graph.storage:
        return {}
    stored = [node for node in graph.nodes if node.stored]
    if plan.initial_offsets:
        given = dict(plan.initial_offsets)
        return {node.name: given.get(node.name) for node in stored}
    offsets: dict[str, int | None] = {}
    end = 0
    for node in stored:
        offsets[node.name] = end
        end = -(-(end + node.bytes) // 4) * 4
    return offsets


_ALWAYS = ("energy_uj", "bound_uj", "gap", "time_us", "total_energy_uj", "peak_bytes")
_WHEN_KNOWN = ("smallest_ram_bytes", "smallest_deadline_us")


def plan_to_json(plan: Plan, statements: bool = True) -> dict[str, Any]:
    """The plan as a JSON object, with or without its statements."""
    top: dict[str, Any] = {"format": FORMAT, "version": VERSION, "status": plan.status}
    top |= {"method": plan.method}
    top |= {key: getattr(plan, key) for key in _ALWAYS}
    top |= {"solve_s": plan.solve_s, "ram_bytes": plan.ram_bytes, "deadline_us": plan.deadline_us}
    top |= {key: getattr(plan, key) for key in _WHEN_KNOWN if getattr(plan, key) is not None}
    if plan.note:
        top["note"] = plan.note
    if plan.stopped_by:
        top["stopped_by"] = plan.stopped_by
    if plan.initial_offsets:
        top["initial_offsets"] = dict(plan.initial_offsets)
    if statements:
        top["statements"] = [
            {key: value for key, value in vars(statement).items() if value is not None}
            for statement in plan.statements
        ]
    return top


def plan_from_json(value: Any, where: str = "plan") -> Plan:
    """The plan of a parsed JSON value; raises BadInput that begins with `where`.

    Only the form is checked here; whether the plan obeys the laws, `verify` says.
    """
    plain = of_format(value, FORMAT, VERSION, where, "give what `solve --plan` wrote")
    offsets = convert(
        plain.get("initial_offsets", {}), dict[Name, Count], f"{where}, initial_offsets"
    )
    return convert({**plain, "initial_offsets": list(offsets.items())}, Plan, where)
