"""Check this computer: find what poet-host needs, and say how to install what is missing."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..baselines.registry import plan_by
from ..device.board import load_board
from ..device.device import connect
from ..device.ports import board_of, group_advice, permission_advice, serial_ports
from ..errors import PoetError
from ..firmware_build.native import boards_run_here, build_native, cross_tools, linux_boards
from ..firmware_build.recipe import compiler_version, find_compiler, recipe, simulated_boards
from ..firmware_build.upload_tools import check_bossac, find_tool
from ..plan.problem import CostGraph, CostNode, Problem
from ..sim.chip_library import emulator
from ..sim.start_board import start_board

PACKAGES = ("numpy", "highspy", "pyserial", "cffi", "cobs", "safetensors", "click", "rich")

# A small graph to test the solver: a plan within 8 bytes must recompute or page tensor b.
CHAIN = CostGraph(
    "chain",
    (
        CostNode("a", (), 4, 1.0, 1.0),
        CostNode("b", (0,), 4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        CostNode("c", (1,), 4, 1.0, 1.0),
        CostNode("d", (2,), 4, 1.0, 1.0),
        CostNode("e", (1,), 4, 1.0, 1.0),
    ),
)


@dataclass(frozen=True)
class Check:
    name: str
    find: Callable[[], str]  # describes what is installed; raises an error if it is unusable
    only_for: str = ""  # the only feature for which this check matters; empty: all of poet-host


@dataclass(frozen=True)
class Found:
    """What one check of this computer has found. `ok` is False if something is missing."""

    check: str
    ok: bool
    essential: bool  # whether all of poet-host needs it, not only one feature
    found: str  # what is installed, or what to do


def check_computer() -> list[Found]:
    """Find what poet-host needs on this computer, and say how to install what is missing."""
    return [_run(check) for check in CHECKS]


def _run(check: Check) -> Found:
    try:
        return Found(check.name, True, not check.only_for, check.find())
    except PackageNotFoundError as error:
        found = f"{error.name} is not installed: run `pip install {error.name}`"
    except (PoetError, OSError, ImportError) as error:
        found = str(error)
    if check.only_for:
        found = f"only needed for {check.only_for}: {found}"
    return Found(check.name, False, not check.only_for, found)


def _python() -> str:
    return f"{platform.python_version()} at {sys.executable}, poet-host {version('poet-host')}"


def _solver() -> str:
    plan = plan_by("poet", Problem(CHAIN, 8))
    if plan.status != "optimal":
        raise PoetError(
            f"the solver HiGHS found no optimal plan for a test graph (status: {plan.status}): "
            "run `pip install --force-reinstall highspy`"
        )
    return f"HiGHS {version('highspy')} solves: {plan.status} in {plan.solve_s:.2f} s"


def _native() -> str:
    with start_board() as running, connect(running.port) as device:
        info = device.info
        return f"{info.board} answers, arena of {info.arena_bytes:,} bytes, storage ready"


def _ports() -> str:
    found = [
        f"{port.path} ({board.name})" if (board := board_of(port)) else port.path
        for port in serial_ports()
    ]
    return ", ".join(found) if found else "none: connect a board, or use `native`"


def _permissions() -> str:
    """Describe the permissions of serial ports.

    Raises PoetError if the user may not open the port of a known board.
    """
    if os.name == "nt":
        return "every user may open serial ports"
    closed = [port for port in serial_ports() if not os.access(port.path, os.R_OK | os.W_OK)]
    boards = [port.path for port in closed if board_of(port)]
    if boards:
        raise PoetError("; ".join(permission_advice(path) for path in boards))
    if closed:
        others = ", ".join(port.path for port in closed)
        return f"no permission to open {others}, which have no known board"
    if serial_ports():
        return "permission to open all serial ports"
    advice = group_advice()
    return f"no serial port to try; {advice}" if advice else "permission to open serial ports"


def _cross_compiler() -> str:
    """Describe the cross compiler. Raises PoetError if it does not start or finds no C library."""
    build = recipe(simulated_boards()[0])
    program = find_compiler(build)
    compiler = compiler_version(build)
    reinstall = "run 'apt install --reinstall gcc-arm-none-eabi libnewlib-arm-none-eabi'"
    if not compiler:
        raise PoetError(f"the cross compiler {program} does not start: {reinstall}")
    query = [program, "-print-file-name=libc.a"]  # prints a path only if the file exists
    library = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise PoetError(f"the cross compiler {program} cannot find the C library: {reinstall}")
    return f"{build.compiler} {compiler} at {program}"


def _linux() -> str:
    targets = sorted({load_board(name).target for name in linux_boards()})
    return ", ".join(
        f"compiled by {compiler}, run by {runner or 'this computer'}"
        for compiler, runner in map(cross_tools, targets)
    )


def _loaders() -> str:
    found, missing = [], []
    for name in simulated_boards():
        try:
            tool, program = find_tool(load_board(name))
            if tool == "bossac":
                check_bossac(program)
            found.append(f"{tool} for {name}")
        except PoetError as error:
            missing.append(str(error))
    if missing:
        raise PoetError("; ".join((*found, *missing)))
    return "; ".join(found)


def _platformio() -> str:
    installed = Path(sys.executable).with_name("pio")
    program = shutil.which("pio") or (str(installed) if installed.exists() else None)
    if program is None:
        raise PoetError("PlatformIO (`pio`) is not on the PATH: run `pip install platformio`")
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        reason = f" ({lines[-1]})" if (lines := done.stderr.strip().splitlines()) else ""
        raise PoetError(
            f"PlatformIO at {program} does not start{reason}: run `pip install --force-reinstall "
            "platformio`"
        )
    return f"{done.stdout.strip()} at {program}"


def _extra(package: str, extra: str) -> Callable[[], str]:
    def find() -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError as error:
            raise PoetError(
                f"{package} is not installed: run `pip install 'poet-host[{extra}]'`"
            ) from error

    return find


NATIVE_ONLY = "" if boards_run_here() else "boards that run on this computer"
CHECKS = (
    Check("Python", _python),
    Check("packages", lambda: ", ".join(f"{name} {version(name)}" for name in PACKAGES)),
    Check("C compiler", lambda: f"native board at {build_native()}", NATIVE_ONLY),
    Check("solver", _solver),
    Check("native board", _native, NATIVE_ONLY),
    Check("serial ports", _ports),
    Check("permissions", _permissions),
    Check("emulator", emulator, "simulated chips (sim:mkr1000)"),
    Check("cross compiler", _cross_compiler, "real boards and simulated chips"),
    Check("Linux boards", _linux, "the programs of boards that run Linux (sim:rpi4b)"),
    Check("flashing", _loaders, "`poet-host flash`"),
    Check("PlatformIO", _platformio, "`pio run` (poet-host builds firmware without it)"),
    Check("ONNX", _extra("onnx", "onnx"), "models of your own (.onnx, PyTorch)"),
    Check("images", _extra("pillow", "images"), "data from folders of images"),
    Check("sounds", _extra("librosa", "audio"), "data from folders of sounds"),
    Check("pictures", _extra("matplotlib", "plot"), "pictures (--png, compare)"),
)
