"""One operator as a graph of its own, and a board whose transfers happen as late as they may."""

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
from poet_host import isa
from poet_host.graph.graph import Graph, Node
from poet_host.graph.operands import Operator
from poet_host.plan.nests import Nest, NestedOperator
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.bits import BitWriter
from poet_host.schedule.encode import encode
from poet_host.schedule.model import Model, model_bytes
from poet_host.schedule.nests import code_nest
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.slots import pieces
from support.homes import some_staying
from support.kernel_cases import Case
from support.memory_board import MemoryBoard, card, refusal
from support.parts import plan_of_model

TENSOR = isa.constants()["POET_OBJECT_TENSOR"]
DATA_BLOCK = 24576
UNWRITTEN = 0x7F
ARENA_BYTES = 1 << 16


class LateBoard(MemoryBoard):
    """A board that runs a transfer when the library waits for it, and not before."""

    def __init__(self, *arguments: Any, lane_checks: bool = False, **named: Any) -> None:
        self.waiting: list[Any] = []
        super().__init__(*arguments, **named)
        self.port.lane_checks = lane_checks
        idle = self.ffi.callback("void(void *)", self._idle)
        self._late = idle
        self.port.idle = idle

    def _submit(self, _: Any, transfer: Any) -> None:
        begin = int(self.ffi.cast("uintptr_t", transfer.data))
        end = begin + transfer.size_bytes
        leaving = False
        for other in self.waiting:
            start = int(self.ffi.cast("uintptr_t", other.data))
            leaving |= bool(other.write) and start < end and begin < start + other.size_bytes
        if not transfer.write and not leaving:
            self.ffi.memmove(
                transfer.data, bytes([UNWRITTEN]) * transfer.size_bytes, transfer.size_bytes
            )
        self.waiting.append(transfer)

    def _idle(self, _: Any) -> None:
        if self.waiting:
            super()._submit(None, self.waiting.pop(0))


def graph_of(case: Case) -> Graph:
    """A graph that computes the case. The first input is data, the others are parameters."""
    names = [f"in{i}" for i in range(len(case.inputs))]
    nodes = [
        Node(name, array.shape or (1,), "data" if i == 0 else "parameter", start="zeros")
        for i, (name, array) in enumerate(zip(names, case.inputs, strict=True))
    ]
    over = None if case.overwrites is None else names[case.overwrites]
    renewed = over if case.sink not in ("none", "store") else None
    nodes.append(
        Node("out", case.shape or (1,), "value", "forward", case.op, tuple(names), case.attrs,
             case.sink, over, renewed)
    )  # fmt: skip
    return Graph("case", tuple(nodes), names[0], names[0], names[0], "out")


def schedule_of(
    case: Case, one: NestedOperator, queue: int = 8, staying: Random | None = None
) -> Schedule:
    """Page in what is whole, run the nest, and page out the output if it is whole.

    With `staying`, some of what is whole stays in RAM, and every third step commits.
    """
    graph = graph_of(case)
    nest, statements, at = one.nest, [], 0
    offsets = {}
    for i in range(one.count):
        if nest.operands[i] is None:
            offsets[i] = at
            statements.append(Statement("page_in", f"in{i}", at))
            at += graph[f"in{i}"].size_bytes
    over = one.overwritten
    offset = None if nest.operands[-1] else at if over is None else offsets[over]
    if nest.operands[-1] is None and over is None:
        at += graph["out"].size_bytes
    statements.append(Statement("compute", "out", offset, at, mode=1))
    if nest.operands[-1] is None:
        statements.append(Statement("page_out", "out"))
    plan = Plan("feasible", at + one.workspace_bytes, statements=tuple(statements))
    plan = some_staying(plan, graph, staying) if staying else plan
    cuts = {f"in{i}": cut for i, cut in enumerate(one.cuts[:-1]) if cut}
    if one.cuts[-1]:
        cuts["out"] = one.cuts[-1]
    nests = {("out", 1): nest}
    return encode(graph, plan, queue_capacity=queue, cuts=cuts, nests=nests)


def board_of(case: Case, schedule: Schedule, **named: Any) -> LateBoard:
    """A board that has the schedule and the inputs."""
    board = LateBoard(card(), arena_bytes=schedule.header.arena_bytes, **named)
    board.format()
    board.load(schedule.model_part, schedule.plan_part)
    for i, (array, tensor) in enumerate(zip(case.inputs, schedule.model.tensors, strict=False)):
        board.write(TENSOR, i, 0, tensor.in_order(array.tobytes()))
    board.begin(0)
    return board


def stored(board: MemoryBoard, schedule: Schedule, number: int) -> bytes:
    """A computed tensor on the card, in row-major order. NEXT tensors are in slot 1."""
    tensor = schedule.model.tensors[number]
    slot = schedule.model.slot_stride * (tensor.place == 4)
    first = board.state.partition + DATA_BLOCK + slot
    found = b""
    for piece in pieces(tensor):
        at = (first + piece.block) * 512 + piece.at
        found += bytes(board.storage[at : at + piece.size_bytes])
    return tensor.row_major(found)


def computed(
    case: Case, schedule: Schedule, shapes: Mapping[str, tuple[int, ...]], **named: Any
) -> tuple[np.ndarray, ...]:
    """These tensors after step 1 on a board with the inputs of the case."""
    board = board_of(case, schedule, **named)
    board.step(1)
    tensors = (stored(board, schedule, schedule.names.index(name)) for name in shapes)
    return tuple(
        np.frombuffer(tensor, np.float32).reshape(shape)
        for tensor, shape in zip(tensors, shapes.values(), strict=True)
    )


def with_nest(
    plain: Schedule,
    model: Model,
    operator: Operator,
    nest: Nest,
    before: BitWriter,
    after: str,
    arena_bytes: int = ARENA_BYTES,
) -> Schedule:
    """The schedule `plain` of one statement with another model and nest.

    `before` and `after`: bits of the statement before the nest and after it.
    """
    tables = model_bytes(model)
    code_nest(before, operator, nest, paired=bool(nest.also))
    before.code(f"{after}11110")
    bits = before.bytes()
    part = plan_of_model(
        plain.plan_part[: isa.record_size("poet_plan_header")] + bits, tables,
        arena_bytes=arena_bytes, bit_bytes=len(bits), statement_count=1,
        resident_max=len(after), queue_max=0,
    )  # fmt: skip
    return Schedule(tables, part, plain.meta)


def answer_to(schedule: Schedule) -> tuple[str, int]:
    """The name and the detail of a board's refusal to load the schedule."""
    board = LateBoard(card(), arena_bytes=ARENA_BYTES)
    board.format()
    return refusal(board.load, schedule.model_part, schedule.plan_part)


def run(case: Case, one: NestedOperator, **named: Any) -> np.ndarray:
    """The output of the case, computed by the C runtime as a nest. The case is step 1."""
    schedule = schedule_of(case, one, named.get("queue", 8))
    return computed(case, schedule, {"out": case.shape}, **named)[0]
