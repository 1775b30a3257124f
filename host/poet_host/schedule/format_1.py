"""Cards of storage format 1, which poet-host 0.1 wrote. Only their weights are read.

A tensor had at most two slots, an owner was the tensor's `block` alone, and a commit record named
one state.
"""

import struct
import zlib
from collections.abc import Callable

from ..errors import BadInput
from .model import Model, Tensor, part_crc
from .slots import Areas, Commit, State

AREAS = Areas(model=192, plan=1216, commits=(64, 128), data=1344)

_COMMIT = struct.Struct("<4s5IfI")
_MODEL = struct.Struct("<4sI4HIII")
_TENSOR = struct.Struct("<IIBBH")
_OPERATOR_BYTES = 88


def commit_from_bytes(raw: bytes) -> Commit | None:
    """Return a commit record, or None if it is not whole."""
    magic, sequence, step, model_crc, blocks, slot, loss, crc = _COMMIT.unpack_from(raw)
    if magic != b"POTC" or crc != zlib.crc32(raw[: _COMMIT.size - 4]) or slot > 1:
        return None
    return Commit(sequence, model_crc, blocks, slot, State(step, loss=loss))


def read_tensors(read: Callable[[int], bytes], where: str) -> Model:
    """Return a model part without its operators. `read` returns its first bytes.

    Raises BadInput if the part is damaged.
    """
    magic, crc, version, count, stored, _, _, stride, blocks = _MODEL.unpack(read(_MODEL.size))
    tables = _TENSOR.size * count + _OPERATOR_BYTES * max(count - stored, 0)
    part = read(_MODEL.size + tables)
    if magic != b"POTM" or version != 1 or part_crc(part) != crc:
        raise BadInput(f"{where} is damaged: without it, the weights cannot be found")
    rows = (_TENSOR.unpack_from(part, _MODEL.size + i * _TENSOR.size) for i in range(count))
    tensors = tuple(Tensor(size, place, flags, block) for size, block, place, flags, _ in rows)
    return Model(tensors, (), stride, blocks, crc)
