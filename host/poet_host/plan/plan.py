"""Plan: the statements that a board executes, and what they cost; and both as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal, get_args

from ..errors import BadInput
from .problem import CostGraph

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
    offset: int | None = None
    workspace_offset: int | None = None


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
    ram_bytes: int
    deadline_us: float | None = None
    energy_uj: float | None = None
    bound_uj: float | None = None
    gap: float | None = None
    time_us: float | None = None
    total_energy_uj: float | None = None
    peak_bytes: int | None = None
    solve_s: float = 0.0
    statements: tuple[Statement, ...] = ()
    smallest_ram_bytes: int | None = None
    smallest_deadline_us: float | None = None
    method: str = "poet"
    initial_offsets: tuple[tuple[str, int], ...] = ()
    note: str = ""
    stopped_by: StoppedBy = ""

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
_WHOLE = ("ram_bytes", "peak_bytes", "smallest_ram_bytes")
_KEYS = {"format", "version", *(field.name for field in fields(Plan))}


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
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BadInput(f'{where}: this is no plan: "format" is not "{FORMAT}"')
    if isinstance(value.get("version"), bool) or value.get("version") != VERSION:
        raise BadInput(
            f"{where}: version {value.get('version')!r} of the format is not known, {VERSION} is"
        )
    for key in value:
        if key not in _KEYS:
            raise BadInput(f'{where}: the key "{key}" is not known')
    status: Any = value.get("status")
    rows = value.get("statements", [])
    if status not in get_args(Status):
        raise BadInput(f'{where}: "status" must be one of {", ".join(get_args(Status))}')
    if not isinstance(rows, list):
        raise BadInput(f'{where}: "statements" must be a list')
    numbers = {key: _number(value, key, where) for key in (*_ALWAYS, *_WHEN_KNOWN, "deadline_us")}
    ram_bytes, solve_s = (_number(value, key, where) for key in ("ram_bytes", "solve_s"))
    if ram_bytes is None or solve_s is None:
        raise BadInput(f'{where}: "ram_bytes" and "solve_s" must be numbers')
    method, note = value.get("method", "poet"), value.get("note", "")
    stopped_by: Any = value.get("stopped_by", "")
    if stopped_by not in get_args(StoppedBy):
        raise BadInput(f'{where}: "stopped_by" must be one of {", ".join(get_args(StoppedBy))}')
    initial = value.get("initial_offsets", {})
    for key, text in (("method", method), ("note", note)):
        if not isinstance(text, str):
            raise BadInput(f'{where}: "{key}" must be a text')
    if not isinstance(initial, dict) or not all(_is_offset(o) for o in initial.values()):
        raise BadInput(f'{where}: "initial_offsets" must give each name an offset in bytes')
    return Plan(
        status=status,
        ram_bytes=ram_bytes,
        solve_s=solve_s,
        statements=tuple(_statement(row, f"{where}, statement {i}") for i, row in enumerate(rows)),
        method=method,
        note=note,
        stopped_by=stopped_by,
        initial_offsets=tuple(initial.items()),
        **numbers,
    )


def _statement(row: Any, where: str) -> Statement:
    if not isinstance(row, dict):
        raise BadInput(f"{where}: must be a JSON object")
    for key in row:
        if key not in ("op", "node", "offset", "workspace_offset"):
            raise BadInput(f'{where}: the key "{key}" is not known')
    op: Any = row.get("op")
    node = row.get("node")
    if op not in get_args(Op):
        raise BadInput(f'{where}: "op" must be one of {", ".join(get_args(Op))}')
    if not isinstance(node, str):
        raise BadInput(f'{where}: "node" must be the name of a node')
    offsets = [row.get(key) for key in ("offset", "workspace_offset")]
    if not all(offset is None or _is_offset(offset) for offset in offsets):
        raise BadInput(f"{where}: an offset must be a whole number of bytes")
    return Statement(op, node, *offsets)


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(row: Mapping[str, Any], key: str, where: str) -> Any:
    """A number, or None; whole where it counts bytes."""
    number = row.get(key)
    if number is None:
        return None
    kind = int if key in _WHOLE else int | float
    if isinstance(number, bool) or not isinstance(number, kind):
        raise BadInput(f'{where}: "{key}" must be a number, not {number!r}')
    if isinstance(number, float) and not isfinite(number):
        raise BadInput(f'{where}: "{key}" must be finite, not {number!r}')
    return number
