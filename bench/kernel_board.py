"""Simulated boards with the firmware of this tree, or of the commit to compare with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from poet_host.closing import Closing
from poet_host.errors import PoetError

BASE = "13d07bf"  # the last commit whose kernels are plain C loops
TREE = Path(__file__).parents[1]


class KernelBoard(Closing):
    """A process of bench.kernel_probe with the poet_host and the firmware in the folder `tree`."""

    def __init__(self, board: str, tree: Path = TREE) -> None:
        path = os.pathsep.join([str(tree / "host"), str(TREE)])
        self.board = board
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.kernel_probe", board],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TREE,
            env=os.environ | {"PYTHONPATH": path},
        )

    def ask(self, **job: Any) -> float:
        """Return the answer to a job of bench.kernel_probe."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer is the error
        answer = self.process.stdout.readline()
        if not answer:
            raise PoetError(
                f"the simulated {self.board} ended before it answered {job}: read its message above"
            )
        return float(answer)

    def close(self) -> None:
        """End the process, which ends when its input ends."""
        self.process.communicate()


@contextmanager
def base_tree() -> Iterator[Path]:
    """Yield a temporary folder with the files of the commit BASE.

    Raises PoetError outside of a git repository, or if its history lacks the commit.
    """
    command = ["git", "archive", BASE, "host", "firmware", "boards", "schedules"]
    try:
        found = subprocess.run(command, cwd=TREE, capture_output=True)
    except FileNotFoundError as error:
        raise PoetError("git is not installed: try 'apt install git'") from error
    if found.returncode:
        raise PoetError(
            f"git has no commit {BASE} here, with whose kernels today's are compared: work in a "
            "clone of the repository, and get its whole history by 'git fetch --unshallow'"
        )
    with TemporaryDirectory(prefix="poet-base-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)
        yield Path(folder)
