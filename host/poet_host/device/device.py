"""A connected board, with one typed method for each message of wire.def."""

import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from .. import isa
from ..closing import Closing
from ..errors import BoardError, LinkBroken, NoDevice, PoetError
from .answers import VERSION, board_error, reply_fields, tensor_name
from .board import Board, load_board
from .link import Link, candidate_ports
from .progress import Progress as Progress, shifted
from .wire import STATUS_BYTES, WireError, messages, pack, size_of, unpack_status

_C = isa.constants()
MODEL, PLAN, TENSOR, ARENA, JOB, PARTITION = (
    _C[f"POET_OBJECT_{name}"] for name in ("MODEL", "PLAN", "TENSOR", "ARENA", "JOB", "PARTITION")
)
NOTHING_COMMITTED = 0xFFFFFFFF  # poet_hello.committed_step if storage has no complete weights
CONNECT_PATIENCE_S = 5.0  # longest wait for the first answer: opening a port may reset the board
SAVE_PATIENCE_S = 60.0  # an erase of 4 KiB of flash takes 85 ms
CARD_BYTES_PER_S = 2e5  # at which a slow card is read; no request is repeated meanwhile
STOP_POLL_S = 0.05  # pause between two checks whether a step has stopped
_BLOCK = _C["POET_BLOCK"]
_NOTHING_TO_SAVE = ("no_schedule", "wrong_step", "no_storage", "foreign_storage", "storage_version")


class Device(Closing):
    """A board on an open link. Methods return the records of records.h as named tuples.

    The constructor reads the board's poet_hello into `info`, and stops a step that the board still
    runs. It raises NoDevice if no board answers, and BoardError if the board's firmware has another
    version than this program, or other rows of isa.def. Every method raises BoardError if the board
    refuses a request. The message contains the meaning of the error and the advice, both from
    wire.def. Every method raises LinkBroken if an answer breaks a rule of answers.py.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        # Names of the tensors of the schedule in use: errors then name a tensor, not its number.
        self.tensor_names: Sequence[str] = ()
        self.info: Any = None
        self._traced = range(0)  # statements that the latest step was asked to trace
        self._saved = range(NOTHING_COMMITTED + 1)  # steps that the board may have committed
        self.loads = 0  # number of loads of schedules: each one ends a training
        self._first_hello()

    def close(self) -> None:
        self.link.close()

    # Identity and status.

    @cached_property
    def board(self) -> Board:
        """The facts about the board that poet_hello names."""
        return load_board(self.info.board)

    def hello(self, patience_s: float | None = None) -> Any:
        """Read poet_hello from the board again, store it in `info`, and return it.

        `patience_s`: longest wait for the answer; None: that of the link.
        """
        info = self._request("hello", patience_s=patience_s)["hello"]
        if info.version != VERSION:
            raise BoardError(
                f"the firmware of {info.board} has version {info.version}, but this poet-host has "
                f"version {VERSION}: flash the firmware of this poet-host",
                "bad_version",
                info.version,
            )
        if info.fingerprint != isa.fingerprint():
            raise BoardError(
                f"the firmware of {info.board} and this poet-host have different operators "
                f"({self._differing_rows()}). Flash the firmware of this poet-host",
                "bad_fingerprint",
                info.fingerprint,
            )
        self.info = info
        return info

    def rows(self) -> str:
        """Read the board's rows of isa.def as text: poet_hello.fingerprint is its CRC-32."""
        text = b""
        while piece := self._request("rows", {"offset": len(text)})["bytes"]:
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
        self._request("format", {"total_blocks": total_blocks})

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

        A tensor of which the card has not written all bytes is written once more from its start.
        """
        room = self._piece(self.info.frame_bytes - size_of(messages()["write"].request))
        done, again = 0, object == TENSOR
        while done < len(data):
            place = {"object": object, "tensor": tensor, "offset": start + done}
            piece = {"bytes": data[done : done + room]}
            try:
                done = int(self._request("write", place | piece)["next"]) - start
            except BoardError as error:
                if not (again and error.name in ("page_damaged", "out_of_order")):
                    raise
                done, again = 0, False
            if progress:
                progress(done, len(data))

    def read(self, object: int, tensor: int, size_bytes: int, *, start: int = 0) -> bytes:
        """Read `size_bytes` of an object, from byte `start` on, or of a tensor from byte 0 on.

        The board checks a tensor before it sends the first byte, but then reads its card again. So
        the bytes that arrive are compared with a CRC-32 from before this check. If they differ, the
        tensor is read once more. Raises PoetError if they differ again.
        """
        if object != TENSOR:
            return self._read(object, tensor, size_bytes, start)
        assert start == 0
        crc = self.checksum(TENSOR, tensor, size_bytes)
        for _ in range(2):
            data = self._read(TENSOR, tensor, size_bytes, 0)
            if zlib.crc32(data) == crc:
                return data
        raise PoetError(
            f"tensor {tensor_name(tensor, self.tensor_names)}: the board has sent other bytes than "
            "those of its checksum, twice. Check the card and its contacts, then read it again"
        )

    def _read(self, object: int, tensor: int, size_bytes: int, start: int) -> bytes:
        room = self._piece(self.info.frame_bytes - STATUS_BYTES)
        data = bytearray()
        while len(data) < size_bytes:
            count = min(room, size_bytes - len(data))
            offset = start + len(data)
            values = {"object": object, "tensor": tensor, "offset": offset, "count": count}
            data += self._request("read", values)["bytes"]
        return bytes(data)

    def checksum(self, object: int, tensor: int, size_bytes: int) -> int:
        """Return the CRC-32 of an object's first `size_bytes`."""
        values = {"object": object, "tensor": tensor, "count": size_bytes}
        expected_s = size_bytes / CARD_BYTES_PER_S
        return int(self._request("checksum", values, expected_s=expected_s)["crc"])

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
        raise self._invalid("read: it accepted a read after the end of the area for jobs")

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
        self.loads, self._saved = self.loads + 1, range(NOTHING_COMMITTED + 1)
        sizes = {"model_bytes": len(model_part), "plan_bytes": len(plan_part)}
        return self._request("load", sizes)["facts"]

    def begin(self, step: int) -> None:
        """Complete an upload: the tensors that were written become the board's weights.

        `step`: number of steps that these weights have been trained for.
        """
        self._request("begin", {"step": step})
        self._saved = range(step + 1)

    def step(
        self,
        step: int,
        trace_first: int = 0,
        trace_count: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Run one training step, wait for its end, and return poet_step_result.

        `meanwhile` is called once while the step runs, unless the step ends before the board has
        reported it as running. INPUT tensors that it writes are data of the next step.
        """
        message, ping = messages()["step"], messages()["status"]
        values = {"step": step, "trace_first": trace_first, "trace_count": trace_count}

        def is_running(payload: bytes) -> bool:
            return bool(self._fields("status", payload, {})["status"].running)

        payload = pack(message.request, values)
        self._saved = range(step + 1)
        reply = self.link.request_long(message.code, payload, ping.code, is_running, meanwhile)
        result = self._fields("step", reply, values)["result"]
        self._traced = range(trace_first, trace_first + trace_count)
        return result

    def save(self) -> Any:
        """Commit the steps that are in RAM only, and return poet_saved, with the committed step."""
        return self._request("save", patience_s=SAVE_PATIENCE_S, saved=self._saved)["saved"]

    def keep(self, *, if_possible: bool = False) -> None:
        """Commit the steps that are in RAM only, which a load would drop, if there are any."""
        try:
            self.save()
        except BoardError as error:
            if not if_possible and error.name not in _NOTHING_TO_SAVE:
                raise

    def committed_loss(self) -> float:
        """Return the loss of the committed step."""
        return float(self.step(self.hello().committed_step).loss)

    def trace(self) -> tuple[Any, ...]:
        """Read the poet_trace records of the last step."""
        records: list[Any] = []
        while more := self._request("trace", {"first": len(records)}, traced=self._traced)["bytes"]:
            records += more
        return tuple(records)

    def reset(self) -> None:
        """Stop a running step and unload the schedule. Storage does not change."""
        self._request("reset")

    def stop(self, patience_s: float | None = None) -> None:
        """Do what `reset` does, and wait until the step has stopped. Completed steps are kept."""
        self._request("reset", patience_s=patience_s)
        give_up = time.monotonic() + self.link.patience_s
        while self.status().running and time.monotonic() < give_up:
            time.sleep(STOP_POLL_S)

    # Measuring.

    def probe_write(self, offset: int, data: bytes) -> None:
        """Write bytes to the arena."""
        self.write(ARENA, 0, data, start=offset)

    def probe_read(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of the arena."""
        return self.read(ARENA, 0, size_bytes, start=offset)

    def probe_op(
        self, op: bytes, offsets: Sequence[int], *, repeat: int = 1, expected_s: float = 0.0
    ) -> int:
        """Run a poet_op in the arena `repeat` times; return the total time in ticks.

        `offsets`: arena offsets of the inputs, then of the output, then of the workspace.
        `expected_s`: time after which the board should answer. The request is not sent again
        meanwhile, because the board would then run the operator again.
        """
        places = struct.pack(f"<{len(offsets)}I", *offsets)
        values = {"step": 1, "repeat": repeat, "op": op, "bytes": places}
        return int(self._request("probe_op", values, expected_s=expected_s)["ticks"])

    def probe_transfer(self, write: bool, size_bytes: int, *, repeat: int = 1) -> tuple[int, int]:
        """Copy `size_bytes` between arena and storage (`write`: to storage) `repeat` times.

        Returns two totals in ticks: the time of the transfers, and the time that the processor was
        awake.
        """
        values = {"write": int(write), "size": size_bytes, "repeat": repeat}
        reply = self._request("probe_transfer", values)
        return int(reply["ticks"]), int(reply["cpu_ticks"])

    def probe_commit(self, *, repeat: int = 1) -> int:
        """Do the storage writes of a commit `repeat` times; return the total time in ticks."""
        return int(self._request("probe_commit", {"repeat": repeat})["ticks"])

    # Requests and replies.

    def _first_hello(self) -> None:
        """Read poet_hello. If a step still runs, stop it first."""
        try:
            self.hello(CONNECT_PATIENCE_S)
        except BoardError as error:
            if error.name != "busy":
                raise
            self.stop()
            self.hello()

    def _request(
        self,
        name: str,
        values: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        expected_s: float = 0.0,
        **known: Any,
    ) -> dict[str, Any]:
        """Send a request, and return the fields of the reply.

        `known`: what the reply must agree with, in addition to `values` (answers.py).
        """
        message, values = messages()[name], values or {}
        payload = pack(message.request, values)
        reply = self.link.request(message.code, payload, patience_s, expected_s)
        return self._fields(name, reply, {**values, **known})

    def _fields(self, name: str, payload: bytes, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked fields of a reply. `asked`: see answers.py."""
        try:
            status, detail, rest = unpack_status(payload)
            if status == 0:
                return reply_fields(name, rest, asked, self.info)
        except WireError as error:
            raise self._invalid(f"{name}: {error}") from error
        refusal = board_error(status, detail, name, self.tensor_names)
        if name == "load" and refusal.name == "arena_small":
            arena = f"; its arena has {self.info.arena_bytes:,} bytes"
            refusal = BoardError(f"{refusal}{arena}", refusal.name, detail)
        raise refusal

    @staticmethod
    def _piece(room: int) -> int:
        """Return the number of bytes to transfer in one request whose frame has `room` bytes.

        Whole blocks are faster: to write a part of a block, the board must first read the block.
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
