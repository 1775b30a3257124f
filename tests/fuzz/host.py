"""Changed files against every reader of the host: BadInput or success, and nothing else.

    python -m fuzz.host [--cases N] [--formats A,B] [--seed S] [--jobs N] [--output FILE]
    python -m fuzz.host --formats poet --case 4711       one case, with its traceback

A case depends only on seed, format and number. One case in VALID_IN is the unchanged file, which
must be accepted. An accepted file is then used as the product uses it.
"""

import argparse
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType

from poet_host.errors import PoetError
from rich.progress import Progress

from bench.commits import commit

from .cards import FORMATS
from .formats import Format

VALID_IN = 50
CHUNK = 250
LIMIT_S = 10.0
MESSAGE_CHARACTERS = 2000
GROWTH_KIB = 500_000
ADDRESS_BYTES = 12 << 30
_MEMORY = Path("/dev/shm")


class Hanging(BaseException):
    """A case takes longer than LIMIT_S."""


@dataclass
class Found:
    """Cases of one format, by outcome, and for each kind of defect the first case of it."""

    counts: Counter[str] = field(default_factory=Counter)
    defects: dict[str, tuple[int, int]] = field(default_factory=dict)  # cases, the first of them

    def add(self, other: "Found") -> None:
        self.counts += other.counts
        for what, (count, number) in other.defects.items():
            before, first = self.defects.get(what, (0, number))
            self.defects[what] = before + count, min(first, number)


@cache
def opened(name: str) -> tuple[Format, Path]:
    """A format, and the folder of its files; once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_folder))
    return FORMATS[name](folder), folder


def _begin(folder: str) -> None:
    """In each process."""
    global _folder
    _folder = folder
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))


_folder = ""


@contextmanager
def _limited() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_case(name: str, seed: int, number: int) -> str:
    """Make the file of a case and use it; returns the outcome, raises what the reader raises."""
    made, folder = opened(name)
    rng = Random(f"{seed}:{name}:{number}")
    valid = number % VALID_IN == 0
    path = folder / f"input{made.suffix}"
    made.write(path, rng, valid)
    try:
        with _limited():
            made.use(path, rng)
    except PoetError as error:
        if valid:
            raise AssertionError(f"the unchanged file is refused: {error}") from None
        raise
    return "valid" if valid else "accepted"


def outcome(name: str, seed: int, number: int) -> str:
    """`valid`, `accepted`, `refused`, or what is wrong."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = run_case(name, seed, number)
    except PoetError as error:
        found = _refused(error, FORMATS[name].exit_codes)
    except (Hanging, Exception) as error:  # noqa: BLE001 - each is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        at = [frame for frame in frames if "poet_host" in frame.filename]
        where = f"{Path(at[-1].filename).name}:{at[-1].lineno}" if at else "fuzz"
        found = f"{type(error).__name__} at {where}: {str(error)[:80]!r}"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > GROWTH_KIB:
        return "memory grew by 500 MB"
    return found


def _refused(error: PoetError, exit_codes: tuple[int, ...]) -> str:
    text = str(error)
    if error.exit_code not in exit_codes:
        return f"exit code {error.exit_code}: {text[:60]!r}"
    if "\n" in text:
        return f"message of several lines: {text[:60]!r}"
    return f"message too long: {text[:60]!r}" if len(text) > MESSAGE_CHARACTERS else "refused"


def chunk(name: str, seed: int, first: int, count: int) -> Found:
    opened(name)  # an error here is none of a case
    found = Found()
    for number in range(first, first + count):
        what = outcome(name, seed, number)
        known = what in ("valid", "accepted", "refused")
        found.counts[what if known else "defects"] += 1
        if not known:
            cases, earliest = found.defects.get(what, (0, number))
            found.defects[what] = cases + 1, earliest
    return found


def fuzz(names: list[str], cases: int, seed: int, jobs: int) -> dict[str, Found]:
    """All cases of the formats, several at a time, with a progress bar for each format."""
    found = {name: Found() for name in names}
    with (
        tempfile.TemporaryDirectory(
            prefix="fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None
        ) as folder,
        ProcessPoolExecutor(jobs, initializer=_begin, initargs=(folder,)) as pool,
        Progress() as progress,
    ):
        for name in names:
            task = progress.add_task(name, total=cases)
            work = [
                pool.submit(chunk, name, seed, first, min(CHUNK, cases - first))
                for first in range(0, cases, CHUNK)
            ]
            for future in work:
                done = future.result()
                found[name].add(done)
                progress.advance(task, done.counts.total())
    return found


def table(found: dict[str, Found]) -> str:
    heads = ("format", "cases", "unchanged, accepted", "changed, accepted", "refused", "defects")
    rows = [heads]
    for name, tally in found.items():
        counts = (tally.counts[what] for what in ("valid", "accepted", "refused", "defects"))
        rows.append((name, f"{tally.counts.total():,}", *(f"{count:,}" for count in counts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    for name, tally in found.items():
        for what, (count, number) in sorted(tally.defects.items(), key=lambda item: -item[1][0]):
            lines.append(f"{name}, {count} times, first in case {number}: {what}")
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=100_000, help="of each format")
    options.add_argument("--formats", default=",".join(FORMATS), help="separated by commas")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=2, help="processes")
    options.add_argument("--case", type=int, help="run this one alone")
    options.add_argument("--output", type=Path, help="a file for the table")
    given = options.parse_args()
    names = given.formats.split(",")
    if given.case is not None:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            _begin(folder)
            print(run_case(names[0], given.seed, given.case))
        return 0
    begin = time.monotonic()
    found = fuzz(names, given.cases, given.seed, given.jobs)
    minutes = (time.monotonic() - begin) / 60
    text = table(found)
    sys.stdout.write(text)
    if given.output:
        command = f"python -m fuzz.host --cases {given.cases} --seed {given.seed} --formats "
        command += given.formats
        jobs = "1 process" if given.jobs == 1 else f"{given.jobs} processes"
        when = f"{date.today()}, commit {commit()}, {jobs}, {minutes:.0f} minutes"
        given.output.write_text(f"{command}\n{when}\n\n{text}")
    return int(any(tally.defects for tally in found.values()))


if __name__ == "__main__":
    sys.exit(main())
