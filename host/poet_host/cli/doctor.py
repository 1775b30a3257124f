"""The command `doctor`: is everything here that poet-host needs, and what to do if not."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from .. import api
from ..device.board import load_board
from ..device.ports import board_of, group_advice, permission_advice, serial_ports
from ..errors import PoetError
from ..firmware_build.native import boards_run_here, build_native, cross_tools, linux_boards
from ..firmware_build.recipe import compiler_version, find_compiler, recipe, simulated_boards
from ..firmware_build.upload import check_bossac, find_tool
from ..plan.problem import CostGraph, CostNode
from ..sim.chip_library import emulator
from .console import emit, show_table
from .options import json_option

NATIVE = "native"
PACKAGES = ("numpy", "highspy", "pyserial", "cffi", "cobs", "safetensors", "click", "rich")

# Where b is computed again, or paged: the smallest graph that needs a solver.
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
    """`find` says what is there, or raises what is wrong. `only_for`: what cannot be done
    without it; empty where nothing can."""

    name: str
    find: Callable[[], str]
    only_for: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check what poet-host needs on this computer, and say how to get what is missing.

    Exit code 1 if something is wrong that all of it needs, or a board that is plugged in may not
    be opened.
    """
    results = [_checked(check) for check in CHECKS]
    well = all(one["ok"] for one in results if one["essential"])
    if as_json:
        emit({"ok": well, "checks": results})
    else:
        show_table(
            ("check", "", "found"), [(one["check"], _mark(one), one["found"]) for one in results]
        )
    return 0 if well else 1


def _checked(check: Check) -> dict[str, Any]:
    facts: dict[str, Any] = {"check": check.name, "ok": True, "essential": not check.only_for}
    try:
        return {**facts, "found": check.find()}
    except PackageNotFoundError as error:
        found = f"{error.name} is not installed: try `pip install {error.name}`"
    except (PoetError, OSError, ImportError) as error:
        found = str(error)
    if check.only_for:
        found = f"only needed for {check.only_for}: {found}"
    return {**facts, "ok": False, "found": found}


def _mark(one: dict[str, Any]) -> str:
    return "ok" if one["ok"] else "FAILED" if one["essential"] else "missing"


def _python() -> str:
    return f"{platform.python_version()} at {sys.executable}, poet-host {version('poet-host')}"


def _packages() -> str:
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES)


def _compiler() -> str:
    return f"native board at {build_native()}"


def _solver() -> str:
    plan = api.solve(CHAIN, ram=8)
    if plan.status != "optimal":
        raise PoetError(
            f"HiGHS finds no plan of five operators ({plan.status}): try `pip install "
            "--force-reinstall highspy`"
        )
    return f"HiGHS {version('highspy')} solves: {plan.status} in {plan.solve_s:.2f} s"


def _native() -> str:
    with api.connect(NATIVE) as connection:
        info = connection.device.info
        return f"{info.board} answers, {info.arena_bytes} bytes of arena, storage ready"


def _ports() -> str:
    found = [
        f"{one.path} ({board.name})" if (board := board_of(one)) else one.path
        for one in serial_ports()
    ]
    return ", ".join(found) if found else "none; plug a board in, or use `native`"


def _permissions() -> str:
    """Raises PoetError if the port of a known board may not be opened."""
    if os.name == "nt":
        return "every user may open serial ports"
    closed = [one for one in serial_ports() if not os.access(one.path, os.R_OK | os.W_OK)]
    ours = [one.path for one in closed if board_of(one)]
    if ours:
        raise PoetError("; ".join(permission_advice(path) for path in ours))
    if closed:
        others = ", ".join(one.path for one in closed)
        return f"this user may not open {others}, behind which no board is known"
    if serial_ports():
        return "all serial ports may be opened"
    advice = group_advice()
    return f"no serial port to try; {advice}" if advice else "serial ports may be opened"


def _cross_compiler() -> str:
    """Raises PoetError if it does not start, or has no library to link with."""
    made = recipe(simulated_boards()[0])
    program = find_compiler(made)
    compiled = compiler_version(made)
    again = "try 'apt install --reinstall gcc-arm-none-eabi libnewlib-arm-none-eabi'"
    if not compiled:
        raise PoetError(f"{program} does not start: {again}")
    asked = [program, "-print-file-name=libc.a"]  # a path if there is one, else the bare name
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(found).is_absolute():
        raise PoetError(f"{program} has no library to link with: {again}")
    return f"{made.compiler} {compiled} at {program}"


def _linux() -> str:
    targets = sorted({load_board(name).target for name in linux_boards()})
    return ", ".join(
        f"compiled by {compiler}, run by {runner or 'this computer'}"
        for compiler, runner in map(cross_tools, targets)
    )


def _loaders() -> str:
    """Raises PoetError if a board has none."""
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
    """It may be in this environment, and not on the PATH."""
    beside = Path(sys.executable).with_name("pio")
    program = shutil.which("pio") or (str(beside) if beside.exists() else None)
    if program is None:
        raise PoetError("pio is not on the PATH: try `pip install platformio`")
    done = subprocess.run(
        [program, "--version"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        reason = f" ({lines[-1]})" if (lines := done.stderr.strip().splitlines()) else ""
        raise PoetError(
            f"{program} does not start{reason}: try `pip install --force-reinstall platformio`"
        )
    return f"{done.stdout.strip()} at {program}"


def _extra(package: str, extra: str) -> Callable[[], str]:
    def find() -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError as error:
            raise PoetError(
                f"{package} is not installed: try `pip install 'poet-host[{extra}]'`"
            ) from error

    return find


HERE = "" if boards_run_here() else "boards that run on this computer"
CHECKS = (
    Check("Python", _python),
    Check("packages", _packages),
    Check("C compiler", _compiler, HERE),
    Check("solver", _solver),
    Check("native board", _native, HERE),
    Check("serial ports", _ports),
    Check("permissions", _permissions),
    Check("emulator", emulator, "boards whose chip is simulated (sim:mkr1000)"),
    Check("cross compiler", _cross_compiler, "real boards, and those whose chip is simulated"),
    Check("Linux boards", _linux, "the programs of boards that run Linux (sim:rpi4b)"),
    Check("flashing", _loaders, "`poet-host flash`"),
    Check("PlatformIO", _platformio, "`pio run` (poet-host builds firmware without it)"),
    Check("ONNX", _extra("onnx", "onnx"), "models of your own (.onnx, PyTorch)"),
    Check("pictures", _extra("matplotlib", "plot"), "pictures (--png, compare)"),
)
