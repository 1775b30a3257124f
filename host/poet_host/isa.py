"""The rows and records of firmware/include/poet, which C and Python share.

`isa.def` lists kernels (operators), the shapes of their operands, sinks (uses of a gradient), and
the statements of a schedule. `wire.def` lists messages and errors. Record layouts come from
`records.h` through cffi.
"""

import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import cffi

from .resources import resource

_ROW = re.compile(r"^(\w+)\((.+?)\)$", re.M | re.S)
_COLUMN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",]+))\s*(?:,|$)')
_WINDOW = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")
SIZES = ("n", "c", "h", "w", "k", "oh", "ow", *_WINDOW, "groups", "variant")
INTEGERS = "LJ"  # shape letters of operands with int32 elements


@dataclass(frozen=True)
class Row:
    """One row of a .def file. `columns` has the columns after the name, without quotes."""

    macro: str
    code: int
    name: str
    columns: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the operand names. `?` marks an optional one, `+` stands for those of a sink."""
        return tuple(self.columns[0].split())


class Kernel(Row):
    """The row of one operator in isa.def, which explains the columns."""

    @property
    def letters(self) -> str:
        """Return the letters that isa.def uses for the shapes of the kernel's own inputs."""
        return self.columns[1].partition(">")[0].rstrip("+").upper()

    @property
    def output(self) -> str:
        """Return the letter that isa.def uses for the output's shape."""
        return self.columns[1][-1:]

    @property
    def has_sink(self) -> bool:
        return "+" in self.columns[1]

    @property
    def in_place(self) -> int | None:
        """Return the index of the input that the output always overwrites, or None."""
        _, must, number = self.columns[2].partition("MUST_")
        return int(number) - 1 if must else None

    @property
    def may_overwrite(self) -> tuple[int, ...]:
        """Return the indices of the inputs that the output may overwrite."""
        return tuple(
            int(rule.removeprefix("MAY_")) - 1 for rule in self.rules if rule.startswith("MAY_")
        )

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.columns[2].split(" | "))

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the fields whose ranges may be cut. `+` marks those that a sum goes over."""
        return tuple(self.columns[3].split())

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of `struct poet_op` that the kernel reads."""
        extra = self.columns[4].split()
        letters = self.letters + self.output
        named = " ".join(axis for letter in letters for axis in axes(letter))
        window = _WINDOW if {"CONV", "POOL"} & {*self.rules} else ()
        sizes = {*extra, *re.findall(r"[a-z]\w*", named), *window}
        return (
            *(name for name in SIZES if name in sizes),
            *(name for name in extra if name not in SIZES),
        )

    @cached_property
    def work(self) -> dict[str, str]:
        """Return the formulas in the column `work` of isa.def, by unit, such as `macs`."""
        terms = (term.split() for term in self.columns[5].split(", ") if term)
        return {unit: formula for formula, unit in terms}


def _header_text(name: str) -> str:
    return (resource("firmware") / "include" / "poet" / name).read_text(encoding="utf-8")


@cache
def _raw_rows(file: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    text = re.sub(r"/\*.*?\*/", "", _header_text(file), flags=re.S)
    return tuple(
        (macro, tuple(quoted or bare for quoted, bare in _COLUMN.findall(columns)))
        for macro, columns in _ROW.findall(text)
    )


@cache
def rows(macro: str) -> tuple[Row, ...]:
    """Return all rows of a macro.

    Macros of isa.def: STATEMENT, SINK, KERNEL. Macros of wire.def: MESSAGE, ERROR, RESET.
    """
    found = _raw_rows("wire.def" if macro in ("MESSAGE", "ERROR", "RESET") else "isa.def")
    return tuple(
        Row(macro, int(code), name, tuple(columns))
        for kind, (code, name, *columns) in found
        if kind == macro
    )


@cache
def kernels() -> dict[str, Kernel]:
    """Return the operators that a board can run, by name."""
    return {row.name: Kernel(**vars(row)) for row in rows("KERNEL") if row.code}


def kernel_masks(names: Collection[str]) -> dict[str, str]:
    """Return the macros of small.h, with their values, for a build with only these kernels."""
    mask = sum(1 << row.code for name, row in kernels().items() if name in names)
    return {
        "POET_KERNELS": f"{mask & 2**64 - 1:#x}ull", "POET_MORE_KERNELS": f"{mask >> 64:#x}ull"
    }  # fmt: skip


def attributes(kernel: str, sink: str) -> tuple[str, ...]:
    """Return the fields of `struct poet_op` that a kernel and its sink (isa.def) read."""
    return (*kernels()[kernel].fields, *by_name("SINK")[sink].columns[1].split())


@cache
def axes(letter: str) -> tuple[str, ...]:
    """Return a formula for the size of each axis of a shape, without axes of 1 at the end."""
    if letter in "ABR":
        return (*axes("X"), "variant")
    found = next(axes for _, (key, *axes) in _raw_rows("isa.def") if key == f"'{letter}'")
    while len(found) > 1 and found[-1] == "1":
        del found[-1]
    return tuple(found)


def shape(letter: str, attributes: Mapping[str, int | float]) -> tuple[int, ...]:
    """Compute an operand's shape from fields of `struct poet_op`. A missing field counts as 0."""

    def size(name: str) -> int:
        return int(attributes.get(name, 0))

    if letter in "ABR":
        bits = size("variant") >> (4 if letter == "B" else 0)
        whole = enumerate(shape("X", attributes))
        return tuple(1 if bits >> axis & 1 else size for axis, size in whole)
    return tuple(formula_value(axis, size) for axis in axes(letter))


def formula_value(formula: str, value: Callable[[str], int]) -> int:
    """Compute a formula of numbers, names and + * /. `value` returns the number for a name."""
    if "+" in formula:
        return sum(formula_value(part, value) for part in formula.split("+"))
    if "*" in formula:
        return prod(formula_value(part, value) for part in formula.split("*"))
    name, _, divisor = (part.strip() for part in formula.partition("/"))
    found = int(name) if name.isdecimal() else value(name)
    return found // value(divisor) if divisor else found


@cache
def by_name(macro: str) -> dict[str, Row]:
    return {row.name: row for row in rows(macro)}


@cache
def by_code(macro: str) -> dict[int, Row]:
    return {row.code: row for row in rows(macro)}


@cache
def fingerprint_text() -> bytes:
    """Return all rows as text, as the firmware does: lines of macro, code, name and operands.

    Lines of kernels have no macro.
    """
    return "".join(
        f"{'' if macro == 'KERNEL' else f'{macro} '}{row.code} {row.name} {row.columns[0]}\n"
        for macro in ("STATEMENT", "SINK", "KERNEL")
        for row in rows(macro)
    ).encode()


def fingerprint() -> int:
    return zlib.crc32(fingerprint_text())


def _records() -> str:
    return _header_text("records.h") + _header_text("answers.h")


@cache
def ffi() -> cffi.FFI:
    """Return a cffi instance that knows every struct of records.h."""
    found = cffi.FFI()
    no_declaration = r"(?s:/\*.*?\*/)|^(?:#|POET_LAYOUT)(?:.*\\\n)*.*$"
    found.cdef(re.sub(no_declaration, "", _records(), flags=re.M))
    return found


@cache
def constants() -> dict[str, int]:
    """Return the number of every `#define POET_X number` in records.h, by name."""
    pattern = re.compile(r"^#define (POET_\w+) (0x[0-9a-fA-F]+|\d+)u?\b", re.M)
    return {found[1]: int(found[2], 0) for found in pattern.finditer(_records())}


@cache
def field_types(name: str) -> dict[str, str]:
    """Return the C type of each field of a record, including fields that share memory."""
    return {field: about.type.cname for field, about in ffi().typeof(f"struct {name}").fields}


def names_in_use(name: str, used: Collection[str]) -> list[str]:
    """Return one field name for each offset in a record. Several fields may share an offset.

    Of several fields, the one in `used` is returned, or the first if `used` has none of them.
    """
    chosen: dict[int, str] = {}
    for field, about in ffi().typeof(f"struct {name}").fields:
        if field in used or about.offset not in chosen:
            chosen[about.offset] = field
    return list(chosen.values())


def record_size(name: str) -> int:
    return int(ffi().sizeof(f"struct {name}"))


def pack(name: str, **values: Any) -> bytes:
    """Return a record of records.h as bytes. Fields that are not passed are 0."""
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
    """Return a poet_op as bytes. `attrs`: its fields that are not arguments of this function."""
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
    """Return the fields of one record, by name. Raises ValueError if the length is wrong."""
    if len(data) != record_size(name):
        raise ValueError(
            f"a record {name} has {record_size(name)} bytes, but {len(data)} bytes were passed"
        )
    record = ffi().new(f"struct {name} *")
    ffi().memmove(record, bytes(data), len(data))
    return {field: _plain(getattr(record, field)) for field in field_types(name)}


def _plain(value: Any) -> Any:
    if not isinstance(value, cffi.FFI.CData):
        return value
    kind = ffi().typeof(value)
    if kind.kind == "struct":
        return {field: _plain(getattr(value, field)) for field, _ in kind.fields}
    if kind.item.cname == "char":
        return ffi().string(value).decode("ascii", "replace")
    return list(value)
