"""A bit stream, least significant bit first, as schedules/FORMAT.md defines it."""


def width(count: int) -> int:
    """Return the number of bits of an index into `count` items: 0 if `count` is 0 or 1."""
    return max(count - 1, 0).bit_length()


class BitWriter:
    """Collect bits; `length` is the number of bits so far."""

    def __init__(self) -> None:
        self._value = 0
        self.length = 0

    def put(self, value: int, bits: int) -> None:
        """Append `value` in `bits` bits. Raises ValueError if it does not fit."""
        if not 0 <= value < 1 << bits:
            raise ValueError(f"the value {value} does not fit into {bits} bits")
        self._value |= value << self.length
        self.length += bits

    def code(self, pattern: str) -> None:
        """Append the bits of a pattern of FORMAT.md, such as "1100", from left to right."""
        for bit in pattern:
            self.put(int(bit), 1)

    def gamma(self, value: int) -> None:
        """Append u(value), the Elias gamma code of value + 1."""
        low_bits = (value + 1).bit_length() - 1
        self.put(0, low_bits)
        self.put(1, 1)
        self.put(value + 1 - (1 << low_bits), low_bits)

    def bytes(self) -> bytes:
        return self._value.to_bytes((self.length + 7) // 8, "little")


class BitsError(ValueError):
    """The bit stream ends within a statement, or a number in the stream is too large."""


class BitReader:
    """Read bits from `data`; `position` is the number of bits read so far."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")
        self.length = 8 * len(data)
        self.position = 0

    def get(self, bits: int) -> int:
        """Read a number of `bits` bits. Raises BitsError if fewer bits are left."""
        if self.position + bits > self.length:
            raise BitsError("the data ends before the last statement of the schedule, `end`")
        value = (self._value >> self.position) & ((1 << bits) - 1)
        self.position += bits
        return value

    def gamma(self) -> int:
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
