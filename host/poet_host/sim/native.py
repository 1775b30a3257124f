"""The native board: the firmware as a process on this machine, its card a file.

It runs the same runtime and kernels as the boards do. `build_native` compiles them with the
system's C compiler, once for each state of the sources, into the user's cache folder. A board
that runs Linux (its board.toml names a `target`) runs the same program: on another computer it is
cross-compiled, and QEMU executes it.
"""

import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from .. import isa
from ..device.board import load_board, names
from ..errors import BadInput, PoetError
from ..resources import resource
from .compile import compiled

DEFAULT_ARENA_BYTES = 24 * 1024
BLOCK_BYTES = isa.constants()["POET_BLOCK"]
PARTITION_TYPE = isa.constants()["POET_PARTITION_TYPE"]
PARTITION_START = 2048  # blocks; where partitioning tools begin too
MOST_BLOCKS = 0xFFFFFFFF  # an MBR has 32 bits for a number of them

# Sums in one order on every target: no contraction, no reassociation.
_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread")
_SANITIZE = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", "-DPOET_POISON")  # fmt: skip


def boards_run_here() -> bool:
    """Does this system have what native and simulated boards need? Windows has not."""
    return find_spec("termios") is not None


def check_system() -> None:
    """Raise BadInput where no board can run."""
    if not boards_run_here():
        raise BadInput(
            "simulated and native boards need Linux, macOS or WSL: name the port of a real board, "
            "as --port COM3, or run poet-host in WSL"
        )


def linux_boards() -> list[str]:
    """Names of the boards whose firmware is a program for Linux, sorted."""
    return [name for name in names() if load_board(name).target]


def build_native(sanitize: bool = False, target: str = "") -> Path:
    """The native board's program, compiled if it is not in the cache yet.

    `sanitize`: with the address and undefined-behaviour sanitizers. `target`: for this kind of
    computer, as aarch64-linux-gnu, and with no need of its libraries. Raises PoetError if there
    is no C compiler or it fails.
    """
    flags = _SANITIZE if sanitize else ()
    if target:
        flags = (*flags, "-static")
    else:
        check_system()
    folders = ("src", "kernels", "port/native")
    return _build("poet-native", folders, flags, *_compiler(target))


def build_library(sanitize: bool = False) -> Path:
    """Runtime and kernels as a shared library, without a port and without `main`."""
    flags = ("-shared", "-fPIC", *(_SANITIZE if sanitize else ()))
    return _build("libpoet.so", ("src", "kernels"), flags, *_compiler())


def _compiler(target: str = "") -> tuple[list[str], str]:
    """The compiler for a kind of computer, and what to try where it is missing."""
    if not target or _is_here(target):
        return os.environ.get("CC", "cc").split(), "'apt install gcc' or set CC"
    debian = {"aarch64": "arm64"}.get(_arch(target), _arch(target))
    return [f"{target}-gcc"], f"'apt install gcc-{target} libc6-dev-{debian}-cross'"


def cross_tools(target: str) -> tuple[str, str]:
    """What compiles and what runs programs for another kind of computer; the second is empty
    where this one runs them itself. Raises PoetError, with what to install, if one is missing."""
    (compiler, *_), advice = _compiler(target)
    path = shutil.which(compiler)
    if path is None:
        raise PoetError(f"{compiler} is not on the PATH: try {advice}")
    asked = [path, "-print-file-name=libc.a"]
    library = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise PoetError(f"{path} has no library to link programs with: try {advice}")
    return path, "".join(_runner(target))


def _arch(target: str) -> str:
    return target.split("-")[0]


def _is_here(target: str) -> bool:
    """Does this computer run such programs itself?"""
    return platform.system() == "Linux" and platform.machine() == _arch(target)


def _runner(target: str) -> list[str]:
    """What a program for `target` is started with on this computer."""
    if not target or _is_here(target):
        return []
    arch = _arch(target)
    for name in (f"qemu-{arch}", f"qemu-{arch}-static"):
        if found := shutil.which(name):
            return [found]
    raise PoetError(
        f"no emulator for programs of {arch}: qemu-{arch} is not on the PATH; try "
        "'apt install qemu-user'"
    )


def _build(
    name: str, folders: Sequence[str], flags: Sequence[str], compiler: list[str], advice: str
) -> Path:
    firmware = resource("firmware")
    return compiled(
        name,
        [*compiler, *_FLAGS, *flags, f"-I{firmware / 'include'}"],
        [path for folder in folders for path in sorted((firmware / folder).glob("*.c"))],
        (path for pattern in ("*.h", "*.def") for path in sorted(firmware.rglob(pattern))),
        ["-lm"],
        missing=f"no C compiler: {compiler[0]} is not on the PATH, and the native board is "
        f"compiled on this machine; try {advice}",
    )


def create_storage(path: Path, size_bytes: int) -> None:
    """Write an empty card image: an MBR with one partition of ours that fills the rest.

    The file is sparse. The board lays its store into the partition when it is asked to format.
    Raises BadInput if the size leaves no room or is too large, or the folder cannot be written.
    """
    blocks = size_bytes // BLOCK_BYTES - PARTITION_START
    if size_bytes // BLOCK_BYTES > MOST_BLOCKS:
        raise BadInput(
            f"a storage file of {size_bytes} bytes is too large: an MBR counts up to "
            f"{MOST_BLOCKS * BLOCK_BYTES} bytes, give it less"
        )
    if blocks < 1:
        raise BadInput(
            f"a storage file of {size_bytes} bytes has no room for a partition: "
            f"give it more than {(PARTITION_START + 1) * BLOCK_BYTES} bytes"
        )
    entry = struct.pack("<BxxxBxxxII", 0, PARTITION_TYPE, PARTITION_START, blocks)
    mbr = bytes(446) + entry + bytes(48) + b"\x55\xaa"
    try:
        with path.open("wb") as file:
            file.write(mbr)
            file.truncate(size_bytes // BLOCK_BYTES * BLOCK_BYTES)
    except OSError as error:
        raise BadInput(
            f"cannot write the storage file {path} ({error.strerror}): choose another folder"
        ) from error


class NativeBoard:
    """A running native board; a context manager that ends it.

    `port` is the path of its serial port, `process` the board itself. A storage file that is
    missing, foreign or too small is reported by the board, as `storage_status` in HELLO.
    `board`: native, or one of `linux_boards`, whose program it then is. `listen`: [ADDRESS:]PORT
    of a socket in place of the serial port. `alone`: train by the job on the card, if there is
    one, before any host is heard.
    """

    def __init__(
        self,
        storage: Path,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        sanitize: bool = False,
        unique_id: str = "native",
        board: str = "native",
        listen: str | None = None,
        alone: bool = False,
    ) -> None:
        target = load_board(board).target
        program = build_native(sanitize, target)
        runner = _runner(target)
        self.is_emulated = bool(runner)
        command = [*runner, str(program), "--storage", str(storage)]
        command += ["--arena", str(arena_bytes), "--board", board, "--id", unique_id]
        command += ["--alone"] if alone else []
        self.process = subprocess.Popen(
            command if listen is None else [*command, "--listen", listen],
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
            if "cannot listen there" in message:
                raise BadInput(
                    f"{listen}: {message.strip()}; give a free port of this computer, as 3333"
                )
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
