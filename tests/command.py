"""Running the command line inside the test, with its exit code, stdout and stderr."""

import json
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
