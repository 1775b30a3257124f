"""Samples that a learner has kept on its storage (FORMAT.md, "Samples")."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .. import isa
from ..card.partition import in_table
from ..errors import BadInput
from ..files import read_bytes
from ..graph.weights import Array
from ..schedule.model import BLOCK
from .packaged import Packaged
from .sizes import own_blocks, sample_blocks

_C = isa.constants()


def stored_samples(path: Path, packaged: Packaged) -> dict[str, Array]:
    """Return the samples in an image of a learner's storage, as arrays x, y and next_step.

    x has raw samples (N, ...), in an order in which they can have been taught. `next_step` is the
    first step that may draw each of them. Raises BadInput if the image has no store of the package.
    """
    content = read_bytes(path)
    table = in_table(content[:BLOCK])
    store = content[table[0] * BLOCK if table else 0 :]
    about = _unpacked("poet_store", store, "POET_STORE_MAGIC", "POET_DEVICE_MAGIC")
    if about is None:
        raise BadInput(
            f"{path} has no store of a learner: name an image of all blocks that the device lends "
            "to poet_learner_open"
        )
    start = packaged.schedule.model.crc
    start = zlib.crc32(about["identity"].to_bytes(4, "little"), start)
    own = store[: about["total_blocks"] * BLOCK]
    shape = (packaged.sample_bytes, packaged.classes, packaged.slots)
    # Units of the samples are erase units, or blocks if the storage needs no erase.
    for unit in sorted({1, about["unit_blocks"] or 1}, reverse=True):
        first = about["total_blocks"] - own_blocks(packaged, unit)
        records = [
            _unpacked(
                "poet_samples_record", own[block * BLOCK :], "POET_SAMPLES_MAGIC", start=start
            )
            for block in (first, first + unit)
            if first >= 0
        ]
        whole = [it for it in records if it and _shape(it) == shape]
        if whole:
            epoch = max(whole, key=lambda it: int(it["sequence"]))["epoch"]
            places = own[(first + 2 * unit) * BLOCK :]
            return _arrays(_samples(places, packaged, unit, epoch, start), packaged)
    raise BadInput(
        f"{path} has no samples of the package {packaged.name}: name the package of the device, "
        "with the same model, raw type and number of samples"
    )


def _shape(record: dict[str, Any]) -> tuple[int, int, int]:
    return record["sample_bytes"], record["classes"], record["slots"]


def _unpacked(
    name: str, raw: bytes, *magic: str, start: int = 0, more_bytes: int = 0
) -> dict[str, Any] | None:
    """Return the record at the start of `raw`, or None if it is not whole.

    Its CRC continues `start`, and covers `more_bytes` that follow the record.
    """
    size = isa.record_size(name)
    if len(raw) < size + more_bytes:
        return None
    row = isa.unpack(name, raw[:size])
    crc = zlib.crc32(raw[size : size + more_bytes], zlib.crc32(raw[: size - 4], start))
    return row if row["magic"] in [_C[it] for it in magic] and row["crc"] == crc else None


def _samples(
    places: bytes, packaged: Packaged, unit: int, epoch: int, start: int
) -> list[tuple[int, int, int, bytes]]:
    """Return next step, label, number and bytes of the samples in use, in this order."""
    count, size = packaged.slots + 1, sample_blocks(packaged, unit) * BLOCK
    header, found = isa.record_size("poet_sample"), []
    for label in range(packaged.classes):
        mine: dict[int, tuple[int, bytes]] = {}
        for place in range(count):
            raw = places[(label * count + place) * size :][:size]
            more = packaged.sample_bytes
            it = _unpacked("poet_sample", raw, "POET_SAMPLE_MAGIC", start=start, more_bytes=more)
            if it and (it["epoch"], it["label"], it["number"] % count) == (epoch, label, place):
                mine[it["number"]] = (it["from"], raw[header : header + more])
        least = 2**32 - 1
        for number in sorted(mine, reverse=True):
            if max(mine) - number <= packaged.slots:
                least = min(least, mine[number][0])
                found.append((least, label, number, mine[number][1]))
    return sorted(found)


def _arrays(found: list[tuple[int, int, int, bytes]], packaged: Packaged) -> dict[str, Array]:
    raw = np.frombuffer(b"".join(it[3] for it in found), packaged.raw.dtype)
    return {
        "x": raw.reshape(-1, *packaged.sample_shape),
        "y": np.array([it[1] for it in found], "<i8"),
        "next_step": np.array([it[0] for it in found], "<i8"),
    }
