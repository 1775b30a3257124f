"""What a training run tells while it goes on: JSON lines, and scalars for TensorBoard.

A log of JSON lines is an object a line. A run begins with `event` "begin" (what runs, from which
step), then has a "step" for each step as it is committed, a "validation" after each epoch that was
validated, and last an "end". A resumed run goes on
in the same file with a "begin" of its own; every line is written before the next step begins.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..closing import Closing
from ..errors import BadInput
from ..files import is_stream, write_all
from ..profile.profile import Power
from .energy import energy_uj
from .run import Step
from .tensorboard import EventFile
from .validate import Validated

FORMAT, VERSION = "poet-log", 1


class _Sink(Protocol):
    """A file or folder; `write` raises OSError, `close` nothing."""

    path: Path

    def write(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Log(Closing):
    """A context manager: `begin`, then `step` after every step, then `end`.

    `lines` is the file of JSON lines, `tensorboard` the folder of event files; None: none. With
    `resume` the lines are added to those that are there. Files are opened, and replaced, by
    `begin`, which raises BadInput if one cannot be written, or is no log to go on with. What ends
    the block by an exception is logged as the end. A file that cannot be written later on is given
    up, since training goes on without it; `broken` says why, empty if all is well.
    """

    def __init__(self, lines: Path | None, tensorboard: Path | None, resume: bool = False) -> None:
        self._lines, self._tensorboard, self._resume = lines, tensorboard, resume
        self._sinks: list[_Sink] = []
        self._per_epoch = 1
        self._power: Power | None = None
        self._ended = True
        self.broken = ""

    def check(self) -> None:
        """Raise BadInput if the lines cannot be added to the file that is there."""
        if self._lines and self._resume and not is_stream(self._lines) and self._lines.exists():
            _whole_lines(self._lines)

    def begin(
        self, about: Mapping[str, Any], from_step: int, per_epoch: int | None, power: Power
    ) -> None:
        """`about`: what runs, in JSON's types; `per_epoch`: steps; `power`: the board's."""
        if self._tensorboard:
            self._sinks.append(_Scalars(self._tensorboard))
        if self._lines:
            self._sinks.append(_Lines(self._lines, self._resume))
        self._per_epoch, self._power, self._ended = per_epoch or 1, power, False
        head = {"format": FORMAT, "version": VERSION, "event": "begin", "time": time.time()}
        self._write({**head, "from_step": from_step, "steps_per_epoch": per_epoch, **about})
        if self.broken:
            raise BadInput(self.broken)

    def step(self, step: Step) -> None:
        assert self._power is not None
        above_uj, total_uj = energy_uj(step, self._power)
        epoch = (step.step - 1) // self._per_epoch + 1
        energy = {"energy_uj": above_uj, "total_energy_uj": total_uj}
        self._write({"event": "step", "epoch": epoch, **asdict(step), **energy})

    def noted(self, step: int, loss: float | None) -> None:
        """A step of which no more is known."""
        self._write({"event": "step", "step": step, "loss": loss})

    def validated(self, found: Validated) -> None:
        """Loss and accuracy on the held-out samples after an epoch."""
        self._write({"event": "validation", **found.to_json()})

    def end(self, **facts: Any) -> None:
        self._ended = True
        self._write({"event": "end", "time": time.time(), **facts})

    def _write(self, row: Mapping[str, Any]) -> None:
        for sink in [*self._sinks]:
            try:
                sink.write(row)
            except OSError as error:
                self.broken = _unwritable(sink.path, error)
                self._sinks.remove(sink)
                sink.close()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None and not self._ended:
                stopped = isinstance(error, KeyboardInterrupt)
                self.end(ended="stopped" if stopped else "failed", error=str(error) or None)
        finally:
            for sink in self._sinks:
                sink.close()


class _Lines:
    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        # Unbuffered: a line that does not fit on the disk is not tried again when the file closes.
        try:
            if not resume or is_stream(path) or not path.exists():
                self._file: BinaryIO = path.open("wb", buffering=0)
                return
            size_bytes = _whole_lines(path)
            self._file = path.open("ab", buffering=0)
            self._file.truncate(size_bytes)
        except OSError as error:
            raise BadInput(_unwritable(path, error)) from error

    def write(self, row: Mapping[str, Any]) -> None:
        write_all(self._file, json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def _whole_lines(path: Path) -> int:
    """Bytes of the lines in a log, but for a last one that was cut off. Raises BadInput if it is no
    log, or cannot be read."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            if not first:
                return 0
            try:
                known = json.loads(first)["format"] == FORMAT
            except (ValueError, TypeError, KeyError, RecursionError):
                known = False
            if not known:
                raise BadInput(f"{path} is no log that could be gone on with: name another file")
            file.seek(0)
            return sum(len(line) for line in file if line.endswith(b"\n"))
    except OSError as error:
        raise BadInput(_unwritable(path, error)) from error


class _Scalars:
    """Loss, times and energy of each step, validation after epochs, accuracy at the end."""

    CURVES: Sequence[str] = (
        "loss",
        "time_us",
        "energy_uj",
        "total_energy_uj",
        "peak_bytes",
        "epoch",
    )

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._events = EventFile(folder)
        except OSError as error:
            raise BadInput(_unwritable(folder, error)) from error
        self.path, self._step = folder, 0

    def write(self, row: Mapping[str, Any]) -> None:
        names = self.CURVES if row["event"] == "step" else ("loss", "accuracy")
        prefix = "validation_" if row["event"] == "validation" else ""
        self._step = row.get("step", self._step)
        values = {prefix + name: float(row[name]) for name in names if row.get(name) is not None}
        if values:
            self._events.add(self._step, values)

    def close(self) -> None:
        self._events.close()


def _unwritable(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be written ({(error.strerror or str(error)).lower()}): give a path that "
        "you may write to, where there is room"
    )
