"""Encode a plan as the bytes that a board executes; schedules/FORMAT.md defines them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import isa
from ..errors import BadInput, PoetError, named
from ..graph.cuts import Cut
from ..graph.graph import Graph
from ..plan.nests import NestedOperator
from ..plan.plan import Plan, Statement
from ..plan.problem import CostGraph
from .arena_state import RuleError
from .bits import BitWriter, width
from .decode import Wait, decode, initial_offsets
from .homes import Nests as Nests, homes_of, interval_of, writes_uncommitted
from .layout import model_of_costs, model_of_graph, numbered
from .meta import names_of
from .model import BLOCK, SLOTS, Model, model_bytes, read_model, with_crc
from .nests import Streamed, with_nests
from .schedule import Schedule
from .slots import MODEL_BLOCKS, PLAN_BLOCKS
from .statements import STATEMENTS, Coder

_C = isa.constants()
QUEUE_CAPACITY = 8  # default for boards whose HELLO message is unknown


def encode(
    graph: Graph,
    plan: Plan,
    meta: Mapping[str, Any] | None = None,
    queue_capacity: int = QUEUE_CAPACITY,
    cuts: Mapping[str, Cut] | None = None,
    *,
    storage: bool = True,
    nests: Nests | None = None,
) -> Schedule:
    """Return the schedule of a plan of `graph`. The plan must have offsets.

    `meta` (model, options, seed, board, keep_everything, ...) is added to the meta part. The meta
    part also has the names of the graph and its tensors, and the plan's costs. `queue_capacity` is
    the largest number of transfers that the board queues. `cuts` are the cuts of tensors, by node
    (`model_of_graph`). If `storage` is False, the plan is for a board without a card. `nests` maps
    a node and the number of a mode to the nest with which the board computes the node in that mode;
    without a nest, it is one call of the kernel. In other modes than mode 0, the output may lie
    where an input lies, which it then overwrites. Raises BadInput for a plan without offsets, or
    for a graph that no board can run. Raises PoetError if the plan breaks a rule of the format, or
    uses a mode that has no nest and overwrites no input.
    """
    slots = SLOTS + (storage and writes_uncommitted(graph, plan, nests or {}))
    model = model_of_graph(graph, cuts, storage=storage, slots=slots)
    return encode_model(model, names_of(graph), plan, meta, queue_capacity, graph.origin, nests)


def encode_costs(
    graph: CostGraph,
    plan: Plan,
    meta: Mapping[str, Any] | None = None,
    queue_capacity: int = QUEUE_CAPACITY,
) -> Schedule:
    """Return the schedule of a plan for a cost graph.

    A cost graph has no kernels, so boards refuse the schedule. Raises BadInput if tensors of the
    plan stay in RAM, if it leaves out a node, or if sizes are too large for a schedule.
    """
    if graph.storage and plan.initial_offsets:
        raise BadInput(
            "tensors of the plan stay in RAM from step to step, which the schedule of a cost graph "
            "cannot contain: save only the plan, with --plan"
        )
    nodes = numbered(graph.nodes)
    computed = {it.node for it in plan.statements if it.op == "compute"}
    left_out = [node.name for node in nodes if not (node.stored or node.name in computed)]
    if left_out and graph.may_leave_out and not graph.has_modes:
        raise BadInput(
            f"the plan leaves out node {named(left_out[0])}, which nothing needs, but a schedule "
            "computes all nodes: delete it from the cost graph, or save only the plan, with --plan"
        )
    known = {"graph": {"name": graph.name}, "tensors": [{"name": node.name} for node in nodes]}
    try:
        return encode_model(model_of_costs(graph), known, plan, meta, queue_capacity)
    except OverflowError as error:
        raise BadInput(
            f"graph {graph.name}: its sizes are too large for a schedule, which has less than "
            "4 GiB of RAM and 2 TiB of storage: save only the plan, with --plan"
        ) from error


def encode_model(
    tables: Model,
    known: dict[str, Any],
    plan: Plan,
    meta: Mapping[str, Any] | None,
    queue_capacity: int,
    origin: bytes = b"",
    nests: Nests | None = None,
) -> Schedule:
    """Return the schedule of a plan for a model part. `known`: the names in its meta part.

    Raises BadInput if the schedule has kernels, but a part is larger than boards read.
    """
    if not plan.statements:
        raise BadInput(f"the plan has no statements to encode: its status is {plan.status}")
    if queue_capacity < 1:
        raise BadInput(f"queue_capacity is {queue_capacity}: it must be at least 1")
    part = model_bytes(tables)
    model = read_model(part, "schedule")
    for_boards = any(op.kernel for op in model.operators)  # else of a cost graph
    if for_boards and len(part) > MODEL_BLOCKS * BLOCK:
        raise _too_large("model", part, MODEL_BLOCKS, "a model with fewer operators")
    names = [tensor["name"] for tensor in known["tensors"]]
    initial = homes_of(model, names, plan)
    statements = with_nests(plan.statements, nests or {}, names)
    every = interval_of(plan) if model.storage else 1
    plan_part = _Encoder(model, names, statements, queue_capacity, every).plan_part(initial)
    if for_boards and len(plan_part) > PLAN_BLOCKS * BLOCK:
        raise _too_large("plan", plan_part, PLAN_BLOCKS, "a larger --ram, or a smaller model")
    whole = {"format": "poet-schedule", **known, "plan": plan.to_json(statements=False)}
    if modes := [s.mode for s in statements if isinstance(s, Streamed) or s.mode]:
        whole["modes"] = modes
    for key, value in (meta or {}).items():
        if key in whole:
            raise BadInput(f"`meta` has the key {key}, which `encode` sets: choose another key")
        whole[key] = value
    # Convert the meta part to JSON and back: then it has lists instead of tuples, as in a file.
    # `json.dumps` raises an error for a value that JSON cannot store.
    schedule = Schedule(part, plan_part, json.loads(json.dumps(whole, allow_nan=False)), origin)
    _compare(schedule, statements)
    if initial_offsets(schedule) != {names[number]: at for number, at in initial.items()}:
        raise PoetError(
            "the initial offsets of the plan were encoded wrong: this is a defect of poet-host, "
            "please report it"
        )
    return schedule


def _too_large(what: str, part: bytes, blocks: int, advice: str) -> BadInput:
    return BadInput(
        f"the {what} part of the schedule has {len(part):,} bytes, but boards read at most "
        f"{blocks * BLOCK:,}: choose {advice}"
    )


def _compare(schedule: Schedule, statements: Sequence[Statement]) -> None:
    """Decode the schedule. Raises PoetError if its statements are not those of the plan."""
    decoded = [s for s in decode(schedule) if not isinstance(s, Wait)]
    for i, (mine, planned) in enumerate(zip(decoded, statements, strict=True)):
        offset = planned.offset if planned.offset is not None else mine.offset
        if mine != replace(planned, offset=offset):
            raise PoetError(
                f"statement {i} of the plan, {planned}, was encoded as {mine}: this is a defect of "
                "poet-host, please report it"
            )


class _Encoder(Coder):
    """Writes the statements of a plan, with the waits between them."""

    def __init__(
        self,
        model: Model,
        names: Sequence[str],
        plan: Sequence[Statement],
        capacity: int,
        every: int,
    ) -> None:
        self.out = BitWriter()
        super().__init__(model, tuple(names), self.out, every)
        self.numbers = {name: i for i, name in enumerate(names)}
        self.plan, self.index = plan, 0  # the first statement that is not written yet
        self.capacity = capacity

    def plan_part(self, initial: Mapping[int, int]) -> bytes:
        """Return the plan part. `initial`: offsets of tensors in RAM at the start, by number."""
        self.homes(len(initial), initial)
        while self.index < len(self.plan):
            begun, statement = self.index, self.plan[self.index]
            try:
                self._write(statement)
            except RuleError as rule:
                raise PoetError(
                    f"statement {begun} of the plan, {statement.op} {statement.node}, cannot be "
                    f"encoded: {rule}"
                ) from rule
        try:
            self.state.end()
        except RuleError as rule:
            raise PoetError(f"the plan cannot be encoded: {rule}") from rule
        self.out.code(STATEMENTS["end"])
        bits = self.out.bytes(width(self.state.peak_bytes // 4))
        header = isa.pack(
            "poet_plan_header",
            magic=_C["POET_PLAN_MAGIC"],
            model_crc=self.model.crc,
            arena_bytes=self.state.peak_bytes,
            statement_count=len(self.statements),
            bit_bytes=len(bits),
            resident_max=self.state.resident_max,
            queue_max=self.state.queue_max,
            commit_every=self.state.commit_every,
            home_count=len(initial),
        )
        return with_crc(header + bits)

    def planned(self, offset: str) -> int:
        """Return an offset of the statement. Raises BadInput if it is None."""
        statement = self.plan[self.index]
        if offset == "own_offset" and not isinstance(statement, Streamed):
            offset = "offset"
        found: int | None = getattr(statement, offset)
        if found is None:
            raise BadInput(
                f"statement {self.index} of the plan, {statement.op} {statement.node}, has no "
                f"{offset}: solve without --unplaced"
            )
        return found

    def follows(self, tensor: int) -> bool:
        """Return whether the next statement frees the tensor, and no wait is needed before."""
        following = self.plan[self.index : self.index + 1]
        return (
            any(it.op == "free" and self._number(it) == tensor for it in following)
            and self.state.before_free(tensor) <= self.state.finished
        )

    def chosen(self, tensor: int, offset: int, one: NestedOperator | None) -> int | None:
        return super().chosen(tensor, offset, one) if self.plan[self.index].mode else None

    def add(self, statement: Statement | Wait) -> None:
        super().add(statement)
        self.index += not isinstance(statement, Wait)

    def _write(self, statement: Statement) -> None:
        """Write a statement of the plan. A compute can include frees that follow it."""
        number, state = self._number(statement), self.state
        if statement.op == "compute":
            self._write_compute(statement, number)
        elif statement.op == "page_in":
            self._wait_for_room()
            self.statement("page_in", number)
        elif statement.op == "page_out":
            self._wait_for_room()
            is_last = number == state.last_output
            self.statement("page_out_last" if is_last else "page_out", number)
        else:
            self._wait_for(state.before_free(number))
            self.statement("free", number)

    def _write_compute(self, statement: Statement, number: int) -> None:
        if number < self.model.stored_count:
            raise PoetError(
                f"the plan cannot compute {statement.node}, because it is a stored tensor: it "
                "exists before the step begins"
            )
        if isinstance(statement, Streamed):
            self.statement("stream", number, nest=statement.nest)
            return
        over = self.model.operator(number).overwrites
        if statement.mode:
            over = self.state.overwritten_at(number, self.planned("own_offset"))
            if over is None:
                raise PoetError(
                    f"the plan computes {statement.node} in mode {statement.mode}, but this mode "
                    "has no nest, and no input that the result may overwrite lies at its offset"
                )
        self._wait_for(self.state.before_compute(number, over))
        self.statement("again" if number != self.state.next_tensor else "compute", number)

    def _wait_for(self, transfer: int) -> None:
        """Write a wait for the end of a transfer, unless an earlier wait includes this transfer."""
        if transfer > self.state.finished:
            self.statement("wait", remaining=self.state.queued - transfer)

    def _wait_for_room(self) -> None:
        if self.state.unfinished >= self.capacity:
            self.statement("wait", remaining=self.capacity - 1)

    def _number(self, statement: Statement) -> int:
        """Return the number of the tensor; of a pair, that of the gradient of the weight."""
        if isinstance(statement, Streamed):
            return self.numbers[statement.own]
        if statement.node not in self.numbers:
            raise PoetError(f"the plan uses {statement.node}, which is not a node of the graph")
        return self.numbers[statement.node]
