"""Write and read the model part of a schedule, which has tables of tensors and operators."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from .. import isa
from ..errors import BadInput
from ..graph.cuts import TRAILER, Cut, blocks_of
from ..reference.rates import Rate

_C = isa.constants()
NONE = _C["POET_NONE"]
MAX_INPUTS = _C["POET_INPUTS"]
BLOCK, SLOTS = _C["POET_BLOCK"], _C["POET_SLOTS"]
PLACE_NONE, PAGE, FIXED, CURRENT, NEXT, INPUT = (
    _C[f"POET_PLACE_{name}"] for name in ("NONE", "PAGE", "FIXED", "CURRENT", "NEXT", "INPUT")
)
STORED, KEEP, ONCE, LOSS, SHARED = (
    _C[f"POET_FLAG_{name}"] for name in ("STORED", "KEEP", "ONCE", "LOSS", "SHARED")
)
IN_RAM, FOUR_SLOTS, FORWARD = (
    _C[f"POET_MODEL_{name}"] for name in ("IN_RAM", "FOUR_SLOTS", "FORWARD")
)
FORMAT = _C["POET_VERSION"]
READABLE = (2, FORMAT)
"""Formats of cards that `card check` and `card export` read."""

# The CRC of a part is computed from all bytes after the field `crc` of its header.
_CRC_BYTES = 4
_AFTER_CRC = isa.ffi().offsetof("struct poet_model", "crc") + _CRC_BYTES

# Fields of poet_op that are not attributes of an operator.
STRUCTURE = ("kernel", "sink", "input_count", "output", "overwrites", "input")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a schedule, as in the C record `poet_tensor`."""

    size_bytes: int
    place: int  # a POET_PLACE_*
    flags: int  # POET_FLAG_*, or-ed
    block: int = 0  # number of the tensor's first storage block, counted in the data area
    cut: Cut | None = None  # None: the tensor is one piece
    at: int = 0  # with the flag SHARED: its first byte in the block

    @property
    def is_renewed(self) -> bool:
        """True if a step renews the tensor, so that the digest of a commit has its trailers."""
        return self.place == CURRENT and not self.flags & KEEP

    @property
    def piece_sizes(self) -> tuple[int, ...]:
        """Return the number of bytes of each piece."""
        return self.cut.piece_sizes if self.cut else (self.size_bytes,)

    def in_order(self, data: bytes) -> bytes:
        """Return the tensor as it is stored. `data`: its bytes in row-major order."""
        return self.cut.in_order(data) if self.cut else data

    def row_major(self, data: bytes) -> bytes:
        """Return the tensor in row-major order. `data`: its bytes as they are stored."""
        return self.cut.row_major(data) if self.cut else data

    @property
    def blocks(self) -> int:
        """Return the number of storage blocks for one copy of the tensor, with its trailers."""
        count = len(self.piece_sizes)
        if self.cut is None or count == 1:
            return blocks_of(self.size_bytes + TRAILER)
        return self.cut.trailer_block + blocks_of(count * TRAILER)


@dataclass(frozen=True)
class Operator:
    """The operator that computes one tensor of a schedule, as in the C record `poet_op`."""

    kernel: int  # code in isa.def
    inputs: tuple[int, ...]  # tensor numbers
    sink: int = 0  # code in isa.def
    overwrites: int | None = None  # tensor number of the input that the output replaces
    attrs: Mapping[str, int | float] = field(default_factory=dict)  # other fields

    @property
    def workspace_bytes(self) -> int:
        # No kernel needs a workspace yet. A kernel that streams data would keep its buffers there.
        return int(self.attrs.get("workspace_bytes", 0))

    @property
    def may_overwrite(self) -> tuple[int, ...]:
        """Return the indices of the inputs that the kernel may overwrite."""
        kernel = isa.kernels().get(isa.by_code("KERNEL")[self.kernel].name)
        may = kernel.may_overwrite if kernel else ()  # a cost graph has no kernels
        return tuple(k for k in may if k < len(self.inputs))

    @cached_property
    def freeable(self) -> tuple[int, ...]:
        """Return the numbers of the input tensors that a compute statement can free.

        The statement has one bit for each of them, in the same order.
        """
        return tuple(i for i in dict.fromkeys(self.inputs) if i != self.overwrites)


@dataclass(frozen=True)
class Model:
    """The model part of a .poet file: its tables of tensors and operators."""

    tensors: tuple[Tensor, ...]  # first stored tensors, then computed tensors
    operators: tuple[Operator, ...]  # one for each computed tensor, in the order of tensors
    # Distance from a tensor's first slot (copy) to its second slot, in storage blocks.
    slot_stride: int
    data_blocks: int  # number of storage blocks in the data area
    crc: int = 0  # CRC-32 of the model part
    # False: for a board without a card; stored tensors are in RAM at the start of a step
    storage: bool = True
    slots: int = SLOTS  # of a CURRENT tensor
    # of a forward program: `crc` of the model that trains its weights
    trained_by: int | None = None
    rates: tuple[Rate, ...] = ()  # factors of all learning rates, step after step

    @property
    def stored_count(self) -> int:
        return len(self.tensors) - len(self.operators)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Return the different cuts of the tensors, in the order of the table of cuts."""
        return tuple(dict.fromkeys(tensor.cut for tensor in self.tensors if tensor.cut))

    def operator(self, tensor: int) -> Operator:
        """Return the operator that computes a tensor. `tensor` must not be a stored tensor."""
        return self.operators[tensor - self.stored_count]


def model_bytes(model: Model) -> bytes:
    """Return the model part of a .poet file: a header, then the tables of `model`.

    The CRC in the header is computed. `model.crc` is ignored.
    """
    if len(model.tensors) >= NONE:
        raise BadInput(
            f"the graph has {len(model.tensors):,} tensors, but a schedule has at most {NONE - 1:,}"
        )
    numbers = {cut: number for number, cut in enumerate(model.cuts, 1)}
    rows = [
        isa.pack(
            "poet_tensor",
            size_bytes=tensor.size_bytes,
            place=tensor.place,
            flags=tensor.flags,
            block=tensor.block,
            cut=numbers[tensor.cut] if tensor.cut else tensor.at,
        )
        for tensor in model.tensors
    ]
    rows += [
        isa.pack_op(op.kernel, op.sink, op.inputs, output, op.overwrites, op.attrs)
        for output, op in enumerate(model.operators, model.stored_count)
    ]
    rows += [isa.pack("poet_cut", **asdict(cut)) for cut in numbers]
    rows += [isa.pack("poet_rate", **asdict(rate)) for rate in model.rates]
    header = isa.pack(
        "poet_model",
        magic=_C["POET_MODEL_MAGIC"],
        version=FORMAT,
        tensor_count=len(model.tensors),
        stored_count=model.stored_count,
        keep_count=sum(1 for t in model.tensors if t.flags & KEEP),
        fingerprint=isa.fingerprint(),
        slot_stride=model.slot_stride,
        data_blocks=model.data_blocks,
        cut_count=len(numbers),
        flags=IN_RAM * (not model.storage)
        | FOUR_SLOTS * (model.slots > SLOTS)
        | FORWARD * (model.trained_by is not None),
        rate_count=len(model.rates),
    )
    if model.trained_by is not None:
        rows.append(model.trained_by.to_bytes(_CRC_BYTES, "little"))
    return with_crc(header + b"".join(rows))


def part_crc(part: bytes) -> int:
    """Return the CRC-32 of all bytes after the field `crc` of a model or plan part."""
    return zlib.crc32(part[_AFTER_CRC:])


def with_crc(part: bytes) -> bytes:
    """Return a model or plan part with the correct value in its field `crc`."""
    return part[: _AFTER_CRC - 4] + part_crc(part).to_bytes(4, "little") + part[_AFTER_CRC:]


def read_model(part: bytes, where: str) -> Model:
    """Return the tables of a model part. `part` must have the length that `part_size` returns.

    Raises BadInput if a header field or the CRC is wrong, or if a table breaks a rule. The message
    begins with the argument `where`, which names the source.
    """
    without = read_tensors(part, where)
    header = _header(part)
    if header["fingerprint"] != isa.fingerprint():
        raise BadInput(
            f"{where} was made for other operators than this version of poet-host has: use the "
            "version that wrote the file, or solve again"
        )
    model = replace(without, operators=tuple(map(_operator, _rows(part, "poet_op"))))
    _check(model, header, where)
    return model


def read_tensors(part: bytes, where: str) -> Model:
    """Return a model part without its operators, which another version of poet-host may define.

    Raises BadInput if the version or the CRC is wrong.
    """
    header = _header(part)
    if header["version"] not in READABLE:
        raise other_version(header["version"], where)
    if header["crc"] != part_crc(part):
        raise BadInput(
            f"{where} is damaged (the CRC of the model part is wrong): copy it again, or solve "
            "again"
        )
    cuts = [_cut(row, where) for row in _rows(part, "poet_cut")]
    tensors = tuple(
        _tensor(row, cuts, f"{where} breaks a rule of the format (wrong place of tensor {i})")
        for i, row in enumerate(_rows(part, "poet_tensor"))
    )
    flags = header["flags"] & ~FORWARD
    if flags not in (0, IN_RAM, FOUR_SLOTS):
        raise BadInput(f"{where} breaks a rule of the format (unknown flags): solve again")
    is_forward = flags != header["flags"]
    return Model(
        tensors,
        (),
        header["slot_stride"],
        header["data_blocks"],
        header["crc"],
        storage=flags != IN_RAM,
        slots=SLOTS + (flags == FOUR_SLOTS),
        trained_by=int.from_bytes(part[-_CRC_BYTES:], "little") if is_forward else None,
        rates=tuple(Rate(**row) for row in _rows(part, "poet_rate")),
    )


def other_version(version: int, where: str) -> BadInput:
    """Return the error for a file or a model part of another format."""
    advice = "use the version of poet-host that wrote it"
    if version < FORMAT:
        advice = (
            "solve again. If a board's card has its weights, save them first with `poet-host card "
            "export`, and continue with --load-weights"
        )
    return BadInput(
        f"{where} has format {version}, but this poet-host has format {FORMAT}: {advice}"
    )


def part_size(header: Mapping[str, int]) -> int:
    """Return the size of a model part in bytes. `header` is the record at its start."""
    counts = {"poet_model": 1, **_counts(header)}
    tables = sum(isa.record_size(name) * count for name, count in counts.items())
    return tables + _CRC_BYTES * bool(header["flags"] & FORWARD)


def _counts(header: Mapping[str, int]) -> dict[str, int]:
    """Return the records of each table, in the order of the tables after the header."""
    return {
        "poet_tensor": header["tensor_count"],
        "poet_op": max(header["tensor_count"] - header["stored_count"], 0),
        "poet_cut": header["cut_count"],
        "poet_rate": header["rate_count"],
    }


def _header(part: bytes) -> dict[str, Any]:
    return isa.unpack("poet_model", part[: isa.record_size("poet_model")])


def _rows(part: bytes, table: str) -> Iterator[dict[str, Any]]:
    at = isa.record_size("poet_model")
    for name, count in _counts(_header(part)).items():
        size = isa.record_size(name)
        for _ in range(count):
            if name == table:
                yield isa.unpack(name, part[at : at + size])
            at += size


def _cut(row: dict[str, Any], where: str) -> Cut:
    try:
        return Cut(row["unit_bytes"], tuple(row["size"]), tuple(row["part"]), row["piece_parts"])
    except BadInput as error:
        raise BadInput(f"{where} breaks a rule of the format: {error}") from None


def _tensor(row: dict[str, Any], cuts: Sequence[Cut], wrong: str) -> Tensor:
    cut, at = None, 0
    if row["flags"] & SHARED:
        at = row["at"]
        if at + row["size_bytes"] + TRAILER > BLOCK:
            raise BadInput(f"{wrong}: solve again")
    elif row["cut"]:
        if row["cut"] > len(cuts) or cuts[row["cut"] - 1].size_bytes != row["size_bytes"]:
            raise BadInput(f"{wrong}: solve again")
        cut = cuts[row["cut"] - 1]
    return Tensor(row["size_bytes"], row["place"], row["flags"], row["block"], cut, at)


def _operator(row: dict[str, Any]) -> Operator:
    kernel, sink = isa.by_code("KERNEL").get(row["kernel"]), isa.by_code("SINK").get(row["sink"])
    used = isa.attributes(kernel.name, sink.name) if kernel and sink and kernel.code else ()
    fields = (name for name in isa.names_in_use("poet_op", used) if name not in STRUCTURE)
    return Operator(
        row["kernel"],
        tuple(row["input"][: row["input_count"]]),
        row["sink"],
        None if row["overwrites"] == NONE else row["overwrites"],
        {name: row[name] for name in fields if row[name]},
    )


def _check(model: Model, header: Mapping[str, int], where: str) -> None:
    """Check the rules of FORMAT.md that decoding relies on. Boards check all rules."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise BadInput(f"{where} breaks a rule of the format (wrong {what}): solve again")

    require(header["stored_count"] <= header["tensor_count"], "stored_count")
    require(header["keep_count"] == sum(1 for t in model.tensors if t.flags & KEEP), "keep_count")
    for i, tensor in enumerate(model.tensors):
        require(tensor.size_bytes > 0 and tensor.size_bytes % 4 == 0, f"size of tensor {i}")
        require(bool(tensor.flags & STORED) == (i < model.stored_count), f"flags of tensor {i}")
    for i, op in enumerate(model.operators, model.stored_count):
        require(op.kernel in isa.by_code("KERNEL"), f"kernel of operator {i}")
        require(op.sink in isa.by_code("SINK"), f"sink of operator {i}")
        kernel = isa.by_code("KERNEL")[op.kernel].name
        known = isa.attributes(kernel, isa.by_code("SINK")[op.sink].name) if op.kernel else op.attrs
        # A board obeys a period of each kernel, also of one that has neither of these fields.
        require({"seed", "period"} & op.attrs.keys() <= {*known}, f"period of operator {i}")
        require(all(j < i for j in op.inputs), f"inputs of operator {i}")
        if op.overwrites is not None:
            same = op.overwrites in op.inputs and (
                model.tensors[op.overwrites].size_bytes == model.tensors[i].size_bytes
            )
            require(same, f"overwrites of operator {i}")
