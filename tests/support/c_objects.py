"""Object files that several programs of a test file have in common."""

import atexit
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def _folder() -> Path:
    """A folder with the object files of this process."""
    folder = Path(tempfile.mkdtemp(prefix="poet-objects-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def object_of(source: Path, *command: str) -> Path:
    """Compile a source, if its content or the command is new.

    Firmwares may differ in one source, not in headers: the folders of headers do not count.
    """
    options = [it for it in command if not it.startswith("-I")]
    key = hashlib.sha256("\0".join(options).encode() + source.read_bytes()).hexdigest()
    made = _folder() / f"{source.stem}-{key}.o"
    if not made.exists():
        subprocess.run([*command, "-c", str(source), "-o", str(made)], check=True)
    return made
