"""A computer with stub upload programs and serial ports, where boards answer."""

import os
import shutil
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from poet_host.device.board import Board, load_board
from poet_host.firmware_build.upload import write_image
from support.fake_board import FakeBoard

MKR, DK = load_board("mkr1000"), load_board("nrf52840_dk")
SKETCH, LOADER, JLINK = (0x2341, 0x804E), (0x2341, 0x004E), (0x1366, 0x1015)
RUNNING = (0x1209, 0x0001)  # poet's firmware on a board's own USB port
PATH = os.environ["PATH"]
IMAGE = bytes(range(256)) * 5


@dataclass
class Desk:
    """A computer with stub programs on its PATH, and links to ptys as serial ports."""

    folder: Path
    ids: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)  # path: ids, number
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # path: maker and product
    ends: list[int] = field(default_factory=list)

    def program(self, name: str, then: str = "", version: str = "1.9.1") -> None:
        """Add a stub that logs its arguments, copies the image, and runs `then` in a shell."""
        path = self.folder / "bin" / name
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = --help ]; then echo "BOSSA Version {version}"; exit; fi\n'
            f'for one; do echo "$one" >> {self.folder}/{name}.log; done\n'
            f'for one; do case "$one" in *firmware.*) last="$one";; esac; done\n'
            f"folder=${{last#*{{}}; folder=${{folder%/firmware.*}}\n"
            f'[ -z "$last" ] || cp "$folder"/firmware.* {self.folder}/\n{then}\n'
        )
        path.chmod(0o755)

    def arguments(self, name: str) -> list[str]:
        """Return the arguments of the stub, with FOLDER as the name of the temporary folder."""
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        folder = next(line for line in lines if "/firmware." in line)
        folder = folder[folder.index("/") : folder.index("/firmware.")]
        return [line.replace(folder, "FOLDER") for line in lines]

    def written(self) -> bytes:
        return (self.folder / "firmware.bin").read_bytes()

    def port(
        self, name: str, ids: tuple[int, int] | None = None, number: str = "", to: str = ""
    ) -> str:
        """Plug in a port: a link to a new pty, or to the port `to` of a board."""
        if not to:
            master, slave = os.openpty()
            self.ends += [master, slave]
            to = os.ttyname(slave)
        path = str(self.folder / name)
        os.symlink(to, path)
        if ids:
            self.ids[path] = ids, number
        return path

    def running(self, name: str, board: str, number: str, to: str = "") -> str:
        """Plug in a board that runs poet's firmware, on USB."""
        path = self.port(name, RUNNING, number, to)
        self.names[path] = "poet-host", board
        return path

    def comes_back(self, tool: str, loader: str, board: FakeBoard, name: str, number: str) -> None:
        """Add a stub that replaces the loader's port by the board's own port."""
        (self.folder / "bin" / "ln").symlink_to(str(shutil.which("ln", path=PATH)))
        new = self.folder / name
        self.program(tool, f"rm {self.folder / loader}; ln -s {board.port} {new}")
        self.ids[str(new)], self.names[str(new)] = (RUNNING, number), ("poet-host", "mkr1000")

    def comports(self) -> list[Any]:
        return [
            SimpleNamespace(device=path, vid=vid, pid=pid, serial_number=number,
                            description="stub", manufacturer=maker, product=product)
            for path, ((vid, pid), number) in list(self.ids.items())
            for maker, product in [self.names.get(path, (None, None))]
            if os.path.lexists(path)
        ]  # fmt: skip

    def is_touched(self) -> bool:
        """Return True if the latest port was opened at 1200 baud."""
        return termios.tcgetattr(self.ends[-1])[5] == termios.B1200


def answering(name: str) -> FakeBoard:
    """A board of this name, with this program's rows."""
    board = FakeBoard()
    fields = board.hello_fields() | {"board": name.encode(), "unique_id": b"number-5"}
    board.handlers["hello"] = lambda: {"hello": fields}
    return board


def write(board: Board, port: str, **more: Any) -> Any:
    return write_image(board, board.loading.start, IMAGE, port, **more)


def reenumerate(desk: Desk, again: str | None) -> threading.Thread:
    """At 1200 baud, the board's port goes away and its boot loader's port appears."""
    path = next(iter(desk.ids))

    def run() -> None:
        while not desk.is_touched():
            time.sleep(0.01)
        os.unlink(path)
        time.sleep(0.1)
        if again:
            desk.port(again, LOADER)

    thread = threading.Thread(target=run)
    thread.start()
    return thread
