"""Sweeps: solve many points in parallel.

A point is a model on a board, a RAM budget, a deadline and a method. A finished point is kept in a
folder, under the hash of everything that its plan depends on. So no point is solved twice, and the
same sweep can continue after an interruption. Every plan is verified when it is solved and when it
is read. The costs in a row of the table are verified costs.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from socket import gethostname
from typing import Any

from ..baselines.method import DoesNotApply
from ..baselines.registry import plan_by, planner_version
from ..errors import BadInput, PoetError
from ..files import read_json, write_whole
from ..packing.packing_search import library
from ..plan.costgraph import dump_cost_graph, parse_cost_graph
from ..plan.plan import VALUES, Plan, plan_from_json
from ..plan.problem import DEFAULT_OBJECTIVE, CostGraph, Objective, Problem
from ..plan.verify import PlanError, verify
from ..solver.settings import Settings
from .pool import Job, solve_all

COLUMNS = (
    "model", "board", "profile", "method", "ram_bytes", "deadline_us", "objective", "status",
    "energy_uj", "total_energy_uj", "time_us", "peak_bytes", "gap", "solve_s", "plan", "graph",
    "began_from", "note",
)  # fmt: skip
INAPPLICABLE = "inapplicable"  # the status of a row whose method does not apply to the graph
_NUMBERS = ("energy_uj", "total_energy_uj", "time_us", "peak_bytes", "gap", "solve_s")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Case:
    """A model on one board."""

    model: str
    board: str
    profile: str  # the origin of the costs
    costs: CostGraph
    whole_costs: CostGraph | None = None  # if operators may stream: the costs without streaming

    @property
    def keeping(self) -> Plan | None:
        """Return the keep-everything plan; None if the graph has none.

        A limit such as `50%` is a share of its RAM, and `1.2x` is a multiple of its time.
        """
        return (self.whole_costs or self.costs).keep_everything

    @cached_property
    def json(self) -> dict[str, Any]:
        return dump_cost_graph(self.costs)

    @cached_property
    def digest(self) -> str:
        return _digest(self.json)


@dataclass(frozen=True)
class Point:
    """A problem that is solved by one method."""

    case: Case
    method: str
    ram_bytes: int
    deadline_us: float | None
    time_limit_s: float
    gap: float
    objective: Objective = DEFAULT_OBJECTIVE
    counted: bool = False  # see Settings

    @cached_property
    def key(self) -> str:
        """Return a hash of the point's names, and of everything that determines its plan."""
        case = self.case
        names = [case.model, case.board, case.profile, self.method]
        limits: list[Any] = [self.ram_bytes, self.deadline_us, self.time_limit_s, self.gap]
        limits += [self.objective, self.counted]
        return _digest([*names, case.digest, *limits, _version()])

    @property
    def problem(self) -> Problem:
        costs = self.case.costs
        return Problem(costs, self.ram_bytes, self.deadline_us, objective=self.objective)

    @property
    def job(self) -> Job:
        """Return the point as plain data, to be sent to another process."""
        limits = (
            "ram_bytes",
            "deadline_us",
            "method",
            "time_limit_s",
            "counted",
            "gap",
            "objective",
        )
        return {
            **{name: getattr(self, name) for name in limits},
            "graph": self.case.json,
            "may_leave_out": self.case.costs.may_leave_out,
            "planner": _version(),
        }

    @property
    def word(self) -> str:
        return f"{self.case.model} {self.case.board} {self.ram_bytes:,} bytes, {self.method}"


def _version() -> str:
    """Return what a plan depends on, except for its problem.

    Without a C compiler, planners omit their exact searches.
    """
    return planner_version() + ("" if library() else " without C")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def solve_job(job: Job) -> dict[str, Any]:
    """Solve a `Point.job` and verify the plan. Return {"plan": ...} or {"inapplicable": reason}.

    Raises BadInput if this computer has another planner than the caller.
    """
    if _version() != job["planner"]:
        raise BadInput(
            f"the worker on {gethostname()} has another planner than this computer: install the "
            "same version of poet-host there, and a C compiler on both or on none"
        )
    graph = replace(parse_cost_graph(job["graph"]), may_leave_out=job["may_leave_out"])
    wanted = Problem(graph, job["ram_bytes"], job["deadline_us"], objective=job["objective"])
    try:
        settings = Settings(job["time_limit_s"], job["gap"], counted=job["counted"])
        plan = plan_by(job["method"], wanted, settings)
    except DoesNotApply as error:
        return {"inapplicable": str(error)}
    if plan.statements:
        verify(wanted, plan)
    return {"plan": plan.to_json()}


@dataclass(frozen=True)
class Result:
    """A finished point: its row of the table, and its plan if it has one."""

    row: dict[str, Any]
    plan: Plan | None

    def value(self, objective: Objective) -> float:
        """Return what the objective minimises of the plan; infinite without a plan."""
        return float(self.row[VALUES[objective]]) if self.row["plan"] else inf


@dataclass
class Store:
    """A folder of finished points: `plans/`, `graphs/`, `points/`, and a table of all points."""

    folder: Path
    _graphs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("plans", "graphs", "points"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def find(self, point: Point) -> Result | None:
        """Return the stored result of a point; None if it is missing or damaged."""
        path = self._path(point.key)
        if not path.is_file():
            return None
        try:
            row = self._row(path)
            if row is None:
                return None
            plan = None
            if row["plan"]:
                plan = plan_from_json(read_json(self.folder / row["plan"]), row["plan"])
                verify(point.problem, plan)
            path.touch()  # make this row the latest one, which rows() prefers
            return Result(row, plan)
        except (BadInput, PlanError, TypeError):
            return None

    def add(self, point: Point, found: dict[str, Any]) -> Result:
        """Store the result that `solve_job` returned for a point."""
        case = point.case
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"model": case.model, "board": case.board, "profile": case.profile}
        row |= {"ram_bytes": point.ram_bytes, "deadline_us": point.deadline_us}
        row |= {"objective": point.objective, "method": point.method, "graph": self._graph(case)}
        plan: Plan | None = None
        if "inapplicable" in found:
            row |= {"status": INAPPLICABLE, "note": found["inapplicable"]}
        else:
            plan = plan_from_json(found["plan"])
            row |= {key: getattr(plan, key) for key in ("status", *_NUMBERS, "began_from", "note")}
        if plan is not None and plan.statements:
            row["plan"] = f"plans/{slug(case)}-{point.method}-{point.key}.plan.json"
            write_whole(self.folder / row["plan"], json.dumps(found["plan"]) + "\n")
        write_whole(self._path(point.key), json.dumps(row, indent=1) + "\n")
        return Result(row, plan)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all finished points in the folder, sorted.

        If several points differ only in time limit, gap or planner, return only the latest row.
        """
        paths = list((self.folder / "points").glob("*.json"))
        paths.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
        found = (self._row(path) for path in paths)
        return sorted({_order(row): row for row in found if row is not None}.values(), key=_order)

    def _row(self, path: Path) -> dict[str, Any] | None:
        """Return the row in a file, with its columns in order; None if the file is damaged."""
        try:
            row = read_json(path)
        except BadInput:
            return None
        if not isinstance(row, dict) or set(row) != set(COLUMNS):
            return None
        return {name: row[name] for name in COLUMNS}

    def write_table(self) -> list[dict[str, Any]]:
        """Write table.csv and table.json. Return the rows of the table."""
        rows = self.rows()
        write_whole(self.folder / "table.csv", table_csv(rows))
        write_whole(self.folder / "table.json", json.dumps(rows, indent=1) + "\n")
        return rows

    def _path(self, key: str) -> Path:
        return self.folder / "points" / f"{key}.json"

    def _graph(self, case: Case) -> str:
        name = f"graphs/{slug(case)}-{case.digest}.graph.json"
        if name not in self._graphs:
            write_whole(self.folder / name, json.dumps(case.json) + "\n")
            self._graphs[name] = case.digest
        return name


def table_csv(rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def file_name(*parts: str) -> str:
    """Join the parts that are not empty into a valid file name."""
    name = "-".join(part for part in parts if part)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)


def slug(case: Case) -> str:
    return file_name(case.model, case.board, case.profile)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    deadline_us = row["deadline_us"]
    names = (row["model"], row["board"], row["profile"])
    limits = (deadline_us is not None, deadline_us or 0.0, -row["ram_bytes"])
    return (*names, row["objective"], *limits, row["method"], row["graph"])


def sweep(
    points: Sequence[Point],
    store: Store,
    *,
    jobs: int = 1,
    pool: Executor | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Solve the points that are not in `store`. Return all results, in the order of the points.

    `jobs` is the number of processes; `pool` solves the points instead of them. `progress(done,
    total, text of the point)` is called at the start and after each point. If the sweep is
    interrupted, finished points stay in the store. Raises PoetError if points were begun as often
    as `solve_all` says, and each time their process ended. The other points are solved before.
    """
    report = progress or (lambda done, total, word: None)
    results = {point.key: found for point in points if (found := store.find(point)) is not None}
    pending = {point.key: point for point in points if point.key not in results}
    total = len({point.key for point in points})
    report(len(results), total, "")
    lost: dict[str, str] = {}
    with closing(
        solve_all({key: it.job for key, it in pending.items()}, solve_job, jobs, pool)
    ) as it:
        for key, answer in it:
            point = pending[key]
            if isinstance(answer, str):
                lost[point.word] = answer
                continue
            results[key] = store.add(point, answer)
            report(len(results), total, point.word)
    if lost:
        word, reason = next(iter(lost.items()))
        more = f", and {len(lost) - 1:,} more points" if len(lost) > 1 else ""
        raise PoetError(
            f"the process that solved {word} ended {reason}{more}, perhaps because the computer "
            "had too little memory. The other points are saved. Try again with fewer --jobs"
        )
    return [results[point.key] for point in points]
