"""The serial application on a board in memory; bytes go in and out by hand."""

import struct

from poet_host import isa
from poet_host.device import wire
from support.memory_board import MemoryBoard, card

CODE = {name: row.code for name, row in isa.by_name("MESSAGE").items()}
ERROR = {row.code: name for name, row in isa.by_name("ERROR").items()}
FRAME_BYTES = 576


def cobs_bytes(size: int) -> int:
    """POET_COBS_BYTES, which cffi does not see."""
    return size + size // 254 + 2


class Server:
    """A board with the serial application."""

    def __init__(self, board: MemoryBoard | None = None) -> None:
        self.board = board or MemoryBoard(card())
        ffi = self.board.ffi
        self.frame = ffi.new("uint8_t[]", cobs_bytes(FRAME_BYTES + 6))
        self.server = ffi.new("struct poet_server *")
        self.server.poet = self.board.state
        self.server.frame = self.frame
        self.server.frame_bytes = FRAME_BYTES
        self.sequence = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Send bytes to the board; return the bodies of the frames that it sends."""
        self.board.line_in += data
        self.board.lib.poet_serve(self.server, 0)
        return self.answers()

    def answers(self) -> list[bytes]:
        """Return the bodies of the sent frames (sequence, code, payload); check their CRC."""
        frames = map(wire.unframe, bytes(self.board.line_out).split(b"\0")[:-1])
        found = [bytes([sequence, code]) + payload for sequence, code, payload in frames]
        self.board.line_out.clear()
        return found

    def ask(self, name: str, payload: bytes = b"") -> tuple[str, int, bytes]:
        """Send one request; return status by name, detail, and the bytes of the reply's fields."""
        self.sequence = (self.sequence + 1) & 0xFF
        (reply,) = self.feed(request(name, payload, self.sequence))
        assert reply[:2] == bytes([self.sequence, CODE[name] | 0x80])
        return status_of(reply)


class ServerLink:
    """A Link to a Server, for a Device."""

    port, patience_s = "memory", 1.0

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: list[str] = []  # names of all requests

    def request(self, code: int, payload: bytes, *_: object) -> bytes:
        self.asked += [name for name in CODE if CODE[name] == code]
        (reply,) = self.server.feed(wire.frame(1, code, payload))
        return reply[2:]


def request(name: str, payload: bytes = b"", sequence: int = 1) -> bytes:
    return wire.frame(sequence, CODE[name], payload)


def status_of(reply: bytes) -> tuple[str, int, bytes]:
    """Return status by name, detail, and the bytes of the fields of a frame's body."""
    status, detail = struct.unpack_from("<hI", reply, 2)
    return ERROR[status], detail, reply[8:]
