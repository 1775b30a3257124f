"""State of a board's arena (RAM for tensors) and transfers during a plan.

The encoder and the decoder both use the class ArenaState. So both have the same list of residents
(tensors in RAM), and wait for the same transfers. ArenaState refuses statements that break a rule.
The section "What a reader refuses" of FORMAT.md lists the rules. The class does not use
plan/effects.py, so that it checks planners, and it identifies tensors by number, as a board does.
"""

from bisect import insort
from dataclasses import dataclass

from .. import isa
from ..plan.nests import NestedOperator
from .model import CURRENT, INPUT, KEEP, LOSS, NEXT, ONCE, PAGE, PLACE_NONE, SLOTS, STORED, Model


class RuleError(ValueError):
    """Raised for a statement that a board would refuse. The message says which rule it breaks."""


@dataclass(frozen=True, order=True)
class Resident:
    """An occupied range of the arena, in bytes. `tensor` is None for a workspace."""

    offset: int
    end: int
    tensor: int | None = None


class ArenaState:
    """The board's RAM and transfers after each statement of a plan.

    A tensor is identified by its index in `Model.tensors`.
    """

    def __init__(self, model: Model, commit_every: int = 1) -> None:
        self.model = model
        self.commit_every = commit_every
        self.homes: dict[
            int, int
        ] = {}  # offsets of the stored tensors that are in RAM at the start
        self.residents: list[Resident] = []  # sorted by offset
        self.next_tensor = model.stored_count  # lowest number of a tensor not yet computed
        self.last_output: int | None = None
        self.queued = 0  # number of transfers queued since the step began
        self.finished = 0  # number of transfers known to be finished after a wait
        self.peak_bytes = 0
        self.resident_max = 0
        self.queue_max = 0
        self._where: dict[int, Resident] = {}
        self._on_storage = {
            i
            for i, t in enumerate(model.tensors)
            if model.storage and t.flags & STORED and t.place != PLACE_NONE
        }
        self._arrival: dict[int, int] = {}  # tensor -> number of its last page-in
        self._transfer: dict[int, int] = {}  # tensor -> number of its last page-in or page-out

    @property
    def unfinished(self) -> int:
        return self.queued - self.finished

    @property
    def tensors(self) -> frozenset[int]:
        """Return the tensors in RAM."""
        return frozenset(self._where)

    def offset(self, tensor: int) -> int:
        """Return the offset of a tensor in RAM."""
        return self._where[tensor].offset

    def position(self, tensor: int) -> int:
        """Return the index of a tensor in `residents`, the list of tensors in RAM."""
        self._must_be_in_ram(tensor)
        return self.residents.index(self._where[tensor])

    def first_fit(self, size_bytes: int) -> int:
        """Return the lowest offset of a gap of `size_bytes` between the tensors in RAM."""
        low = 0
        for resident in self.residents:
            if low + size_bytes <= resident.offset:
                break
            low = resident.end
        return low

    def take_home(self, tensor: int, offset: int) -> None:
        """Let a stored tensor be in RAM at the start of a step."""
        record = self.model.tensors[tensor]
        self.homes[tensor] = offset
        self.take(offset, record.size_bytes, tensor)
        if self.commit_every > 1 and record.place == CURRENT:
            self._on_storage.discard(tensor)  # it has the value of the last commit

    def before_compute(self, tensor: int, over: int | None) -> int:
        """Return the number of the last transfer that must finish before `tensor` is computed.

        Return 0 if no transfer must finish. `over`: the input that the output overwrites.
        """
        needed = [self._arrival.get(i, 0) for i in self.model.operator(tensor).inputs]
        if over is not None:
            needed.append(self._transfer.get(over, 0))
        return max(needed, default=0)

    def before_free(self, tensor: int) -> int:
        """Return the number of the last transfer that must finish before `tensor` is freed.

        Return 0 if no transfer must finish.
        """
        return self._transfer.get(tensor, 0)

    def begin_compute(self, tensor: int) -> None:
        """Raise RuleError if `tensor` cannot be computed now.

        After this check, the caller calls `take` or `overwrite`, and finally `end_compute`.
        """
        self.may_compute(tensor)
        inputs = self.model.operator(tensor).inputs
        for i in (*inputs, tensor):
            if (cut := self.model.tensors[i].cut) and not cut.is_row_major:
                raise RuleError(f"tensor {i} is cut, so that only a nest can use it")
        for i in inputs:
            self._must_be_in_ram(i)
        last = self.before_compute(tensor, self.model.operator(tensor).overwrites)
        self._must_be_finished(last, f"compute of tensor {tensor}")

    def may_compute(self, tensor: int) -> None:
        if not self.model.stored_count <= tensor < len(self.model.tensors):
            raise RuleError(f"tensor {tensor} cannot be computed, because it has no operator")
        if tensor > self.next_tensor:
            raise RuleError(f"tensor {self.next_tensor} must be computed before tensor {tensor}")
        if tensor < self.next_tensor and self.model.tensors[tensor].flags & ONCE:
            raise RuleError(f"tensor {tensor} is computed twice, but has the flag ONCE")
        self._must_be_new(tensor)

    def begin_stream(self, tensor: int, nested: NestedOperator) -> None:
        """Raise RuleError if a nest of `tensor` cannot run now. The caller goes on as after
        `begin_compute`; a streamed output takes no RAM.
        """
        self.finished = self.queued
        for ring in nested.nest.also:
            self._begin_pair(tensor - 1, streamed=ring is not None)
        self.may_compute(tensor)
        if nested.nest.statistics:
            self._begin_statistics(tensor)
        rings, inputs = nested.nest.operands, self.model.operator(tensor).inputs
        for i, ring in zip(inputs, rings, strict=False):
            if any(bool(r) != bool(ring) for j, r in zip(inputs, rings, strict=False) if i == j):
                raise RuleError(f"tensor {i} streams as one operand, but not as another one")
            if ring is None:
                self._must_be_in_ram(i)
            elif i not in self._on_storage:
                raise RuleError(f"tensor {i} cannot stream, because it is not on storage")
        if rings[-1]:
            if nested.overwritten is not None:
                self._must_be_new(inputs[nested.overwritten])
            record = self.model.tensors[tensor]
            if record.place not in (PAGE, NEXT) or record.flags & LOSS:
                raise RuleError(f"tensor {tensor} cannot stream: it has no page on storage")
            self._put(tensor)

    def _begin_pair(self, tensor: int, *, streamed: bool) -> None:
        """Raise RuleError if `tensor` and the next one are not the gradients of one operator."""
        self.may_compute(tensor)
        if tensor != self.next_tensor:
            raise RuleError(f"tensor {tensor} is part of a pair, but has been computed already")
        first, second = self.model.operator(tensor), self.model.operator(tensor + 1)
        kernels = isa.kernels()
        codes = [kernels[name].code for name in ("conv2d_grad_input", "linear_grad_input")]
        if (
            first.kernel not in codes
            or second.kernel != first.kernel + 1
            or second.inputs[1:] != first.inputs
            or any(first.attrs.get(key) != second.attrs.get(key) for key in first.attrs)
        ):
            raise RuleError(f"tensors {tensor} and {tensor + 1} are not a pair of gradients")
        record = self.model.tensors[tensor]
        if streamed and record.place != PAGE:
            raise RuleError(f"tensor {tensor} cannot stream: it has no page on storage")
        if streamed:
            self._on_storage.add(tensor)
        self.next_tensor = tensor + 1

    def _begin_statistics(self, tensor: int) -> None:
        """Raise RuleError if the next tensor is not the statistics of a convolution's output."""
        self._must_be_new(tensor + 1)
        first, second = self.model.operator(tensor), self.model.operator(tensor + 1)
        kernels = isa.kernels()
        sizes = zip(("n", "k", "oh", "ow"), ("n", "c", "h", "w"), strict=True)
        if (
            first.kernel != kernels["conv2d"].code
            or second.kernel != kernels["batchnorm_stats"].code
            or second.inputs != (tensor,)
            or any(first.attrs[one] != second.attrs[other] for one, other in sizes)
            or self.model.tensors[tensor + 1].flags & ONCE
        ):
            raise RuleError(f"tensor {tensor + 1} is not the statistics of tensor {tensor}")
        self.next_tensor = max(self.next_tensor, tensor + 2)

    def take(self, offset: int, size_bytes: int, tensor: int | None = None) -> None:
        """Occupy a range of the arena for a tensor, or for a workspace (None)."""
        new = Resident(offset, offset + size_bytes, tensor)
        if offset < 0 or offset % 4:
            raise RuleError(f"the offset {offset} must be a multiple of 4, and at least 0")
        for old in self.residents:
            if old.offset < new.end and new.offset < old.end:
                raise RuleError(
                    f"a statement takes the bytes [{new.offset}, {new.end}), but the bytes "
                    f"[{old.offset}, {old.end}) are in use already"
                )
        self._insert(new)
        self.peak_bytes = max(self.peak_bytes, new.end)
        self.resident_max = max(self.resident_max, len(self.residents))

    def overwritten_at(
        self, tensor: int, offset: int, nested: NestedOperator | None = None
    ) -> int | None:
        """Return the input that the output `tensor` overwrites if its place is `offset`.

        It is None if the output must have memory of its own there. `nested`: if a nest computes it.
        """
        op, tensors = self.model.operator(tensor), self.model.tensors
        if op.overwrites is not None:
            return None
        for k in op.may_overwrite:
            i = op.inputs[k]
            if (
                i >= self.model.stored_count
                and op.inputs.count(i) == 1
                and tensors[i].size_bytes == tensors[tensor].size_bytes
                and i in self._where
                and self.offset(i) == offset
                and (nested is None or nested.may_overwrite(k))
            ):
                return i
        return None

    def overwrite(self, tensor: int, over: int) -> None:
        """Let the output `tensor` take the memory of the input `over`."""
        self._must_be_finished(self.before_free(over), f"overwriting of tensor {over}")
        old = self._where.pop(over)
        self.residents.remove(old)
        self._insert(Resident(old.offset, old.end, tensor))

    def end_compute(self, tensor: int) -> None:
        """Release the workspace, and remember `tensor` as the latest output."""
        self.residents = [r for r in self.residents if r.tensor is not None]
        self.next_tensor = max(self.next_tensor, tensor + 1)
        self.last_output = tensor

    def page_in(self, tensor: int, offset: int) -> None:
        self._must_be_new(tensor)
        if tensor not in self._on_storage:
            raise RuleError(f"tensor {tensor} cannot be paged in, because it is not on storage")
        self.take(offset, self.model.tensors[tensor].size_bytes, tensor)
        self._queue(tensor)
        self._arrival[tensor] = self.queued

    def page_out(self, tensor: int) -> None:
        self._must_be_in_ram(tensor)
        if not self.model.storage or self.model.tensors[tensor].place not in (PAGE, NEXT):
            raise RuleError(f"tensor {tensor} cannot be paged out: it has no page on storage")
        self._queue(tensor)
        self._put(tensor)

    def free(self, tensor: int) -> None:
        self._must_be_in_ram(tensor)
        self._must_be_finished(self.before_free(tensor), f"free of tensor {tensor}")
        self.residents.remove(self._where.pop(tensor))

    def wait(self, remaining: int) -> None:
        if self.unfinished <= remaining:
            raise RuleError(
                f"a statement waits until at most {remaining} transfers are unfinished, but only "
                f"{self.unfinished} are unfinished: the wait has no effect"
            )
        self.finished = self.queued - remaining

    def end(self) -> None:
        if self.next_tensor != len(self.model.tensors):
            raise RuleError(f"the plan never computes tensor {self.next_tensor}")
        kept = set(self._on_storage)
        for number, offset in self.homes.items():
            kept |= self._returned(number, offset)
        for i, tensor in enumerate(self.model.tensors):
            if tensor.flags & KEEP and i not in kept:
                raise RuleError(f"at the end, tensor {i} must be on storage or stay, but does not")
        if self.model.trained_by is not None:
            self._must_be_in_ram(len(self.model.tensors) - 1)

    def _returned(self, number: int, offset: int) -> set[int]:
        """Return the tensor that is in a home again, if it is not the place of a batch."""
        home, tensors = self.model.tensors[number], self.model.tensors
        forward = self.model.trained_by is not None
        if home.place == PLACE_NONE or (home.place == INPUT and not forward):
            return set()
        renewed = home.place == CURRENT and not home.flags & KEEP and not forward
        for tensor, resident in self._where.items():
            found = tensors[tensor]
            same = (found.block, found.at, found.cut) == (home.block, home.at, home.cut)
            if resident.offset == offset and (
                found.place == NEXT and same if renewed else tensor == number
            ):
                return {tensor}
        raise RuleError(
            f"tensor {number} begins the step at {offset}, so it or its new value must end there"
        )

    def _put(self, tensor: int) -> None:
        """Note that a tensor is on storage."""
        if (
            self.model.tensors[tensor].place == NEXT
            and self.commit_every > 1
            and self.model.slots == SLOTS
        ):
            raise RuleError(f"tensor {tensor} needs a fourth slot, as not every step commits")
        self._on_storage.add(tensor)

    def _queue(self, tensor: int) -> None:
        self.queued += 1
        self._transfer[tensor] = self.queued
        self.queue_max = max(self.queue_max, self.unfinished)

    def _insert(self, resident: Resident) -> None:
        insort(self.residents, resident, key=lambda r: r.offset)
        if resident.tensor is not None:
            self._where[resident.tensor] = resident

    def _must_be_new(self, tensor: int) -> None:
        if tensor in self._where:
            raise RuleError(f"tensor {tensor} is in RAM already: free it first")

    def _must_be_in_ram(self, tensor: int) -> None:
        if tensor not in self._where:
            raise RuleError(f"a statement needs tensor {tensor}, which is not in RAM")

    def _must_be_finished(self, transfer: int, what: str) -> None:
        if transfer > self.finished:
            raise RuleError(f"the {what} must wait until transfer {transfer} has finished")
