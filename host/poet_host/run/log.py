"""The log of a training run: JSON lines, one object for each event.

The first line of a run has the `event` "begin" and names the model, the board and the first step.
An event "step" follows for each committed step, a "validation" for each validated epoch, and an
"end" when the run ends. A resumed run appends to the same file, with a "begin" of its own. Each
line is written before the next step begins.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from ..card.job import JobState
from ..closing import Closing
from ..errors import BadInput
from ..files import is_stream, opened, opened_stream, replacement, write_all, write_whole
from ..profile.profile import Power
from .energy import energy_uj
from .run import Step
from .validate import Validated

FORMAT, VERSION = "poet-log", 1
_LINE_BYTES = 1 << 20  # more than the largest line of a log


class Log(Closing):
    """A context manager for a log: call `begin`, then `step` after every step, then `end`.

    `begin` replaces the file `path`, or appends to it if `resume` is True. If `path` is None,
    nothing is written. An exception that leaves the `with` block becomes the last line. If the log
    can no longer be written, `broken` has the reason, the file ends with the last whole line, and
    training continues without a log.
    """

    def __init__(self, path: Path | None, resume: bool = False) -> None:
        self.broken = ""
        self._path, self._resume = path, resume
        self._file: BinaryIO | None = None
        self._per_epoch = 1
        self._power: Power | None = None
        self._ended = True

    def check(self) -> None:
        """Raise BadInput if the file exists and a resumed run cannot append to it."""
        if self._path and self._resume and not is_stream(self._path) and self._path.exists():
            _whole_lines_bytes(self._path)

    def begin(
        self, about: Mapping[str, Any], from_step: int, per_epoch: int | None, power: Power
    ) -> None:
        """Open the file and write its first line.

        `about` describes the run in JSON types. `per_epoch` is the number of steps in an epoch.
        `power` has the powers of the board. Raises BadInput if the file cannot be written, or if a
        resumed run cannot append to it.
        """
        self._per_epoch, self._power, self._ended = per_epoch or 1, power, False
        head, path = _head(about, from_step, per_epoch), self._path
        if path is None:
            return
        appends = is_stream(path) or (self._resume and path.exists())
        try:
            if not appends:  # an old file stays until the new one has its first line
                with replacement(path) as new:
                    new.write_bytes(_line(head))
            self._file = _opened(path)
        except OSError as error:
            raise BadInput(_unwritable(path, error)) from error
        if appends:
            self._write(head)
        if self.broken:
            raise BadInput(self.broken)

    def step(self, step: Step) -> None:
        assert self._power is not None
        above_uj, total_uj = energy_uj(step, self._power)
        epoch = (step.step - 1) // self._per_epoch + 1
        energy = {"energy_uj": above_uj, "total_energy_uj": total_uj}
        self._write({"event": "step", "epoch": epoch, **asdict(step), **energy})

    def validated(self, found: Validated) -> None:
        self._write({"event": "validation", **found.to_json()})

    def end(self, **facts: Any) -> None:
        self._ended = True
        self._write(_end(facts))

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is None or self._path is None:
            return
        whole_bytes = self._file.seek(0, os.SEEK_END) if self._file.seekable() else 0
        try:
            write_all(self._file, _line(row))
        except OSError as error:
            self.broken = _unwritable(self._path, error)
            with suppress(OSError):  # pipes have no size
                self._file.truncate(whole_bytes)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and not self._ended:
            stopped = isinstance(error, KeyboardInterrupt)
            self.end(ended="stopped" if stopped else "failed", error=str(error) or None)
        self.close()


def log_job(path: Path, about: Mapping[str, Any], job: JobState | None, committed: int) -> None:
    """Write the log of what a board has trained without a host: only losses are known.

    Without a `job`, the log has no steps; the weights are those of step `committed`. Raises
    PoetError if the file cannot be written.
    """
    losses = job.noted() if job else []
    steps = [{"event": "step", "step": step, "loss": loss} for step, loss in losses]
    head = _head(about, job.first if job else committed, None)
    write_whole(path, b"".join(map(_line, [head, *steps, _end({"ended": "read"})])))


def _head(about: Mapping[str, Any], from_step: int, per_epoch: int | None) -> dict[str, Any]:
    head = {"format": FORMAT, "version": VERSION, "event": "begin", "time": time.time()}
    return head | {"from_step": from_step, "steps_per_epoch": per_epoch, **about}


def _end(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": "end", "time": time.time(), **facts}


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _opened(path: Path) -> BinaryIO:
    # Without a buffer, so that a failed write is not repeated later.
    if is_stream(path):
        return opened_stream(path)
    size_bytes = _whole_lines_bytes(path)
    file = path.open("ab", buffering=0)
    file.truncate(size_bytes)
    return file


def _whole_lines_bytes(path: Path) -> int:
    """Return the number of bytes in the whole lines of a log.

    After a power cut, the log may end with a part of a line. Raises BadInput if the file is not a
    log, or cannot be read.
    """
    with opened(path) as file:
        first = file.readline(_LINE_BYTES)
        if not first:
            return 0
        try:
            known = json.loads(first)["format"] == FORMAT
        except (ValueError, TypeError, KeyError, RecursionError):
            known = False
        if not known:
            raise BadInput(
                f"{path} is not a poet-host log, so a resumed run cannot append to it: choose "
                "another file"
            )
        file.seek(0)
        whole = at = 0
        while part := file.read(_LINE_BYTES):
            whole = at + part.rindex(b"\n") + 1 if b"\n" in part else whole
            at += len(part)
        return whole


def _unwritable(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be written ({(error.strerror or str(error)).lower()}): choose a path that "
        "you may write to, on a disk with free space"
    )
