"""Decode the statements of a schedule; schedules/FORMAT.md defines them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .. import isa
from ..errors import BadInput
from ..plan.plan import Statement
from ..schema import Count, convert
from .arena_state import RuleError
from .bits import BitReader, BitsError, width
from .schedule import Schedule
from .statements import Coder, Wait as Wait


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


class _Decoder(Coder):
    def __init__(self, schedule: Schedule) -> None:
        self.header = schedule.header
        size, self.arena_bytes = isa.record_size("poet_plan_header"), self.header.arena_bytes
        bits = BitReader(schedule.plan_part[size:], width(-(-self.header.arena_bytes // 4)))
        super().__init__(schedule.model, schedule.names, bits, self.header.commit_every)
        self.arena_bytes = self.header.arena_bytes
        self.reader = bits
        self.contents: list[frozenset[int]] = []  # the tensors in RAM after each statement

    def start(self) -> None:
        """Read the homes of the tensors that are in RAM at the start."""
        count, stored = self.header.home_count, self.model.stored_count
        if (
            self.header.commit_every < 1
            or count > stored
            or not (self.model.storage or count == stored)
        ):
            raise RuleError("the header has a wrong number of tensors in RAM at the start")
        self.homes(count, {})

    def all(self) -> None:
        """Read all statements."""
        self.start()
        while self._next():
            pass
        state, header, bits = self.state, self.header, self.reader
        state.end()
        if bits.rest or bits.length - bits.position > 7:
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
        return self.statement("") != "end"

    def add(self, statement: Statement | Wait) -> None:
        super().add(statement)
        self.contents.append(self.state.tensors)
