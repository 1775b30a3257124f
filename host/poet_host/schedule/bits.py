"""A bit stream, least significant bit first, as schedules/FORMAT.md defines it.

BitWriter and BitReader have the same methods `number`, `gamma` and `choice`. The writer appends the
values and returns them. The reader ignores the values, and returns those that it reads.
"""

from collections.abc import Mapping


def width(count: int) -> int:
    """Return the number of bits of an index into `count` items: 0 if `count` is 0 or 1."""
    return max(count - 1, 0).bit_length()


class BitWriter:
    """Collect bits."""

    def __init__(self) -> None:
        self._fields: list[tuple[int, int | None]] = []  # values, with their numbers of bits

    def put(self, value: int, bits: int | None) -> None:
        """Append `value` in `bits` bits. None: in as many as `bytes` is given."""
        self._fields.append((value, bits))

    def number(self, value: int, bits: int | None) -> int:
        self.put(value, bits)
        return value

    def choice(self, patterns: Mapping[str, str], chosen: str) -> str:
        """Append the pattern of `chosen`."""
        self.code(patterns[chosen])
        return chosen

    def code(self, pattern: str) -> None:
        """Append the bits of a pattern of FORMAT.md, such as "1100", from left to right."""
        for bit in pattern:
            self.put(int(bit), 1)

    def gamma(self, value: int) -> int:
        """Append u(value), the Elias gamma code of value + 1."""
        low_bits = (value + 1).bit_length() - 1
        self.put(0, low_bits)
        self.put(1, 1)
        self.put(value + 1 - (1 << low_bits), low_bits)
        return value

    def bytes(self, late_bits: int = 0) -> bytes:
        """Return all bits. Raises ValueError if a value does not fit its bits."""
        whole = length = 0
        for value, given in self._fields:
            bits = late_bits if given is None else given
            if not 0 <= value < 1 << bits:
                raise ValueError(f"the value {value} does not fit into {bits} bits")
            whole |= value << length
            length += bits
        return whole.to_bytes((length + 7) // 8, "little")


class BitsError(ValueError):
    """The bit stream ends within a statement, or a number in the stream is too large."""


class BitReader:
    """Read bits from `data`; `position` is the number of bits read so far."""

    def __init__(self, data: bytes, late_bits: int = 0) -> None:
        self._value = int.from_bytes(data, "little")
        self.length = 8 * len(data)
        self.position = 0
        self.late_bits = late_bits  # of a number in `None` bits

    def get(self, bits: int) -> int:
        """Read a number of `bits` bits. Raises BitsError if fewer bits are left."""
        if self.position + bits > self.length:
            raise BitsError("the data ends before the last statement of the schedule, `end`")
        value = (self._value >> self.position) & ((1 << bits) - 1)
        self.position += bits
        return value

    def number(self, _: int, bits: int | None) -> int:
        return self.get(self.late_bits if bits is None else bits)

    def choice(self, patterns: Mapping[str, str], _: str) -> str:
        """Read one of the patterns, of which none begins another one."""
        names, read = {pattern: name for name, pattern in patterns.items()}, ""
        while read not in names:
            read += str(self.get(1))
        return names[read]

    def gamma(self, _: int = 0) -> int:
        """Read the Elias gamma code of value + 1. Raises BitsError for more than 32 bits."""
        low_bits = 0
        while self.get(1) == 0:
            low_bits += 1
            if low_bits > 31:
                raise BitsError("a number in a statement has more than 32 bits")
        return (1 << low_bits) + self.get(low_bits) - 1

    @property
    def rest(self) -> int:
        """Return the unread bits as one number: 0 if all of them are 0."""
        return self._value >> self.position


Bits = BitWriter | BitReader
