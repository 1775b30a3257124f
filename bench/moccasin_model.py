"""Moccasin's constraint program: retention intervals, in CP-SAT. A process of its own.

B. Bartan et al., *Moccasin: Efficient Tensor Rematerialization for Neural Networks*, ICML 2023,
arXiv 2304.14463. Node v has at most C retention intervals. Interval i begins when v is computed for
the i-th time, and v stays in RAM to its end. The step is a line of n (n + 1) / 2 moments: stage k
has one moment for each of the nodes 0..k, in the graph's order. The first interval of v begins at
the last moment of stage v. Each other interval is optional, and begins at the moment of v in a
later stage. Thus there are O(C n) integers.

    min  sum energy(v) over all intervals, without overlap of the intervals of a node
    each computation of v lies inside an interval of each input of v
    cumulative: the bytes of the intervals at a moment, and workspace, are at most the RAM

Which interval of an input a computation reads is a Boolean. If v overwrites an input, the interval
that it reads ends there, and v takes its bytes over. If there is no solution to start from, a first
phase minimises the peak of RAM, from the plan that computes everything once. Written from the
publication, not from its program.

Reads one JSON object from standard input, see `Request`, and writes one, see `Reply`. This module
imports nothing of poet_host: OR-Tools and highspy, two copies of HiGHS, do not share a process.
"""

import json
import sys
import time
from math import gcd
from typing import Any, TypedDict

from ortools.sat.python import cp_model

PEAK_TIME_SHARE = 0.5  # of the time limit that the first phase may take
# The energy of computing everything once, in the integers of the objective:
OBJECTIVE_SCALE = 10**12

Moment = tuple[int, int]  # stage and node


class Node(TypedDict):
    """One tensor. All nodes are computed: stored tensors are outside of the program."""

    inputs: list[int]
    bytes: int
    workspace_bytes: int
    energy_uj: float
    overwrites: int | None
    once: bool
    keep: bool  # whether the tensor must be in RAM at the end


class Request(TypedDict):
    """A graph, its limits, and computations in order from which the search starts."""

    nodes: list[Node]
    ram_bytes: int
    intervals: int  # C
    start: list[Moment] | None
    time_limit_s: float
    workers: int
    seed: int


class Reply(TypedDict):
    """What CP-SAT found. `moments` are the computations in order; None: none found."""

    status: str
    moments: list[Moment] | None
    bound_uj: float
    integers: int
    booleans: int


def moment(stage: int, node: int) -> int:
    """The number of the moment of a node in a stage."""
    return stage * (stage + 1) // 2 + node


class _Program:
    """The constraint program of a request."""

    def __init__(self, request: Request) -> None:
        self.nodes = request["nodes"]
        self.model = cp_model.CpModel()
        # What must be in RAM at the end may be computed after the last node: one more stage.
        self.stages = len(self.nodes) + any(it["keep"] for it in self.nodes)
        self.horizon = moment(self.stages, 0)
        self.scale = OBJECTIVE_SCALE / (sum(it["energy_uj"] for it in self.nodes) or 1.0)
        self.start: list[list[Any]] = []
        self.end: list[list[Any]] = []
        self.active: list[list[Any]] = []
        self.reads: dict[tuple[int, int, int, int], Any] = {}  # by node, interval, input, interval
        for v in range(len(self.nodes)):
            self._intervals(v, 1 if self.nodes[v]["once"] else request["intervals"])
        for v in range(len(self.nodes)):
            for i in range(len(self.start[v])):
                self._inputs(v, i)
        self._memory(request["ram_bytes"])

    def _intervals(self, v: int, count: int) -> None:
        model, stages, horizon = self.model, self.stages, self.horizon
        later = [moment(stage, v) for stage in range(v + 1, stages)]
        first = moment(v, v)
        starts, active = [model.new_constant(first)], [model.new_constant(1)]
        ends = [model.new_int_var(first + 1, horizon, f"end {v}")]
        for i in range(1, count if later else 1):
            domain = cp_model.Domain.from_values(later)
            starts.append(model.new_int_var_from_domain(domain, f"start {v} {i}"))
            ends.append(model.new_int_var(later[0] + 1, horizon, f"end {v} {i}"))
            active.append(model.new_bool_var(f"active {v} {i}"))
            model.add(ends[i - 1] <= starts[i]).only_enforce_if(active[i])
            model.add_implication(active[i], active[i - 1])
        if self.nodes[v]["keep"]:
            # The last of the active intervals lasts to the end.
            lasting = [model.new_bool_var(f"lasting {v} {i}") for i in range(len(starts))]
            model.add_exactly_one(lasting)
            for end, chosen, is_active in zip(ends, lasting, active, strict=True):
                model.add(end == horizon).only_enforce_if(chosen)
                model.add_implication(chosen, is_active)
        self.start.append(starts)
        self.end.append(ends)
        self.active.append(active)

    def _inputs(self, v: int, i: int) -> None:
        """Each input has an interval that holds the computation."""
        model, at = self.model, self.start[v][i]
        for u in set(self.nodes[v]["inputs"]):
            choice = []
            for j in range(len(self.start[u])):
                read = self.reads[v, i, u, j] = model.new_bool_var(f"read {v} {i} {u} {j}")
                choice.append(read)
                model.add_implication(read, self.active[u][j])
                model.add(self.start[u][j] < at).only_enforce_if(read)
                end = self.end[u][j]
                if self.nodes[v]["overwrites"] == u:
                    model.add(end == at + 1).only_enforce_if(read)
                else:
                    model.add(end >= at + 1).only_enforce_if(read)
            model.add(sum(choice) == self.active[v][i])

    def _memory(self, ram_bytes: int) -> None:
        model, nodes = self.model, self.nodes
        demands = [it["bytes"] for it in nodes] + [it["workspace_bytes"] for it in nodes]
        self.unit = gcd(*demands) or 1
        most = max(ram_bytes, sum(demands)) // self.unit
        self.peak = model.new_int_var(0, most, "peak")
        self.ram = ram_bytes // self.unit
        spans, sizes = [], []
        for v, node in enumerate(nodes):
            # A result that takes over memory counts from the next moment on.
            shift = int(node["overwrites"] is not None)
            for i in range(len(self.start[v])):
                at, end, active = self.start[v][i], self.end[v][i], self.active[v][i]
                if node["bytes"]:
                    length = model.new_int_var(0, self.horizon, f"length {v} {i}")
                    spans.append(
                        model.new_optional_interval_var(at + shift, length, end, active, f"{v} {i}")
                    )
                    sizes.append(node["bytes"] // self.unit)
                if node["workspace_bytes"]:
                    spans.append(
                        model.new_optional_interval_var(at, 1, at + 1, active, f"work {v} {i}")
                    )
                    sizes.append(node["workspace_bytes"] // self.unit)
        model.add_cumulative(spans, sizes, self.peak)

    def hint(self, moments: list[Moment]) -> None:
        """Let the search start from these computations, in order."""
        times: list[list[int]] = [[] for _ in self.nodes]
        uses: list[list[int]] = [[] for _ in self.nodes]
        held: dict[tuple[int, int, int], int] = {}
        for stage, v in moments:
            at = moment(stage, v)
            for u in set(self.nodes[v]["inputs"]):
                j = len(times[u]) - 1
                uses[u][j] = max(uses[u][j], at + 1)
                held[v, len(times[v]), u] = j
            times[v].append(at)
            uses[v].append(self.horizon if self.nodes[v]["keep"] else at + 1)
        for v in range(len(self.nodes)):
            for i in range(1, len(self.start[v])):
                self.model.add_hint(self.active[v][i], i < len(times[v]))
            for i, (at, end) in enumerate(zip(times[v], uses[v], strict=True)):
                if i:
                    self.model.add_hint(self.start[v][i], at)
                self.model.add_hint(self.end[v][i], end)
        for (v, i, u, j), read in self.reads.items():
            self.model.add_hint(read, held.get((v, i, u)) == j)

    def minimise_peak(self) -> None:
        excess = self.model.new_int_var(self.ram, max(self.ram, sum(self._most())), "excess")
        self.model.add_max_equality(excess, [self.peak, self.model.new_constant(self.ram)])
        self.model.minimize(excess)

    def _most(self) -> list[int]:
        return [(it["bytes"] + it["workspace_bytes"]) // self.unit + 1 for it in self.nodes]

    def minimise_energy(self) -> None:
        """Energies are rounded down, so that the bound stays one."""
        self.model.add(self.peak <= self.ram)
        self.model.minimize(
            sum(
                int(node["energy_uj"] * self.scale) * active
                for node, intervals in zip(self.nodes, self.active, strict=True)
                for active in intervals
            )
        )

    def solve(
        self, request: Request, time_limit_s: float
    ) -> tuple[str, list[Moment] | None, float]:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.1)
        solver.parameters.num_workers = request["workers"]
        solver.parameters.random_seed = request["seed"]
        status = solver.solve(self.model)
        name = solver.status_name(status).lower()
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return name, None, solver.best_objective_bound
        moments = sorted(
            solver.value(at)
            for starts, active in zip(self.start, self.active, strict=True)
            for at, on in zip(starts, active, strict=True)
            if solver.value(on)
        )
        return name, [_stage(at) for at in moments], solver.best_objective_bound


def _stage(at: int) -> Moment:
    stage = int((2 * at) ** 0.5)
    while moment(stage, 0) > at:
        stage -= 1
    return stage, at - moment(stage, 0)


def solve(request: Request) -> Reply:
    """Find the computations of least energy within the RAM."""
    began, limit_s, start = time.monotonic(), request["time_limit_s"], request["start"]
    if start is None:
        first = _Program(request)
        first.minimise_peak()
        first.hint([(v, v) for v in range(len(first.nodes))])
        _, start, _ = first.solve(request, limit_s * PEAK_TIME_SHARE)
    program = _Program(request)
    program.minimise_energy()
    if start is not None:
        program.hint(start)
    status, moments, bound = program.solve(request, limit_s - (time.monotonic() - began))
    variables = program.model.proto.variables
    booleans = sum(list(it.domain) == [0, 1] for it in variables)
    return Reply(
        status=status,
        moments=moments,
        # Until its presolve ends, CP-SAT has no bound.
        bound_uj=max(sum(it["energy_uj"] for it in program.nodes), bound / program.scale),
        integers=len(variables) - booleans,
        booleans=booleans,
    )


if __name__ == "__main__":
    json.dump(solve(json.load(sys.stdin)), sys.stdout)
