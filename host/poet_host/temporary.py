"""Temporary private folders, with one file or more. Those of a killed process are removed later.

A process locks its private folders. When the process ends in any way, the
system releases the lock. So a private folder without a lock is a leftover.
"""

import os
import shutil
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
    with temporary_folder(folder, prefix, with_all_files=False) as private:
        yield private / _FILE


@contextmanager
def temporary_folder(folder: Path, prefix: str, *, with_all_files: bool = True) -> Iterator[Path]:
    """Yield a new private folder in `folder`; remove it with its files after the block.

    `with_all_files`: see remove_leftovers. Raises OSError if `folder` cannot be written to.
    """
    remove_leftovers(folder, prefix, with_all_files=with_all_files)
    private, lock = _locked(folder, prefix)
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_leftovers(folder: Path, prefix: str, *, with_all_files: bool = False) -> None:
    """Remove the private folders of this user in `folder` whose processes have ended.

    `with_all_files`: they are those of `temporary_folder`, not of `temporary_file`.
    """
    if fcntl is None:
        return
    with suppress(OSError):
        for private in sorted(folder.glob(prefix + _RANDOM)):
            _remove_leftover(private, with_all_files)


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


def _remove_leftover(private: Path, with_all_files: bool) -> None:
    """Remove a private folder and its file or files, if this user owns it and no process locks it.

    A process may have been killed before it created the file, or after it removed the file.
    """
    with suppress(OSError):
        found = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(found).st_uid == os.geteuid() and locked(found):
                if with_all_files:
                    shutil.rmtree(private)
                    return
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
