"""Running the command line: inside the test, or as a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from poet_host.cli.main import run


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout. Fails the test if stdout has anything else."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    def fails(self, code: int, *named: object) -> None:
        """Assert that the command failed with this exit code and named these objects."""
        assert self.code == code, self.err
        text = self.err.replace("\n", " ")
        for name in named:
            assert str(name) in text, f"{name} is not in: {text}"


class Command:
    """`poet_host(...)` runs `poet-host ...` with its arguments as text."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = self.capsys.readouterr()
        assert "Traceback" not in printed.err
        return Result(code, printed.out, printed.err)


class Process(subprocess.Popen[str]):
    """A process with the default signal handlers, even if the tests ignore some signals.

    `nohup`, many CI systems and background jobs ignore some signals, which children inherit. A
    `with` block kills the process if it fails, and waits for its end otherwise.
    """

    def __init__(
        self, command: Sequence[object], preexec_fn: Callable[[], object] = bool, **more: Any
    ) -> None:
        def prepare() -> None:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            preexec_fn()

        arguments = [str(argument) for argument in command]
        super().__init__(arguments, text=True, preexec_fn=prepare, **more)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def spawn(*arguments: object, **more: Any) -> Process:
    """Start `poet-host ...` as a process, with pipes for stdout and stderr."""
    command = [sys.executable, "-m", "poet_host", *arguments]
    return Process(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})


def children(process: int) -> list[str]:
    """The process ids of the children of a process, which are boards."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()
