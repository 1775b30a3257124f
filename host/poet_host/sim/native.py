"""The native board: the firmware as a process on this machine, its card a file."""

import struct
import subprocess
from pathlib import Path

from .. import isa
from ..closing import Closing
from ..device.board import load_board
from ..errors import BadInput, PoetError
from ..firmware_build.native import build_native, runner

DEFAULT_ARENA_BYTES = 24 * 1024
BLOCK_BYTES = isa.constants()["POET_BLOCK"]
PARTITION_TYPE = isa.constants()["POET_PARTITION_TYPE"]
PARTITION_START = 2048  # blocks; where partitioning tools begin too
MOST_BLOCKS = 0xFFFFFFFF  # an MBR has 32 bits for a number of them


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


class NativeBoard(Closing):
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
        launcher = runner(target)
        self.is_emulated = bool(launcher)
        command = [*launcher, str(program), "--storage", str(storage)]
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
