"""The commits that results of the planner depend on: written by reports, checked by a release."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The rooms that make a cost graph and choose a plan for it, without the summary of a model.
PLANNER = (
    *(f"host/poet_host/{room}" for room in ("graph", "profile", "plan", "solver", "baselines")),
    ":(exclude)host/poet_host/graph/summary.py",
)
BOARDS = ("boards",)
_NO_RESULTS = [
    f":(exclude){name}"
    for name in ("*.md", "*.txt", "*.png", "*.svg", "bench/kernels.toml", "schedules")
]
STATEMENT = re.compile(r"Planner of commit `([\w-]+)`, boards of commit `([\w-]+)`\.")


def planner_commit(root: Path = ROOT) -> str:
    """The last commit that changed the planner. See last_commit."""
    return last_commit(PLANNER, root)


def boards_commit(root: Path = ROOT) -> str:
    """The last commit that changed the facts of the boards. See last_commit."""
    return last_commit(BOARDS, root)


def last_commit(folders: Sequence[str], root: Path = ROOT) -> str:
    """The short name of the last commit before HEAD that changed a file of `folders`.

    "-dirty" follows it if a file of them differs from HEAD or is not in git. "unknown": `root`
    is not in a git repository, or no commit has the folders.
    """
    found = git(root, "log", "-1", "--format=%h", "--abbrev=10", "HEAD", "--", *folders)
    return _with_state(found, folders, root)


def commit(root: Path = ROOT) -> str:
    """The short name of the commit that is checked out. "-dirty", "unknown": see last_commit.

    Texts and results do not count, so that one benchmark does not make the next one dirty.
    """
    return _with_state(git(root, "rev-parse", "--short=10", "HEAD"), (".", *_NO_RESULTS), root)


def _with_state(found: str, paths: Sequence[str], root: Path) -> str:
    changed = git(root, "status", "--porcelain", "--", *paths)
    return found + "-dirty" * bool(changed) if found else "unknown"


def statement(root: Path = ROOT) -> str:
    """The line of a report that states both commits."""
    return f"Planner of commit `{planner_commit(root)}`, boards of commit `{boards_commit(root)}`."


def stated(text: str) -> tuple[str, str] | None:
    """The commits of planner and boards that a report states. None: it states none."""
    found = STATEMENT.search(text)
    return (found[1], found[2]) if found else None


def git(root: Path, *arguments: str) -> str:
    """Return what git prints in the folder `root`, or "" if it fails."""
    found = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return found.stdout.strip()
