"""Temporary files that no other user can guess, and that a killed process does not leave for long.

Each is in a private folder of its own, which its process locks. The system releases the lock of a
process that ends, however it ends. So a private folder without a lock is a leftover.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

try:
    import fcntl
except ImportError:  # Windows: folders have no locks, so leftovers stay
    fcntl = None  # type: ignore[assignment]

_FILE = "file"
_RANDOM = "?" * 8  # what mkdtemp appends to a prefix


@contextmanager
def temporary_file(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a path for a new file in a private folder in `folder`; remove both after the block.

    The file may be renamed to another name. Raises OSError if `folder` cannot be written to.
    """
    remove_leftovers(folder, prefix)
    private, lock = _locked(folder, prefix)
    try:
        yield private / _FILE
    finally:
        with suppress(OSError):
            (private / _FILE).unlink(missing_ok=True)
            private.rmdir()
        if lock is not None:
            os.close(lock)


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the temporary files of this user in `folder` whose processes have ended."""
    if fcntl is None:
        return
    with suppress(OSError):
        for private in sorted(folder.glob(prefix + _RANDOM)):
            _remove_leftover(private)


def locked(file: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed, as boards lock their card images.

    Return False if the lock is not free and shall not `wait`, or if there are no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_leftover(private: Path) -> None:
    """Remove a private folder of this user that nobody locks, but never files of other names."""
    with suppress(OSError):
        found = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(found).st_uid == os.geteuid() and locked(found):
                with suppress(FileNotFoundError):
                    os.unlink(_FILE, dir_fd=found)
                private.rmdir()
        finally:
            os.close(found)


def _locked(folder: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a private folder; return it, and the file descriptor that holds its lock.

    Another process may take the folder for a leftover before it is locked. Then make another one.
    """
    while True:
        private = Path(mkdtemp(prefix=prefix, dir=folder))
        if fcntl is None:
            return private, None
        with suppress(FileNotFoundError):
            lock = os.open(private, os.O_RDONLY)
            # The file system may have no locks. Then all leftovers in it stay.
            locked(lock, wait=True)
            if private.exists():
                return private, lock
            os.close(lock)
