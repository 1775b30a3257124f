"""Flashing: the command lines of upload programs, and the ports of loaders and boards."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from poet_host.device import ports
from poet_host.device.board import parse_board
from poet_host.device.device import connect
from poet_host.device.link import candidate_ports
from poet_host.errors import BadInput, NoDevice, PoetError
from poet_host.firmware_build import upload
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.recipe import recipe
from poet_host.firmware_build.upload import write_image
from poet_host.firmware_build.upload_tools import find_tool, upload_command
from poet_host.resources import resource
from poet_host.sim.board import SimulatedBoard
from support.command import Command
from support.desk import (
    DK,
    IMAGE,
    JLINK,
    LOADER,
    MKR,
    PATH,
    RUNNING,
    SKETCH,
    Desk,
    answering,
    reenumerate,
    write,
)
from support.fake_loader import FakeLoader
from support.sim_helper import needs_compiler


@needs_compiler
@pytest.mark.parametrize(("name", "tool"), [("mkr1000", "bossac"), ("nrf52840_dk", "openocd")])
def test_the_command_builds_writes_and_finds_the_board(
    name: str, tool: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, poet_host: Command
) -> None:
    monkeypatch.setattr(upload, "RETURN_WAIT_S", 20.0)
    monkeypatch.setenv("PATH", f"{desk.folder / 'bin'}:{PATH}")
    elf = build_firmware(name)
    desk.program(tool)
    usb = desk.port("ttyACM0", LOADER if name == "mkr1000" else JLINK, "000683")
    with SimulatedBoard(name, elf, None) as board:
        ports_of = ("--port", board.port, "--upload-port", usb)
        result = poet_host("flash", "--board", name, *ports_of, "--json")
        assert result.code == 0, result.err
        found = [result.json[key] for key in ("board", "tool", "upload_port")]
        assert found == [name, tool, usb]
        assert result.json["arena_bytes"] >= 24 << 10
    start, image = read_elf(elf).flash()
    assert desk.written() == image
    assert start == {"mkr1000": 0x2000, "nrf52840_dk": 0}[name]
    assert "of which can be used" in result.err  # the ledger
    assert f"{name} " in result.err.splitlines()[-1]


@needs_compiler
def test_no_answer_is_awaited_of_a_users_program(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, poet_host: Command
) -> None:
    monkeypatch.setenv("PATH", f"{desk.folder / 'bin'}:{PATH}")
    elf = desk.folder / "app.elf"
    subprocess.run(
        ["arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", "-nostdlib", "-Wl,-n,-eapp",
         "-Wl,-Ttext=0x2000", "-xc", "-", "-o", elf],
        input=b"void app(void) { for (;;) {} }", check=True,
    )  # fmt: skip
    desk.program("bossac")
    usb = desk.port("ttyACM0", LOADER)
    result = poet_host("flash", "--board", "nano_33_iot", "--image", elf, "--port", usb, "--json")
    assert result.code == 0, result.err
    assert (result.json["upload_port"], result.json["unique_id"]) == (usb, None)
    assert desk.written() == read_elf(elf).flash()[1]


# Command lines.


def test_bossac_always_gets_the_offset(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        done = write(MKR, board.port, upload_port=usb)
    assert desk.arguments("bossac") == [
        *("--port", usb, "--usb-port", "--offset=0x2000"),
        *("--erase", "--write", "--verify", "--reset", "FOLDER/firmware.bin"),
    ]
    assert desk.written() == IMAGE
    assert not desk.is_touched()  # the boot loader runs already
    assert (done.tool, done.info.unique_id) == ("bossac", "number-5")
    command = upload_command("bossac", "bossac", MKR.loading, Path("a.bin"), "/dev/ttyACM3", "1")
    assert command[1:3] == ["--port", "ttyACM3"]  # older versions add /dev/ themselves


@pytest.mark.skipif(shutil.which("bossac") is None, reason="bossac is missing")
def test_bossac_itself_writes_after_the_boot_loader(
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
        *("-f", "interface/jlink.cfg", "-c", "transport select swd", "-c"),
        "if {[catch {adapter serial 00683}]} {jlink serial 00683}",
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


RECOVERS = {
    "openocd": [*PROBES["openocd"][:-2], *("-c", "init", "-c", "nrf52_recover", "-c", "exit")],
    "JLinkExe": [*PROBES["JLinkExe"][:-1], "FOLDER/recover.jlink"],
    "pyocd": ["erase", "--mass", "--target", "nrf52840", "--uid", "683"],
}


@pytest.mark.parametrize("tool", list(RECOVERS))
def test_recover_erases_the_chip_first(tool: str, desk: Desk) -> None:
    desk.program(tool)
    with answering("nrf52840_dk") as board:
        port = desk.port("ttyACM0", JLINK, "00683", board.port)
        assert write(DK, "auto", tool=tool, recover=True).port == port
    assert desk.arguments(tool) == RECOVERS[tool] + PROBES[tool]


def test_a_board_without_a_debug_port_is_not_recovered(desk: Desk) -> None:
    desk.program("bossac")
    with answering("mkr1000") as board, pytest.raises(BadInput, match="--recover"):
        write(MKR, board.port, upload_port=desk.port("ttyACM0", LOADER), recover=True)


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
        assert " ".join(step.split()[0] for step in steps) == "r h loadbin verifybin r g q"
        assert steps[2].endswith("/firmware.bin, 0x0")


def test_the_first_program_that_is_installed_is_taken(desk: Desk) -> None:
    with pytest.raises(PoetError, match=r"openocd or JLinkExe or pyocd .* 'apt install"):
        find_tool(DK)
    for name in reversed(PROBES):
        desk.program(name)
        assert find_tool(DK)[0] == name
    assert find_tool(DK, "pyocd")[0] == "pyocd"
    with pytest.raises(BadInput, match=r"bossac .* nrf52840_dk.* openocd or JLinkExe"):
        find_tool(DK, "bossac")
    with pytest.raises(PoetError, match=r"bossac .* 'apt install bossa-cli'"):
        find_tool(MKR)


def test_without_a_serial_number_the_only_debugger_is_taken() -> None:
    for tool in PROBES:
        path = Path(os.devnull) if tool != "JLinkExe" else Path("/tmp/x.bin")
        command = upload_command(tool, tool, DK.loading, path, "COM3", "")
        assert not {"--uid", "-USB"} & set(command)
        assert not any("adapter serial" in part for part in command)


# The boot loader.


@pytest.mark.parametrize("again", ["ttyACM0", "ttyACM1"])
def test_the_boot_loader_of_a_sketch_is_started(again: str, desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", SKETCH)
    thread = reenumerate(desk, again)
    with answering("mkr1000") as board:
        done = write(MKR, board.port, upload_port=usb)
    thread.join()
    assert done.upload_port == str(desk.folder / again)
    assert desk.arguments("bossac")[1] == done.upload_port


def test_a_boot_loader_that_does_not_appear_is_an_error(desk: Desk) -> None:
    desk.program("bossac")
    usb = desk.port("ttyACM0", SKETCH)
    thread = reenumerate(desk, None)
    with pytest.raises(NoDevice, match=r"boot loader .* reset button"):
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
        desk.port("ttyACM1", LOADER)  # of another board: --upload-port must name one
        assert write(MKR, adapter).upload_port == adapter


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


def test_of_two_running_boards_the_written_one_is_found(desk: Desk) -> None:
    desk.program("openocd")
    desk.port("ttyACM0", JLINK, "000683")
    with answering("nrf52840_dk") as other, answering("nrf52840_dk") as board:
        desk.running("ttyACM1", "nrf52840_dk", "7", other.port)
        own = desk.running("ttyACM2", "nrf52840_dk", "8", board.port)
        with pytest.raises(NoDevice, match=r"2 ports .* nrf52840_dk"):
            write(DK, "auto")
        done = write(DK, own)
        assert (done.port, done.upload_port) == (own, str(desk.folder / "ttyACM0"))
        assert any("adapter serial 000683" in part for part in desk.arguments("openocd"))
        assert other.requests == []


@pytest.mark.parametrize("names", [("poet-host", "mkr1000"), ("Microsoft", "")])
def test_a_board_appears_on_usb_after_its_boot_loader(desk: Desk, names: tuple[str, str]) -> None:
    desk.port("ttyACM0", LOADER)
    with answering("mkr1000") as board:
        desk.comes_back("bossac", "ttyACM0", board, "ttyACM1", "9")
        own = str(desk.folder / "ttyACM1")
        desk.names[own] = names
        assert write(MKR, "auto").port == own


def test_a_running_board_is_named_and_asked_first(desk: Desk, poet_host: Command) -> None:
    assert ports.firmware_usb() == ("1209:0001", "poet-host")
    desk.port("ttyACM0", (0x0403, 0x6001))
    strange = desk.port("ttyACM1", RUNNING)  # another product with the same test id
    desk.names[strange] = "somebody", "mkr1000"
    with answering("mkr1000") as board, answering("nrf52840_dk") as nameless:
        usb = desk.running("ttyACM2", "mkr1000", "5", board.port)
        found = {item["port"]: item for item in poet_host("boards", "--json").json["ports"]}
        assert (found[usb]["board"], found[usb]["answer"]) == ("mkr1000", "mkr1000 number-5")
        assert (found[strange]["board"], found[strange]["answer"]) == (None, "not asked")
        windows = desk.port("COM3", RUNNING, "7", nameless.port)
        desk.names[windows] = "Microsoft", ""
        found = {item["port"]: item for item in poet_host("boards", "--json").json["ports"]}
        assert (found[windows]["board"], found[windows]["hello"]["board"]) == (None, "nrf52840_dk")
        del desk.ids[windows]
        assert candidate_ports()[0] == usb
        with connect("auto") as device:
            assert device.link.port == usb
    desk.names[usb] = "poet-host", "a board of tomorrow"
    assert ports.board_of(ports.serial_ports()[0]) is None


# Boards and loaders at the ports.


def test_boards_asks_known_ports_and_the_named_one_only(desk: Desk, poet_host: Command) -> None:
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
        assert other.names() == ["hello", "health"]
        table = poet_host("boards").out
        assert "0403:6001" in table
        assert "nrf52840_dk" in table
    assert silent in found["ttyUSB0"]["port"]


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        ("start = 0x2000\n", "", r"loading\.start: "),
        ("start = 0x2000", 'start = "0"', r"loading\.start: "),
        ("usb = [", "usb = [3, ", r"loading\.usb\[0\]: "),
    ],
)
def test_an_error_names_the_wrong_key_of_a_loading_table(right: str, wrong: str, key: str) -> None:
    text = (resource("boards") / "mkr1000" / "board.toml").read_text(encoding="utf-8")
    with pytest.raises(BadInput, match=key):
        parse_board("mine", text.replace(right, wrong, 1), "mine.toml")


def test_image_and_loader_agree_on_where_flash_begins() -> None:
    for board in (MKR, DK):
        script = recipe(board.name).script.read_text()
        origin = script.split("ORIGIN = ")[1].split(",")[0]
        assert int(origin, 16) == board.loading.start
        with pytest.raises(BadInput):
            write_image(board, board.loading.start + 4, IMAGE, "auto")
