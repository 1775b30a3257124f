"""The registers CID and CSD of an SD card (SD Physical Layer Specification, sections 5.2, 5.3)."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass

_CRC_BYTES = 2


@dataclass(frozen=True)
class CardIdentity:
    """What the register CID says."""

    manufacturer: int  # number that the SD Association gives to makers
    maker: str  # two characters of the maker
    product: str
    revision: str
    made: str  # year and month

    def __str__(self) -> str:
        return f"{self.product or 'without a name'} (maker {self.manufacturer:#04x} {self.maker})"


def card_identity(cid: Sequence[int]) -> CardIdentity:
    """Read the 16 bytes of a CID."""
    raw = bytes(cid)
    date = int.from_bytes(raw[13:15], "big")
    return CardIdentity(
        raw[0],
        _text(raw[1:3]),
        _text(raw[3:8]),
        f"{raw[8] >> 4}.{raw[8] & 15}",
        f"{2000 + (date >> 4 & 255)}-{date & 15:02}",
    )


def whole_register(received: Sequence[int]) -> bytes | None:
    """Return a register without its CRC-16, or None if the CRC is wrong."""
    raw = bytes(received)
    register, crc = raw[:-_CRC_BYTES], int.from_bytes(raw[-_CRC_BYTES:], "big")
    return register if any(raw) and crc_hqx(register, 0) == crc else None


def is_write_protected(csd: bytes) -> bool:
    """Return True if the CSD protects the whole card, for ever or until the bit is cleared."""
    return bool(csd[14] & 0x30)


def _text(raw: bytes) -> str:
    return "".join(chr(byte) for byte in raw if 0x20 < byte < 0x7F)
