"""What firmware/include/poet says, read by Python from the same rows.

Statements, sinks, kernels, messages and errors come from `isa.def` and
`wire.def`; record layouts from `records.h` through cffi. Nothing is copied.
"""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cffi

from .resources import resource

_STRING = r'"((?:[^"\\]|\\.)*)"'
_ROW = re.compile(rf"^(\w+)\((-?\d+),\s*(\w+),\s*{_STRING},\s*{_STRING}(?:,\s*{_STRING})?\)", re.M)


@dataclass(frozen=True)
class Row:
    """One row of a .def file; `fields` are its quoted strings in order."""

    macro: str
    code: int
    name: str
    fields: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operand names of a statement, sink or kernel (`?` optional, `+` sink's)."""
        return tuple(self.fields[0].split())


def _header_text(name: str) -> str:
    return (resource("firmware") / "include" / "poet" / name).read_text(encoding="utf-8")


@cache
def rows(macro: str) -> tuple[Row, ...]:
    """All rows of STATEMENT, SINK, KERNEL (isa.def), MESSAGE or ERROR (wire.def)."""
    name = "wire.def" if macro in ("MESSAGE", "ERROR") else "isa.def"
    text = re.sub(r"/\*.*?\*/", "", _header_text(name), flags=re.S)
    return tuple(
        Row(macro, int(found[2]), found[3], tuple(f for f in found.groups()[3:] if f is not None))
        for found in _ROW.finditer(text)
        if found[1] == macro
    )


@cache
def by_name(macro: str) -> dict[str, Row]:
    return {row.name: row for row in rows(macro)}


@cache
def by_code(macro: str) -> dict[int, Row]:
    return {row.code: row for row in rows(macro)}


@cache
def fingerprint_text() -> bytes:
    """The rows as C stringifies them: macro, code, name, operands; a line each."""
    return "".join(
        f"{row.macro} {row.code} {row.name} {row.fields[0]}\n"
        for macro in ("STATEMENT", "SINK", "KERNEL")
        for row in rows(macro)
    ).encode()


def fingerprint() -> int:
    return zlib.crc32(fingerprint_text())


@cache
def ffi() -> cffi.FFI:
    """A cffi instance that knows every struct of records.h."""
    found = cffi.FFI()
    plain = [
        line
        for line in re.sub(r"/\*.*?\*/", "", _header_text("records.h"), flags=re.S).splitlines()
        if not line.startswith(("#", "POET_LAYOUT"))
    ]
    found.cdef("\n".join(plain))
    return found


@cache
def constants() -> dict[str, int]:
    """Every `#define POET_X number` of records.h."""
    pattern = re.compile(r"^#define (POET_\w+) (0x[0-9a-fA-F]+|\d+)u?\b", re.M)
    return {found[1]: int(found[2], 0) for found in pattern.finditer(_header_text("records.h"))}


@cache
def field_types(name: str) -> dict[str, str]:
    """Fields of a record and their C types; all names of those that share memory."""
    return {field: about.type.cname for field, about in ffi().typeof(f"struct {name}").fields}


def names_in_use(name: str, used: Collection[str]) -> list[str]:
    """Fields of a record, each by one name: the one in `used`, else its first."""
    chosen: dict[int, str] = {}
    for field, about in ffi().typeof(f"struct {name}").fields:
        if field in used or about.offset not in chosen:
            chosen[about.offset] = field
    return list(chosen.values())


def record_size(name: str) -> int:
    return int(ffi().sizeof(f"struct {name}"))


def pack(name: str, **values: Any) -> bytes:
    """A record of records.h as bytes; fields not given are 0."""
    record = ffi().new(f"struct {name} *")
    for field, value in values.items():
        setattr(record, field, value.encode("ascii") if isinstance(value, str) else value)
    return bytes(ffi().buffer(record))


def pack_op(
    kernel: int,
    sink: int,
    inputs: Sequence[int],
    output: int,
    overwrites: int | None,
    attrs: Mapping[str, int | float],
) -> bytes:
    """A poet_op: codes, tensor numbers, and its other fields by name."""
    none = constants()["POET_NONE"]
    return pack(
        "poet_op",
        kernel=kernel,
        sink=sink,
        input_count=len(inputs),
        output=output,
        overwrites=none if overwrites is None else overwrites,
        input=[*inputs, *[none] * (constants()["POET_INPUTS"] - len(inputs))],
        **attrs,
    )


def unpack(name: str, data: bytes | memoryview) -> dict[str, Any]:
    """The fields of one record; raises ValueError if the length is wrong."""
    if len(data) != record_size(name):
        raise ValueError(f"{name} has {record_size(name)} bytes, got {len(data)}")
    record = ffi().new(f"struct {name} *")
    ffi().memmove(record, bytes(data), len(data))
    return {field: _plain(getattr(record, field)) for field in field_types(name)}


def _plain(value: Any) -> Any:
    if not isinstance(value, cffi.FFI.CData):
        return value
    if ffi().typeof(value).item.cname == "char":
        return ffi().string(value).decode("ascii", "replace")
    return list(value)
