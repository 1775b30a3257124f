"""A simulated board as a USB device of a QEMU guest, by the USB redirection protocol 0.7.

The simulated host has enumerated the board and uses its bulk pipes. The guest's control transfers
are passed to the board, except SET_CONFIGURATION, which is done already. Structures are little
endian and packed. A message is its type, length and id, and then `length` bytes.
"""

import select
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field

from poet_host.sim.simulated_chip import SimulatedChip

HELLO, CONNECT, RESET, INTERFACES, ENDPOINTS = 0, 1, 3, 4, 5
SET_CONFIGURATION, CONFIGURATION, SET_ALTERNATE, ALTERNATE = 6, 8, 9, 11
START_INTERRUPTS, STOP_INTERRUPTS, INTERRUPTS, CANCEL = 15, 16, 17, 21
CONTROL, BULK = 100, 101
SUCCESS, CANCELLED, STALL = 0, 1, 4
DEVICE_VERSION, PACKET_SIZES, LONG_IDS, LONG_BULK = (1 << bit for bit in (1, 4, 5, 6))
ABILITIES = DEVICE_VERSION | PACKET_SIZES | LONG_IDS | LONG_BULK
FULL_SPEED, UNUSED = 1, 255
CONTROL_HEAD, BULK_HEAD = "<BBBBHHH", "<BBHIH"
# Number as the protocol counts (IN: 16 and up), type, interface, packet.
NOTICE = 17
EVERY_ENDPOINT = ((0, 0, 0, 64), (16, 0, 0, 64), (NOTICE, 3, 0, 16), (2, 2, 1, 64), (18, 2, 1, 64))
SLICE_TICKS = 200_000


@dataclass
class Redirected:
    """Serve one guest, which connects to `path`."""

    chip: SimulatedChip
    path: str
    requests: list[tuple[str, int]] = field(default_factory=list)  # setup, result
    _wide: bool = False
    _wanted: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    _input: bytearray = field(default_factory=bytearray)
    _from_board: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.chip.usb_open(True, 9600)
        self._settle()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(1)

    def _settle(self) -> None:
        while self.chip.run(10 * SLICE_TICKS) == "slice":
            pass

    def _send(self, kind: int, number: int, body: bytes) -> None:
        head = struct.pack("<IIQ" if self._wide else "<III", kind, len(body), number)
        self._guest.sendall(head + body)

    def serve(self, process: subprocess.Popen[bytes], patience_s: float) -> None:
        """Serve until the guest's process ends, at most `patience_s`."""
        end_s = time.monotonic() + patience_s
        self._server.settimeout(60)
        self._guest, _ = self._server.accept()
        self._send(HELLO, 0, b"poet-host".ljust(64, b"\0") + struct.pack("<I", ABILITIES))
        while process.poll() is None and time.monotonic() < end_s:
            if select.select([self._guest], [], [], 0.02)[0]:
                data = self._guest.recv(1 << 16)
                if not data:
                    return
                self._input += data
            while self._take():
                pass
            self._from_board += self.chip.take()
            self._answer_bulk()
            assert self.chip.run(SLICE_TICKS) in ("slice", "idle"), self.chip.message

    def _take(self) -> bool:
        head = struct.Struct("<IIQ" if self._wide else "<III")
        if len(self._input) < head.size:
            return False
        kind, size, number = head.unpack_from(self._input)
        if len(self._input) < head.size + size:
            return False
        body = bytes(self._input[head.size : head.size + size])
        del self._input[: head.size + size]
        self._obey(kind, number, body)
        return True

    def _obey(self, kind: int, number: int, body: bytes) -> None:
        if kind == HELLO:
            assert struct.unpack_from("<I", body, 64)[0] & ABILITIES == ABILITIES
            self._wide = True
            self._introduce()
        elif kind == RESET:
            self._wanted.clear()
            self.chip.lib.machine_usb_reset(self.chip.machine)
            self._settle()
        elif kind == SET_CONFIGURATION:
            self._send(CONFIGURATION, number, bytes([SUCCESS, body[0]]))
        elif kind == SET_ALTERNATE:
            self._send(ALTERNATE, number, bytes([SUCCESS, *body]))
        elif kind in (START_INTERRUPTS, STOP_INTERRUPTS):
            self._send(INTERRUPTS, number, bytes([SUCCESS, body[0]]))
        elif kind == CONTROL:
            self._control(number, body)
        elif kind == BULK:
            self._bulk(number, body)
        elif kind == CANCEL:
            for wanted, (endpoint, _, _, stream, _) in self._wanted:
                if wanted == number:
                    head = struct.pack(BULK_HEAD, endpoint, CANCELLED, 0, stream, 0)
                    self._send(BULK, number, head)
            self._wanted = [item for item in self._wanted if item[0] != number]

    def _introduce(self) -> None:
        chip = self.chip
        about = bytes(chip.lib.machine_usb_request(chip.machine, 2).data)  # device descriptor
        classes = [bytes(values).ljust(32, b"\0") for values in ((0, 1), (2, 10), (2,), ())]
        self._send(INTERFACES, 0, struct.pack("<I", 2) + b"".join(classes))
        kinds, intervals, owners, packets = [UNUSED] * 32, [0] * 32, [0] * 32, [0] * 32
        intervals[NOTICE] = 255
        for place, kind, owner, packet in EVERY_ENDPOINT:
            kinds[place], owners[place], packets[place] = kind, owner, packet
        sizes = struct.pack("<32H", *packets)
        self._send(ENDPOINTS, 0, bytes(kinds) + bytes(intervals) + bytes(owners) + sizes)
        device = bytes([FULL_SPEED]) + about[4:7] + about[8:14]
        self._send(CONNECT, 0, device)

    def _control(self, number: int, body: bytes) -> None:
        endpoint, request, kind, _, value, index, length = struct.unpack_from(CONTROL_HEAD, body)
        setup, data = struct.pack("<BBHHH", kind, request, value, index, length), body[10:]
        lib, machine = self.chip.lib, self.chip.machine
        lib.machine_usb_ask(machine, setup, data, len(data))
        self._settle()
        answer = self.chip.ffi.new("uint8_t[512]")
        result = int(lib.machine_usb_answer(machine, answer))
        self.requests.append((setup.hex(), result))
        size, status = max(result, 0), SUCCESS if result >= 0 else STALL
        head = struct.pack(CONTROL_HEAD, endpoint, request, kind, status, value, index, size)
        self._send(CONTROL, number, head + (bytes(answer)[:size] if kind & 0x80 else b""))

    def _bulk(self, number: int, body: bytes) -> None:
        head = struct.unpack_from(BULK_HEAD, body)
        endpoint, _, size, stream, _ = head
        if endpoint & 0x80:
            self._wanted.append((number, head))
            return
        data = body[struct.calcsize(BULK_HEAD) :]
        assert self.chip.give(data) == len(data)
        self._send(BULK, number, struct.pack(BULK_HEAD, endpoint, SUCCESS, size, stream, 0))

    def _answer_bulk(self) -> None:
        while self._from_board and self._wanted:
            number, (endpoint, _, size, stream, _) = self._wanted.pop(0)
            data = bytes(self._from_board[:size])
            del self._from_board[:size]
            head = struct.pack(BULK_HEAD, endpoint, SUCCESS, len(data), stream, 0)
            self._send(BULK, number, head + data)
