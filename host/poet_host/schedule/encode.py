"""Encode a plan as the bytes that a board executes; schedules/FORMAT.md defines them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import isa
from ..errors import BadInput, PoetError
from ..graph.cuts import Cut
from ..graph.graph import Graph
from ..plan.nests import NestedOperator
from ..plan.plan import Plan, Statement
from ..plan.problem import CostGraph
from .arena_state import ArenaState, RuleError
from .bits import BitWriter, width
from .decode import Wait, decode, initial_offsets
from .homes import Nests as Nests, homes_of, interval_of, writes_uncommitted
from .layout import model_of_costs, model_of_graph, numbered
from .meta import names_of
from .model import SLOTS, Model, Operator, model_bytes, read_model, with_crc
from .nests import Streamed, made_by, nested, offset_of_own, put_nest, with_nests
from .schedule import Schedule

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

    A cost graph has no kernels, so boards refuse the schedule.
    """
    if graph.storage and plan.initial_offsets:
        raise BadInput(
            "tensors of the plan stay in RAM from step to step, which the schedule of a cost graph "
            "cannot contain: save only the plan, with --plan"
        )
    nodes = numbered(graph.nodes)
    known = {"graph": {"name": graph.name}, "tensors": [{"name": node.name} for node in nodes]}
    return encode_model(model_of_costs(graph), known, plan, meta, queue_capacity)


def encode_model(
    tables: Model,
    known: dict[str, Any],
    plan: Plan,
    meta: Mapping[str, Any] | None,
    queue_capacity: int,
    origin: bytes = b"",
    nests: Nests | None = None,
) -> Schedule:
    """Return the schedule of a plan for a model part. `known`: the names in its meta part."""
    if not plan.statements:
        raise BadInput(f"the plan has no statements to encode: its status is {plan.status}")
    if queue_capacity < 1:
        raise BadInput(f"queue_capacity is {queue_capacity}: it must be at least 1")
    part = model_bytes(tables)
    model = read_model(part, "schedule")
    names = [tensor["name"] for tensor in known["tensors"]]
    initial = homes_of(model, names, plan)
    statements = with_nests(plan.statements, nests or {}, names)
    every = interval_of(plan) if model.storage else 1
    plan_part = _Encoder(model, names, statements, queue_capacity, initial, every).plan_part()
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


class _Encoder:
    """Writes the statements of a plan. `state` is the board's state after the last one written."""

    def __init__(
        self, model: Model, names: Sequence[str], statements: Sequence[Statement], capacity: int,
        initial: Mapping[int, int], every: int,
    ) -> None:  # fmt: skip
        self.model = model
        self.numbers = {name: i for i, name in enumerate(names)}
        self.statements = statements
        self.capacity = capacity
        self.state = ArenaState(model, every)
        self.out = BitWriter()
        self.count = 0  # number of statements written so far, including waits
        self.initial = initial  # offsets of the tensors in RAM at the start, by number

    def _homes(self) -> None:
        all_stay, end = len(self.initial) == self.model.stored_count, 0
        for number in range(max(self.initial, default=-1) + 1):
            if not all_stay:
                self.out.put(number in self.initial, 1)
            if number in self.initial:
                offset = self.initial[number]
                self.out.put(offset != end, 1)
                if offset != end:
                    self.out.put(offset // 4, None)
                self.state.take_home(number, offset)
                end = offset + self.model.tensors[number].size_bytes

    def plan_part(self) -> bytes:
        self._homes()
        i = 0
        while i < len(self.statements):
            statement = self.statements[i]
            try:
                i += self._statement(statement, i)
            except RuleError as rule:
                raise PoetError(
                    f"statement {i} of the plan, {statement.op} {statement.node}, cannot be "
                    f"encoded: {rule}"
                ) from rule
        try:
            self.state.end()
        except RuleError as rule:
            raise PoetError(f"the plan cannot be encoded: {rule}") from rule
        self.out.code("11110")
        bits = self.out.bytes(width(self.state.peak_bytes // 4))
        header = isa.pack(
            "poet_plan_header",
            magic=_C["POET_PLAN_MAGIC"],
            model_crc=self.model.crc,
            arena_bytes=self.state.peak_bytes,
            statement_count=self.count,
            bit_bytes=len(bits),
            resident_max=self.state.resident_max,
            queue_max=self.state.queue_max,
            commit_every=self.state.commit_every,
            home_count=len(self.initial),
        )
        return with_crc(header + bits)

    def _nested(self, number: int, statement: Statement) -> NestedOperator | None:
        """Return the nest of a statement. None: it computes the node in one call."""
        if isinstance(statement, Streamed):
            return nested(self.model, number, statement.nest)
        return None

    def _chosen(
        self, number: int, statement: Statement, index: int, one: NestedOperator | None = None
    ) -> int | None:
        """Return the input that the output overwrites because of its offset, if there is one."""
        if not statement.mode:
            return None
        offset = self._placed(statement, index, offset_of_own(statement))
        over = self.state.overwritten_at(number, offset, one)
        if over is None and one is None:
            raise PoetError(
                f"the plan computes {statement.node} in mode {statement.mode}, but this mode has "
                "no nest, and no input that the result may overwrite lies at its offset"
            )
        return over

    def _statement(self, statement: Statement, index: int) -> int:
        """Write one statement of the plan. A compute can include frees that follow it.

        Return the number of statements of the plan that this call writes, including these frees.
        """
        number = self._number(statement)
        self.count += 1
        if statement.op == "compute":
            return self._compute(statement, number, index)
        if statement.op == "page_in":
            self._wait_for_room()
            self.out.code("101")
            self.out.put(number, width(len(self.model.tensors)))
            offset = self._placed(statement, index)
            self._place(offset, self.model.tensors[number].size_bytes)
            self.state.page_in(number, offset)
        elif statement.op == "page_out":
            self._wait_for_room()
            if number == self.state.last_output:
                self.out.code("1100")
            else:
                self._resident("11010", number)
            self.state.page_out(number)
        else:
            self._wait_for(self.state.before_free(number))
            self._resident("11011", number)
            self.state.free(number)
        return 1

    def _compute(self, statement: Statement, number: int, index: int) -> int:
        op, state = self._operator(number, statement), self.state
        if (one := self._nested(number, statement)) is not None:
            return self._stream(one, statement, number, index)
        chosen = self._chosen(number, statement, index)
        over = op.overwrites if chosen is None else chosen
        self._wait_for(state.before_compute(number, over))
        again = number != state.next_tensor
        state.begin_compute(number)
        if again:
            self.out.code("100")
            self.out.put(number, width(len(self.model.tensors)))
        else:
            self.out.code("0")
        if op.workspace_bytes:
            self._take(self._placed(statement, index, "workspace_offset"), op.workspace_bytes)
        self._output(statement, number, index, op.overwrites, chosen)
        state.end_compute(number)
        return 1 + self._folded_frees((*op.freeable, number), index + 1)

    def _stream(self, one: NestedOperator, statement: Statement, number: int, index: int) -> int:
        state, statistics = self.state, one.nest.statistics
        again = number != state.next_tensor
        state.begin_stream(number, one)
        self.out.code("11111")
        self.out.put(again or statistics, 1)
        for tensor in [0] * (again and statistics) + [number + statistics] * (again or statistics):
            self.out.put(tensor, width(len(self.model.tensors)))
        put_nest(self.out, one.operator, one.nest)
        self._take(self._placed(statement, index, "workspace_offset"), one.workspace_bytes)
        if one.nest.operands[-1] is None:
            fixed = self.model.operator(number).overwrites if one.nest.in_place else None
            chosen = self._chosen(number, statement, index, one)
            self._output(statement, number, index, fixed, chosen)
        for other in self._others(number, one):
            offset = self._placed(statement, index, "other_offset")
            self._take(offset, self.model.tensors[other].size_bytes, other)
        state.end_compute(number)
        inputs = self.model.operator(number).inputs
        return 1 + self._folded_frees(one.freeable(inputs, number), index + 1)

    @staticmethod
    def _others(number: int, one: NestedOperator | None) -> list[int]:
        """Return the tensors that a nest computes and places in RAM, without `number`."""
        made = made_by(number, one.nest) if one else []
        return [i for i, ring in made if i != number and ring is None]

    def _take(self, offset: int, size_bytes: int, tensor: int | None = None) -> None:
        self._place(offset, size_bytes)
        self.state.take(offset, size_bytes, tensor)

    def _output(
        self, statement: Statement, number: int, index: int, fixed: int | None, chosen: int | None
    ) -> None:
        """Give the output its memory: that of one of two inputs, if it overwrites one.

        Its operator always overwrites `fixed`, and its place makes it overwrite `chosen`.
        """
        if fixed is not None:
            self.state.overwrite(number, fixed)
            return
        offset = self._placed(statement, index, offset_of_own(statement))
        size_bytes = self.model.tensors[number].size_bytes
        self._place(offset, size_bytes)
        if chosen is None:
            self.state.take(offset, size_bytes, number)
        else:
            self.state.overwrite(number, chosen)

    def _folded_frees(self, candidates: Sequence[int], index: int) -> int:
        """Write one bit for each tensor in `candidates`: 1 if the compute also frees the tensor.

        It does so if the next statement of the plan frees this tensor, and no wait is needed before
        that. Return the number of tensors that the compute frees.
        """
        folded = 0
        held = self.state.tensors
        for tensor in (i for i in candidates if i in held):
            follows = (
                index + folded < len(self.statements)
                and self.statements[index + folded].op == "free"
                and self._number(self.statements[index + folded]) == tensor
                and self.state.before_free(tensor) <= self.state.finished
            )
            self.out.put(int(follows), 1)
            if follows:
                self.state.free(tensor)
                folded += 1
        self.count += folded
        return folded

    def _place(self, offset: int, size_bytes: int) -> None:
        residents = self.state.residents
        if offset == self.state.first_fit(size_bytes):
            self.out.code("0")
            return
        for i, resident in enumerate(residents):
            if resident.end == offset:
                self.out.code("10")
                self.out.put(i, width(len(residents)))
                return
        if offset < 0 or offset % 4:
            raise RuleError(f"the offset {offset} must be a multiple of 4, and at least 0")
        self.out.code("11")
        self.out.put(offset // 4, None)  # the highest offset of the plan gives the width

    def _resident(self, pattern: str, tensor: int) -> None:
        position = self.state.position(tensor)
        self.out.code(pattern)
        self.out.put(position, width(len(self.state.residents)))

    def _wait_for(self, transfer: int) -> None:
        """Write a wait for the end of a transfer, unless an earlier wait includes this transfer."""
        if transfer > self.state.finished:
            self._wait(self.state.queued - transfer)

    def _wait_for_room(self) -> None:
        if self.state.unfinished >= self.capacity:
            self._wait(self.capacity - 1)

    def _wait(self, remaining: int) -> None:
        self.out.code("1110")
        self.out.gamma(remaining)
        self.state.wait(remaining)
        self.count += 1

    def _number(self, statement: Statement) -> int:
        """Return the number of the tensor; of a pair, that of the gradient of the weight."""
        if isinstance(statement, Streamed):
            return self.numbers[statement.own]
        if statement.node not in self.numbers:
            raise PoetError(f"the plan uses {statement.node}, which is not a node of the graph")
        return self.numbers[statement.node]

    def _operator(self, number: int, statement: Statement) -> Operator:
        if number < self.model.stored_count:
            raise PoetError(
                f"the plan cannot compute {statement.node}, because it is a stored tensor: it "
                "exists before the step begins"
            )
        return self.model.operator(number)

    @staticmethod
    def _placed(statement: Statement, index: int, what: str = "offset") -> int:
        """Return an offset of a statement; `what`: such as "offset" or "workspace_offset".

        Raises BadInput if the field is None.
        """
        offset: int | None = getattr(statement, what)
        if offset is None:
            raise BadInput(
                f"statement {index} of the plan, {statement.op} {statement.node}, has no {what}: "
                "solve without --unplaced"
            )
        return offset
