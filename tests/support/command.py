"""Running the command line: inside the test, or as a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        """The one object on stdout; anything else there fails the test."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """`poet(...)` runs `poet-host ...`; arguments are turned into text."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run([str(one) for one in arguments])
        found = self.capsys.readouterr()
        assert "Traceback" not in found.err
        return Result(code, found.out, found.err)


class Process(subprocess.Popen[str]):
    """A process that begins with the default signals, whatever the tests were started with.

    `nohup`, many CI systems and background jobs have their children ignore some. A `with` block
    that fails ends the process; else it waits for its end.
    """

    def __init__(
        self, command: Sequence[object], preexec_fn: Callable[[], object] = bool, **more: Any
    ) -> None:
        def prepare() -> None:
            for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(one, signal.SIG_DFL)
            preexec_fn()

        arguments = [str(one) for one in command]
        super().__init__(arguments, text=True, preexec_fn=prepare, **more)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def spawn(*arguments: object, **more: Any) -> Process:
    """`poet-host ...` as a process, its stdout and stderr as pipes."""
    command = [sys.executable, "-m", "poet_host", *arguments]
    return Process(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})
