"""The native board: the firmware as a process on this machine, its card a file.

It runs the same runtime and kernels as the boards do. `build_native` compiles them with the
system's C compiler, once for each state of the sources, into the user's cache folder.
"""

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .. import isa
from ..errors import BadInput, PoetError
from ..resources import resource
from .compile import compiled

DEFAULT_ARENA_BYTES = 24 * 1024
BLOCK_BYTES = isa.constants()["POET_BLOCK"]
PARTITION_TYPE = isa.constants()["POET_PARTITION_TYPE"]
PARTITION_START = 2048  # blocks; where partitioning tools begin too

# Sums in one order on every target: no contraction, no reassociation.
_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread")
_SANITIZE = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", "-DPOET_POISON")  # fmt: skip


def build_native(sanitize: bool = False) -> Path:
    """The native board's program, compiled if it is not in the cache yet.

    `sanitize`: with the address and undefined-behaviour sanitizers. Raises PoetError if there is
    no C compiler or it fails.
    """
    return _build("poet-native", ("src", "kernels", "port/native"), (), sanitize)


def build_library(sanitize: bool = False) -> Path:
    """Runtime and kernels as a shared library, without a port and without `main`."""
    return _build("libpoet.so", ("src", "kernels"), ("-shared", "-fPIC"), sanitize)


def _build(name: str, folders: Sequence[str], flags: Sequence[str], sanitize: bool) -> Path:
    firmware = resource("firmware")
    compiler = os.environ.get("CC", "cc").split()
    return compiled(
        name,
        [*compiler, *_FLAGS, *flags, *(_SANITIZE if sanitize else ()), f"-I{firmware / 'include'}"],
        [path for folder in folders for path in sorted((firmware / folder).glob("*.c"))],
        (path for pattern in ("*.h", "*.def") for path in sorted(firmware.rglob(pattern))),
        ["-lm"],
        missing=f"no C compiler: {compiler[0]} is not on the PATH, and the native board is "
        "compiled on this machine; try 'apt install gcc' or set CC",
    )


def create_storage(path: Path, size_bytes: int) -> None:
    """Write an empty card image: an MBR with one partition of ours that fills the rest.

    The file is sparse. The board lays its store into the partition when it is asked to format.
    Raises BadInput if the size leaves no room, or the folder cannot be written.
    """
    blocks = size_bytes // BLOCK_BYTES - PARTITION_START
    if blocks < 1 or size_bytes // BLOCK_BYTES > 0xFFFFFFFF:
        raise BadInput(
            f"a storage file of {size_bytes} bytes has no room for a partition: "
            f"give it more than {(PARTITION_START + 1) * BLOCK_BYTES} bytes"
        )
    entry = struct.pack("<BxxxBxxxII", 0, PARTITION_TYPE, PARTITION_START, blocks)
    mbr = bytes(446) + entry + bytes(48) + b"\x55\xaa"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(mbr)
            file.truncate(size_bytes // BLOCK_BYTES * BLOCK_BYTES)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadInput(
            f"cannot write the storage file {path} ({error.strerror}): choose another folder"
        ) from error


class NativeBoard:
    """A running native board; a context manager that ends it.

    `port` is the path of its serial port, `process` the board itself. A storage file that is
    missing, foreign or too small is reported by the board, as `storage_status` in HELLO.
    """

    def __init__(
        self,
        storage: Path,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        sanitize: bool = False,
        unique_id: str = "native",
    ) -> None:
        program = build_native(sanitize)
        command = [str(program), "--storage", str(storage), "--arena", str(arena_bytes)]
        self.process = subprocess.Popen(
            [*command, "--id", unique_id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for the host alone
        )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()
        if not self.port:
            _, message = self.process.communicate()
            raise PoetError(f"the native board did not start: {message.strip()}")

    @property
    def ended(self) -> str | None:
        """None while it runs; then how it ended."""
        code = self.process.poll()
        return None if code is None else f"exit code {code}"

    def kill(self) -> None:
        """End the board at once, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> "NativeBoard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
