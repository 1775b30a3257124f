"""Schedule: the bytes that a board executes, and the meta data about them."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import isa
from ..errors import BadInput
from ..files import parse_json, read_bytes, write_whole
from ..graph.graph import Graph
from .check import check_meta
from .model import FORMAT, Model, other_version, part_crc, part_size, read_model, with_crc
from .recover import graph_of

_C = isa.constants()
_NEEDED = ("model", "plan", "meta")  # parts without which a board cannot train
_NAMES = {_C[f"POET_PART_{name.upper()}"]: name for name in (*_NEEDED, "origin", "forward")}
_NUMBERS = {name: number for number, name in _NAMES.items()}


@dataclass(frozen=True)
class PlanHeader:
    """The sizes and checksums of the plan in a .poet file: the C record `poet_plan_header`."""

    crc: int  # CRC-32 of the plan part; identifies the plan on a board
    model_crc: int  # CRC-32 of the model part that the plan belongs to
    arena_bytes: int  # RAM for tensors
    statement_count: int
    bit_bytes: int  # bytes of the statements
    resident_max: int  # largest number of tensors and workspaces in RAM at the same time
    queue_max: int  # largest number of unfinished transfers at the same time
    commit_every: int  # a step commits if its number is a multiple of it
    home_count: int  # number of tensors that are in RAM when a step begins


@dataclass(frozen=True)
class Schedule:
    """The parts of a .poet file. `encode`, `parse` and `load` return a checked Schedule."""

    model_part: bytes
    plan_part: bytes
    meta: Mapping[str, Any]  # JSON: names of tensors, model, options, board, costs, ...
    origin: bytes = field(default=b"", repr=False)  # the .onnx file of an imported model
    # model part and plan part of the forward program; empty: there is none
    forward_part: bytes = field(default=b"", repr=False)
    # CRC of the plan part before the rates were changed; None: they were not. Not in the file
    crc_before: int | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        name = self.meta.get("graph", {}).get("name", "?")
        return f"<Schedule {name}: {len(self.plan_part):,} bytes of plan>"

    @cached_property
    def model(self) -> Model:
        return read_model(self.model_part, "schedule")

    @cached_property
    def graph(self) -> Graph:
        """Return the training graph with stored nodes first. Raises BadInput for a cost graph."""
        return graph_of(self)

    @cached_property
    def header(self) -> PlanHeader:
        row = isa.unpack("poet_plan_header", self.plan_part[: isa.record_size("poet_plan_header")])
        del row["magic"]
        return PlanHeader(**row)

    @cached_property
    def forward(self) -> "Schedule | None":
        """Return the forward program: the plan of an inference, with its own graph."""
        if not self.forward_part:
            return None
        header = _header(self.forward_part, "poet_model", "POET_MODEL_MAGIC", "forward part")
        size = part_size(header)
        return Schedule(self.forward_part[:size], self.forward_part[size:], self.meta["forward"])

    @property
    def solved_crc(self) -> int:
        """Return the CRC of the plan part in the .poet file, whatever the rates are now."""
        return self.header.crc if self.crc_before is None else self.crc_before

    def needed_forward(self) -> "Schedule":
        """Return the forward program. Raises BadInput if there is none."""
        if self.forward is None:
            raise BadInput(
                f"the schedule of {self.graph.name} has no forward program: it was solved with "
                "--no-forward, or no inference fits the RAM. Solve again"
            )
        return self.forward

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tensors, in the order of tensor numbers."""
        return tuple(tensor["name"] for tensor in self.meta["tensors"])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return the number of each tensor, by name."""
        return {name: number for number, name in enumerate(self.names)}

    def to_bytes(self) -> bytes:
        """Return the content of a .poet file."""
        text = json.dumps(self.meta, ensure_ascii=False, allow_nan=False).encode("utf-8")
        parts = {"model": self.model_part, "plan": self.plan_part, "meta": text}
        parts |= {"origin": self.origin, "forward": self.forward_part}
        return file_of({_NUMBERS[name]: content for name, content in parts.items() if content})

    def save(self, path: Path | str) -> None:
        write_whole(path, self.to_bytes())

    @staticmethod
    def load(path: Path | str) -> "Schedule":
        """Read a .poet file. Raises BadInput if it is missing, damaged or not a .poet file."""
        return parse(read_bytes(path), str(path))


def parse(data: bytes, where: str = "schedule") -> Schedule:
    """Return the schedule in `data`, the content of a .poet file.

    Raises BadInput if a version, a CRC or the meta part is wrong, if a part is missing or is needed
    but not known, or if the parts do not belong together. The message begins with the argument
    `where`, which names the source. Statements are checked by `decode`.
    """
    parts = _parts(data, where)
    if missing := [name for name in _NEEDED if name not in parts]:
        raise _damaged(where, f"the {missing[0]} part is missing")
    meta = parse_json(parts["meta"], f"{where}, meta part")
    rest = parts.get("origin", b""), parts.get("forward", b"")
    schedule = Schedule(parts["model"], parts["plan"], meta, *rest)
    _check(schedule, where)
    if "forward" in parts:
        _check_forward(schedule, f"{where}, forward part")
    return schedule


def _check_forward(schedule: Schedule, where: str) -> None:
    if "forward" not in schedule.meta:
        raise _damaged(where, "the meta part lacks its tensors")
    forward, trained = schedule.forward, schedule.model
    assert forward is not None
    _check(forward, where)
    count = trained.stored_count
    tensors = forward.model.tensors[:count]
    same = replace(forward.model, tensors=tensors, operators=(), crc=trained.crc)
    wanted = replace(
        trained, tensors=trained.tensors[:count], operators=(), rates=(), trained_by=trained.crc
    )
    if same != wanted or forward.model.stored_count not in (count, count + 1):
        raise _damaged(where, "it belongs to another model")


def _check(schedule: Schedule, where: str) -> None:
    model_part, plan_part = schedule.model_part, schedule.plan_part
    model_header = _header(model_part, "poet_model", "POET_MODEL_MAGIC", where)
    plan_header = _header(plan_part, "poet_plan_header", "POET_PLAN_MAGIC", where)
    if model_header["version"] != FORMAT:
        raise other_version(model_header["version"], where)
    plan_bytes = isa.record_size("poet_plan_header") + plan_header["bit_bytes"]
    if (len(model_part), len(plan_part)) != (part_size(model_header), plan_bytes):
        raise _damaged(where, "the model part or the plan part has a wrong length")
    model = read_model(model_part, where)
    if part_crc(plan_part) != plan_header["crc"]:
        raise _damaged(where, "the CRC of the plan part is wrong")
    if plan_header["model_crc"] != model.crc:
        raise BadInput(
            f"{where}: the plan in this file was made for another model, not for the model in this "
            "file: solve again"
        )
    check_meta(schedule, where)


def plan_of(model_part: bytes, schedule: Schedule) -> bytes:
    """Return the plan part of a schedule, for a changed model part."""
    size = isa.record_size("poet_plan_header")
    header = isa.unpack("poet_plan_header", schedule.plan_part[:size])
    header["model_crc"] = part_crc(model_part)
    return with_crc(isa.pack("poet_plan_header", **header) + schedule.plan_part[size:])


def file_of(parts: Mapping[int, bytes]) -> bytes:
    """Return a .poet file with these parts, by number."""
    content = isa.pack("poet_file", magic=_C["POET_FILE_MAGIC"], version=FORMAT)
    for number, part in sorted(parts.items()):
        flags = _C["POET_PART_NEEDED"] * (_NAMES[number] in _NEEDED)
        about = {"flags": flags, "bytes": len(part), "crc": zlib.crc32(part)}
        content += isa.pack("poet_part", number=number, **about) + part
    return content


def _parts(data: bytes, where: str) -> dict[str, bytes]:
    at, size = isa.record_size("poet_file"), isa.record_size("poet_part")
    if data[:4] == _C["POET_MODEL_MAGIC"].to_bytes(4, "little") and len(data) > at + 2:
        raise other_version(int.from_bytes(data[at : at + 2], "little"), where)
    version = _header(data, "poet_file", "POET_FILE_MAGIC", where)["version"]
    if version != FORMAT:
        raise other_version(version, where)
    parts: dict[str, bytes] = {}
    last = 0
    while at < len(data):
        if len(data) < at + size:
            raise _damaged(where, "its last part is incomplete")
        record = isa.unpack("poet_part", data[at : at + size])
        number, flags = record["number"], record["flags"]
        part = data[at + size : at + size + record["bytes"]]
        if len(part) < record["bytes"] or zlib.crc32(part) != record["crc"]:
            name = f"{_NAMES[number]} part" if number in _NAMES else f"part {number}"
            raise _damaged(where, f"the CRC of the {name} is wrong")
        if number <= last or flags not in (0, _C["POET_PART_NEEDED"]):
            raise _damaged(where, f"part {number} is out of order, or has unknown flags")
        if number in _NAMES:
            parts[_NAMES[number]] = part
            if bool(flags) != (_NAMES[number] in _NEEDED):
                raise _damaged(where, f"part {number} has wrong flags")
        elif flags:
            raise BadInput(
                f"{where} has part {number}, which this poet-host does not know and must not leave "
                "out: use the version of poet-host that wrote the file"
            )
        at, last = at + size + len(part), number
    return parts


def _damaged(where: str, why: str) -> BadInput:
    return BadInput(f"{where} is damaged ({why}): copy it again, or solve again")


def _header(data: bytes, record: str, magic: str, where: str) -> dict[str, Any]:
    if len(data) >= 4 and data[:4] != _C[magic].to_bytes(4, "little"):
        if record == "poet_file":
            raise BadInput(f"{where} is not a .poet file: name a file that `solve` wrote")
        raise _damaged(where, f"the record {record} is missing")
    if len(data) < isa.record_size(record):
        raise BadInput(f"{where} is incomplete: copy it again, or solve again")
    return isa.unpack(record, data[: isa.record_size(record)])
