"""A schedule as text that a person can follow, statement by statement."""

from collections.abc import Iterator

from .. import isa
from ..plan.plan import Statement
from .decode import Wait, decode
from .model import CURRENT, FIXED, NEXT, PAGE, Model, Operator
from .schedule import Schedule

_PLACES = {FIXED: "data or frozen", CURRENT: "trained, two slots", PAGE: "page", NEXT: "update"}


def listing(schedule: Schedule) -> str:
    """Header, storage, then every statement with its tensor, place, and what is in RAM after it.

    Raises BadInput if the statements break a rule.
    """
    statements = decode(schedule)
    return "\n".join([*_header(schedule), "", *_table(_rows(schedule, statements))]) + "\n"


def _header(schedule: Schedule) -> Iterator[str]:
    model, header, meta = schedule.model, schedule.header, schedule.meta
    bits = 8 * header.bit_bytes / max(header.statement_count, 1)
    board = f" for {meta['board']}" if meta.get("board") else ""
    yield (
        f"{meta.get('graph', {}).get('name', 'schedule')}{board}: {header.statement_count} "
        f"statements in {len(schedule.plan_part)} bytes ({bits:.1f} bits each), model "
        f"{len(schedule.model_part):,} bytes"
    )
    yield (
        f"RAM {header.arena_bytes:,} bytes, at most {header.resident_max} tensors at once and "
        f"{header.queue_max} transfers queued"
    )
    plan = meta.get("plan", {})
    if plan.get("energy_uj") is not None:
        yield _costs(f"promised ({plan.get('status')}, method {plan.get('method')})", plan)
    if isinstance(keep := meta.get("keep_everything"), dict):
        yield _costs("keeping everything", keep)
    yield "storage: " + ", ".join(_storage(model))


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
            yield f"{len(there)} tensors {name} ({sum(t.size_bytes for t in there):,} bytes)"
    yield f"{model.data_blocks:,} blocks in all"


def _rows(
    schedule: Schedule, statements: tuple[Statement | Wait, ...]
) -> Iterator[tuple[str, ...]]:
    yield "#", "statement", "tensor", "bytes", "at", "RAM used", "what"
    model, names = schedule.model, schedule.names
    number = {name: i for i, name in enumerate(names)}
    resident: set[int] = set()
    computed: set[int] = set()
    for index, statement in enumerate(statements):
        if isinstance(statement, Wait):
            yield str(index), "wait", "", "", "", "", _waited_for(statement.remaining)
            continue
        tensor = number[statement.node]
        name, what = statement.op.replace("_", " "), ""
        if statement.op == "compute":
            op = model.operator(tensor)
            if tensor in computed:
                name = "compute again"
            what = _operator(op, names, statement)
            resident.discard(-1 if op.overwrites is None else op.overwrites)
            computed.add(tensor)
        if statement.op == "free":
            resident.discard(tensor)
        else:
            resident.add(tensor)
        yield (
            str(index),
            name,
            statement.node,
            f"{model.tensors[tensor].size_bytes:,}",
            "" if statement.offset is None else f"{statement.offset:,}",
            f"{sum(model.tensors[i].size_bytes for i in resident):,}",
            what,
        )


def _waited_for(remaining: int) -> str:
    if remaining == 0:
        return "for all transfers"
    return f"until {remaining} transfer{'s' * (remaining > 1)} remain{'s' * (remaining == 1)}"


def _operator(op: Operator, names: tuple[str, ...], statement: Statement) -> str:
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    text = f"{kernel}({', '.join(names[i] for i in op.inputs)})"
    if op.sink:
        text += f" into {sink}"
    if op.overwrites is not None:
        text += f", in place of {names[op.overwrites]}"
    if op.workspace_bytes:
        text += f", workspace {op.workspace_bytes:,} bytes at {statement.workspace_offset:,}"
    return text


def _table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as they need; numbers to the right."""
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    numeric = (0, 3, 4, 5)
    for row in table:
        cells = [
            text.rjust(width) if column in numeric else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
