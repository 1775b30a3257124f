"""The contents of a card, of which only the written blocks take memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

from poet_host import isa
from poet_host.schedule.model import BLOCK as BLOCK
from poet_host.schedule.slots import COMMIT_BLOCKS as COMMIT_BLOCKS, DATA_BLOCK as DATA_BLOCK

PREPARED = 8192  # first block of the partition in an image that `storage prepare` makes
ZEROS = bytes(BLOCK)
_READ_BYTES = 1 << 16


class CardImage:
    """Bytes that tests read and change like those of a bytearray."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.blocks: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self.size_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CardImage) and dict(self.written()) == dict(other.written())

    __hash__ = None  # type: ignore[assignment]

    def written(self) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks that are not zero, with their numbers."""
        return ((number, block) for number, block in self.blocks.items() if block != ZEROS)

    def find(self, start: bytes) -> int:
        """Return the offset of the first block that begins with these bytes."""
        return min(n for n, block in self.written() if block.startswith(start)) * BLOCK

    def copy(self) -> "CardImage":
        image = CardImage(self.size_bytes)
        image.blocks = dict(self.blocks)
        return image

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, int):
            return self.blocks.get(key // BLOCK, ZEROS)[key % BLOCK]
        first, last, _ = key.indices(self.size_bytes)
        numbers = range(first // BLOCK, -(-last // BLOCK))
        data = b"".join(self.blocks.get(number, ZEROS) for number in numbers)
        return data[first % BLOCK : first % BLOCK + last - first]

    def __setitem__(self, key: int | slice, value: int | bytes) -> None:
        data = bytes([value]) if isinstance(value, int) else bytes(value)
        start = key if isinstance(key, int) else key.indices(self.size_bytes)[0]
        while data:
            number, at = divmod(start, BLOCK)
            part = data[: BLOCK - at]
            block = self.blocks.get(number, ZEROS)
            self.blocks[number] = block[:at] + part + block[at + len(part) :]
            start, data = start + len(part), data[len(part) :]

    def write_to(self, path: Path) -> None:
        """Write a sparse file."""
        with path.open("wb") as file:
            for number, block in self.written():
                file.seek(number * BLOCK)
                file.write(block)
            file.truncate(self.size_bytes)


def read_image(path: Path) -> CardImage:
    """Return the blocks of an image that are not zero."""
    image = CardImage(path.stat().st_size)
    with path.open("rb") as file:
        for first in range(0, len(image), _READ_BYTES):
            if any(data := file.read(_READ_BYTES)):
                image[first : first + len(data)] = data
    image.blocks = dict(image.written())
    return image


def newest_commit(image: Path) -> dict[str, Any]:
    """Return the newest commit record on an image that `storage prepare` made."""
    found = []
    with image.open("rb") as file:
        for block in COMMIT_BLOCKS:
            file.seek((PREPARED + block) * BLOCK)
            found.append(isa.unpack("poet_commit", file.read(isa.record_size("poet_commit"))))
    return max(found, key=lambda commit: commit["sequence"])
