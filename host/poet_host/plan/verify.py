"""verify: check that a plan obeys every law, and that the costs stated in the plan are right.

This module uses no code of a planner, and not effects.py either: an error in that table must not
hide here. It executes the statements on a model of a board. The state of this model is the tensors
in RAM with their offsets, the tensors on storage, and the clocks of two lanes: p (processor) and x
(transfers).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import PoetError
from .plan import Plan, Statement, objective_value, start_offsets
from .problem import CostGraph, Problem

ALIGNMENT = 4  # bytes
TOLERANCE = 1e-9  # relative tolerance of times and energies
CLAIMS = ("energy_uj", "time_us", "peak_bytes", "total_energy_uj")  # costs that a plan states


class PlanError(PoetError):
    """A plan breaks `law`. `statement`: index of the statement at fault, if there is one."""

    def __init__(self, law: str, what: str, statement: int | None = None, node: str = "") -> None:
        at = "" if statement is None else f", statement {statement}"
        about = f", node {node!r}" if node else ""
        super().__init__(f"the plan breaks the law {law!r}{at}{about}: {what}")
        self.law, self.statement, self.node = law, statement, node


@dataclass(frozen=True)
class Totals:
    """The costs of a plan."""

    energy_uj: float
    time_us: float
    peak_bytes: int  # height of the placement; without placement, the largest sum of bytes
    total_energy_uj: float
    longest_us: float  # time of a step that writes what stays; else time_us


def verify(problem: Problem, plan: Plan, placed: bool = True) -> Totals:
    """Check that the plan obeys every law. Return its costs.

    `placed` False: ignore offsets, and check only the sum of bytes in RAM.
    Raises PlanError that names the first law that the plan breaks.
    """
    commit_every = problem.graph.commit_every if plan.commit_every is None else plan.commit_every
    machine = _Machine(problem.graph, problem.ram_bytes, placed, commit_every)
    machine.start(plan)
    for index, statement in enumerate(plan.statements):
        machine.execute(index, statement)
    totals = machine.end()
    limit_us = problem.deadline_us
    if limit_us is not None and totals.longest_us > limit_us * (1 + TOLERANCE):
        raise PlanError("deadline", f"it takes {totals.longest_us} us, more than {limit_us} us")
    _check_claims(plan, totals)
    return totals


@dataclass
class _Machine:
    graph: CostGraph
    ram_bytes: int
    placed: bool
    commit_every: int = 1
    staying: dict[int, int] = field(default_factory=dict)  # by node, its offset at the start
    wrote: set[int] = field(default_factory=set)  # what statements put on storage
    ram: dict[int, int] = field(default_factory=dict)  # by node, the offset; 0 without placement
    storage: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)  # computed at least once
    last: int = -1  # the last of them
    arrival: dict[int, float] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    p: float = 0.0
    x: float = 0.0
    energy_uj: float = 0.0
    sum_bytes: int = 0
    peak_bytes: int = 0
    index: int | None = None
    name: str = ""

    def start(self, plan: Plan) -> None:
        nodes = self.graph.nodes
        self.order = [i for i, node in enumerate(nodes) if not node.stored]
        if self.graph.storage:
            self.storage = {i for i, node in enumerate(nodes) if node.stored}
        for name, offset in start_offsets(self.graph, plan).items():
            self.name = name
            self.need(name in self.graph.index, "node", "the graph has no such node")
            i = self.graph.index[name]
            if self.graph.storage:
                may = nodes[i].stored and (nodes[i].stays or nodes[i].given)
                self.need(may, "stays", "it begins in RAM, but neither stays nor is given")
            self.create(i, offset)
        if self.graph.storage:
            self.staying = {i: offset for i, offset in self.ram.items() if nodes[i].stays}

    def execute(self, index: int, statement: Statement) -> None:
        self.index, self.name, op = index, statement.node, statement.op
        self.need(self.name in self.graph.index, "node", "the graph has no such node")
        i = self.graph.index[self.name]
        if op == "compute":
            self.compute(i, statement)
            return
        self.need(not statement.mode, "mode", "only a compute has a mode")
        if op == "free":
            self.need(i in self.ram, "in RAM", "it is freed, but is not in RAM")
            del self.ram[i]
            self.sum_bytes -= self.graph.nodes[i].bytes
            self.p = max(self.p, self.arrival.get(i, 0.0), self.written.get(i, 0.0))
        else:
            self.need(op != "start", "start", "what begins in RAM is in `initial_offsets`")
            self.need(self.graph.storage, "no storage", "the graph has no storage")
            (self.page_in if op == "page_in" else self.page_out)(i, statement)

    def compute(self, i: int, statement: Statement) -> None:
        node = self.graph.nodes[i]
        self.need(not node.stored, "stored", "it is stored, and cannot be computed")
        known = statement.mode <= len(node.modes)
        self.need(known, "mode", f"it has {len(node.modes)} modes, and none {statement.mode}")
        if not statement.mode:
            self.first(i)
            waits = [self.arrival.get(j, 0.0) for j in node.inputs]
            if node.overwrites is not None:
                waits.append(self.written.get(node.overwrites, 0.0))
            self.in_ram(node.inputs)
            self.output(i, statement.offset, node.overwrites)
            self.workspace(statement, node.workspace_bytes)
            self.p = max(self.p, *waits, 0.0) + node.time_us
            self.energy_uj += node.energy_uj
            return
        mode = node.modes[statement.mode - 1]
        made = [(i, mode.streamed_output, mode.overwrites)]
        made += [(a.node, a.streamed, self.graph.nodes[a.node].overwrites) for a in mode.also]
        for j, _, _ in made:
            self.first(j)
        streams = mode.streamed_inputs or any(streamed for _, streamed, _ in made)
        self.need(self.graph.storage or not streams, "no storage", "the graph has no storage")
        for j in mode.streamed_inputs:
            there, name = j in self.storage, self.graph.nodes[j].name
            self.need(there, "on storage", f"it streams {name!r}, which is not on storage")
            self.current(j)
        inputs = node.inputs if mode.inputs is None else mode.inputs
        self.in_ram([j for j in inputs if j not in mode.streamed_inputs])
        offsets = list(statement.also_offsets)
        for j, streamed, over in made:
            if not streamed:
                given = statement.offset if j == i else offsets.pop(0) if offsets else None
                self.output(j, given, over)
                continue
            bare = not self.placed or j != i or statement.offset is None
            self.need(bare, "offset", "it is streamed, and has no offset")
            self.stream_output(j, over)
        self.need(not offsets or not self.placed, "offset", "it has too many `also_offsets`")
        self.workspace(statement, mode.workspace_bytes)
        self.p = self.x = max(self.p, self.x) + mode.wall_us
        self.energy_uj += mode.energy_uj

    def first(self, i: int) -> None:
        """Check that node i may be computed now, for the first time or again."""
        node = self.graph.nodes[i]
        self.need(not (node.once and i in self.done), "once", f"{node.name!r} is computed again")
        if i in self.done:
            return
        if not self.graph.may_leave_out:
            expected = self.order[len(self.done)]
            name = self.graph.nodes[expected].name
            self.need(i == expected, "order", f"{name!r} must come first")
        late = self.graph.nodes[self.last].name
        self.need(i > self.last, "order", f"{late!r} was computed, which comes later")
        self.done.add(i)
        self.last = i

    def in_ram(self, inputs: Iterable[int]) -> None:
        for j in inputs:
            self.need(j in self.ram, "input", f"{self.graph.nodes[j].name!r} is not in RAM")

    def output(self, i: int, offset: int | None, over: int | None) -> None:
        """Put the output into RAM, in place of the tensor `over` if there is one."""
        if over is None:
            self.create(i, offset)
            return
        self.need(i not in self.ram, "twice", "it is in RAM already")
        same = not self.placed or offset == self.ram[over]
        self.need(same, "overwrites", f"{offset} is not its input's offset")
        self.ram[i] = self.ram.pop(over)

    def stream_output(self, i: int, over: int | None) -> None:
        """Put the output on storage. The tensor `over` stays there as it is."""
        for j in (i, *([] if over is None else [over])):
            name = self.graph.nodes[j].name
            self.need(j not in self.ram, "streamed", f"it is streamed, but {name!r} is in RAM")
        self.storage.add(i)
        self.wrote.add(i)

    def workspace(self, statement: Statement, size: int) -> None:
        if size:
            self.occupy(statement.workspace_offset, size)
            self.sum_bytes -= size

    def page_in(self, i: int, statement: Statement) -> None:
        self.need(i in self.storage, "on storage", "it is paged in, but is not on storage")
        self.current(i)
        self.create(i, statement.offset)
        self.x = self.arrival[i] = max(self.x, self.p) + self.graph.nodes[i].page_in_us
        self.p += self.graph.nodes[i].page_in_cpu_us
        self.energy_uj += self.graph.nodes[i].page_in_uj

    def page_out(self, i: int, statement: Statement) -> None:
        self.need(i in self.ram, "in RAM", "it is paged out, but is not in RAM")
        self.storage.add(i)
        self.wrote.add(i)
        begin = max(self.x, self.p, self.arrival.get(i, 0.0))
        self.x = self.written[i] = begin + self.graph.nodes[i].page_out_us
        self.p += self.graph.nodes[i].page_out_cpu_us
        self.energy_uj += self.graph.nodes[i].page_out_uj

    def current(self, i: int) -> None:
        """Check that storage has the value of the last step, not of the last commit, of tensor i.

        Once in N steps, what stays is written. The value of the others is older.
        """
        old = i in self.staying and self.commit_every > 1 and self.graph.heirs[i] != i
        name = self.graph.nodes[i].name
        self.need(not old, "old value", f"{name!r} stays, so storage has its value of a commit")

    def create(self, i: int, offset: int | None) -> None:
        self.need(i not in self.ram, "twice", "it is in RAM already")
        self.ram[i] = self.occupy(offset, self.graph.nodes[i].bytes)

    def occupy(self, offset: int | None, size: int) -> int:
        """Take `size` bytes at `offset`. Raise PlanError if they overlap a tensor in RAM."""
        self.sum_bytes += size
        fits = self.sum_bytes <= self.ram_bytes
        self.need(fits, "RAM", f"{self.sum_bytes} bytes are in use, more than {self.ram_bytes}")
        if not self.placed:
            self.peak_bytes = max(self.peak_bytes, self.sum_bytes)
            return 0
        if offset is None or offset < 0 or offset % ALIGNMENT:
            raise self.error("offset", f"{offset} is not a multiple of {ALIGNMENT}")
        end = offset + size
        self.need(end <= self.ram_bytes, "height", f"it ends at {end}, above {self.ram_bytes}")
        for i, low in self.ram.items():
            other = self.graph.nodes[i]
            apart = end <= low or low + other.bytes <= offset or not size or not other.bytes
            self.need(apart, "overlap", f"[{offset}, {end}) overlaps {other.name!r}")
        self.peak_bytes = max(self.peak_bytes, end)
        return offset

    def end(self) -> Totals:
        self.index = None
        heirs, commit_us = self.end_staying()
        there, place = (self.storage, "storage") if self.graph.storage else (self.ram, "RAM")
        for i, node in enumerate(self.graph.nodes):
            self.name = node.name
            needed = not (node.stored or self.graph.may_leave_out)
            self.need(i in self.done or not needed, "computed", "it is never computed")
            kept = not node.keep or i in there or i in heirs
            self.need(kept, "keep", f"it is not in {place} at the end")
        step_us = max(self.p, self.x)
        time_us = step_us + commit_us / self.commit_every
        total_uj = self.energy_uj + self.graph.base_power_uw * time_us / 1e6
        return Totals(self.energy_uj, time_us, self.peak_bytes, total_uj, step_us + commit_us)

    def end_staying(self) -> tuple[set[int], float]:
        """Check that what stays is in its place again, and charge a share of its next write.

        Return the nodes in the places, and the time of a commit that writes them.
        """
        heirs, commit_us = set[int](), 0.0
        for i, offset in self.staying.items():
            heir = self.graph.heirs[i]
            node = self.graph.nodes[heir]
            self.name = node.name
            self.need(heir in self.ram, "stays", "it is not in RAM at the end")
            same = self.ram[heir] == offset
            self.need(same, "stays", f"it is at {self.ram[heir]} at the end, and not at {offset}")
            heirs.add(heir)
            if heir != i and node.keep and heir not in self.wrote:
                commit_us += node.page_out_us
                self.energy_uj += node.page_out_uj / self.commit_every
        return heirs, commit_us

    def need(self, holds: bool, law: str, what: str) -> None:
        if not holds:
            raise self.error(law, what)

    def error(self, law: str, what: str) -> PlanError:
        return PlanError(law, what, self.index, self.name)


def _check_claims(plan: Plan, totals: Totals) -> None:
    """Raise PlanError if the costs, the bound or the gap that the plan states are wrong."""
    for name in CLAIMS:
        claimed, found = getattr(plan, name), getattr(totals, name)
        if claimed is not None and not abs(claimed - found) <= TOLERANCE * abs(found):
            raise PlanError("claim", f"{name} is {found}, not {claimed}")
    value, bound, gap = objective_value(plan.objective, totals), plan.bound, plan.gap
    if bound is not None:
        if not bound <= value * (1 + TOLERANCE):
            raise PlanError("claim", f"bound {bound} is above the {plan.objective} of {value}")
        real = (value - bound) / value if value > 0 else 0.0
        if gap is not None and not abs(gap - real) <= TOLERANCE:
            raise PlanError("claim", f"gap is {real}, not {gap}")
    if plan.status == "optimal" and (bound is None or gap is None or gap > TOLERANCE):
        raise PlanError("claim", f"the bound {bound} does not prove the status optimal")
