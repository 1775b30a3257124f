"""A card that this program reads and writes as a board does, but without a board.

CardDevice has the methods of Device that cards need. So code for a card in a board works with both.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits

from .. import isa
from ..device.device import JOB, MODEL, NOTHING_COMMITTED, PLAN, TENSOR, Device, Progress
from ..errors import BadInput
from ..schedule import slots
from ..schedule.model import BLOCK, CURRENT, FIXED, Model, read_tensors
from ..schedule.slots import Commit, State
from .card_file import CardFile

_C = isa.constants()
_VERSION = _C["POET_VERSION"]
_MOST_BLOCKS = 0xFFFFFFFF // BLOCK  # of a job: offsets have 32 bits


def job_room_bytes(model: Model, blocks: int | None = None) -> int:
    """Return the largest number of bytes that a job may take after the tensors of `model`.

    `blocks`: number of blocks of the partition or of its store. None: of the largest partition.
    """
    left = _MOST_BLOCKS if blocks is None else blocks - slots.job_block(model.data_blocks)
    return max(0, min(left, _MOST_BLOCKS)) * BLOCK


@dataclass(frozen=True)
class CardInfo:
    """The part of `poet_hello` that a card determines."""

    committed_step: int
    committed_model: int
    storage_status: int = 0


class CardDevice(CardFile):
    """A CardFile with the methods of Device that cards need.

    Writes are not safe against power cuts: write to a copy, which replaces the card image when it
    is complete.
    """

    def __init__(
        self, path: Path | str, *, writable: bool = False, named: Path | None = None
    ) -> None:
        super().__init__(path, writable=writable, named=named)
        self.model: Model | None = None  # of the loaded schedule
        self._trailers: dict[int, list[bytes]] = {}  # of the written tensors, by number

    @property
    def info(self) -> CardInfo:
        return self.hello()

    def hello(self) -> CardInfo:
        """Return what is committed. Raises BadInput without a store of this format."""
        self.total_blocks  # noqa: B018 - raises BadInput without a store of this format
        if self.commit is None:
            return CardInfo(NOTHING_COMMITTED, 0)
        return CardInfo(self.commit.now.step, self.commit.model_crc)

    def format(self) -> None:
        """Write an empty store to the partition."""
        if self.blocks <= slots.DATA_BLOCK:
            raise BadInput(
                f"{self.path} is too small for a card: make a larger one with `poet-host storage "
                "prepare`"
            )
        values = {"magic": _C["POET_STORE_MAGIC"], "version": _VERSION}
        values |= {"total_blocks": self.blocks, "identity": randbits(32)}
        record = isa.pack("poet_store", **values)[:-4]
        for block in slots.COMMIT_BLOCKS:
            self.put(block, bytes(BLOCK))
        self.put(0, (record + zlib.crc32(record).to_bytes(4, "little")).ljust(BLOCK, b"\0"))
        self.model, self._trailers = None, {}
        self.mount()

    def load(self, model_part: bytes, plan_part: bytes, progress: Progress | None = None) -> None:
        """Write a schedule to the card, if it is writable, and use its tensors from now on."""
        self.hello()
        model = read_tensors(model_part, "the schedule")
        size_blocks = slots.DATA_BLOCK + model.data_blocks
        if size_blocks > self.total_blocks:
            raise BadInput(
                f"{self.path} has {self.total_blocks * BLOCK:,} bytes for the schedule and its "
                f"tensors, but they need {size_blocks * BLOCK:,}: use a larger card"
            )
        if self.writable:
            self.write(MODEL, 0, model_part)
            self.write(PLAN, 0, plan_part)
        self.model, self._trailers = model, {}
        if self.hello().committed_model == model.crc:
            self.check_digest(model)

    def _range(self, object: int) -> tuple[int, int]:
        """Return the first block and the bytes of the model part, the plan part or the job."""
        if object == MODEL:
            return slots.MODEL_BLOCK, slots.MODEL_BLOCKS * BLOCK
        if object == PLAN:
            return slots.PLAN_BLOCK, slots.PLAN_BLOCKS * BLOCK
        assert self.model is not None
        room_bytes = job_room_bytes(self.model, self.total_blocks)
        return slots.job_block(self.model.data_blocks), room_bytes

    def _place(self, object: int, size_bytes: int, start: int) -> int:
        block, limit = self._range(object)
        if start + size_bytes > limit:
            raise BadInput(
                f"{self.path}: bytes {start:,} to {start + size_bytes:,} are not in an area of "
                f"{limit:,} bytes: the card is too small, or its contents are damaged"
            )
        return block

    def job_room(self) -> int:
        return self._range(JOB)[1]

    def read(self, object: int, tensor: int, size_bytes: int, *, start: int = 0) -> bytes:
        """Read `size_bytes` of an object, from byte `start` on."""
        if object == TENSOR:
            assert self.model is not None
            return self.tensor(self.model, tensor)[start : start + size_bytes]
        return self.get(self._place(object, size_bytes, start), size_bytes, start)

    def holds(self, object: int, tensor: int, data: bytes) -> bool:
        """Return True if the object begins with `data`."""
        return self.read(object, tensor, len(data)) == data

    def write(
        self,
        object: int,
        tensor: int,
        data: bytes,
        progress: Progress | None = None,
        *,
        start: int = 0,
    ) -> None:
        """Write `data` to an object from byte `start` on, or a whole tensor."""
        if object == TENSOR:
            assert start == 0
            self._write_tensor(tensor, data)
        else:
            self.put(self._place(object, len(data), start), data, start)
        if progress:
            progress(len(data), len(data))

    def _write_tensor(self, number: int, data: bytes) -> None:
        """Write a FIXED or CURRENT tensor to its first slot, for the next commit."""
        assert self.model is not None
        tensor = self.model.tensors[number]
        assert tensor.place in (FIXED, CURRENT)
        assert len(data) == tensor.size_bytes
        base = slots.slot_block(self.model, 0)
        generation = self.generation_of(self.model, tensor, self._next_sequence)
        rest, trailers = memoryview(data), []
        for piece in slots.pieces(tensor):
            part, rest = rest[: piece.size_bytes], rest[piece.size_bytes :]
            trailers.append(slots.trailer_of(piece, zlib.crc32(part), generation))
            self.put(base + piece.block, part, piece.at)
            self.put(base, trailers[-1], piece.trailer)
        self._trailers[number] = trailers

    @property
    def _next_sequence(self) -> int:
        """Return a number that no step since the newest commit can have used."""
        found = self.commit.sequence + max(2 * self.commit.every - 1, 1) if self.commit else 1
        if found > slots.LAST_SEQUENCE:
            raise BadInput(
                f"{self.path} has counted its last commit: export its weights, then erase it with "
                "--erase-card"
            )
        return found

    def begin(self, step: int) -> None:
        """Commit the tensors that were written as the weights of a step. Deletes a job."""
        model = self.model
        assert model is not None
        written = {i: t for i, t in enumerate(model.tensors) if t.place in (FIXED, CURRENT)}
        assert written.keys() == self._trailers.keys()
        renewed = (self._trailers[i] for i, tensor in written.items() if tensor.is_renewed)
        digest = slots.digest_of(trailer for trailers in renewed for trailer in trailers)
        if self.job_room():
            self.write(JOB, 0, bytes(4))
        now = State(step, self._next_sequence, digest, fixed=self._next_sequence)
        for _ in slots.COMMIT_BLOCKS:  # no older record counts if one of them is lost
            about = (self._next_sequence, model.crc, model.data_blocks)
            self.commit = Commit(*about, slot=0, prior_slot=0, every=1, now=now)
            block = slots.COMMIT_BLOCKS[self.commit.sequence % 2]
            self.put(block, self.commit.to_bytes().ljust(BLOCK, b"\0"))
        self._trailers = {}

    def committed_loss(self) -> float:
        return self.state().loss


AnyCard = Device | CardDevice
"""A card in a board, or a card without a board."""


def partition_blocks(device: AnyCard) -> int:
    return device.blocks if isinstance(device, CardDevice) else int(device.hello().storage_blocks)
