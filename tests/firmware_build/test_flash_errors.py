"""Flashing: errors of images, programs, ports and permissions."""

import errno
import grp
import os
import stat
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import serial
from poet_host import isa
from poet_host.device import ports
from poet_host.device.board import load_board
from poet_host.device.device import connect
from poet_host.errors import BadInput, BoardError, NoDevice, PoetError
from poet_host.firmware_build import upload, upload_tools
from poet_host.firmware_build.upload import write_image
from poet_host.firmware_build.upload_tools import find_tool
from support.command import Command
from support.desk import (
    DK,
    IMAGE,
    JLINK,
    LOADER,
    MKR,
    SKETCH,
    Desk,
    answering,
    write,
)
from support.fake_board import FakeBoard


@pytest.mark.parametrize("version", ["1.8", "1.7.0", "1.6.1-arduino"])
def test_an_old_bossac_is_refused(version: str, desk: Desk) -> None:
    desk.program("bossac", version=version)
    with pytest.raises(PoetError, match=rf"version {version}, .* 1\.9"):
        write(MKR, desk.port("ttyACM0", LOADER))
    desk.program("bossac", version="unknown")
    with pytest.raises(PoetError, match="unknown version"):
        write(MKR, str(desk.folder / "ttyACM0"))
    assert not (desk.folder / "bossac.log").exists()


def test_newer_bossacs_are_accepted(desk: Desk) -> None:
    for version in ("1.9", "1.10.2", "2.0"):
        desk.program("bossac", version=version)
        upload_tools.check_bossac(find_tool(MKR)[1])


def test_an_image_for_another_board_is_refused(desk: Desk) -> None:
    with pytest.raises(BadInput, match=r"0x0, .* mkr1000 .* 0x2000"):
        write_image(MKR, 0, IMAGE, "/dev/ttyACM0")
    for name, words in (("native", "simulate native"), ("rpi4b", "poet-host build rpi4b")):
        with pytest.raises(BadInput, match=words):
            write_image(load_board(name), 0, IMAGE, "/dev/ttyACM0")


def test_an_error_about_a_missing_port_lists_the_ports(desk: Desk) -> None:
    desk.program("bossac")
    desk.program("openocd")
    with pytest.raises(NoDevice, match=r"/dev/nothing .*no serial port"):
        write(MKR, "/dev/nothing")
    desk.port("ttyACM7", JLINK)
    with pytest.raises(NoDevice, match=r"/dev/nothing .*ttyACM7 .nrf52840_dk"):
        write(DK, "/dev/nothing")
    assert not (desk.folder / "openocd.log").exists()


def test_auto_needs_exactly_one_port(desk: Desk) -> None:
    desk.program("openocd")
    desk.port("ttyUSB0", (0x0403, 0x6001))
    with pytest.raises(NoDevice, match=r"no port .* nrf52840_dk .*USB 0403:6001"):
        write(DK, "auto")
    desk.port("ttyACM0", JLINK, "1")
    desk.port("ttyACM1", JLINK, "2")
    with pytest.raises(NoDevice, match=r"2 ports .* --port"):
        write(DK, "auto")


@pytest.mark.parametrize(
    ("printed", "advice"),
    [
        ("No device found on ttyACM0", "No device found on ttyACM0.*reset button twice"),
        ("Error: LIBUSB_ERROR_ACCESS", 'SUBSYSTEM=="usb", ATTRS{idVendor}=="2341"'),
        ("", "printed nothing"),
    ],
)
def test_an_error_quotes_a_program_that_fails(printed: str, advice: str, desk: Desk) -> None:
    desk.program("bossac", f'echo "{printed}" >&2; exit 1')
    with pytest.raises(PoetError, match=f"(?s)bossac failed .*{advice}"):
        write(MKR, desk.port("ttyACM0", LOADER))


def test_the_error_of_a_closed_debug_port_names_recover(desk: Desk) -> None:
    desk.program("openocd", "echo nRF52 device has AP lock engaged; exit 1")
    with pytest.raises(PoetError, match=r"AP lock engaged.*--recover"):
        write(DK, desk.port("ttyACM0", JLINK))


def test_a_program_that_hangs_is_killed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_tools, "TOOL_LIMIT_S", 0.3)
    desk.program("bossac", "exec sleep 60")
    with pytest.raises(PoetError, match=r"bossac .* 0\.3 s"):
        write(MKR, desk.port("ttyACM0", LOADER))


def test_a_port_that_does_not_appear_again_is_an_error(desk: Desk) -> None:
    usb = desk.port("ttyACM0", LOADER)
    desk.program("bossac", f"rm {usb}")
    with pytest.raises(NoDevice, match=r"written, but .*ttyACM0 .* pins 13 .RX. and"):
        write(MKR, usb)


def test_a_port_may_appear_late(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 20.0)
    usb = desk.port("ttyACM0", JLINK)
    desk.program("openocd", f"rm {usb}")
    with answering("nrf52840_dk") as board:
        plug = threading.Timer(0.5, os.symlink, (board.port, usb))
        plug.start()
        assert write(DK, usb).info.board == "nrf52840_dk"
        plug.join()


def test_another_board_that_answers_is_an_error(desk: Desk) -> None:
    desk.program("openocd")
    message = r"written, but mkr1000 .* nrf52840_dk"
    with answering("mkr1000") as board, pytest.raises(PoetError, match=message):
        write(DK, board.port)
    foreign = isa.fingerprint_text().replace(b"relu", b"rolu", 1)
    message = r"written, but .* operators"
    with FakeBoard(rows=foreign) as board, pytest.raises(BoardError, match=message):
        write(DK, board.port)


def test_doctor_checks_the_programs_for_flashing(desk: Desk, poet_host: Command) -> None:
    def flashing_needs() -> tuple[bool, str]:
        found = poet_host("doctor", "--json").json["checks"]
        (check,) = (check for check in found if check["check"] == "flashing")
        return check["ok"], check["found"].removeprefix("only needed for `poet-host flash`: ")

    desk.program("pyocd")
    ok, found = flashing_needs()
    assert not ok
    assert found.startswith("pyocd for nrf52840_dk; bossac")
    desk.program("bossac", version="1.7.0")
    ok, found = flashing_needs()
    assert not ok
    assert "before 1.9" in found
    desk.program("bossac")
    found = "bossac for mkr1000; bossac for nano_33_iot; pyocd for nrf52840_dk"
    assert flashing_needs() == (True, found)


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
