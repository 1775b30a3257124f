"""The bits of statements, which schedules/FORMAT.md defines.

An encoder and a decoder share them: `Coder` writes what it knows, or reads what it does not know.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .. import isa
from ..plan.nests import Nest, NestedOperator
from ..plan.parts import LawError
from ..plan.plan import Statement
from .arena_state import ArenaState, RuleError
from .bits import Bits, BitWriter, width
from .model import Model
from .nests import Streamed, code_nest, made_by, nested, operator_of

STATEMENTS = {
    "compute": "0",
    "again": "100",
    "page_in": "101",
    "page_out_last": "1100",
    "page_out": "11010",
    "free": "11011",
    "wait": "1110",
    "end": "11110",
    "stream": "11111",
}
_PLACES = {"first_fit": "0", "after": "10", "offset": "11"}


@dataclass(frozen=True)
class Wait:
    """A statement that waits until at most `remaining` transfers are unfinished."""

    remaining: int


class Coder:
    """Writes or reads statements. `state` is the board's state after the last one.

    What a decoder does not know is 0 or None: then it is read.
    """

    def __init__(self, model: Model, names: tuple[str, ...], bits: Bits, every: int) -> None:
        self.model, self.names, self.bits = model, names, bits
        self.is_written = isinstance(bits, BitWriter)
        self.state = ArenaState(model, every)
        self.arena_bytes: int | None = None  # None: not known yet
        self.statements: list[Statement | Wait] = []
        self.with_mode: list[int] = []  # indices of the statements whose modes the meta part has

    # What an encoder knows of the statement that it writes.

    def planned(self, offset: str) -> int | None:
        """Return an offset of the statement: such as "workspace_offset" or "own_offset"."""
        return None

    def follows(self, tensor: int) -> bool:
        """Return whether the compute also frees the tensor."""
        return False

    # Statements.

    def homes(self, count: int, given: Mapping[int, int]) -> None:
        """Code the offsets of the `count` tensors that are in RAM when a step begins."""
        stored, number, end = self.model.stored_count, 0, 0
        for _ in range(count):
            while count < stored and not self.bits.number(number in given, 1):
                number += 1
            if number >= stored:
                raise RuleError(f"tensor {number} is not a stored tensor")
            offset = given.get(number, 0)
            offset = self._offset(offset) if self.bits.number(offset != end, 1) else end
            size_bytes = self.model.tensors[number].size_bytes
            self._check_end(offset, size_bytes)
            self.state.take_home(number, offset)
            number, end = number + 1, offset + size_bytes

    def statement(
        self, op: str, tensor: int = 0, *, remaining: int = 0, nest: Nest | None = None
    ) -> str:
        """Code a statement, run it, and return its key in STATEMENTS."""
        state, op = self.state, self.bits.choice(STATEMENTS, op)
        if op == "compute":
            self._compute(state.next_tensor)
        elif op == "again":
            tensor = self._tensor(tensor)
            state.may_compute(tensor)
            self._compute(self._before(state.next_tensor, tensor))
        elif op == "page_in":
            tensor = self._tensor(tensor)
            offset = self._place("offset", self.model.tensors[tensor].size_bytes)
            state.page_in(tensor, offset)
            self.add(Statement("page_in", self.names[tensor], offset))
        elif op in ("page_out_last", "page_out"):
            out = self._resident(tensor) if op == "page_out" else state.last_output
            if out is None:
                raise RuleError(
                    "a statement pages out the latest output, but nothing has been computed yet"
                )
            state.page_out(out)
            self.add(Statement("page_out", self.names[out]))
        elif op == "free":
            self._free(self._resident(tensor))
        elif op == "wait":
            remaining = self.bits.gamma(remaining)
            state.wait(remaining)
            self.add(Wait(remaining))
        elif op == "stream":
            self._stream(tensor, nest)
        return op

    def add(self, statement: Statement | Wait) -> None:
        self.statements.append(statement)

    # Parts of statements.

    def _compute(self, tensor: int) -> None:
        state = self.state
        state.begin_compute(tensor)
        op, workspace = self.model.operator(tensor), None
        if op.workspace_bytes:
            workspace = self._take("workspace_offset", op.workspace_bytes)
        if self._output(tensor):
            self.with_mode.append(len(self.statements))
        state.end_compute(tensor)
        self.add(Statement("compute", self.names[tensor], state.offset(tensor), workspace))
        self._frees((*op.freeable, tensor))

    def _stream(self, tensor: int, given: Nest | None) -> None:
        state, model, following = self.state, self.model, self.state.next_tensor
        last, is_new = tensor + (given is not None and given.statistics), tensor == following
        repeated = self.bits.number(last != tensor or not is_new, 1)
        tensor = self._tensor(last if last == tensor or is_new else 0) if repeated else following
        several, end = tensor == following + 1, following
        if repeated and tensor == 0:
            several, end, tensor = True, end + 1, self._tensor(last)
        elif several:
            end += 2
        if repeated:
            self._before(end, tensor)
        computed = model.stored_count + several <= tensor < len(model.tensors)
        if not computed or not model.operator(tensor).kernel:
            raise RuleError(f"tensor {tensor} cannot be computed, because it has no operator")
        code = isa.kernels()["batchnorm_stats"].code
        statistics = several and model.operator(tensor).kernel == code
        tensor, paired = tensor - statistics, several and not statistics
        operator = operator_of(model, tensor)
        nest = code_nest(self.bits, operator, given, paired=paired, statistics=statistics)
        try:
            one = nested(model, tensor, nest)
        except LawError as error:
            raise RuleError(f"a nest breaks the law `{error.law}`: {error}") from error
        state.begin_stream(tensor, one)
        workspace = self._take("workspace_offset", one.workspace_bytes)
        if nest.operands[-1] is None:
            self._output(tensor, one)
        made = made_by(tensor, nest)
        for other in (i for i, ring in made if i != tensor and ring is None):
            self._take("other_offset", model.tensors[other].size_bytes, other)
        state.end_compute(tensor)
        first, *more = (None if ring else state.offset(i) for i, ring in made)
        self.with_mode.append(len(self.statements))
        self.add(
            Streamed(
                "compute",
                self.names[made[0][0]],
                first,
                workspace,
                also_offsets=tuple(offset for offset in more if offset is not None),
                nest=nest,
                also=self.names[made[-1][0]] if paired or statistics else None,
            )
        )
        self._frees(one.freeable(model.operator(tensor).inputs, tensor))

    def _free(self, tensor: int) -> None:
        self.state.free(tensor)
        self.add(Statement("free", self.names[tensor]))

    def _before(self, end: int, tensor: int) -> int:
        if tensor >= end:
            raise RuleError(f"tensor {tensor} is recomputed, but has not been computed yet")
        return tensor

    def _tensor(self, tensor: int) -> int:
        found = self.bits.number(tensor, width(len(self.model.tensors)))
        if found >= len(self.model.tensors):
            raise RuleError(f"the model has no tensor with the number {found}")
        return found

    def _resident(self, tensor: int) -> int:
        position = self.state.position(tensor) if self.is_written else 0
        found = self.state.residents[self._position(position)].tensor
        assert found is not None  # a workspace is released when its compute ends
        return found

    def chosen(self, tensor: int, offset: int, one: NestedOperator | None) -> int | None:
        """Return the input that the output overwrites because of its offset, if there is one."""
        return self.state.overwritten_at(tensor, offset, one)

    def _output(self, tensor: int, one: NestedOperator | None = None) -> bool:
        """Give the output its memory. Return whether its place makes it overwrite an input."""
        state, size_bytes = self.state, self.model.tensors[tensor].size_bytes
        over = self.model.operator(tensor).overwrites
        if over is not None and (one is None or one.nest.in_place):
            state.overwrite(tensor, over)
            return False
        offset = self._place("own_offset", size_bytes)
        over = self.chosen(tensor, offset, one)
        if over is None:
            state.take(offset, size_bytes, tensor)
            return False
        state.overwrite(tensor, over)
        return True

    def _frees(self, candidates: Iterable[int]) -> None:
        """Code one bit for each tensor in RAM: 1 if the compute also frees the tensor."""
        held = self.state.tensors
        for tensor in [tensor for tensor in candidates if tensor in held]:
            if self.bits.number(self.follows(tensor), 1):
                self._free(tensor)

    def _take(self, planned: str, size_bytes: int, tensor: int | None = None) -> int:
        offset = self._place(planned, size_bytes)
        self.state.take(offset, size_bytes, tensor)
        return offset

    def _place(self, planned: str, size_bytes: int) -> int:
        given, first_fit = self.planned(planned), self.state.first_fit(size_bytes)
        ends = [resident.end for resident in self.state.residents]
        way = "first_fit" if given == first_fit else "after" if given in ends else "offset"
        way = self.bits.choice(_PLACES, way)
        if way == "first_fit":
            return self._check_end(first_fit, size_bytes)
        if way == "after":
            place = self._position(0 if given is None else ends.index(given))
            return self._check_end(ends[place], size_bytes)
        return self._check_end(self._offset(given or 0), size_bytes)

    def _position(self, position: int) -> int:
        count = len(self.state.residents)
        found = self.bits.number(position, width(count))
        if found >= count:
            raise RuleError(
                f"position {found} is not in the list of tensors in RAM, which has {count} entries"
            )
        return found

    def _offset(self, offset: int) -> int:
        if offset < 0 or offset % 4:
            raise RuleError(f"the offset {offset} must be a multiple of 4, and at least 0")
        return 4 * self.bits.number(offset // 4, None)  # the highest offset gives the width

    def _check_end(self, offset: int, size_bytes: int) -> int:
        if self.arena_bytes is not None and offset + size_bytes > self.arena_bytes:
            raise RuleError(
                f"the bytes [{offset}, {offset + size_bytes}) are outside the arena of "
                f"{self.arena_bytes} bytes"
            )
        return offset
