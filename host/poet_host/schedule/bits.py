"""A stream of bits, least significant first, as schedules/FORMAT.md defines it."""


def width(count: int) -> int:
    """Bits that tell `count` things apart: those of count - 1; none for 0 or 1."""
    return max(count - 1, 0).bit_length()


class BitWriter:
    def __init__(self) -> None:
        self._value = 0
        self.length = 0

    def put(self, value: int, bits: int) -> None:
        """Append a number of `bits` bits."""
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{value} does not fit {bits} bits")
        self._value |= value << self.length
        self.length += bits

    def code(self, pattern: str) -> None:
        """Append a pattern of 0 and 1 as FORMAT.md writes it, first bit first."""
        for bit in pattern:
            self.put(int(bit), 1)

    def gamma(self, value: int) -> None:
        """Append u(value), the Elias gamma code of value + 1."""
        behind = (value + 1).bit_length() - 1
        self.put(0, behind)
        self.put(1, 1)
        self.put(value + 1 - (1 << behind), behind)

    def bytes(self) -> bytes:
        return self._value.to_bytes((self.length + 7) // 8, "little")


class BitsError(ValueError):
    """The stream ended within a statement."""


class BitReader:
    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")
        self.length = 8 * len(data)
        self.position = 0

    def get(self, bits: int) -> int:
        if self.position + bits > self.length:
            raise BitsError("the statements end without `end`")
        value = (self._value >> self.position) & ((1 << bits) - 1)
        self.position += bits
        return value

    def gamma(self) -> int:
        behind = 0
        while self.get(1) == 0:
            behind += 1
            if behind > 31:
                raise BitsError("a number has more than 32 bits")
        return (1 << behind) + self.get(behind) - 1

    @property
    def rest(self) -> int:
        """What is left, as a number: 0 if nothing but zeros."""
        return self._value >> self.position
