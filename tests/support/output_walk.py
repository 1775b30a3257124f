"""A full disk, or SIGKILL, at events of a command's files: no output is ever half written.

`fault_writes.c` counts what a command does to files in the folders `out` (of its outputs), `ram`
(of temporary cards, in place of /dev/shm) and `tmp`. Each of these events is once the one from
which on the disk is full, and once the one that kills the command.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poet_host.errors import PoetError

from .command import Process

SUPPORT = Path(__file__).parent
COUNT, DISK_IS_FULL, KILL = range(3)  # of fault_writes.c
FOLDERS = OUT, RAM, TMP = ("out", "ram", "tmp")
KILLED = -9
CACHE = "poet-host"  # the folder of compiled files, which stays
OLD = b"the old file"
PART_BYTES = 1 << 16  # parts of zeros are holes
PATIENCE_S = 10.0  # until a board has ended whose host was killed
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A command that must succeed without faults."""

    name: str
    command: Sequence[object]
    # Names of the outputs, and what checks that one is whole. None: it has always the same bytes.
    outputs: Mapping[str, Check | None]
    befores: Sequence[Mapping[str, bytes]] = ()  # the outputs before; (): absent, then OLD
    watched: Collection[str] = (OUT,)
    few: int = 10  # events that `make test` tries

    @property
    def starts(self) -> Sequence[Mapping[str, bytes]]:
        return self.befores or ({}, dict.fromkeys(self.outputs, OLD))


@dataclass
class Walked:
    """What a walk found. `events`: of one run; `runs`: with a fault."""

    events: int = 0
    runs: int = 0
    defects: list[str] = field(default_factory=list)


def built(folder: Path) -> Path:
    """The library of faults."""
    library = folder / "faults.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = SUPPORT / "fault_writes.c"
    subprocess.run(["cc", *flags, source, "-o", library, "-ldl"], check=True)
    return library


class Commands:
    """Runs commands in a process that lets their writes to the watched folders fail."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.printed, state = folder / "printed", folder / "state"
        self.out, self.ram, self.tmp = (folder / name for name in FOLDERS)
        self._aside, self._places = folder / "aside", list[Path]()
        for path in (self.out, self.ram, self.tmp, self._aside):
            path.mkdir()
        state.write_bytes(bytes(20))
        folders = ":".join(str(path) for path in (self.out, self.ram, self.tmp))
        self._process = Process(
            [sys.executable, SUPPORT / "fault_driver.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env=os.environ
            | {"LD_PRELOAD": str(library), "POET_FAULT_STATE": str(state)}
            | {"POET_FAULT_FOLDERS": folders, "POET_FAULT_RAM": str(self.ram)}
            | {"TMPDIR": str(self.tmp), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def run(self, case: Case, kind: int = COUNT, at: int = 0) -> tuple[int, int]:
        """Return the exit code, and the number of events."""
        assert self._process.stdin
        assert self._process.stdout
        request = {
            "command": [str(word) for word in case.command], "kind": kind, "at": at,
            "watched": sum(1 << FOLDERS.index(name) for name in case.watched),
            "output": str(self.printed),
        }  # fmt: skip
        print(json.dumps(request), file=self._process.stdin)
        self._process.stdin.flush()
        code, events = json.loads(self._process.stdout.readline())
        return code, events

    def fill(self, before: Mapping[str, bytes]) -> None:
        """Make these the only files in `out`, and set aside what killed commands have left."""
        for path in self.leftovers():
            path.rename(self._aside / str(len(self._places)))
            self._places.append(path)
        for path in self.paths():
            if path.is_file():
                path.unlink()
        for name, data in before.items():
            write_sparse(self.out / name, data)

    def leftovers(self) -> list[Path]:
        """The temporary files and folders of commands that were killed."""
        hidden = {path for folder in (self.out, self.tmp) for path in folder.rglob(".poet-*")}
        others = {
            path
            for folder in (self.ram, self.tmp)
            for path in folder.iterdir()
            if path.name != CACHE and not is_backup(path)
        }
        return sorted(hidden | others)

    def bring_leftovers(self) -> None:
        """Let all leftovers that were set aside be where they were."""
        for number, path in enumerate(self._places):
            path.parent.mkdir(exist_ok=True, parents=True)
            (self._aside / str(number)).rename(path)
        self._places.clear()

    def paths(self) -> list[Path]:
        """All files and folders in `out`."""
        return sorted(self.out.rglob("*"))

    def close(self) -> None:
        self._process.communicate(timeout=10)


def write_sparse(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        for at in range(0, len(data), PART_BYTES):
            if any(part := data[at : at + PART_BYTES]):
                file.seek(at)
                file.write(part)
        file.truncate(len(data))


def walk(
    commands: Commands, case: Case, *, few: bool = False, report: Callable[[int], None] = bool
) -> Walked:
    """Let a command fail at each event, or only at some if `few` is True.

    Raises AssertionError if the command fails without a fault.
    """
    found = Walked()
    for before in case.starts[-1:] if few else case.starts:
        commands.fill(before)
        code, events = commands.run(case)
        assert code == 0, commands.printed.read_text()
        made = {name: (commands.out / name).read_bytes() for name in case.outputs}
        found.events += events
        step = -(-events // case.few) if few else 1
        last = range(max(1, events - 2), events + 1)
        for kind in (DISK_IS_FULL, KILL):
            for at in sorted({*range(1, events + 1, max(1, step)), *last}):
                commands.fill(before)
                code, seen = commands.run(case, kind, at)
                expected = (0, 1, 2) if kind == DISK_IS_FULL else (KILLED,)
                if seen < at:  # the number of log entries and messages depends on the time
                    expected = (0,)
                found.runs += 1
                report(found.runs)
                what = f"{case.name}: {'kill' if kind == KILL else 'full disk'} at event {at}"
                found.defects += [
                    f"{what}{' with old files' if before else ''}: {defect}"
                    for defect in defects(commands, case, kind, before, made)
                ]
                if code not in expected:
                    found.defects.append(f"{what}: exit code {code}")
    commands.fill(case.starts[0])
    commands.bring_leftovers()
    code, _ = commands.run(case)
    assert code == 0, commands.printed.read_text()
    found.defects += [f"{case.name}: {path} stays" for path in leftovers(commands, case)]
    return found


def defects(
    commands: Commands,
    case: Case,
    kind: int,
    before: Mapping[str, bytes],
    made: Mapping[str, bytes],
) -> list[str]:
    """What is wrong after a run with a fault."""
    found = []
    printed = commands.printed.read_text()
    if "Traceback" in printed or ".poet-" in printed:
        found.append(f"it printed {printed[-600:]!r}")
    if kind == DISK_IS_FULL:
        if "contacts" in printed:
            found.append(f"it blames the card: {printed[-600:]!r}")
        found += [f"{path} stays" for path in commands.leftovers()]
    for name, check in case.outputs.items():
        path = commands.out / name
        if not path.exists():
            if name in before:
                found.append(f"{name} is missing")
        elif (data := path.read_bytes()) != before.get(name) and data not in made.values():
            try:
                assert check, "it has other bytes"
                check(path)
            except (AssertionError, PoetError, ValueError) as error:
                found.append(f"{name} is not whole: {error!r}")
    expected = {commands.out / name for name in case.outputs}
    for path in commands.paths():
        if path.is_file() and path not in expected and ".poet-" not in str(path):
            found.append(f"{path} is new")
    return found


def leftovers(commands: Commands, case: Case) -> list[Path]:
    """What should not exist after a command that was not disturbed."""
    outputs = {commands.out / name for name in case.outputs}
    folders = {parent for path in outputs for parent in path.parents}
    found = [path for path in commands.paths() if path not in outputs | folders]
    return sorted({*found, *commands.leftovers()})


def is_backup(path: Path) -> bool:
    """The weights of a card whose training was killed, which its error message names."""
    return path.name.startswith("poet-weights-") and path.stat().st_size > 0


def patient(check: Check) -> Check:
    """Repeat the check of a card while the board of a killed host still ends."""

    def repeated(path: Path) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                check(path)
            except PoetError as error:
                if "uses the card image" not in str(error) or time.monotonic() > end_s:
                    raise
                time.sleep(0.01)
            else:
                return

    return repeated
