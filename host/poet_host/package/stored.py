"""The storage of a learner: its weights and its samples (FORMAT.md, "Samples")."""

import io
import os
import zlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from secrets import randbits
from typing import Any, BinaryIO, cast

import numpy as np

from .. import isa
from ..card.card import read_weights
from ..card.card_device import CardDevice
from ..card.partition import in_table
from ..card.weights import SavedWeights
from ..device.device import PARTITION, TENSOR, Device
from ..errors import BadInput
from ..files import write_all
from ..graph.weights import Array
from ..schedule.model import BLOCK, CURRENT, FIXED, FORMAT, Model
from ..schedule.own_layout import Area, areas
from ..schedule.slots import UNIT_BLOCKS
from .packaged import Packaged
from .sizes import most_storage_blocks, own_blocks, sample_blocks

_C = isa.constants()
_MAGIC = {
    "poet_store": (_C["POET_DEVICE_MAGIC"], _C["POET_STORE_MAGIC"]),
    "poet_samples_record": (_C["POET_SAMPLES_MAGIC"],),
    "poet_sample": (_C["POET_SAMPLE_MAGIC"],),
}


class _Partition(io.RawIOBase):
    """The partition of the card in a board, as an open file. Raises BadInput if it has none."""

    def __init__(self, device: Device) -> None:
        self._device, self._at = device, 0
        self._end = int(device.hello().storage_blocks) * BLOCK
        if not self._end:
            raise BadInput(
                f"the board {device.board.name} finds no card with a partition of type 0xDA, and "
                "reads no other: put the card into a card reader, and name that as an image"
            )

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._end if whence == os.SEEK_END else 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._device.read(PARTITION, 0, min(size, self._end - self._at), start=self._at)
        self._at += len(data)
        return data

    def write(self, data: Any) -> int:
        _check_room(self._end, self._at + len(data))
        self._device.write(PARTITION, 0, bytes(data), start=self._at)
        self._at += len(data)
        return len(data)


class LearnerStore(CardDevice):
    """The storage that a device with a package lends to its learner.

    `place`: an image of it, which errors call `named`, or a board with its card. Its tensors lie
    where the device has laid them out, or as on a card that a host has written. Raises BadInput if
    the place has no store of the package.
    """

    def __init__(
        self,
        place: Path | Device,
        packaged: Packaged,
        *,
        writable: bool = False,
        named: Path | None = None,
    ) -> None:
        self.packaged, self._source = packaged, place
        self._areas: list[Area] = []  # of storage that the device has laid out
        self._end_of_tensors = 0  # of these areas, in blocks
        name = f"the card in {place.board.name}" if isinstance(place, Device) else place
        super().__init__(name, writable=writable, named=named)
        self.model = packaged.schedule.model
        assert self.store is not None
        self._start = _start_of(self.model, self.store["identity"])
        if self.commit and self.commit.model_crc not in (0, self.model.crc):
            raise BadInput(
                f"{self.path} is not of the package {packaged.name}: name the package of the "
                "device, with the same model"
            )

    def _opened(self, path: Path | str) -> BinaryIO:
        if isinstance(self._source, Device):
            return cast(BinaryIO, _Partition(self._source))
        return super()._opened(path)

    def _locate(self) -> bool:
        self.first, self.blocks = in_table(self._read(0, BLOCK)) or (
            0,
            self._file.seek(0, os.SEEK_END) // BLOCK,
        )
        self.mount()
        if self.store is None:
            raise BadInput(
                f"{self.path} has no store of a learner: name an image of all blocks that the "
                "device lends to poet_learner_open, or the port of a board with its card. For a "
                "device that has learned nothing yet, use `poet-host card write --erase-card`"
            )
        return True

    def _store_of(self, raw: bytes) -> dict[str, Any] | None:
        found = _whole("poet_store", raw)
        if found and found["magic"] == _MAGIC["poet_store"][0]:
            unit = found["unit_blocks"] or 1
            self._areas, self._end_of_tensors = areas(self.packaged.schedule.model, unit)
        return found

    def _placed(self, block: int, at: int) -> tuple[int, int]:
        block, at = block + at // BLOCK, at % BLOCK
        for area in self._areas:
            if area.first <= block < area.first + area.blocks:
                return area.at + block - area.first, at
        return block, at

    def get(self, block: int, size_bytes: int, at: int = 0) -> bytes:
        block, at = self._placed(block, at)
        return super().get(block, size_bytes, at)

    def put(self, block: int, data: bytes | memoryview, at: int = 0) -> None:
        block, at = self._placed(block, at)
        super().put(block, data, at)

    def job_room(self) -> int:
        return 0

    def weights(self) -> SavedWeights:
        """Return the weights of the last committed step."""
        made, reset = self.packaged, self._own[0]["reset"]
        if self.committed_step is None or (reset and reset == self.state().generation):
            return made.weights  # the device begins with them, or was about to forget others
        self.check_digest(made.schedule.model)
        return SavedWeights(read_weights(self, made.schedule), made.weights.facts)

    def put_weights(self, weights: SavedWeights, step: int) -> None:
        """Commit weights as those of a step. Raises BadInput as `samples` does."""
        self._own  # noqa: B018 - raises BadInput before anything is written
        model = self.packaged.schedule.model
        values = replace(self.packaged, weights=weights).first_values()
        for number, (tensor, content) in enumerate(zip(model.tensors, values, strict=False)):
            if tensor.place in (FIXED, CURRENT):
                self.write(TENSOR, number, content or bytes(tensor.size_bytes))
        self.begin(step)

    @cached_property
    def _own(self) -> tuple[dict[str, Any], int, int]:
        """The record of the samples, the blocks of a unit, and the first block of the samples."""
        made, total = self.packaged, self.total_blocks
        assert self.store is not None
        first = self._end_of_tensors or total - own_blocks(made, 1)
        # Units of the samples are erase units, or blocks if the storage needs no erase. A wrong
        # unit finds only one of the two records, or none.
        ends = {
            unit: first + own_blocks(made, unit) for unit in (1, self.store["unit_blocks"] or 1)
        }
        found = {it: self._records(first, it) for it in ends if it == 1 or ends[it] <= self.blocks}

        def likely(unit: int) -> tuple[int, ...]:
            numbers = [it["sequence"] for it in found[unit]]
            return max(numbers, default=0), len(numbers), ends[unit] == total

        unit = max(found, key=likely)
        newest = max(found[unit], key=lambda it: int(it["sequence"]), default=None)
        shape = (_kind_of(made), made.classes, made.slots)
        if newest and (newest["sample_bytes"], newest["classes"], newest["slots"]) == shape:
            return newest, unit, first + 2 * unit
        raise BadInput(
            f"{self.path} has no samples of the package {made.name}: name the package of the "
            "device, with the same model, raw type and number of samples. For a device that has "
            "learned nothing yet, use `poet-host card write --erase-card`"
        )

    def _records(self, first: int, unit: int) -> list[dict[str, Any]]:
        """Return the whole records of the samples, if these begin with this block."""
        name, blocks = "poet_samples_record", (first, first + unit) if first >= 0 else ()
        raws = [self._bytes_of(block, isa.record_size(name)) for block in blocks]
        return [it for raw in raws if (it := _whole(name, raw, self._start))]

    def _bytes_of(self, block: int, size_bytes: int) -> bytes:
        """Return bytes of the samples, whose blocks count from the start of the storage."""
        return super().get(block, size_bytes)

    def _places(self, label: int) -> list[int]:
        """Return the first blocks of the places of a class."""
        made, (_, unit, first) = self.packaged, self._own
        count, blocks = made.slots + 1, sample_blocks(made, unit)
        return [first + (label * count + i) * blocks for i in range(count)]

    def _kept(self, label: int) -> dict[int, tuple[int, bytes]]:
        """Return the samples of a class that are in use, by number.

        Of each: the first step that may draw it, and its bytes.
        """
        found, header = {}, isa.record_size("poet_sample")
        epoch, places = self._own[0]["epoch"], self._places(label)
        for place, block in enumerate(places):
            raw = self._bytes_of(block, header + self.packaged.sample_bytes)
            it = _whole("poet_sample", raw, self._start)
            if it and (epoch, label, place) == (
                it["epoch"], it["label"], it["number"] % len(places)
            ):  # fmt: skip
                found[it["number"]] = (it["from"], raw[header:])
        return {it: found[it] for it in found if max(found) - it <= self.packaged.slots}

    def samples(self) -> dict[str, Array]:
        """Return the samples as arrays x, y and next_step.

        x has raw samples (N, ...), in an order in which they can have been taught. `next_step` is
        the first step that may draw each of them. Raises BadInput if the storage has no samples of
        the package.
        """
        made, found = self.packaged, []
        for label in range(made.classes):
            mine, least = self._kept(label), 2**32 - 1
            for number in sorted(mine, reverse=True):
                least = min(least, mine[number][0])
                found.append((least, label, number, mine[number][1]))
        found.sort()
        raw = np.frombuffer(b"".join(it[3] for it in found), made.raw.dtype)
        return {
            "x": raw.reshape(-1, *made.sample_shape),
            "y": np.array([it[1] for it in found], "<i8"),
            "next_step": np.array([it[0] for it in found], "<i8"),
        }

    def teach(self, x: Array, labels: Array) -> None:
        """Add raw samples (N, ...) as if they were taught after the last step.

        A new sample of a full class replaces its oldest one.
        """
        for sample, label in zip(x, labels.tolist(), strict=True):
            places, number = self._places(label), max(self._kept(label), default=-1) + 1
            about = {"number": number, "label": label, "from": (self.committed_step or 0) + 1}
            content = _packed(
                "poet_sample", self._start, sample.tobytes(), epoch=self._own[0]["epoch"], **about
            )
            blank = b"\xff" * (sample_blocks(self.packaged, self._own[1]) * BLOCK - len(content))
            super().put(places[number % len(places)], content + blank)


def lay_out(place: Path | Device, packaged: Packaged) -> None:
    """Write the storage of a device that has learned nothing yet, such as an SD card.

    `place`: a file, or a board with the card, whose content is lost. If a file has a partition of
    type 0xDA, only that of the partition is. The storage has as many blocks as the package states,
    and no block needs an erase.
    """
    blocks, own, unit = most_storage_blocks(packaged), own_blocks(packaged, 1), UNIT_BLOCKS
    model, identity = packaged.schedule.model, randbits(32)
    while unit > 1 and areas(model, unit)[1] + own > blocks:
        unit //= 2
    end = areas(model, unit)[1]
    store = _packed(
        "poet_store", version=FORMAT, unit_blocks=unit, total_blocks=end + own, identity=identity
    )
    record = _packed(
        "poet_samples_record", _start_of(model, identity), sequence=1, epoch=1,
        sample_bytes=_kind_of(packaged), classes=packaged.classes, slots=packaged.slots,
    )  # fmt: skip
    image = bytearray(blocks * BLOCK)
    for block, content in ((0, store), (end + 1, record)):
        image[block * BLOCK : block * BLOCK + len(content)] = content
    if isinstance(place, Device):
        write_all(cast(BinaryIO, _Partition(place)), bytes(image))
    else:
        _write_image(place, bytes(image))
    with LearnerStore(place, packaged, writable=True) as made:
        made.put_weights(packaged.weights, 0)


def _write_image(path: Path, image: bytes) -> None:
    with path.open("r+b" if path.exists() else "wb+") as file:
        if table := in_table(file.read(BLOCK)):
            _check_room(table[1] * BLOCK, len(image))
            file.seek(table[0] * BLOCK)
        else:
            file.truncate(0)
            file.seek(0)
        file.write(image)


def _check_room(size_bytes: int, needed_bytes: int) -> None:
    if needed_bytes > size_bytes:
        raise BadInput(
            f"the partition of the card has {size_bytes:,} bytes, but the learner needs "
            f"{needed_bytes:,}: make a larger one with `poet-host storage prepare`"
        )


def _kind_of(packaged: Packaged) -> int:
    """Return what the record of the samples states: their bytes, and whether they are unsigned."""
    return packaged.sample_bytes | (packaged.raw.type == "uint8") << 31


def _start_of(model: Model, identity: int) -> int:
    """Return the value with which CRCs of samples begin."""
    return zlib.crc32(identity.to_bytes(4, "little"), model.crc)


def _packed(name: str, start: int = 0, more: bytes = b"", **fields: int) -> bytes:
    """Return a record and `more` bytes. The record's CRC continues `start`, and covers both."""
    record = isa.pack(name, magic=_MAGIC[name][0], **fields)[:-4]
    crc = zlib.crc32(more, zlib.crc32(record, start))
    return record + crc.to_bytes(4, "little") + more


def _whole(name: str, raw: bytes, start: int = 0) -> dict[str, Any] | None:
    """Return the record at the start of `raw`, or None if it is not whole.

    Its CRC continues `start`, and covers the bytes after the record too.
    """
    size = isa.record_size(name)
    row = isa.unpack(name, raw[:size])
    crc = zlib.crc32(raw[size:], zlib.crc32(raw[: size - 4], start))
    return row if row["magic"] in _MAGIC[name] and row["crc"] == crc else None
