"""Temporary files in private folders. The files of a killed process are removed later.

A process locks the private folder of each of its files. When the process ends in any way, the
system releases the lock. So a private folder without a lock is a leftover.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

try:
    import fcntl
except ImportError:  # Windows has no locks for folders, so leftovers stay
    fcntl = None  # type: ignore[assignment]

_FILE = "file"
_RANDOM = "?" * 8  # pattern of the text that mkdtemp appends to a prefix


@contextmanager
def temporary_file(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a path for a new file in a private folder in `folder`; remove both after the block.

    The block may rename the file. Raises OSError if `folder` cannot be written to.
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

    `wait`: wait until the lock is free. Returns False if the lock is not free, or if the file
    system has no locks. On Windows, where no board runs, nothing is locked.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_leftover(private: Path) -> None:
    """Remove a private folder and its file, if this user owns it and no process locks it."""
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
    """Create and lock a private folder; return it, and the file descriptor of the lock.

    Another process may remove the folder as a leftover before it is locked. If so, create another.
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
