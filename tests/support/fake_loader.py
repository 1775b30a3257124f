"""Arduino's SAM boot loader at a pty: the commands that bossac gives a SAM D21."""

from binascii import crc_hqx

from support.pty_peer import PtyPeer

FLASH_BYTES = 256 << 10
RAM_AT, RAM_BYTES = 0x20000000, 32 << 10
REGISTERS = {
    0xE000ED00: 0x410CC601,  # CPUID: Cortex-M0+
    0x41002018: 0x10010005,  # DSU.DID: SAM D21 G18A
    0x41004014: 1,  # NVMCTRL.INTFLAG: ready
}


class FakeLoader(PtyPeer):
    """A context manager. `flash` holds 0x5a until it is erased; `commands` lists what came in."""

    def __init__(self) -> None:
        self.flash = bytearray(b"\x5a" * FLASH_BYTES)
        self.commands: list[str] = []
        self._ram = bytearray(RAM_BYTES)
        self._source = 0
        self._input = b""
        super().__init__()

    def _serve(self) -> None:
        while self._open:
            self._input += self._received()
            while b"#" in self._input:
                command, _, self._input = self._input.partition(b"#")
                self.say(self._answer(command.decode("latin-1")))

    def _read(self, address: int, size: int) -> bytes:
        if address < FLASH_BYTES:
            return bytes(self.flash[address : address + size])
        if RAM_AT <= address < RAM_AT + RAM_BYTES:
            return bytes(self._ram[address - RAM_AT : address - RAM_AT + size])
        return REGISTERS.get(address, 0).to_bytes(4, "little")[:size]

    def _answer(self, command: str) -> bytes:
        self.commands.append(command)
        name, numbers = command[0], [int(part, 16) for part in command[1:].split(",") if part]
        if name == "N":  # binary from now on
            return b"\n\r"
        if name == "V":
            return b"v2.0 [Arduino:XYZ] Feb  5 2015 12:00:00\n\r"
        if name in "wR":
            return self._read(*numbers)
        if name == "S":
            address, size = numbers
            while self._open and len(self._input) < size:
                self._input += self._received()
            self._ram[address - RAM_AT : address - RAM_AT + size] = self._input[:size]
            self._input = self._input[size:]
        elif name == "X":
            self.flash[numbers[0] :] = b"\xff" * (FLASH_BYTES - numbers[0])
            return b"X\n\r"
        elif name == "Y":
            address, size = numbers
            if size:
                self.flash[address : address + size] = self._read(self._source, size)
            else:
                self._source = address
            return b"Y\n\r"
        elif name == "Z":
            return b"Z%08X#\n\r" % crc_hqx(self._read(*numbers), 0)
        return b""
