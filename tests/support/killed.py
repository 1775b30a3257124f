"""Jobs that kill the process in which they run."""

import os
import signal
from pathlib import Path
from typing import Any


def solve(job: dict[str, Any]) -> dict[str, Any]:
    """Count the call in a file, and kill this process in the first `kills` calls."""
    path = Path(job["path"])
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size <= job["kills"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"plan": job["path"]}


def jobs(folder: Path, kills: dict[str, int]) -> dict[str, dict[str, Any]]:
    return {key: {"path": str(folder / key), "kills": count} for key, count in kills.items()}


def calls(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
