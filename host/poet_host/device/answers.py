"""Check every field of every answer of a board, before anything else uses it.

`reply_fields` is the only way from the bytes of a reply to its values. A board's firmware may be
another one, or damaged: the rules state what a right answer can contain. A number without a rule
may have any value of its type.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from math import isfinite
from typing import Any

from .. import isa
from ..errors import BoardError
from .wire import STATUS_BYTES, WireError, messages, record_type, size_of, unpack

MAX_ROWS_BYTES = 1 << 16  # of the text that `rows` reads; isa.def has less than 2 KiB
VERSION = isa.constants()["POET_VERSION"]
TRACE_BYTES = isa.record_size("poet_trace")
# A frame must have room for one byte of a write, and for one record of a trace.
MIN_FRAME_BYTES = max(size_of(messages()["write"].request) + 1, STATUS_BYTES + TRACE_BYTES)
_U16, _U32 = 1 << 16, 1 << 32

Asked = Mapping[str, Any]  # fields of the request, and what else the answer must agree with
Allowed = Container[Any]


class _Kind:
    """Values that have a property. `what` names them in an error."""

    def __init__(self, what: str, has: Callable[[Any], bool]) -> None:
        self.what, self.has = what, has

    def __contains__(self, value: Any) -> bool:
        return self.has(value)


def _codes(macro: str) -> _Kind:
    return _Kind(f"the code of a row {macro}", isa.by_code(macro).__contains__)


def _is_reset(code: int) -> bool:
    """Return True if `code` is a cause of resets, alone or with `gave_up`."""
    return code & ~isa.by_name("RESET")["gave_up"].code in isa.by_code("RESET")


def _only(value: int) -> range:
    return range(value, value + 1)


_FINITE = _Kind("a finite number", isfinite)
_TEXT = _Kind("printable ASCII", lambda text: text.isascii() and text.isprintable())
_FLAG = range(2)
_TICKS = range(1, _U32)  # no transfer takes 0 ticks, which are a divisor
_HELLO: dict[str, Allowed] = {
    "storage_status": _codes("ERROR"),
    "board": _TEXT,
    "unique_id": _TEXT,
    "tick_hz": range(1, _U32),
    "frame_bytes": range(MIN_FRAME_BYTES, _U16),
}
_CARD = ("is_ready", "supply_is_low", "version2", "high_capacity")


def _load(_: Asked, info: Any) -> dict[str, Allowed]:
    return {
        "peak_bytes": range(info.arena_bytes + 1),
        "resident_max": range(info.resident_capacity + 1),
        "queue_max": range(info.queue_capacity + 1),
    }


def _step(asked: Asked, info: Any) -> dict[str, Allowed]:
    return {
        "step": _only(asked["step"]),
        "loss": _FINITE,
        "peak_bytes": range(info.arena_bytes + 1),
        "trace_records": range(info.trace_capacity + 1),
    }


def _trace(asked: Asked, info: Any) -> dict[str, Allowed]:
    left = min(len(asked["traced"]), info.trace_capacity) - asked["first"]
    return {"bytes": range(0, left * TRACE_BYTES + 1, TRACE_BYTES)}


# For each message, what its fields may contain. `bytes` stands for the length of these bytes.
_RULES: Mapping[str, Callable[[Asked, Any], Mapping[str, Allowed]]] = {
    "hello": lambda asked, info: _HELLO,
    "rows": lambda asked, info: {"bytes": range(MAX_ROWS_BYTES - asked["offset"] + 1)},
    "write": lambda asked, info: {
        "next": range(asked["offset"] + 1, asked["offset"] + len(asked["bytes"]) + 1)
    },
    "read": lambda asked, info: {"bytes": _only(asked["count"])},
    "load": _load,
    "step": _step,
    "trace": _trace,
    "status": lambda asked, info: {"running": _FLAG, "error": _codes("ERROR")},
    "health": lambda asked, info: {"reset": _Kind("the code of a row RESET", _is_reset)},
    "card": lambda asked, info: dict.fromkeys(_CARD, _FLAG),
    "save": lambda asked, info: {"step": asked["saved"]},
    "probe_transfer": lambda asked, info: {"ticks": _TICKS},
    "probe_commit": lambda asked, info: {"ticks": _TICKS},
}


def reply_fields(name: str, payload: bytes, asked: Asked, info: Any) -> dict[str, Any]:
    """Return the fields of a reply to the message `name`; the `bytes` of a trace as its records.

    `info`: the board's poet_hello, or None before the first one. Raises WireError if the payload
    does not match its row in wire.def, or if a field breaks a rule. A poet_hello of another version
    may contain anything: the caller must refuse it.
    """
    fields = unpack(messages()[name].reply, payload)
    if name == "hello" and fields[name].version != VERSION:
        return fields
    flat: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, bytes):
            flat[field] = len(value)
        else:
            flat |= value._asdict() if hasattr(value, "_asdict") else {field: value}
    if name in _RULES:
        _check(flat, _RULES[name](asked, info))
    if name == "trace":
        fields["bytes"] = _records(fields["bytes"], asked["traced"][asked["first"] :])
    return fields


def _records(data: bytes, statements: range) -> list[Any]:
    records = []
    for at, statement in zip(range(0, len(data), TRACE_BYTES), statements, strict=False):
        fields = isa.unpack("poet_trace", data[at : at + TRACE_BYTES])
        _check(fields, {"statement": _only(statement), "kind": _codes("STATEMENT")})
        records.append(record_type("poet_trace")(**fields))
    return records


def _check(fields: Mapping[str, Any], rules: Mapping[str, Allowed]) -> None:
    for field, allowed in rules.items():
        if fields[field] not in allowed:
            raise WireError(f"{field} is {_shown(fields[field])}, but must be {_text(allowed)}")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else repr(value)


def _text(allowed: Allowed) -> str:
    if not isinstance(allowed, range):
        return str(getattr(allowed, "what", allowed))
    few = allowed if len(allowed) < 3 else (allowed[0], allowed[-1])
    text = " to ".join(f"{number:,}" for number in few)
    return f"{text}, a multiple of {allowed.step}" if allowed.step > 1 else text


def board_error(status: int, detail: int, request: str, names: Sequence[str] = ()) -> BoardError:
    """Return the error for a negative status in a board's reply. `names`: those of the tensors."""
    row = isa.by_code("ERROR").get(status)
    if row is None:
        return BoardError(
            f"the board answered {request} with the unknown status {status}: flash the firmware "
            "of this version",
            "unknown",
            detail,
        )
    what, advice, place = row.columns
    text = f"the board refused {request}: {what}"
    if place and detail not in (0, isa.constants()["POET_NONE"]):
        shown = f"{detail:,}"
        if place == "tensor {}":
            shown = tensor_name(detail, names)
        elif place == "kernel {}" and detail in isa.by_code("KERNEL"):
            shown = isa.by_code("KERNEL")[detail].name
        text += f" ({place.format(shown)})"
    return BoardError(f"{text}; {advice}" if advice else text, row.name, detail)


def tensor_name(number: int, names: Sequence[str]) -> str:
    """Return the name of a tensor, or its number if `names` does not have it."""
    return names[number] if number < len(names) else f"{number:,}"
