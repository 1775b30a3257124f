"""A peer at a pty that speaks wire.def, and misbehaves on request."""

import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from poet_host import isa
from poet_host.device.device import NOTHING_COMMITTED
from poet_host.device.wire import REPLY, WireError, frame, messages, pack, unframe, unpack
from support.pty_peer import PtyPeer

Handler = Callable[..., dict[str, Any] | int | None]


class FakeBoard(PtyPeer):
    """Answers with `handlers`: a request's fields in, reply fields out, or a status, or silence.

    `spoil(index, reply)` gets the number and bytes of every reply, and returns the bytes to send.
    `requests` lists all requests.
    """

    def __init__(self, handlers: dict[str, Handler] | None = None, rows: bytes = b"") -> None:
        self.rows = rows or isa.fingerprint_text()
        self.frame_bytes = 100
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.sequences: list[int] = []
        self.spoil: Callable[[int, bytes], bytes] = lambda index, reply: reply
        self.handlers: dict[str, Handler] = {"hello": self._hello, "rows": self._rows}
        self.handlers["health"] = lambda: {"health": {}}
        self.handlers |= handlers or {}
        self.store: dict[tuple[int, int], bytearray] = {}
        self._names = {m.code: m.name for m in messages().values()}
        self._replies = 0
        super().__init__()

    def names(self) -> list[str]:
        return [name for name, _ in self.requests]

    def with_store(self) -> "FakeBoard":
        """Answer write, read and checksum from memory."""
        self.handlers |= {"write": self._write, "read": self._read, "checksum": self._checksum}
        return self

    @classmethod
    def trainable(cls, **hello: Any) -> "FakeBoard":
        """Return a board that every command can use. It computes nothing, and stores all bytes.

        `hello`: fields of poet_hello that differ from those of an MKR1000.
        """
        board = cls().with_store()
        known = {
            "board": b"mkr1000",
            "arena_bytes": 24_576,
            "storage_blocks": 1 << 20,
            "storage_version": isa.constants()["POET_VERSION"],
            "committed_step": NOTHING_COMMITTED,
            "resident_capacity": 64,
            "tensor_capacity": 256,
            "queue_capacity": 8,
            "trace_capacity": 64,
            "frame_bytes": 65_535,
        } | hello
        window = range(0)

        def step(step: int, trace_first: int, trace_count: int) -> dict[str, Any]:
            nonlocal window
            window = range(trace_first, trace_first + trace_count)
            times = {"ticks": 1000, "compute_ticks": 10, "asleep_ticks": 10}
            return {"result": times | {"step": step, "loss": 1.0, "trace_records": len(window)}}

        def trace(first: int) -> dict[str, bytes]:
            pack_one = partial(isa.pack, "poet_trace", kind=1, end=1)
            return {"bytes": b"".join(pack_one(statement=i) for i in window[first:])}

        nothing: dict[str, Any] = {
            "load": {"facts": {}},
            "status": {"status": {}},
            "card": {"card": {}},
            "save": {"saved": {}},
        }
        nothing |= {"begin": {}, "format": {}, "reset": {}}
        nothing |= {"probe_transfer": {"ticks": 9, "cpu_ticks": 9}, "probe_commit": {"ticks": 9}}
        nothing |= {"probe_op": {"ticks": 9}}
        board.handlers |= {name: lambda reply=reply, **_: reply for name, reply in nothing.items()}
        board.handlers |= {"step": step, "trace": trace}
        board.handlers["hello"] = lambda: {"hello": board.hello_fields() | known}
        return board

    def hello_fields(self) -> dict[str, Any]:
        return {
            "version": isa.constants()["POET_VERSION"],
            "fingerprint": zlib.crc32(self.rows),
            "board": b"fake",
            "arena_bytes": 4096,
            "tick_hz": 2_000_000,
            "frame_bytes": self.frame_bytes,
        }

    def _serve(self) -> None:
        received = b""
        while self._open:
            *frames, received = (received + self._received()).split(b"\0")
            for raw in frames:
                if raw:
                    self._answer(raw)

    def _answer(self, raw: bytes) -> None:
        try:
            sequence, code, payload = unframe(raw)
        except WireError:
            return
        name = self._names[code]
        fields = unpack(messages()[name].request, payload)
        self.requests.append((name, fields))
        self.sequences.append(sequence)
        handler = self.handlers.get(name)
        answer = handler(**fields) if handler else -1
        if answer is None:
            return
        if isinstance(answer, int):
            body = struct.pack("<hI", answer, 7)
        else:
            body = bytes(6) + pack(messages()[name].reply, answer)
        reply = self.spoil(self._replies, frame(sequence, code | REPLY, body))
        self._replies += 1
        if reply and self._open:
            self.say(reply)

    def _hello(self) -> dict[str, Any]:
        return {"hello": self.hello_fields()}

    def _rows(self, offset: int) -> dict[str, Any]:
        return {"bytes": self.rows[offset : offset + 80]}

    def _write(self, object: int, tensor: int, offset: int, bytes: bytes) -> dict[str, Any]:
        held = self.store.setdefault((object, tensor), bytearray())
        held.extend(b"\0" * (offset - len(held)))
        held[offset : offset + len(bytes)] = bytes
        return {"next": offset + len(bytes)}

    def _read(self, object: int, tensor: int, offset: int, count: int) -> dict[str, Any] | int:
        if offset + count >= 1 << 32:
            return -3
        held = self.store.get((object, tensor), b"")
        return {"bytes": bytes(held[offset : offset + count]).ljust(count, b"\0")}

    def _checksum(self, object: int, tensor: int, count: int) -> dict[str, Any]:
        held = self.store.get((object, tensor), b"")
        return {"crc": zlib.crc32(bytes(held[:count]).ljust(count, b"\0"))}
