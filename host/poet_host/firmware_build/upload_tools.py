"""Find the upload programs, build their command lines, and run them.

The programs are bossac (github.com/shumatech/BOSSA) for Arduino's SAM boot loader, and OpenOCD,
J-Link Commander or pyOCD for a board with a debugger.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..device.board import Board, Loading
from ..device.ports import RULES, udev_rule
from ..errors import BadInput, PoetError, quoted

BOSSAC_OLDEST = (1, 9)
TOOL_LIMIT_S = 180.0  # time limit for an upload program
INSTALL = {
    "bossac": "'apt install bossa-cli'",
    "openocd": "'apt install openocd'",
    "JLinkExe": "SEGGER's J-Link software",
    "pyocd": "'pip install pyocd'",
}


def loading_of(board: Board) -> Loading:
    """Return how to write to a board. Raises BadInput, with advice, if the board has no image."""
    if board.loading is not None:
        return board.loading
    if board.name == "native":
        raise BadInput(
            "the board native is a program on this computer, so it cannot be flashed: use --port "
            "native or `poet-host simulate native`"
        )
    if board.target:
        raise BadInput(
            f"{board.name} runs Linux, so its firmware is a program: build it with `poet-host "
            f"build {board.name} -o poet-native`, or run poet-host on that board with --port native"
        )
    raise BadInput(
        f"there is no firmware for {board.title}: solve schedules for it with --board "
        f"{board.name}, and run them on the native board"
    )


def find_tool(board: Board, wanted: str | None = None) -> tuple[str, str]:
    """Return name and path of the upload program: `wanted`, or the first installed program."""
    tools = loading_of(board).tools
    if wanted is not None and wanted not in tools:
        raise BadInput(
            f"the program {wanted} cannot write to {board.name}: choose {' or '.join(tools)}"
        )
    names = [wanted] if wanted else list(tools)
    for name in names:
        if program := shutil.which(name):
            return name, program
    raise PoetError(
        f"{' or '.join(names)} is needed to write to {board.name}, but is not on the PATH: try "
        f"{', or '.join(INSTALL[name] for name in names)}"
    )


def check_bossac(program: str) -> None:
    """Raise PoetError for bossac older than 1.9, which counts offsets from another address."""
    _, printed = _run([program, "--help"])
    found = re.search(r"Version (\d+)\.(\d+)\S*", printed)
    if found is None or (int(found[1]), int(found[2])) < BOSSAC_OLDEST:
        which = found[0].lower() if found else "of an unknown version"
        raise PoetError(
            f"the upload program {program} is {which}, but versions before 1.9 write to the "
            f"wrong address: install 1.9 or newer ({INSTALL['bossac']})"
        )


def tool_versions(loading: Loading) -> dict[str, str]:
    """Return the version of each upload program of a board, or that it is not installed."""
    found = {}
    for name in loading.tools:
        program = shutil.which(name)
        found[name] = _version(name, program) if program else "not installed"
    return found


def _version(name: str, program: str) -> str:
    option = {"bossac": "--help", "JLinkExe": "-?"}.get(name, "--version")
    try:
        _, printed = _run([program, option])
    except (OSError, subprocess.TimeoutExpired):
        return "does not start"
    version = re.search(r"\d+\.\d+[\w.]*", printed)
    return version[0] if version else "unknown version"


def upload_command(
    tool: str,
    program: str,
    loading: Loading,
    image: Path,
    port: str,
    serial_number: str,
    *,
    recover: bool = False,
) -> list[str]:
    """Return the command line that writes, verifies and starts an image.

    `recover`: return the one that erases a chip whose debug port is closed instead. A script for
    the program is written next to the image. `serial_number` selects a debugger (empty: the only
    one that is plugged in). Raises BadInput if it contains anything but letters and digits: a USB
    device could send Tcl code as its serial number, which OpenOCD would execute.
    """
    if not re.fullmatch(r"[0-9A-Za-z]*", serial_number, re.ASCII):
        raise BadInput(
            f"the debugger at {port} has the serial number {quoted(serial_number)}, but only "
            "letters and digits are allowed: unplug that debugger, or name the port of the board's "
            "own debugger with --upload-port"
        )
    start, chip = f"0x{loading.start:x}", loading.tools[tool]
    number = serial_number.lstrip("0")
    if tool == "bossac":
        # Without `--offset`, bossac would erase the boot loader.
        # Pass `--usb-port` without a value, which means 1: bossac reads any word after it as 0.
        where = ["--port", port.removeprefix("/dev/"), "--usb-port", f"--offset={start}"]
        return [program, *where, "--erase", "--write", "--verify", "--reset", str(image)]
    if tool == "openocd":
        command = [program, "-f", "interface/jlink.cfg", "-c", "transport select swd"]
        if number:  # versions before 0.12 know only the second command
            new, old = f"adapter serial {serial_number}", f"jlink serial {serial_number}"
            command += ["-c", f"if {{[catch {{{new}}}]}} {{{old}}}"]
        command += ["-f", f"target/{chip}.cfg", "-c"]
        if recover:
            return [*command, "init", "-c", f"{chip}_recover", "-c", "exit"]
        return [*command, f"program {{{image}}} {start} verify reset exit"]
    if tool == "JLinkExe":
        steps = ["r", "h", f"loadbin {image}, {start}", f"verifybin {image}, {start}", "r", "g"]
        script = image.with_name("recover.jlink") if recover else image.with_suffix(".jlink")
        script.write_text("\n".join((*(["erase", "r"] if recover else steps), "q", "")), "utf-8")
        command = [program, "-NoGui", "1", "-device", chip, "-if", "swd", "-speed", "4000"]
        command += ["-autoconnect", "1", "-ExitOnError", "1", *(["-USB", number] if number else [])]
        return [*command, "-CommanderScript", str(script)]
    probe = ["--uid", number] if number else []
    if recover:
        return [program, "erase", "--mass", "--target", chip, *probe]
    return [program, "flash", "--target", chip, *probe, "--base-address", start, str(image)]


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run an upload program; return its exit code and what it has printed."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", timeout=TOOL_LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def run_tool(name: str, command: Sequence[str], loading: Loading) -> None:
    """Run an upload program. Raises PoetError, with its last lines of output, if it fails."""
    try:
        code, printed = _run(command)
    except subprocess.TimeoutExpired as error:
        raise PoetError(
            f"the upload program {name} did not end within {TOOL_LIMIT_S:g} s: unplug the board, "
            "plug it in again, and run this command again"
        ) from error
    if code == 0:
        return
    lines = [line.strip() for line in re.split(r"[\r\n]+", printed) if line.strip()]
    last, advice = "; ".join(lines[-3:]) or "it printed nothing", _advice(name, printed, loading)
    raise PoetError(f"the upload program {name} failed ({last}): {advice}")


def _advice(name: str, printed: str, loading: Loading) -> str:
    if re.search(r"LIBUSB_ERROR_ACCESS|[Pp]ermission|[Aa]ccess denied", printed):
        rules = "\n".join(udev_rule(usb, "usb") for usb in loading.usb)
        return (
            f"no permission to open its USB device: put these lines into {RULES} and plug it in "
            f"again:\n{rules}"
        )
    if name == "bossac":
        return (
            "press the board's reset button twice, quickly, so that its boot loader waits. A new "
            "port appears. Run this command again, with the new port as --upload-port"
        )
    if re.search(r"AP lock|APPROTECT|[Pp]rotected|[Ss]ecured", printed):
        return (
            "the chip's debug port is closed. Run this command again with --recover, which erases "
            "the whole chip first"
        )
    return "check the board's power and cable, and close other debugger sessions"
