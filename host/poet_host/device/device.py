"""A connected board, with one typed method for each message of wire.def."""

import struct
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from .. import isa
from ..closing import Closing
from ..errors import BoardError, LinkBroken, NoDevice
from .board import Board, load_board
from .link import Link, candidate_ports
from .wire import (
    STATUS_BYTES,
    WireError,
    messages,
    pack,
    record_type,
    size_of,
    unpack,
    unpack_status,
)

_C = isa.constants()
MODEL, PLAN, TENSOR, ARENA, JOB = (
    _C[f"POET_OBJECT_{name}"] for name in ("MODEL", "PLAN", "TENSOR", "ARENA", "JOB")
)
NOTHING_COMMITTED = 0xFFFFFFFF  # poet_hello.committed_step if storage has no complete weights
CONNECT_PATIENCE_S = 5.0  # longest wait for the first answer: opening a port may reset the board
SAVE_PATIENCE_S = 60.0  # an erase of 4 KiB of flash takes 85 ms
STOP_POLL_S = 0.05  # pause between two checks whether a step has stopped
_BLOCK = _C["POET_BLOCK"]

Progress = Callable[[int, int], None]  # arguments: done, total (bytes, steps or samples)


class Device(Closing):
    """A board on an open link. Methods return the records of records.h as named tuples.

    The constructor reads the board's poet_hello into `info`, and stops a step that the board still
    runs. It raises NoDevice if no board answers, and BoardError if the board's firmware has another
    version than this program, or other rows of isa.def. Every method raises BoardError if the board
    refuses a request. The message contains the meaning of the error and the advice, both from
    wire.def.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        # Names of the tensors of the schedule in use: errors then name a tensor, not its number.
        self.tensor_names: Sequence[str] = ()
        self.info = self._first_hello()
        if self.info.version != _C["POET_VERSION"]:
            raise BoardError(
                f"the firmware of {self.info.board} has version {self.info.version}, but this "
                f"poet-host has version {_C['POET_VERSION']}: flash the firmware of this poet-host",
                "bad_version",
                self.info.version,
            )
        if self.info.fingerprint != isa.fingerprint():
            raise BoardError(
                f"the firmware of {self.info.board} and this poet-host have different operators "
                f"({self._differing_rows()}). Flash the firmware of this poet-host",
                "bad_fingerprint",
                self.info.fingerprint,
            )

    def close(self) -> None:
        self.link.close()

    # Identity and status.

    @cached_property
    def board(self) -> Board:
        """The facts about the board that poet_hello names."""
        return load_board(self.info.board)

    def hello(self) -> Any:
        """Read poet_hello from the board again, store it in `info`, and return it."""
        self.info = self._request("hello")["hello"]
        return self.info

    def rows(self) -> str:
        """Read the board's rows of isa.def as text. poet_hello.fingerprint is its CRC-32."""
        text = b""
        while piece := self._request("rows", offset=len(text))["bytes"]:
            text += piece
        return text.decode("ascii", "replace")

    def status(self) -> Any:
        """Read poet_status. This also works while a step runs."""
        return self._request("status")["status"]

    def health(self) -> Any:
        """Read poet_health: why the board was last reset, and how the wires of its card work."""
        return self._request("health")["health"]

    def card(self) -> Any:
        """Read poet_card: the registers of the card, and the latest command to it."""
        return self._request("card")["card"]

    def us(self, ticks: float) -> float:
        """Convert ticks of the board's clock to microseconds."""
        return 1e6 * ticks / float(self.info.tick_hz)

    # Storage.

    def format(self, total_blocks: int = 0) -> None:
        """Format the first `total_blocks` blocks of the storage partition (0: all blocks)."""
        self._request("format", total_blocks=total_blocks)

    def write(
        self,
        object: int,
        tensor: int,
        data: bytes,
        progress: Progress | None = None,
        *,
        start: int = 0,
    ) -> None:
        """Write `data` to an object, from byte `start` on, in pieces that fit a frame.

        Each reply names the next offset that the board expects, so no byte is sent twice.
        """
        room = self._piece(self.info.frame_bytes - size_of(messages()["write"].request))
        done = 0
        while done < len(data):
            piece = data[done : done + room]
            values = {"object": object, "tensor": tensor, "offset": start + done, "bytes": piece}
            following = int(self._request("write", **values)["next"]) - start
            if not done < following <= done + len(piece):
                raise self._invalid(
                    f"the reply to a write of bytes {done} to {done + len(piece) - 1} names offset "
                    f"{following} as the next one"
                )
            done = following
            if progress:
                progress(done, len(data))

    def read(self, object: int, tensor: int, size_bytes: int, *, start: int = 0) -> bytes:
        """Read `size_bytes` of an object, from byte `start` on."""
        room = self._piece(self.info.frame_bytes - STATUS_BYTES)
        data = bytearray()
        while len(data) < size_bytes:
            count = min(room, size_bytes - len(data))
            offset = start + len(data)
            values = {"object": object, "tensor": tensor, "offset": offset, "count": count}
            piece = self._request("read", **values)["bytes"]
            if len(piece) != count:
                raise self._invalid(f"a read returned {len(piece)} bytes instead of {count}")
            data += piece
        return bytes(data)

    def checksum(self, object: int, tensor: int, size_bytes: int) -> int:
        """Return the CRC-32 of an object's first `size_bytes`."""
        values = {"object": object, "tensor": tensor, "count": size_bytes}
        return int(self._request("checksum", **values)["crc"])

    def job_room(self) -> int:
        """Return the largest number of bytes that a job may take. A schedule must be loaded.

        The board reports this number in its error when the host reads beyond the end of the area.
        """
        try:
            self.read(JOB, 0, 4, start=2**32 - 4)
        except BoardError as error:
            if error.name == "bad_object":
                return error.detail
            raise
        raise AssertionError("the board accepted a read beyond the card's area for jobs")

    def holds(self, object: int, tensor: int, data: bytes) -> bool:
        """Return True if the object begins with `data`. Then `data` need not be written."""
        try:
            return self.checksum(object, tensor, len(data)) == zlib.crc32(data)
        except BoardError:
            return False

    # Training.

    def load(self, model_part: bytes, plan_part: bytes, progress: Progress | None = None) -> Any:
        """Write a schedule to the board's storage, make the board load it, and return poet_facts.

        A part of the schedule is not sent if the storage already holds it.
        """
        total = len(model_part) + len(plan_part)
        for object, part, before in ((MODEL, model_part, 0), (PLAN, plan_part, len(model_part))):
            if not self.holds(object, 0, part):
                self.write(object, 0, part, shifted(progress, before, total))
        sizes = {"model_bytes": len(model_part), "plan_bytes": len(plan_part)}
        return self._request("load", **sizes)["facts"]

    def begin(self, step: int) -> None:
        """Complete an upload: the tensors that were written become the board's weights.

        `step`: number of steps that these weights have been trained for.
        """
        self._request("begin", step=step)

    def step(
        self,
        step: int,
        trace_first: int = 0,
        trace_count: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Run one training step, wait for its end, and return poet_step_result.

        `meanwhile` is called once while the step runs, unless the step ends before the board has
        reported it as running. If `meanwhile` writes to INPUT tensors, the next step uses these
        data.
        """
        message = messages()["step"]
        values = {"step": step, "trace_first": trace_first, "trace_count": trace_count}
        ping = messages()["status"]

        def is_running(payload: bytes) -> bool:
            return bool(self._fields("status", payload)["status"].running)

        payload = pack(message.request, values)
        reply = self.link.request_long(message.code, payload, ping.code, is_running, meanwhile)
        return self._fields("step", reply)["result"]

    def save(self) -> Any:
        """Commit the weights that a schedule without storage keeps in RAM; return poet_saved."""
        return self._request("save", SAVE_PATIENCE_S)["saved"]

    def committed_loss(self) -> float:
        """Return the loss of the committed step."""
        return float(self.step(self.hello().committed_step).loss)

    def trace(self) -> tuple[Any, ...]:
        """Read the poet_trace records of the last step."""
        size = isa.record_size("poet_trace")
        records: list[Any] = []
        while piece := self._request("trace", first=len(records))["bytes"]:
            if len(piece) % size:
                raise self._invalid("the trace ends in the middle of a record")
            for at in range(0, len(piece), size):
                fields = isa.unpack("poet_trace", piece[at : at + size])
                records.append(record_type("poet_trace")(**fields))
        return tuple(records)

    def reset(self) -> None:
        """Stop a running step and unload the schedule. Storage does not change."""
        self._request("reset")

    # Measuring.

    def probe_write(self, offset: int, data: bytes) -> None:
        """Write bytes to the arena."""
        self.write(ARENA, 0, data, start=offset)

    def probe_read(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of the arena."""
        return self.read(ARENA, 0, size_bytes, start=offset)

    def probe_op(self, op: bytes, offsets: Sequence[int], *, step: int = 1, repeat: int = 1) -> int:
        """Run a poet_op in the arena `repeat` times; return the total time in ticks.

        `offsets`: arena offsets of the inputs, then of the output, then of the workspace.
        """
        places = struct.pack(f"<{len(offsets)}I", *offsets)
        values = {"step": step, "repeat": repeat, "op": op, "bytes": places}
        return int(self._request("probe_op", **values)["ticks"])

    def probe_transfer(self, write: bool, size_bytes: int, *, repeat: int = 1) -> tuple[int, int]:
        """Copy `size_bytes` between arena and storage (`write`: to storage) `repeat` times.

        Returns two totals in ticks: the time of the transfers, and the time that the processor was
        awake.
        """
        values = {"write": int(write), "size": size_bytes, "repeat": repeat}
        reply = self._request("probe_transfer", **values)
        return int(reply["ticks"]), int(reply["cpu_ticks"])

    def probe_commit(self, *, repeat: int = 1) -> int:
        """Do the storage writes of a commit `repeat` times; return the total time in ticks.

        A commit makes the result of a step permanent.
        """
        return int(self._request("probe_commit", repeat=repeat)["ticks"])

    # Requests and replies.

    def _first_hello(self) -> Any:
        """Read poet_hello. If a step still runs, stop it first; completed steps are not lost."""
        try:
            return self._request("hello", CONNECT_PATIENCE_S)["hello"]
        except BoardError as error:
            if error.name != "busy":
                raise
        self.reset()
        give_up = time.monotonic() + self.link.patience_s
        while self.status().running and time.monotonic() < give_up:
            time.sleep(STOP_POLL_S)
        return self._request("hello")["hello"]

    def _request(
        self, name: str, patience_s: float | None = None, /, **values: Any
    ) -> dict[str, Any]:
        message = messages()[name]
        reply = self.link.request(message.code, pack(message.request, values), patience_s)
        return self._fields(name, reply)

    def _fields(self, name: str, payload: bytes) -> dict[str, Any]:
        try:
            status, detail, rest = unpack_status(payload)
            if status == 0:
                return unpack(messages()[name].reply, rest)
        except WireError as error:
            raise self._invalid(f"{name}: {error}") from error
        refusal = board_error(status, detail, name, self.tensor_names)
        if refusal.name == "arena_small":
            arena = f"; its arena has {self.info.arena_bytes:,} bytes"
            refusal = BoardError(f"{refusal}{arena}", refusal.name, detail)
        raise refusal

    @staticmethod
    def _piece(room: int) -> int:
        """Return the number of bytes to transfer in one request whose frame has `room` bytes.

        The number is whole storage blocks, or `room` if that is less than one block. Whole blocks
        are faster: to write only a part of a block, the board must first read the block.
        """
        return room // _BLOCK * _BLOCK or room

    def _differing_rows(self) -> str:
        board, here = self.rows().splitlines(), isa.fingerprint_text().decode().splitlines()
        only_board = [f"the board has '{row}'" for row in board if row not in here]
        only_here = [f"this program has '{row}'" for row in here if row not in board]
        return "; ".join([*only_board, *only_here]) or "the same rows in another order"

    def _invalid(self, what: str) -> LinkBroken:
        return LinkBroken(
            f"the board at {self.link.port} sent an invalid answer ({what}): flash the firmware "
            "of this version"
        )


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback that reports one part's progress as progress of the whole transfer.

    `before`: size of the earlier parts. `total`: size of all parts.
    """
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def board_error(status: int, detail: int, request: str, names: Sequence[str] = ()) -> BoardError:
    """Return the error for a negative status in a board's reply. `names`: those of the tensors."""
    row = isa.by_code("ERROR").get(status)
    if row is None:
        return BoardError(
            f"the board answered {request} with the unknown status {status}: flash the firmware "
            "of this version",
            "unknown",
            detail,
        )
    what, advice, place = row.columns
    text = f"the board refused {request}: {what}"
    if place and detail not in (0, _C["POET_NONE"]):
        is_named = place == "tensor {}" and detail < len(names)
        text += f" ({place.format(names[detail] if is_named else f'{detail:,}')})"
    return BoardError(f"{text}; {advice}" if advice else text, row.name, detail)


def connect(port: str, *, timeout_s: float = 1.0, patience_s: float = 60.0) -> Device:
    """Open a port and return the board at it. `auto` tries this computer's serial ports.

    Raises NoDevice, with the ports that were tried, if no board answers.
    """
    if port != "auto":
        link = Link(port, timeout_s=timeout_s, patience_s=patience_s)
        try:
            return Device(link)
        except BaseException:
            link.close()
            raise
    tried = []
    for candidate in candidate_ports():
        try:
            return connect(candidate, timeout_s=timeout_s, patience_s=patience_s)
        except NoDevice as error:
            tried.append(str(error))
    found = f" ({'; '.join(tried)})" if tried else ": this computer has no serial port"
    raise NoDevice(f"no board answers on any port{found}. Plug in a board, or name its port")
