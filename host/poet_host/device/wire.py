"""Convert messages of wire.def to and from payloads, and payloads to and from frames."""

import struct
import zlib
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cobs import cobs

from .. import isa

REPLY = 0x80  # bit of a reply's code
_TYPES = {"u8": "<B", "u16": "<H", "u32": "<I", "i16": "<h", "f32": "<f"}
_STATUS = struct.Struct("<hI")  # the first bytes of every reply's payload: status, detail
STATUS_BYTES = _STATUS.size


class WireError(ValueError):
    """A payload or frame that does not match its row in wire.def."""


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    name: str
    type: str  # a number type, `bytes` (the rest of the payload), or a record of records.h


@dataclass(frozen=True)
class Message:
    """One row of wire.def, with its fields parsed."""

    code: int
    name: str
    request: tuple[Field, ...]
    reply: tuple[Field, ...]


@cache
def messages() -> dict[str, Message]:
    """Return the messages of wire.def, by name."""
    return {
        row.name: Message(row.code, row.name, _fields(row.columns[0]), _fields(row.columns[1]))
        for row in isa.rows("MESSAGE")
    }


def _fields(text: str) -> tuple[Field, ...]:
    pairs = [word.partition(":") for word in text.split()]
    return tuple(Field(name, kind or name) for name, _, kind in pairs)


@cache
def record_type(name: str) -> Any:
    """Return a class of named tuples with the fields of the record `name` of records.h."""
    fields = [field for field, _ in isa.ffi().typeof(f"struct {name}").fields]
    return namedtuple(name, fields)


def pack(fields: Sequence[Field], values: Mapping[str, Any]) -> bytes:
    """Return the payload of a message, from the values of its fields.

    The value of a record may be bytes, a named tuple or a mapping.
    """
    unknown = set(values) - {field.name for field in fields}
    if unknown:
        raise WireError(
            f"the field {sorted(unknown)[0]} is unknown: use the fields of the message in wire.def"
        )
    return b"".join(_pack(field, values[field.name]) for field in fields)


def _pack(field: Field, value: Any) -> bytes:
    if field.type in _TYPES:
        return struct.pack(_TYPES[field.type], value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return isa.pack(field.type, **(value if isinstance(value, Mapping) else value._asdict()))


def unpack(fields: Sequence[Field], payload: bytes) -> dict[str, Any]:
    """Return the fields of a payload. Raises WireError if the payload is too short or too long."""
    values: dict[str, Any] = {}
    for field in fields:
        size = len(payload) if field.type == "bytes" else size_of([field])
        if size > len(payload):
            raise WireError(f"the payload ends before the field {field.name}")
        values[field.name] = _unpack(field.type, payload[:size])
        payload = payload[size:]
    if payload:
        raise WireError(f"the payload has {len(payload)} bytes after its last field")
    return values


def _unpack(kind: str, raw: bytes) -> Any:
    if kind in _TYPES:
        return struct.unpack(_TYPES[kind], raw)[0]
    return raw if kind == "bytes" else record_type(kind)(**isa.unpack(kind, raw))


def size_of(fields: Sequence[Field]) -> int:
    """Return the size of a payload in bytes, without the field of type `bytes`."""
    return sum(
        struct.calcsize(_TYPES[f.type]) if f.type in _TYPES else isa.record_size(f.type)
        for f in fields
        if f.type != "bytes"
    )


def unpack_status(payload: bytes) -> tuple[int, int, bytes]:
    """Split the payload of a reply into status, detail, and the bytes of the other fields."""
    if len(payload) < _STATUS.size:
        raise WireError("the reply ends before its status")
    status, detail = _STATUS.unpack_from(payload)
    return status, detail, payload[_STATUS.size :]


def frame(sequence: int, code: int, payload: bytes) -> bytes:
    """Return a frame: sequence, code, payload and CRC-32 in COBS encoding, then a zero."""
    body = bytes([sequence, code]) + payload
    return bytes(cobs.encode(body + zlib.crc32(body).to_bytes(4, "little"))) + b"\0"


def unframe(raw: bytes) -> tuple[int, int, bytes]:
    """Return sequence, code and payload of a frame, which is passed without its final zero.

    Raises WireError if the frame is damaged.
    """
    try:
        body = bytes(cobs.decode(raw))
    except cobs.DecodeError as error:
        raise WireError(f"the frame is not in COBS encoding ({error})") from error
    if len(body) < 6 or zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
        raise WireError("the frame's CRC is wrong")
    return body[0], body[1], body[2:-4]
