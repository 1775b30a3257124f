"""A card image of storage format 1, as poet-host 0.1 wrote it."""

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poet_host.graph.weights import weight_nodes
from poet_host.schedule.model import CURRENT, FIXED, INPUT, SHARED
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import PARTITION_START, create_storage

BLOCK, PARTITION = 512, PARTITION_START
COMMITS, MODEL, DATA, NOTE = (64, 128), 192, 1344, 393216
OPERATOR_BYTES = 88
SIZE_BYTES = 64 << 20


def write_old_card(
    path: Path,
    schedule: Schedule,
    values: Mapping[str, Any],
    step: int,
    *,
    parity: int = 1,
    note: bool = True,
    classes: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Write `values` to the slots of `parity`, as after `step` steps; returns their blocks."""
    create_storage(path, SIZE_BYTES)
    tensors, blocks, end = schedule.model.tensors, [], 0
    for tensor in tensors:
        stored = tensor.place in (FIXED, CURRENT, INPUT)
        blocks.append(end if stored else 0)
        end += tensor.blocks * stored
    stride = -(-end // 64) * 64
    rows = b"".join(
        struct.pack("<IIBBH", tensor.size_bytes, block, tensor.place, tensor.flags & ~SHARED, 0)
        for tensor, block in zip(tensors, blocks, strict=True)
    )
    stored_count = schedule.model.stored_count
    counts = (len(tensors), stored_count, 0)
    rest = struct.pack("<4H3I", 1, *counts, 0xF00D, stride, 2 * stride) + rows
    rest += bytes(OPERATOR_BYTES * (len(tensors) - stored_count))
    model_crc = zlib.crc32(rest)
    names = {name: number for number, name in enumerate(schedule.names)}

    def with_crc(record: bytes) -> bytes:
        return record + struct.pack("<I", zlib.crc32(record))

    with path.open("rb+") as file:

        def put(block: int, data: bytes, at: int = 0) -> None:
            file.seek((PARTITION + block) * BLOCK + at)
            file.write(data)

        blocks_in_use = SIZE_BYTES // BLOCK - PARTITION
        put(0, with_crc(struct.pack("<4sHHII", b"POTS", 1, 0, blocks_in_use, 7)))
        commit = (b"POTC", 12, step, model_crc, 2 * stride, parity, 0.5)
        put(COMMITS[0], with_crc(struct.pack("<4s5If", *commit)))
        put(MODEL, b"POTM" + struct.pack("<I", model_crc) + rest)
        if note:
            weights = [[n.name, n.shape, names[n.name]] for n in weight_nodes(schedule.graph)]
            about = {"model_crc": model_crc, "model": schedule.graph.name, "sequence": 1}
            about |= {"weights": weights, "classes": classes}
            content = zlib.compress(json.dumps(about).encode())
            head = struct.pack("<4sII", b"POTN", zlib.crc32(content), len(content))
            put(MODEL, head + content, NOTE)
        places = {}
        for name, value in values.items():
            tensor, block = tensors[names[name]], blocks[names[name]]
            data = value.tobytes()
            first = DATA + block + stride * parity * (tensor.place == CURRENT)
            trailer = struct.pack("<II", zlib.crc32(data), block)
            put(first, data.ljust(tensor.blocks * BLOCK - 8, b"\0") + trailer)
            places[name] = first
    return places
