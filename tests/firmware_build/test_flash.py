"""Flashing: real command lines into stub programs, and boards at the ports that come back."""

from __future__ import annotations

import errno
import grp
import os
import shutil
import stat
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serial
from poet_host import isa
from poet_host.device import ports
from poet_host.device.board import Board, load_board, parse_board
from poet_host.device.device import connect
from poet_host.device.link import candidate_ports
from poet_host.errors import BadInput, BoardError, NoDevice, PoetError
from poet_host.firmware_build import upload
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.recipe import recipe
from poet_host.firmware_build.upload import find_tool, upload_command, write_image
from poet_host.resources import resource
from poet_host.sim.board import SimulatedBoard
from support.command import Command
from support.fake_board import FakeBoard
from support.fake_loader import FakeLoader
from support.sim_helper import needs_compiler

MKR, DK = load_board("mkr1000"), load_board("nrf52840_dk")
SKETCH, LOADER, JLINK = (0x2341, 0x804E), (0x2341, 0x004E), (0x1366, 0x1015)
RUNNING = (0x1209, 0x0001)  # poet's firmware on a board's own USB port
PATH = os.environ["PATH"]
IMAGE = bytes(range(256)) * 5


@dataclass
class Desk:
    """A computer with stub programs on its PATH, and serial ports that are ptys by other names."""

    folder: Path
    ids: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)  # path: ids, number
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # path: maker and product
    ends: list[int] = field(default_factory=list)

    def program(self, name: str, then: str = "", version: str = "1.9.1") -> None:
        """A stub that notes its arguments and what it was to write, then runs some shell."""
        path = self.folder / "bin" / name
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = --help ]; then echo "BOSSA Version {version}"; exit; fi\n'
            f'for one; do echo "$one" >> {self.folder}/{name}.log; done\n'
            f'for one; do case "$one" in *firmware.*) last="$one";; esac; done\n'
            f"folder=${{last#*{{}}; folder=${{folder%/firmware.*}}\n"
            f'cp "$folder"/firmware.* {self.folder}/\n{then}\n'
        )
        path.chmod(0o755)

    def arguments(self, name: str) -> list[str]:
        """What the stub was called with; the temporary folder's name is taken out."""
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        folder = next(line for line in lines if "/firmware." in line)
        folder = folder[folder.index("/") : folder.index("/firmware.")]
        return [line.replace(folder, "FOLDER") for line in lines]

    def written(self) -> bytes:
        return (self.folder / "firmware.bin").read_bytes()

    def port(
        self, name: str, ids: tuple[int, int] | None = None, number: str = "", to: str = ""
    ) -> str:
        """Plug in a port: a link to a pty, or to a board that is there already."""
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
        """Plug in a board that runs poet's firmware, by USB."""
        path = self.port(name, RUNNING, number, to)
        self.names[path] = "poet-host", board
        return path

    def comes_back(self, tool: str, loader: str, board: FakeBoard, name: str, number: str) -> None:
        """A stub after which the loader's port is gone and the board's own is there."""
        (self.folder / "bin" / "ln").symlink_to(str(shutil.which("ln", path=PATH)))
        new = self.folder / name
        self.program(tool, f"rm {self.folder / loader}; ln -s {board.port} {new}")
        self.ids[str(new)], self.names[str(new)] = (RUNNING, number), ("poet-host", "mkr1000")

    def comports(self) -> list[Any]:
        return [
            SimpleNamespace(
                device=path,
                vid=vid,
                pid=pid,
                serial_number=number,
                description="stub",
                manufacturer=maker,
                product=product,
            )
            for path, ((vid, pid), number) in list(self.ids.items())
            for maker, product in [self.names.get(path, (None, None))]
            if os.path.lexists(path)
        ]

    def is_touched(self) -> bool:
        """Was the latest port opened at 1200 baud?"""
        return termios.tcgetattr(self.ends[-1])[5] == termios.B1200


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path)
    (tmp_path / "bin").mkdir()
    shell = [tmp_path / "bin" / name for name in ("sh", "cp", "rm", "sleep")]
    for path in shell:
        path.symlink_to(str(shutil.which(path.name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLATFORMIO_CORE_DIR", str(tmp_path))
    monkeypatch.setattr(ports.list_ports, "comports", made.comports)
    monkeypatch.setattr(upload, "TOUCH_WAIT_S", 0.3)
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 0.5)
    yield made
    for end in made.ends:
        os.close(end)


def answering(name: str) -> FakeBoard:
    """Something with this program's rows that says it is such a board."""
    board = FakeBoard()
    fields = board.hello_fields() | {"board": name.encode(), "unique_id": b"number-5"}
    board.handlers["hello"] = lambda: {"hello": fields}
    return board


def write(board: Board, port: str, **more: Any) -> Any:
    assert board.loading is not None
    return write_image(board, board.loading.start, IMAGE, port, **more)


# The whole way.


@needs_compiler
@pytest.mark.parametrize(("name", "tool"), [("mkr1000", "bossac"), ("nrf52840_dk", "openocd")])
def test_the_command_builds_writes_and_meets_the_board(
    name: str, tool: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 20.0)
    monkeypatch.setenv("PATH", f"{desk.folder / 'bin'}:{PATH}")
    elf = build_firmware(name)
    desk.program(tool)
    usb = desk.port("ttyACM0", LOADER if name == "mkr1000" else JLINK, "000683")
    with SimulatedBoard(name, elf, None) as board:
        result = Command(capsys)(
            *("flash", "--board", name, "--port", board.port, "--upload-port", usb, "--json")
        )
        assert result.code == 0, result.err
        assert result.json["board"] == name
        assert result.json["tool"] == tool
        assert result.json["upload_port"] == usb
        assert result.json["arena_bytes"] > 24 << 10
    start, image = read_elf(elf).flash()
    assert desk.written() == image
    assert start == {"mkr1000": 0x2000, "nrf52840_dk": 0}[name]
    assert "of which can be used" in result.err  # the ledger
    assert f"{name} " in result.err.splitlines()[-1]


# Command lines.


def test_bossac_is_always_told_the_offset(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        done = write(MKR, board.port, upload_port=usb)
    assert desk.arguments("bossac") == [
        *("--port", usb, "--usb-port", "--offset=0x2000"),
        *("--erase", "--write", "--verify", "--reset", "FOLDER/firmware.bin"),
    ]
    assert desk.written() == IMAGE
    assert (done.tool, done.info.unique_id) == ("bossac", "number-5")
    assert MKR.loading is not None
    command = upload_command("bossac", "bossac", MKR.loading, Path("a.bin"), "/dev/ttyACM3", "1")
    assert command[1:3] == ["--port", "ttyACM3"]  # older ones put /dev/ in front themselves


@pytest.mark.skipif(shutil.which("bossac") is None, reason="bossac is missing")
def test_bossac_itself_writes_behind_the_boot_loader(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", PATH)
    with FakeLoader() as loader, answering("mkr1000") as board:
        usb = desk.port("ttyACM0", LOADER, "", loader.port)
        write(MKR, board.port, upload_port=usb)
        assert loader.flash[:0x2000] == b"\x5a" * 0x2000
        assert loader.flash[0x2000 : 0x2000 + len(IMAGE)] == IMAGE
        assert "X00002000" in loader.commands
        assert loader.commands[-1] == "WE000ED0C,05FA0004"  # reset
        read = [int(command.split(",")[1], 16) for command in loader.commands if command[0] == "R"]
        assert max(read) == 63  # what the loader can do over USB


PROBES = {
    "openocd": [
        *("-f", "interface/jlink.cfg", "-c", "transport select swd", "-c", "adapter serial 00683"),
        *("-f", "target/nrf52.cfg"),
        *("-c", "program {FOLDER/firmware.bin} 0x0 verify reset exit"),
    ],
    "JLinkExe": [
        *("-NoGui", "1", "-device", "nRF52840_xxAA", "-if", "swd", "-speed", "4000"),
        *("-autoconnect", "1", "-ExitOnError", "1", "-USB", "683"),
        *("-CommanderScript", "FOLDER/firmware.jlink"),
    ],
    "pyocd": [
        *("flash", "--target", "nrf52840", "--uid", "683"),
        *("--base-address", "0x0", "FOLDER/firmware.bin"),
    ],
}


@pytest.mark.parametrize("tool", list(PROBES))
def test_debuggers_write_verify_and_start(tool: str, desk: Desk) -> None:
    for name in PROBES:
        desk.program(name)
    with answering("nrf52840_dk") as board:
        port = desk.port("ttyACM0", JLINK, "00683", board.port)
        assert write(DK, "auto", tool=tool).port == port
    assert desk.arguments(tool) == PROBES[tool]
    assert desk.written() == IMAGE
    if tool == "JLinkExe":
        steps = (desk.folder / "firmware.jlink").read_text().splitlines()
        assert [step.split()[0] for step in steps] == [
            "r",
            "h",
            "loadbin",
            "verifybin",
            "r",
            "g",
            "q",
        ]
        assert steps[2].endswith("/firmware.bin, 0x0")


def test_the_first_program_that_is_installed_is_taken(desk: Desk) -> None:
    with pytest.raises(PoetError, match=r"openocd or JLinkExe or pyocd is needed .* 'apt install"):
        find_tool(DK)
    for name in reversed(PROBES):
        desk.program(name)
        assert find_tool(DK)[0] == name
    assert find_tool(DK, "pyocd")[0] == "pyocd"
    with pytest.raises(BadInput, match=r"bossac cannot write to nrf52840_dk: choose openocd or JL"):
        find_tool(DK, "bossac")
    with pytest.raises(PoetError, match=r"bossac is needed .* 'apt install bossa-cli'"):
        find_tool(MKR)


def test_without_a_serial_number_the_only_debugger_is_taken() -> None:
    assert DK.loading is not None
    for tool in PROBES:
        path = Path(os.devnull) if tool != "JLinkExe" else Path("/tmp/x.bin")
        command = upload_command(tool, tool, DK.loading, path, "COM3", "")
        assert not {"--uid", "-USB"} & set(command)
        assert not any("adapter serial" in part for part in command)


# The boot loader.


def reenumerate(desk: Desk, again: str | None, ids: tuple[int, int] = LOADER) -> threading.Thread:
    """The board: at 1200 baud its port goes away, and its boot loader's comes."""
    path = next(iter(desk.ids))

    def run() -> None:
        while not desk.is_touched():
            time.sleep(0.01)
        os.unlink(path)
        time.sleep(0.1)
        if again:
            desk.port(again, ids)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("again", ["ttyACM0", "ttyACM1"])
def test_a_sketch_is_asked_for_the_boot_loader(again: str, desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", SKETCH)
    thread = reenumerate(desk, again)
    with answering("mkr1000") as board:
        done = write(MKR, board.port, upload_port=usb)
    thread.join()
    assert done.upload_port == str(desk.folder / again)
    assert desk.arguments("bossac")[1] == done.upload_port


def test_a_boot_loader_that_does_not_come_is_explained(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", SKETCH)
    thread = reenumerate(desk, None)
    with pytest.raises(NoDevice, match=r"boot loader .* reset button twice"):
        write(MKR, usb)
    thread.join()
    assert not (desk.folder / "bossac.log").exists()


def test_the_loader_is_found_by_its_usb_ids(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        adapter = desk.port("ttyUSB0", (0x0403, 0x6001), "", board.port)
        done = write(MKR, adapter)
        assert (done.port, done.upload_port) == (adapter, usb)
        desk.port("ttyACM1", LOADER)  # another board: now it must be said which
        assert write(MKR, adapter).upload_port == adapter


def test_a_boot_loader_is_not_asked_again(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        write(MKR, board.port, upload_port=usb)
    assert not desk.is_touched()


def test_a_port_without_usb_ids_is_touched_and_used(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("adapter")
    with answering("mkr1000") as board:
        assert write(MKR, board.port, upload_port=usb).upload_port == usb
    assert desk.is_touched()


# Boards that run poet's firmware, on their own USB port.


@pytest.mark.parametrize("again", ["ttyACM0", "ttyACM1"])
@pytest.mark.parametrize("asked", ["auto", "by name"])
def test_a_running_board_is_found_and_found_again(again: str, asked: str, desk: Desk) -> None:
    usb, back = desk.running("ttyACM0", "mkr1000", "5"), str(desk.folder / again)
    thread = reenumerate(desk, "ttyACM9")
    with answering("mkr1000") as board:
        desk.comes_back("bossac", "ttyACM9", board, again, "5")
        done = write(MKR, usb if asked == "by name" else "auto")
    thread.join()
    assert (done.upload_port, done.port) == (str(desk.folder / "ttyACM9"), back)


def test_of_two_running_boards_the_one_that_was_written_is_met(desk: Desk) -> None:
    desk.program("openocd")
    desk.port("ttyACM0", JLINK, "000683")
    with answering("nrf52840_dk") as other, answering("nrf52840_dk") as board:
        desk.running("ttyACM1", "nrf52840_dk", "7", other.port)
        own = desk.running("ttyACM2", "nrf52840_dk", "8", board.port)
        with pytest.raises(NoDevice, match="2 ports have the USB ids of nrf52840_dk"):
            write(DK, "auto")
        done = write(DK, own)
        assert (done.port, done.upload_port) == (own, str(desk.folder / "ttyACM0"))
        assert "adapter serial 000683" in desk.arguments("openocd")
        assert other.requests == []


def test_a_board_comes_up_on_usb_where_its_boot_loader_was(desk: Desk) -> None:
    desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        desk.comes_back("bossac", "ttyACM0", board, "ttyACM1", "9")
        assert write(MKR, "auto").port == str(desk.folder / "ttyACM1")


def test_a_running_board_is_named_and_asked_first(desk: Desk, capsys: Any) -> None:
    assert ports.firmware_usb() == ("1209:0001", "poet-host")
    desk.port("ttyACM0", (0x0403, 0x6001))
    strange = desk.port("ttyACM1", RUNNING)  # somebody else's, with the same test id
    desk.names[strange] = "somebody", "mkr1000"
    with answering("mkr1000") as board, answering("nrf52840_dk") as nameless:
        usb = desk.running("ttyACM2", "mkr1000", "5", board.port)
        found = {item["port"]: item for item in Command(capsys)("boards", "--json").json["ports"]}
        assert (found[usb]["board"], found[usb]["answer"]) == ("mkr1000", "mkr1000 number-5")
        assert (found[strange]["board"], found[strange]["answer"]) == (None, "not asked")
        windows = desk.port("COM3", RUNNING, "7", nameless.port)
        desk.names[windows] = "Microsoft", ""
        found = {item["port"]: item for item in Command(capsys)("boards", "--json").json["ports"]}
        assert (found[windows]["board"], found[windows]["hello"]["board"]) == (None, "nrf52840_dk")
        del desk.ids[windows]
        assert candidate_ports()[0] == usb
        with connect("auto") as device:
            assert device.link.port == usb
    desk.names[usb] = "poet-host", "a board of tomorrow"
    assert ports.board_of(ports.serial_ports()[0]) is None


# What can be wrong.


@pytest.mark.parametrize("version", ["1.8", "1.7.0", "1.6.1-arduino"])
def test_an_old_bossac_is_refused(version: str, desk: Desk) -> None:
    desk.program("bossac", version=version)
    with pytest.raises(PoetError, match=rf"is version {version}, .* wrong place: install 1.9"):
        write(MKR, desk.port("ttyACM0", LOADER))
    desk.program("bossac", version="unknown")
    with pytest.raises(PoetError, match=r"of an unknown version"):
        write(MKR, str(desk.folder / "ttyACM0"))
    assert not (desk.folder / "bossac.log").exists()


def test_newer_bossacs_are_taken(desk: Desk) -> None:
    for version in ("1.9", "1.10.2", "2.0"):
        desk.program("bossac", version=version)
        upload.check_bossac(find_tool(MKR)[1])


def test_an_image_for_another_board_is_refused(desk: Desk) -> None:
    with pytest.raises(BadInput, match=r"0x0, .* mkr1000 .* 0x2000"):
        write_image(MKR, 0, IMAGE, "/dev/ttyACM0")
    for name, words in (("native", "simulate native"), ("rpi4b", "poet-host build rpi4b")):
        with pytest.raises(BadInput, match=words):
            write_image(load_board(name), 0, IMAGE, "/dev/ttyACM0")


def test_a_port_that_is_not_there_is_answered_with_those_that_are(desk: Desk) -> None:
    desk.program("bossac")
    desk.program("openocd")
    with pytest.raises(NoDevice, match=r"no port /dev/nothing .there is no serial port here"):
        write(MKR, "/dev/nothing")
    desk.port("ttyACM7", JLINK)
    with pytest.raises(NoDevice, match=r"no port /dev/nothing .*ttyACM7 .nrf52840_dk.*plug"):
        write(DK, "/dev/nothing")
    assert not (desk.folder / "openocd.log").exists()


def test_auto_needs_exactly_one_port(desk: Desk) -> None:
    desk.program("openocd")
    desk.port("ttyUSB0", (0x0403, 0x6001))
    with pytest.raises(NoDevice, match=r"no port has the USB ids of nrf52840_dk .*USB 0403:6001"):
        write(DK, "auto")
    desk.port("ttyACM0", JLINK, "1")
    desk.port("ttyACM1", JLINK, "2")
    with pytest.raises(NoDevice, match=r"2 ports have the USB ids .*: name one with --port"):
        write(DK, "auto")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("No device found on ttyACM0", "No device found on ttyACM0.*reset button twice"),
        ("Error: LIBUSB_ERROR_ACCESS", 'SUBSYSTEM=="usb", ATTRS{idVendor}=="2341"'),
        ("", "it printed nothing"),
    ],
)
def test_a_program_that_fails_is_quoted(said: str, advice: str, desk: Desk) -> None:
    desk.program("bossac", f'echo "{said}" >&2; exit 1')
    with pytest.raises(PoetError, match=f"(?s)bossac failed .*{advice}"):
        write(MKR, desk.port("ttyACM0", LOADER))


def test_a_program_that_hangs_is_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "TOOL_LIMIT_S", 0.3)
    desk.program("bossac", "exec sleep 60")
    with pytest.raises(PoetError, match=r"bossac did not end within 0.3 s"):
        write(MKR, desk.port("ttyACM0", LOADER))


def test_a_port_that_does_not_come_back_is_explained(desk: Desk) -> None:
    usb = desk.port("ttyACM0", LOADER)
    desk.program("bossac", f"rm {usb}")
    with pytest.raises(NoDevice, match=r"written, but .*ttyACM0 .* pins 13 .RX. and"):
        write(MKR, usb)


def test_a_port_may_come_back_late(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 20.0)
    usb = desk.port("ttyACM0", JLINK)
    desk.program("openocd", f"rm {usb}")
    with answering("nrf52840_dk") as board:
        plug = threading.Timer(0.5, os.symlink, (board.port, usb))
        plug.start()
        assert write(DK, usb).info.board == "nrf52840_dk"
        plug.join()


def test_another_board_that_answers_is_told(desk: Desk) -> None:
    desk.program("openocd")
    message = r"written, but mkr1000 answers at .*, not nrf52840_dk"
    with answering("mkr1000") as board, pytest.raises(PoetError, match=message):
        write(DK, board.port)
    foreign = isa.fingerprint_text().replace(b"relu", b"rolu", 1)
    message = r"written, but .* other operators"
    with FakeBoard(rows=foreign) as board, pytest.raises(BoardError, match=message):
        write(DK, board.port)


def test_the_doctor_knows_what_flashing_needs(desk: Desk, capsys: Any) -> None:
    def flashing_needs() -> tuple[bool, str]:
        found = Command(capsys)("doctor", "--json").json["checks"]
        (one,) = (check for check in found if check["check"] == "flashing")
        return one["ok"], one["found"].removeprefix("only needed for `poet-host flash`: ")

    desk.program("pyocd")
    ok, found = flashing_needs()
    assert not ok
    assert found.startswith("pyocd for nrf52840_dk; bossac is needed to write to mkr1000")
    desk.program("bossac", version="1.7.0")
    ok, found = flashing_needs()
    assert not ok
    assert "before 1.9" in found
    desk.program("bossac")
    assert flashing_needs() == (True, "bossac for mkr1000; pyocd for nrf52840_dk")


@pytest.mark.parametrize("port", ["native", "sim:mkr1000"])
def test_boards_on_this_computer_are_not_flashed(port: str, poet_host: Command) -> None:
    poet_host("flash", "--board", "mkr1000", "--port", port).fails(2, port)


# Permissions.


def test_a_missing_permission_names_group_and_rule(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", SKETCH)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != usb and may(path, mode))
    monkeypatch.setattr(
        ports.Path, "stat", lambda _: SimpleNamespace(st_gid=20, st_mode=stat.S_IFCHR | 0o660)
    )
    with pytest.raises(NoDevice) as caught:
        write(MKR, usb)
    message = str(caught.value)
    assert f"sudo usermod -aG {grp.getgrgid(20).gr_name} $USER" in message
    assert 'SUBSYSTEM=="tty", ATTRS{idVendor}=="2341", ATTRS{idProduct}=="804e"' in message
    assert "/etc/udev/rules.d/60-poet.rules" in message
    assert not desk.is_touched()

    def refused(*_: Any, **__: Any) -> None:
        raise serial.SerialException(errno.EACCES, "Permission denied")

    monkeypatch.setattr(serial, "serial_for_url", refused)
    with pytest.raises(NoDevice, match=r"usermod -aG .*60-poet.rules"):
        connect(usb)
    monkeypatch.undo()
    assert "or uucp" in ports.permission_advice("/dev/nothing")


# Boards and loaders at the ports.


def test_boards_asks_known_ports_and_the_named_one_only(desk: Desk, capsys: Any) -> None:
    poet_host = Command(capsys)
    silent = desk.port("ttyUSB0", (0x0403, 0x6001))
    os.set_blocking(desk.ends[0], False)
    with answering("nrf52840_dk") as known, answering("mkr1000") as other:
        desk.port("ttyACM0", JLINK, "683", known.port)
        adapter = desk.port("ttyUSB1", (0x0403, 0x6001), "", other.port)
        desk.port("ttyACM1", LOADER)
        found = {
            Path(item["port"]).name: item for item in poet_host("boards", "--json").json["ports"]
        }
        assert found["ttyACM0"]["board"] == "nrf52840_dk"
        assert found["ttyACM0"]["usb"] == "1366:1015"
        assert found["ttyACM0"]["hello"]["unique_id"] == "number-5"
        for name in ("ttyUSB0", "ttyUSB1"):
            assert (found[name]["answer"], found[name]["hello"]) == ("not asked", None)
        assert other.requests == []
        assert (found["ttyACM1"]["board"], found["ttyACM1"]["hello"]) == ("mkr1000", None)
        assert found["ttyACM1"]["answer"] == "its boot loader waits for `poet-host flash`"
        with pytest.raises(BlockingIOError):
            os.read(desk.ends[0], 1)
        named = poet_host("boards", "--json", "--port", adapter).json["ports"]
        assert [item["answer"] for item in named if item["port"] == adapter] == ["mkr1000 number-5"]
        assert other.names() == ["hello"]
        table = poet_host("boards").out
        assert "0403:6001" in table
        assert "nrf52840_dk" in table
    assert silent in found["ttyUSB0"]["port"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("start = 0x2000\n", r"loading\.start: "),
        ("start = 0x2000", r"loading\.start: "),
        ("usb = [", r"loading\.usb\[0\]: "),
    ],
)
def test_a_broken_loading_table_is_explained(change: str, message: str) -> None:
    text = (resource("boards") / "mkr1000" / "board.toml").read_text(encoding="utf-8")
    wrong = {"start = 0x2000\n": "", "start = 0x2000": 'start = "0"', "usb = [": "usb = [3, "}
    with pytest.raises(BadInput, match=message):
        parse_board("mine", text.replace(change, wrong[change], 1), "mine.toml")


def test_image_and_loader_agree_on_where_flash_begins() -> None:
    for board in (MKR, DK):
        assert board.loading is not None
        script = recipe(board.name).script.read_text()
        origin = script.split("ORIGIN = ")[1].split(",")[0]
        assert int(origin, 16) == board.loading.start
        with pytest.raises(BadInput):
            write_image(replace(board), board.loading.start + 4, IMAGE, "auto")
