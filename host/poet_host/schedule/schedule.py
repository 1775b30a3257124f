"""Schedule: the bytes that a board executes, and the meta data about them."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import isa
from ..errors import BadInput
from ..files import parse_json, read_bytes, write_whole
from ..graph.graph import Graph
from .check import check_meta
from .model import Model, check_version, part_crc, part_size, read_model
from .recover import graph_of

_C = isa.constants()


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


@dataclass(frozen=True)
class Schedule:
    """The parts of a .poet file. `encode`, `parse` and `load` return a checked Schedule."""

    model_part: bytes
    plan_part: bytes
    meta: Mapping[str, Any]  # JSON: names of tensors, model, options, board, costs, ...
    origin: bytes = field(default=b"", repr=False)  # the .onnx file of an imported model

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

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tensors, in the order of tensor numbers."""
        return tuple(tensor["name"] for tensor in self.meta["tensors"])

    def to_bytes(self) -> bytes:
        text = json.dumps(self.meta, ensure_ascii=False, allow_nan=False).encode("utf-8")
        meta = _packed("POET_META_MAGIC", text)
        origin = _packed("POET_ORIGIN_MAGIC", self.origin) if self.origin else b""
        return self.model_part + self.plan_part + meta + origin

    def save(self, path: Path | str) -> None:
        write_whole(path, self.to_bytes())

    @staticmethod
    def load(path: Path | str) -> "Schedule":
        """Read a .poet file. Raises BadInput if it is missing, damaged or not a .poet file."""
        return parse(read_bytes(path), str(path))


def parse(data: bytes, where: str = "schedule") -> Schedule:
    """Return the schedule in `data`, the content of a .poet file.

    Raises BadInput if a magic number, a version, a CRC or the meta part is wrong, or if the parts
    do not belong together. The message begins with the argument `where`, which names the source.
    Statements are checked by `decode`.
    """
    model_header = _header(data, 0, "poet_model", "POET_MODEL_MAGIC", where)
    check_version(model_header["version"], where)
    plan_at = part_size(model_header)
    plan_header = _header(data, plan_at, "poet_plan_header", "POET_PLAN_MAGIC", where)
    meta_at = plan_at + isa.record_size("poet_plan_header") + plan_header["bit_bytes"]
    text, end = _unpacked(data, meta_at, "POET_META_MAGIC", "meta part", where)
    origin = b""
    if len(data) > end:
        origin, end = _unpacked(data, end, "POET_ORIGIN_MAGIC", "origin part", where)
    if len(data) > end:
        raise BadInput(
            f"{where} is damaged (other bytes follow its last part): copy it again, or solve again"
        )

    model = read_model(data[:plan_at], where)
    if part_crc(data[plan_at:meta_at]) != plan_header["crc"]:
        raise BadInput(
            f"{where} is damaged (the CRC of the plan part is wrong): copy it again, or solve again"
        )
    if plan_header["model_crc"] != model.crc:
        raise BadInput(
            f"{where}: the plan in this file was made for another model, not for the model in this "
            "file: solve again"
        )
    meta = parse_json(text, f"{where}, meta part")
    schedule = Schedule(data[:plan_at], data[plan_at:meta_at], meta, origin)
    check_meta(schedule, where)
    return schedule


def _packed(magic: str, content: bytes) -> bytes:
    """Return the meta part or the origin part of a .poet file.

    Both consist of the record `poet_meta` and then `content`.
    """
    record = isa.pack("poet_meta", magic=_C[magic], crc=zlib.crc32(content), bytes=len(content))
    return record + content


def _unpacked(data: bytes, at: int, magic: str, part: str, where: str) -> tuple[bytes, int]:
    """Return the content of the meta part or the origin part at the offset `at` of a .poet file.

    The second result is the offset of its end.
    """
    header = _header(data, at, "poet_meta", magic, where)
    begin = at + isa.record_size("poet_meta")
    content = data[begin : begin + header["bytes"]]
    if len(content) != header["bytes"] or zlib.crc32(content) != header["crc"]:
        raise BadInput(
            f"{where} is damaged (the CRC of the {part} is wrong): copy it again, or solve again"
        )
    return content, begin + len(content)


def _header(data: bytes, at: int, record: str, magic: str, where: str) -> dict[str, Any]:
    end = at + isa.record_size(record)
    if data[at : at + 4] != _C[magic].to_bytes(4, "little"):
        if at == 0:
            raise BadInput(f"{where} is not a .poet file: name a file that `solve` wrote")
        raise BadInput(
            f"{where} is damaged (the record {record} is missing): copy it again, or solve again"
        )
    if len(data) < end:
        raise BadInput(f"{where} is incomplete: copy it again, or solve again")
    return isa.unpack(record, data[at:end])
