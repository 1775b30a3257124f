"""A card image, or the device of a card: its partition, its commits, and its tensors' slots."""

import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from .. import isa
from ..closing import Closing
from ..device.answers import tensor_name
from ..device.device import NOTHING_COMMITTED
from ..errors import BadInput, PoetError
from ..files import write_all
from ..schedule import slots
from ..schedule.model import (
    BLOCK,
    CURRENT,
    FIXED,
    FORMAT,
    INPUT,
    READABLE,
    Model,
    Tensor,
    part_crc,
    part_size,
    read_tensors,
)
from ..schedule.slots import Commit, State
from ..temporary import locked
from .partition import in_table, store_of, stores

_C = isa.constants()


class Unreadable(PoetError):
    """A part of the card cannot be read, or the image ends before it."""


class Damaged(PoetError):
    """Weights on the card are not those that were committed."""


def other_format(version: int, card: object) -> BadInput:
    """Return the error for a card of another storage format."""
    advice = "use the version of poet-host that wrote the card"
    if version < FORMAT:
        own = "" if version in READABLE else " of poet-host 0.2.0"
        advice = (
            f"save its weights with `poet-host card export CARD weights.safetensors`{own}, then "
            "continue with --resume, --load-weights weights.safetensors and --erase-card. If it "
            "holds none, --erase-card is enough"
        )
    return BadInput(
        f"{card} has storage format {version}, but this poet-host has format {FORMAT}: {advice}"
    )


class CardFile(Closing):
    """An open card image, or device of a card, which no board uses until it is closed.

    Messages call it `named`, if that is given: the file that it will replace.

    If the partition table does not lead to a store, the card is searched for one. `has_table` is
    False if one was found. Raises BadInput if `path` has no poet partition, or if it must be
    writable and the table is wrong. Raises PoetError if a board uses it.
    """

    tensor_names: Sequence[str] = ()  # errors then name a tensor, not its number

    def __init__(
        self, path: Path | str, *, writable: bool = False, named: Path | None = None
    ) -> None:
        self.path, self.writable = named or path, writable
        self._file = self._opened(path)
        try:
            self.has_table = self._locate()
            if writable and not self.has_table:
                raise self.without_table()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<CardFile {self.path}>"

    def close(self) -> None:
        self._file.close()

    def _opened(self, path: Path | str) -> BinaryIO:
        path = Path(path)
        try:
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
                raise BadInput(f"{path} is neither a card image nor the device of a card: name one")
            file = path.open("rb+" if self.writable else "rb", buffering=0)
        except FileNotFoundError as error:
            raise BadInput(
                f"there is no card image {path}: make one with `poet-host storage prepare {path}`"
            ) from error
        except OSError as error:
            raise BadInput(
                f"{path} cannot be opened ({error.strerror}): for the device of a card, use sudo"
            ) from error
        if not locked(file.fileno()):
            file.close()
            raise PoetError(
                f"a board uses the card image {path}: stop that board, or name another image"
            )
        return file

    def _locate(self) -> bool:
        """Find the partition, and mount it. Return False if the table does not lead to its store.

        Of several stores without a table, the first one with weights counts.
        """
        table = in_table(self._read(0, BLOCK))
        if table and self._is_at(*table):
            return True
        end = self._file.seek(0, os.SEEK_END) // BLOCK
        empty = None
        for first, blocks in stores(self._read, end):
            self.first, self.blocks = first, blocks
            self.mount()
            if self.committed_step is not None:
                return False
            empty = empty or (first, blocks)
        if found := table or empty:
            self.first, self.blocks = found
            self.mount()
            return table is not None
        raise BadInput(
            f"{self.path} has no poet partition: name a card image or the device of a card, or "
            "make an image with `poet-host storage prepare`"
        )

    def _is_at(self, first: int, blocks: int) -> bool:
        """Mount a partition. Return True if it has a store, and its length can be right."""
        self.first, self.blocks = first, blocks
        with suppress(Unreadable):
            self.mount()
            if self.store is not None:
                end = self._file.seek(0, os.SEEK_END) // BLOCK
                used: int = self.store["total_blocks"]
                has_end = end >= first + blocks or end < first + used
                return used <= blocks and has_end
        return False

    def without_table(self) -> BadInput:
        """Return the error for a card whose partition table does not lead to its store."""
        step = self.committed_step
        if step is None:
            return BadInput(
                f"{self.path} has no right partition table, and holds no weights: make the card "
                "again with `poet-host storage prepare`"
            )
        return BadInput(
            f"{self.path} has no right partition table, but holds the weights of step {step:,}: "
            f"save them with `poet-host card export {self.path} weights.safetensors`, then make "
            "the card again with `poet-host storage prepare`"
        )

    def mount(self) -> None:
        """Read the store's record and the commit records."""
        self.store: dict[str, Any] | None
        self.commit: Commit | None = None
        unreadable: Unreadable | None = None
        raw = bytes(isa.record_size("poet_store"))
        try:
            raw = self.get(0, len(raw))
        except Unreadable as error:
            unreadable = error
        self.store = self._store_of(raw)
        self.version = self.store["version"] if self.store else FORMAT
        if self.version in READABLE:
            self.commit = slots.newest(self.commit_record(block) for block in slots.COMMIT_BLOCKS)
        self.has_record = self.store is not None
        if not self.has_record and self.commit and not self.writable:
            self.store = self._lost_store(self.commit)
            self.version = self.store["version"] if self.store else FORMAT
        if unreadable and self.store is None:
            raise unreadable

    def _store_of(self, raw: bytes) -> dict[str, Any] | None:
        return store_of(raw)

    def _lost_store(self, commit: Commit) -> dict[str, Any] | None:
        """Return what a damaged record of the store has said, found out from a whole tensor."""
        with suppress(BadInput, Unreadable):
            model = self.model_on_card()
            if model.crc != commit.model_crc:
                return None
            base = slots.slot_block(model, commit.slot)
            places = (p for t in model.tensors if t.place == CURRENT for p in slots.pieces(t))
            for piece in places:
                crc = zlib.crc32(self.get(base + piece.block, piece.size_bytes, piece.at))
                trailer = self.get(base, slots.TRAILER_BYTES, piece.trailer)
                if crc == slots.crc_of(trailer):
                    generation = slots.owner_of(trailer) ^ piece.block
                    identity = slots.identity_of(generation, commit.now.generation)
                    header = self.get(slots.MODEL_BLOCK, isa.record_size("poet_model"))
                    version = isa.unpack("poet_model", header)["version"]
                    about = {"total_blocks": self.blocks, "identity": identity}
                    return about | {"version": version}
        return None

    def commit_record(self, block: int) -> Commit | None:
        """Return the commit record in a block, or None if it is not whole."""
        try:
            return slots.commit_from_bytes(self.get(block, isa.record_size("poet_commit")))
        except Unreadable:
            return None

    @property
    def committed_step(self) -> int | None:
        """Return the step of the committed weights, or None if there are none."""
        step = self.commit.now.step if self.commit else NOTHING_COMMITTED
        return None if step == NOTHING_COMMITTED else step

    @property
    def total_blocks(self) -> int:
        """Return the number of blocks that the store uses.

        Raises BadInput if there is no store of this format.
        """
        if self.store is None:
            raise BadInput(
                f"the poet partition of {self.path} is empty or damaged: make another image with "
                "`poet-host storage prepare`, or erase the card with --erase-card"
            )
        if self.version not in ((FORMAT,) if self.writable else READABLE):
            raise other_format(self.version, self.path)
        total: int = self.store["total_blocks"]
        return total

    # Bytes of the partition.

    def has_all_blocks(self) -> bool:
        """Return False if the image ends before its partition, as a card that is half copied."""
        return self._file.seek(0, os.SEEK_END) >= (self.first + self.blocks) * BLOCK

    def get(self, block: int, size_bytes: int, at: int = 0) -> bytes:
        """Return bytes of the partition, from byte `at` of a block on. Raises Unreadable."""
        position = block * BLOCK + at
        data = b""
        try:
            if position + size_bytes <= self.blocks * BLOCK:
                data = self._bytes(self.first * BLOCK + position, size_bytes)
        except OSError as error:
            raise Unreadable(
                f"block {self.first + block:,} of {self.path} cannot be read ({error.strerror}): "
                "copy what is readable to an image, for example with ddrescue"
            ) from error
        if len(data) < size_bytes:
            raise Unreadable(
                f"{self.path} ends before block {self.first + block:,}: copy the whole card"
            )
        return data

    def _bytes(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of the card, fewer at its end."""
        self._file.seek(position)
        data = self._file.read(size_bytes) or b""
        while len(data) < size_bytes and (more := self._file.read(size_bytes - len(data))):
            data += more
        return data

    def _read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of the card, fewer at its end, or none if they cannot be read."""
        with suppress(OSError):
            return self._bytes(position, size_bytes)
        return b""

    def put(self, block: int, data: bytes | memoryview, at: int = 0) -> None:
        """Write bytes into the partition. The range must be inside of it."""
        position = block * BLOCK + at
        if not self.writable:
            raise BadInput(f"{self.path} is open for reading: pass writable=True to open_card")
        assert position + len(data) <= self.blocks * BLOCK
        self._file.seek(self.first * BLOCK + position)
        write_all(self._file, data)

    # Slots.

    def slot_of(self, tensor: Tensor, *, prior: bool = False) -> int:
        """Return the number of the slot with the committed state, or with the prior state."""
        assert self.commit is not None
        if tensor.place == INPUT:
            return self.commit.now.step % 2
        if tensor.place != CURRENT:
            return 0
        return slots.prior_slot(self.commit, self.version) if prior else self.commit.slot

    def generation_of(self, model: Model, tensor: Tensor, sequence: int) -> int:
        """Return the generation of a tensor. `sequence`: of the commit that its bytes belong to."""
        if tensor.place == FIXED and not sequence:  # a board of poet-host 0.2.0 has written it
            return model.crc
        assert self.store is not None
        return slots.generation_of(self.store["identity"], sequence)

    def state(self, *, prior: bool = False) -> State:
        """Return the committed state, or the state before it. Raises BadInput if there is none."""
        self.total_blocks  # noqa: B018 - raises BadInput without a store of this format
        commit = self.commit
        if commit is None or commit.now.step == NOTHING_COMMITTED:
            raise BadInput(f"{self.path} holds no weights: name the card that holds them")
        if prior and not commit.prior.generation:
            raise BadInput(f"{self.path} holds no weights of an earlier step: omit --prior")
        return commit.prior if prior else commit.now

    def tensor(self, model: Model, number: int, *, prior: bool = False) -> bytes:
        """Return the bytes of a FIXED or CURRENT tensor in a committed state.

        Raises Damaged if they are not those of that state.
        """
        tensor, state = model.tensors[number], self.state(prior=prior)
        sequence = state.fixed if tensor.place == FIXED else state.generation
        generation = self.generation_of(model, tensor, sequence)
        base = slots.slot_block(model, self.slot_of(tensor, prior=prior))
        parts, is_whole = [], True
        try:
            for piece in slots.pieces(tensor):
                parts.append(self.get(base + piece.block, piece.size_bytes, piece.at))
                trailer = slots.trailer_of(piece, zlib.crc32(parts[-1]), generation)
                is_whole &= trailer == self.get(base, slots.TRAILER_BYTES, piece.trailer)
        except Unreadable:
            is_whole = False
        if not is_whole:
            has_prior = not prior and tensor.place == CURRENT
            name = tensor_name(number, self.tensor_names)
            raise self._damaged(f"tensor {name}", state, has_prior=has_prior)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_digest(self, model: Model, *, prior: bool = False) -> None:
        """Raise Damaged if the trailers of a committed state are not those of its commit."""
        state = self.state(prior=prior)
        trailers = (
            self.get(
                slots.slot_block(model, self.slot_of(tensor, prior=prior)),
                slots.TRAILER_BYTES,
                piece.trailer,
            )
            for tensor in model.tensors
            if tensor.is_renewed
            for piece in slots.pieces(tensor)
        )
        try:
            is_whole = slots.digest_of(trailers) == state.digest
        except Unreadable:
            is_whole = False
        if not is_whole:
            raise self._damaged("a part", state, has_prior=not prior)

    def _damaged(self, what: str, state: State, *, has_prior: bool) -> Damaged:
        """Return the error for a damaged part of a state. `has_prior`: the prior state may help."""
        advice = "use a copy of these weights"
        if has_prior and self.commit and self.commit.prior.generation:
            step = self.commit.prior.step
            advice = f"try the weights of step {step:,}, with `poet-host card export --prior`"
        return Damaged(
            f"{what} of the weights of step {state.step:,} on {self.path} is damaged: {advice}"
        )

    def model_on_card(self) -> Model:
        """Return the tensors of the model part on the card. Raises BadInput if it is damaged."""
        where = f"the model part on {self.path}"
        header = isa.unpack(
            "poet_model", self.get(slots.MODEL_BLOCK, isa.record_size("poet_model"))
        )
        size = part_size(header)
        part = b""
        if header["magic"] == _C["POET_MODEL_MAGIC"] and size <= slots.MODEL_BLOCKS * BLOCK:
            part = self.get(slots.MODEL_BLOCK, size)
        if not part or part_crc(part) != header["crc"]:
            raise BadInput(
                f"{where} is missing or damaged: name the schedule that trained the weights with "
                "--schedule. After `train --lr`, solve it again with this --lr"
            )
        return read_tensors(part, where)


def committed_step(path: Path | str) -> int | None:
    """Return the step of the weights on a card, or None if no weights are found there."""
    with suppress(PoetError), CardFile(path) as card:
        return card.committed_step
    return None


def check_table(path: Path | str) -> None:
    """Raise BadInput if a card has weights to which its partition table does not lead."""
    lost = None
    with suppress(PoetError), CardFile(path) as card:
        if not card.has_table and card.committed_step is not None:
            lost = card.without_table()
    if lost:
        raise lost
