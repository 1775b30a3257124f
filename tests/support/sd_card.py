"""A host that drives the SD card model byte by byte."""

from pathlib import Path
from typing import Any

from poet_host.sim.chip_library import chips

BLOCK = 512
SIZE = 4 * 1024 * 1024
SETTINGS = {
    "response_bytes": 2,
    "init_us": 300,
    "read_first_us": 500,
    "read_next_us": 100,
    "write_us": 800,
    "write_next_us": 200,
    "erase_us": 1000,
    "stop_us": 50,
    "busy_bytes": 1,
    "strict": 1,
    "sd_status": 1,
    "au_size": 9,
    "erase_group_blocks": 128,
    "seed": 7,
}


class CardModel:
    """A card of the simulated boards. `now`: time of its host in ns."""

    ffi: Any
    lib: Any
    card: Any
    now = 0

    def fault(self, kind: str, first: int, times: int = 1, argument: int = 0) -> None:
        """As CardFault; blocks count from the start of the card."""
        code = getattr(self.lib, f"CARD_{kind.upper()}")
        assert self.lib.sdcard_add_fault(self.card, code, first, times, argument)

    @property
    def complaint(self) -> str:
        text = self.lib.sdcard_complaint(self.card)
        return "" if text == self.ffi.NULL else self.ffi.string(text).decode()

    @property
    def counts(self) -> Any:
        counts = self.ffi.new("struct sdcard_counts *")
        self.lib.sdcard_counts(self.card, self.now, counts)
        return counts


class Card(CardModel):
    """An SPI host of one card, with its clock."""

    def __init__(self, path: Path, *, sdhc: bool = True, **settings: int) -> None:
        self.ffi, self.lib = chips()
        config = self.ffi.new("struct sdcard_config *")
        for name, value in (SETTINGS | settings).items():
            setattr(config, name, value)
        config.high_capacity = sdhc
        card = self.lib.sdcard_new(str(path).encode(), config)
        assert card != self.ffi.NULL, self.ffi.string(self.lib.sdcard_error())
        self.card = self.ffi.gc(card, self.lib.sdcard_free)
        self.byte_ns = 20_000

    def swap(self, byte: int = 0xFF) -> int:
        self.now += self.byte_ns
        return int(self.lib.sdcard_exchange(self.card, byte, self.now, self.byte_ns))

    def select(self, on: bool = True) -> None:
        self.lib.sdcard_select(self.card, on, self.now)

    def send(self, index: int, argument: int = 0, crc: int | None = None) -> None:
        frame = bytes([0x40 | index]) + argument.to_bytes(4, "big")
        right = self.lib.sd_crc7(frame, 5) << 1 | 1
        for byte in (*frame, right if crc is None else crc):
            self.swap(byte)

    def answer(self, size: int = 1) -> list[int]:
        """Response bytes after at most eight bytes of waiting (N_CR)."""
        for _ in range(9):
            first = self.swap()
            if first != 0xFF:
                return [first] + [self.swap() for _ in range(size - 1)]
        return []

    def command(
        self, index: int, argument: int = 0, size: int = 1, crc: int | None = None
    ) -> list[int]:
        self.send(index, argument, crc)
        return self.answer(size)

    def application(self, index: int, argument: int) -> list[int]:
        assert self.command(55)[0] & ~1 == 0
        return self.command(index, argument)

    def wait(self, limit_us: int = 1_000_000) -> int:
        """Microseconds until the card is no longer busy."""
        start = self.now
        while self.swap() != 0xFF:
            assert self.now - start < limit_us * 1000
        return (self.now - start) // 1000

    def block(self, size: int = BLOCK) -> bytes | int:
        """One data block, or the error token; the CRC is checked."""
        start = self.now
        while (token := self.swap()) == 0xFF:
            assert self.now - start < 200_000_000
        if token != 0xFE:
            return token
        data = bytes(self.swap() for _ in range(size))
        crc = self.swap() << 8 | self.swap()
        return data if crc == self.lib.sd_crc16(data, size) else -1

    def give(self, data: bytes, token: int = 0xFE, *, spoil: int = 0) -> int:
        """Send one data block and return the data response."""
        self.swap()
        crc = self.lib.sd_crc16(data, len(data)) ^ spoil
        for byte in (token, *data, crc >> 8, crc & 0xFF):
            self.swap(byte)
        return self.swap() & 0x1F

    def start(self) -> "Card":
        """The usual initialisation, up to full speed."""
        for _ in range(10):
            self.swap()
        self.select()
        assert self.command(0) == [1]
        assert self.command(8, 0x1AA, 5) == [1, 0, 0, 1, 0xAA]
        while self.application(41, 1 << 30) == [1]:
            pass
        assert self.command(59, 1) == [0]
        self.byte_ns = 1000
        return self


def pattern(seed: int) -> bytes:
    """A block of test data."""
    return bytes((seed * 7 + i * 13) % 251 for i in range(BLOCK))


def pattern_hash(seed: int) -> int:
    """The hash of a block, as the test programs compute it."""
    found = 0
    for byte in pattern(seed):
        found = (found * 31 + byte) % 2**32
    return found
