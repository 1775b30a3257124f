"""List a schedule as text, one line for each statement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .. import isa
from ..errors import named
from ..plan.nests import Nest
from ..plan.plan import Statement
from ..schedule.decode import Wait, initial_offsets, walk
from ..schedule.model import CURRENT, FIXED, INPUT, NEXT, PAGE, SLOTS, Model
from ..schedule.nests import Streamed, nested
from ..schedule.schedule import Schedule
from ..schedule.times import Timed, costs_of_schedule, longest_slices, planned_times

_PLACES = {
    INPUT: "of a batch, two slots",
    FIXED: "data or frozen",
    CURRENT: "trained, {slots} slots",
    PAGE: "page",
    NEXT: "update",
}


@dataclass(frozen=True)
class Row:
    """The values in the line of a statement. A value is None if the statement does not have it."""

    index: int
    statement: str
    tensor: str
    size_bytes: int | None
    offset: int | None
    ram_bytes: int | None  # RAM in use after the statement
    begin_us: float | None  # `begin_us` and `time_us` are computed from the schedule's costs
    time_us: float | None
    what: str  # the operator of a compute, or the transfers that a wait waits for


# Headings of the columns that hold numbers. Units are left out.
_NUMBERS = ("#", "begins", "takes", "took", "bytes", "at", "RAM used")
SHORT_US = 10_000  # a shorter step is listed in microseconds, not milliseconds


@dataclass(frozen=True)
class Unit:
    """Unit of times in a listing: microseconds for a short step, otherwise milliseconds."""

    name: str
    us: float
    digits: int

    def text(self, time_us: float | None) -> str:
        return "" if time_us is None else f"{time_us / self.us:,.{self.digits}f}"


def unit_of(step_us: float) -> Unit:
    return Unit("us", 1.0, 1) if step_us < SHORT_US else Unit("ms", 1e3, 3)


def listing(schedule: Schedule, took_us: Mapping[int, float] | None = None) -> str:
    """Return a listing: a header, then one line for each statement with tensor, offset and RAM.

    If the schedule has costs, the line also has the planned begin and time. If `took_us` has
    measured times by statement index, they get their own column. Raises BadInput if the statements
    break a rule.
    """
    found = rows(schedule)
    ends_us = max((row.begin_us + (row.time_us or 0) for row in found if row.begin_us), default=0.0)
    head = [*_header(schedule), ""]
    timed = any(row.begin_us is not None for row in found)
    return "\n".join([*head, *_table(list(_cells(found, unit_of(ends_us), timed, took_us)))]) + "\n"


def _cells(
    found: tuple[Row, ...], unit: Unit, timed: bool, took_us: Mapping[int, float] | None
) -> Iterator[tuple[str, ...]]:
    times = (f"begins {unit.name}", f"takes {unit.name}") if timed else ()
    # Planned and measured times may come from different boards, so each may need its own unit.
    measured_in = unit_of(sum(took_us.values()) if took_us else 0.0)
    took = (f"took {measured_in.name}",) if took_us is not None else ()
    yield "#", *times, *took, "statement", "tensor", "bytes", "at", "RAM used", "what"
    for row in found:
        planned = (unit.text(row.begin_us), unit.text(row.time_us)) if timed else ()
        measured = (measured_in.text(took_us.get(row.index)),) if took_us is not None else ()
        sizes = (row.size_bytes, row.offset, row.ram_bytes)
        numbers = ("" if size is None else f"{size:,}" for size in sizes)
        name = named(row.tensor) if row.tensor else ""
        yield str(row.index), *planned, *measured, row.statement, name, *numbers, row.what


def counted(number: int, noun: str) -> str:
    """Return the number and the noun: "1 step", "1,200 steps"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _header(schedule: Schedule) -> Iterator[str]:
    model, header, meta = schedule.model, schedule.header, schedule.meta
    bits = 8 * header.bit_bytes / max(header.statement_count, 1)
    board = f" for {named(meta['board'])}" if meta.get("board") else ""
    yield (
        f"{named(meta.get('graph', {}).get('name', 'schedule'))}{board}: {header.statement_count} "
        f"statements in {len(schedule.plan_part)} bytes ({bits:.1f} bits each), model "
        f"{len(schedule.model_part):,} bytes"
    )
    yield (
        f"RAM {header.arena_bytes:,} bytes, at most {counted(header.resident_max, 'tensor')} at "
        f"once and {counted(header.queue_max, 'transfer')} queued"
    )
    plan = meta.get("plan", {})
    if plan.get("energy_uj") is not None:
        yield _costs(f"promised ({plan.get('status')}, method {plan.get('method')})", plan)
    if isinstance(keep := meta.get("keep_everything"), dict):
        yield _costs("keeping everything", keep)
    yield from slice_texts(schedule)
    if homes := initial_offsets(schedule):
        when = "at the start"
        if model.storage and model.trained_by is None:
            every = counted(header.commit_every, "step")
            when = f"when a step begins, and written after every {every}"
        yield f"in RAM {when}: " + ", ".join(
            f"{named(name)} at {offset:,}" for name, offset in homes.items()
        )
    yield ("storage: " if model.storage else "no card; flash: ") + ", ".join(_storage(model))


def slice_texts(schedule: Schedule) -> Iterator[str]:
    """Yield a line for the longest slice, and one for each other slice over the limit."""
    limit_us = schedule.meta.get("slice_us")
    limit = f", limit {limit_us:,.0f} us" if limit_us else ""
    for number, it in enumerate(longest_slices(schedule)):
        what = "over the limit" if number else f"longest slice{limit}"
        yield f"{what}: {it.time_us:,.1f} us, {named(it.node)} ({it.op})"


def _costs(what: str, costs: dict[str, float | None]) -> str:
    parts = []
    if costs.get("energy_uj") is not None:
        parts.append(f"{costs['energy_uj']:,.1f} uJ")
    if costs.get("time_us") is not None:
        parts.append(f"{costs['time_us']:,.1f} us")
    if costs.get("peak_bytes") is not None:
        parts.append(f"{costs['peak_bytes']:,} bytes of RAM")
    if costs.get("gap") is not None:
        parts.append(f"gap {100 * (costs['gap'] or 0):.2g} %")
    return f"{what}: {', '.join(parts)}"


def _storage(model: Model) -> Iterator[str]:
    for place, name in _PLACES.items():
        there = [tensor for tensor in model.tensors if tensor.place == place]
        if there and place != NEXT:
            size_bytes = sum(tensor.size_bytes for tensor in there)
            name = name.format(slots="four" if model.slots > SLOTS else "three")
            yield f"{counted(len(there), 'tensor')} {name} ({size_bytes:,} bytes)"
    yield f"{model.data_blocks:,} blocks in all"


def rows(schedule: Schedule) -> tuple[Row, ...]:
    """Return one row for each statement, in order. Raises BadInput if a statement breaks a rule."""
    found = walk(schedule)
    times: tuple[Timed | None, ...] = (None,) * len(found)
    if schedule.meta.get("costs"):
        times = planned_times(costs_of_schedule(schedule), [statement for statement, _ in found])
    return tuple(_rows(schedule, found, times))


def _rows(
    schedule: Schedule,
    found: Sequence[tuple[Statement | Wait, frozenset[int]]],
    times: Sequence[Timed | None],
) -> Iterator[Row]:
    model, names, number = schedule.model, schedule.names, schedule.numbers
    before = frozenset[int]() if model.storage else frozenset(range(model.stored_count))
    left_us: dict[int, float] = {}  # tensor -> time at which it left RAM
    computed: set[int] = set()
    unit = unit_of(max((timed.end_us for timed in times if timed), default=0.0))
    for index, ((statement, after), timed) in enumerate(zip(found, times, strict=True)):
        if isinstance(statement, Wait):
            what = _waited_for(statement.remaining)
            yield Row(index, "wait", "", None, None, None, None, None, what)
            continue
        nest = statement if isinstance(statement, Streamed) else None
        tensor = number[nest.own if nest else statement.node]
        offset = nest.own_offset if nest else statement.offset
        name, what = statement.op.replace("_", " "), ""
        if statement.op == "compute":
            name = "compute again" if tensor in computed else name
            what = operator_text(schedule, tensor, statement, min(before - after, default=None))
            computed.add(tensor)
        if nest and nest.other:
            computed.add(number[nest.other])
        if timed and tensor in after - before and tensor in left_us:
            away = f"back after {unit.text(timed.begin_us - left_us[tensor])} {unit.name}"
            what = f"{what}, {away}" if what else away
        left_us.update(dict.fromkeys(before - after, timed.end_us if timed else 0.0))
        times_us: tuple[float | None, float | None] = (None, None)
        if timed and not (statement.op == "free" and timed.begin_us == timed.end_us):
            times_us = (timed.begin_us, timed.end_us - timed.begin_us)
        size_bytes = model.tensors[tensor].size_bytes
        ram_bytes = sum(model.tensors[i].size_bytes for i in after)
        yield Row(index, name, names[tensor], size_bytes, offset, ram_bytes, *times_us, what)
        before = after


def _waited_for(remaining: int) -> str:
    if remaining == 0:
        return "for all transfers"
    return f"until {remaining} transfer{'s' * (remaining > 1)} remain{'s' * (remaining == 1)}"


def operator_text(
    schedule: Schedule, tensor: int, statement: Statement | None = None, over: int | None = None
) -> str:
    """Return the operator of a tensor as `kernel(inputs)`.

    A cost graph has no kernels, so the text is then `from inputs`. If `statement` is a compute, the
    text also has the size and the offset of the workspace. `over`: the tensor in RAM that it
    overwrites, if there is one.
    """
    op, names = schedule.model.operator(tensor), schedule.names
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    inputs = ", ".join(named(names[i]) for i in op.inputs)
    if kernel == "none":
        text = f"from {inputs}" if inputs else "from nothing"
    else:
        text = f"{kernel}({inputs})"
    if op.sink:
        text += f" into {sink}"
    nest = statement.nest if isinstance(statement, Streamed) else None
    if op.overwrites is not None and (nest is None or nest.in_place):
        over = op.overwrites
    if over is not None:
        text += f", in place of {named(names[over])}"
    if nest and statement:
        workspace_bytes = nested(schedule.model, tensor, nest).workspace_bytes
        text += f", {_nest_text(nest, [names[i] for i in (*op.inputs, tensor)])}"
        text += _also_text(statement)
        text += f", workspace {workspace_bytes:,} bytes at {statement.workspace_offset:,}"
    if op.workspace_bytes and statement:
        text += f", workspace {op.workspace_bytes:,} bytes at {statement.workspace_offset:,}"
    return text


def _also_text(statement: Statement) -> str:
    if not isinstance(statement, Streamed) or statement.other is None:
        return ""
    offset = statement.other_offset
    where = "to storage" if offset is None else f"at {offset:,}"
    return f", also {named(statement.other)} {where}"


def _nest_text(nest: Nest, names: Sequence[str]) -> str:
    loops = ", ".join(f"{loop.axis} by {loop.step:,}" for loop in nest.loops)
    rings = [
        f"{named(name)} ({ring.slots} of depth {ring.depth})"
        for name, ring in zip(names, nest.operands, strict=True)
        if ring
    ]
    streams = f"streams {', '.join(rings)}" if rings else "streams nothing"
    return f"part by part ({loops}), {streams}" if loops else streams


def _table(table: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table. Numbers are aligned to the right, text to the left."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    plain = [name.removesuffix(" ms").removesuffix(" us") for name in table[0]]
    numeric = [column for column, name in enumerate(plain) if name in _NUMBERS]
    for row in table:
        cells = [
            text.rjust(width) if column in numeric else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
