"""Decode the statements of a schedule; schedules/FORMAT.md defines them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .. import isa
from ..errors import BadInput
from ..plan.nests import NestedOperator
from ..plan.parts import LawError
from ..plan.plan import Statement
from ..schema import Count, convert
from .arena_state import ArenaState, RuleError
from .bits import BitReader, BitsError, width
from .model import Model
from .nests import Streamed, made_by, nested, operator_of, take_nest
from .schedule import Schedule


@dataclass(frozen=True)
class Wait:
    """A statement that waits until at most `remaining` transfers are unfinished."""

    remaining: int


def decode(schedule: Schedule) -> tuple[Statement | Wait, ...]:
    """Return all statements in order, without `end`.

    The result includes waits, and a separate statement for each free that is part of a compute.
    Every compute has an offset, even if its output overwrites an input. A nest, and a compute that
    overwrites an input because of its offset, have the mode that the meta part names. Raises
    BadInput if a board would refuse the statements, or if the meta part has another number of
    modes.
    """
    return tuple(statement for statement, _ in walk(schedule))


def walk(schedule: Schedule) -> Sequence[tuple[Statement | Wait, frozenset[int]]]:
    """Return each statement of `decode`, with the tensors that are in RAM after it."""
    decoder = _Decoder(schedule)
    try:
        decoder.all()
        statements = tuple(_with_modes(schedule, decoder.statements, decoder.with_mode))
    except (RuleError, BitsError) as rule:
        raise BadInput(
            f"statement {len(decoder.statements)} of the schedule breaks a rule ({rule}): "
            "solve again"
        ) from rule
    return list(zip(statements, decoder.contents, strict=True))


def _with_modes(
    schedule: Schedule, statements: Sequence[Statement | Wait], with_mode: Sequence[int]
) -> Iterator[Statement | Wait]:
    """Yield the statements. Those with the indices `with_mode` get the modes of the meta part."""
    count = len(with_mode)
    modes = convert(schedule.meta.get("modes", [0] * count), list[Count], 'meta part, "modes"')
    if len(modes) != count:
        raise BadInput(
            f"the schedule has {count} nests and computes in place, but {len(modes)} modes: solve "
            "again"
        )
    known = dict(zip(with_mode, modes, strict=True))
    for index, it in enumerate(statements):
        yield replace(it, mode=known[index]) if isinstance(it, Statement) and index in known else it


def initial_offsets(schedule: Schedule) -> dict[str, int]:
    """Return the names and offsets of the tensors that are in RAM when a step begins.

    Without storage, these are all stored tensors. Raises BadInput if a board would refuse them.
    """
    decoder = _Decoder(schedule)
    try:
        decoder.start()
    except (RuleError, BitsError) as rule:
        raise BadInput(f"the schedule breaks a rule ({rule}): solve again") from rule
    return {decoder.names[number]: offset for number, offset in decoder.state.homes.items()}


class _Decoder:
    def __init__(self, schedule: Schedule) -> None:
        self.model: Model = schedule.model
        self.header = schedule.header
        self.names = schedule.names
        self.state = ArenaState(self.model, self.header.commit_every)
        bits = schedule.plan_part[isa.record_size("poet_plan_header") :]
        self.bits = BitReader(bits)
        self.statements: list[Statement | Wait] = []
        self.contents: list[frozenset[int]] = []  # the tensors in RAM after each of them
        self.with_mode: list[int] = []  # indices of the statements whose modes the meta part has

    def start(self) -> None:
        """Read the homes of the tensors that are in RAM at the start."""
        count, stored, end = self.header.home_count, self.model.stored_count, 0
        if (
            self.header.commit_every < 1
            or count > stored
            or not (self.model.storage or count == stored)
        ):
            raise RuleError("the header has a wrong number of tensors in RAM at the start")
        number = 0
        for _ in range(count):
            while count < stored and not self.bits.get(1):
                number += 1
            if number >= stored:
                raise RuleError(f"tensor {number} is not a stored tensor")
            offset = self._offset() if self.bits.get(1) else end
            size_bytes = self.model.tensors[number].size_bytes
            self._check_end(offset, size_bytes)
            self.state.take_home(number, offset)
            number, end = number + 1, offset + size_bytes

    def all(self) -> None:
        """Read all statements."""
        self.start()
        while self._next():
            pass
        state, header = self.state, self.header
        state.end()
        if self.bits.rest or self.bits.length - self.bits.position > 7:
            raise RuleError("only 0 bits that fill the last byte may follow the statement `end`")
        counted = (state.peak_bytes, len(self.statements), state.resident_max, state.queue_max)
        stated = (header.arena_bytes, header.statement_count, header.resident_max, header.queue_max)
        if counted != stated:
            raise RuleError(
                "the numbers (bytes of arena, statements, most tensors in RAM, most queued "
                f"transfers) are {stated} in the header, but must be {counted} for these statements"
            )

    def _next(self) -> bool:
        """Read one statement. Return False if it is `end`, otherwise True."""
        get, state = self.bits.get, self.state
        if get(1) == 0:
            self._compute(state.next_tensor)
        elif get(1) == 0:
            again = get(1) == 0
            tensor = self._tensor()
            if again:
                if tensor >= state.next_tensor:
                    raise RuleError(f"tensor {tensor} is recomputed, but has not been computed yet")
                self._compute(tensor)
            else:
                offset = self._place(self.model.tensors[tensor].size_bytes)
                state.page_in(tensor, offset)
                self._add(Statement("page_in", self.names[tensor], offset))
        elif get(1) == 0:
            if get(1) == 0:
                if state.last_output is None:
                    raise RuleError(
                        "a statement pages out the latest output, but nothing has been computed yet"
                    )
                self._page_out(state.last_output)
            elif get(1) == 0:
                self._page_out(self._resident())
            else:
                self._free(self._resident())
        elif get(1) == 0:
            remaining = self.bits.gamma()
            state.wait(remaining)
            self._add(Wait(remaining))
        elif get(1):
            repeated = get(1)
            tensor = self._tensor() if repeated else state.next_tensor
            several, end = tensor == state.next_tensor + 1, state.next_tensor
            if repeated and tensor == 0:
                several, end, tensor = True, end + 1, self._tensor()
            elif several:
                end += 2
            if repeated and tensor >= end:
                raise RuleError(f"tensor {tensor} is recomputed, but has not been computed yet")
            self._stream(tensor, several=several)
        else:
            return False
        return True

    def _stream(self, tensor: int, *, several: bool) -> None:
        state, model = self.state, self.model
        computed = model.stored_count + several <= tensor < len(model.tensors)
        if not computed or not model.operator(tensor).kernel:
            raise RuleError(f"tensor {tensor} cannot be computed, because it has no operator")
        code = isa.kernels()["batchnorm_stats"].code
        statistics = several and model.operator(tensor).kernel == code
        tensor -= statistics
        paired = several and not statistics
        nest = take_nest(
            self.bits, operator_of(model, tensor), paired=paired, statistics=statistics
        )
        try:
            one = nested(model, tensor, nest)
        except LawError as error:
            raise RuleError(f"a nest breaks the law `{error.law}`: {error}") from error
        state.begin_stream(tensor, one)
        workspace = self._place(one.workspace_bytes)
        state.take(workspace, one.workspace_bytes)
        if nest.operands[-1] is None:
            self._output(tensor, one)
        made = made_by(tensor, nest)
        for other in (i for i, ring in made if i != tensor and ring is None):
            size_bytes = model.tensors[other].size_bytes
            state.take(self._place(size_bytes), size_bytes, other)
        state.end_compute(tensor)
        first, *more = (None if ring else state.offset(i) for i, ring in made)
        self.with_mode.append(len(self.statements))
        self._add(
            Streamed(
                "compute",
                self.names[made[0][0]],
                first,
                workspace,
                also_offsets=tuple(offset for offset in more if offset is not None),
                nest=nest,
                also=self.names[made[-1][0]] if several else None,
            )
        )
        self._frees(one.freeable(model.operator(tensor).inputs, tensor))

    def _compute(self, tensor: int) -> None:
        state = self.state
        state.begin_compute(tensor)
        op = self.model.operator(tensor)
        workspace = None
        if op.workspace_bytes:
            workspace = self._place(op.workspace_bytes)
            state.take(workspace, op.workspace_bytes)
        if self._output(tensor):
            self.with_mode.append(len(self.statements))
        state.end_compute(tensor)
        self._add(Statement("compute", self.names[tensor], state.offset(tensor), workspace))
        self._frees((*op.freeable, tensor))

    def _output(self, tensor: int, one: NestedOperator | None = None) -> bool:
        """Give the output its memory. Return whether its place makes it overwrite an input."""
        state, size_bytes = self.state, self.model.tensors[tensor].size_bytes
        over = self.model.operator(tensor).overwrites
        if over is not None and (one is None or one.nest.in_place):
            state.overwrite(tensor, over)
            return False
        offset = self._place(size_bytes)
        over = state.overwritten_at(tensor, offset, one)
        if over is None:
            state.take(offset, size_bytes, tensor)
            return False
        state.overwrite(tensor, over)
        return True

    def _frees(self, candidates: Iterable[int]) -> None:
        held = self.state.tensors
        for freed in [t for t in candidates if t in held and self.bits.get(1)]:
            self._free(freed)

    def _page_out(self, tensor: int) -> None:
        self.state.page_out(tensor)
        self._add(Statement("page_out", self.names[tensor]))

    def _free(self, tensor: int) -> None:
        self.state.free(tensor)
        self._add(Statement("free", self.names[tensor]))

    def _add(self, statement: Statement | Wait) -> None:
        self.statements.append(statement)
        self.contents.append(self.state.tensors)

    def _tensor(self) -> int:
        tensor = self.bits.get(width(len(self.model.tensors)))
        if tensor >= len(self.model.tensors):
            raise RuleError(f"the model has no tensor with the number {tensor}")
        return tensor

    def _position(self) -> int:
        count = len(self.state.residents)
        position = self.bits.get(width(count))
        if position >= count:
            raise RuleError(
                f"position {position} is not in the list of tensors in RAM, which has {count} "
                "entries"
            )
        return position

    def _resident(self) -> int:
        tensor = self.state.residents[self._position()].tensor
        assert tensor is not None  # a workspace is released when its compute ends
        return tensor

    def _place(self, size_bytes: int) -> int:
        if self.bits.get(1) == 0:
            offset = self.state.first_fit(size_bytes)
        elif self.bits.get(1) == 0:
            offset = self.state.residents[self._position()].end
        else:
            offset = self._offset()
        self._check_end(offset, size_bytes)
        return offset

    def _offset(self) -> int:
        return 4 * self.bits.get(width(-(-self.header.arena_bytes // 4)))

    def _check_end(self, offset: int, size_bytes: int) -> None:
        if offset + size_bytes > self.header.arena_bytes:
            raise RuleError(
                f"the bytes [{offset}, {offset + size_bytes}) are outside the arena of "
                f"{self.header.arena_bytes} bytes"
            )
