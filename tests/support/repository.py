"""Small git repositories for tests."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(root: Path, name: str, text: str) -> str:
    """Write a file, commit all changes, and return the short name of the commit."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", f"change {name}")
    return git(root, "rev-parse", "--short=10", "HEAD")
