"""One file about a board that its owner can send: what was found, measured and built.

The file is a zip of bundle.json and report.txt. It has the serial numbers of the chip and of the
card, but no names of users, folders, computers or networks.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from .. import isa
from ..device.board import Board
from ..device.card_registers import card_identity
from ..device.device import connect
from ..errors import PoetError
from ..firmware_build.bare_metal import build_firmware
from ..firmware_build.ledger import Ledger, ledger_text, memory_ledger
from ..firmware_build.recipe import compiler_version, recipe
from ..firmware_build.upload_tools import tool_versions
from ..sim.start_board import start_board
from .board_check import BoardCheck, Finding
from .kernel_check import TIMED, KernelRun, kernel_runs, with_simulated

FORMAT, VERSION = "poet-bundle", 1
_PACKAGES = ("poet-host", "numpy", "pyserial", "cffi", "cobs")


def bundle(findings: Sequence[Finding], check: BoardCheck | None, *, is_simulated: bool) -> bytes:
    """Return the zip file. `check`: None if the board's firmware does not fit this program.

    Measures the kernels of a board on all shapes of two models, and the same on the simulated chip,
    unless the board `is_simulated` itself, or this computer lacks the compiler or the emulator.
    """
    facts: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": _versions(),
        "findings": [asdict(finding) for finding in findings],
    }
    ledger: Ledger | None = None
    if check:
        board = check.device.board
        kernels = kernel_runs(check.device, TIMED, every_shape=True)
        if not board.is_computer:
            ledger = _ledger(board)
            facts["versions"] |= _build_versions(board)
            if not is_simulated:
                kernels = with_simulated(kernels, _simulated(board))
        facts |= {
            "board": check.device.info._asdict(),
            "health": _health(check),
            "card": _card(check),
            "transfers": [asdict(moved) for moved in check.moved],
            "requests_sent_again": check.device.link.resent,
            "kernels": [asdict(run) for run in kernels],
            "ledger": asdict(ledger) if ledger else None,
        }
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as file:
        file.writestr("bundle.json", json.dumps(facts, indent=1, allow_nan=False) + "\n")
        file.writestr("report.txt", "\n".join(_report(facts, findings, ledger)) + "\n")
    return buffer.getvalue()


def _versions() -> dict[str, str]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    found = {"python": platform.python_version(), "system": system}
    return found | {name: version(name) for name in _PACKAGES}


def _build_versions(board: Board) -> dict[str, str]:
    assert board.loading is not None
    found = tool_versions(board.loading)
    try:
        return {**found, "compiler": compiler_version(recipe(board.name))}
    except PoetError:
        return {**found, "compiler": "not installed"}


def _ledger(board: Board) -> Ledger | None:
    try:
        return memory_ledger(board.name, build_firmware(board.name))
    except PoetError:  # no compiler
        return None


def _simulated(board: Board) -> tuple[KernelRun, ...]:
    try:
        with start_board(board.name, card=False) as running, connect(running.port) as device:
            return kernel_runs(device, TIMED, every_shape=True)
    except PoetError:  # no compiler or no emulator
        return ()


def _health(check: BoardCheck) -> dict[str, Any] | None:
    if check.health is None:
        return None
    row = isa.by_code("RESET").get(check.health.reset)
    return {**check.health._asdict(), "reset": row.name if row else check.health.reset}


def _card(check: BoardCheck) -> dict[str, Any] | None:
    if check.card is None:
        return None
    card = check.device.card()
    registers = {"cid": bytes(card.cid).hex(), "bytes": bytes(card.bytes).hex()}
    return {**card._asdict(), **registers, "identity": asdict(card_identity(card.cid))}


def _report(
    facts: dict[str, Any], findings: Sequence[Finding], ledger: Ledger | None
) -> Iterator[str]:
    yield f"A board, checked by `poet-host doctor` at {facts['made']}"
    yield ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    yield ""
    yield from (f"{it.verdict:8} {it.check:10} {it}" for it in findings)
    if kernels := facts.get("kernels"):
        yield ""
        yield f"{'measured':>12}{'estimated':>12}{'simulated':>12} us  bits   kernel"
        for run in kernels:
            simulated = run["simulated_us"]
            text = "-" if simulated is None else f"{simulated:,.1f}"
            yield (
                f"{run['measured_us']:12,.1f}{run['estimated_us']:12,.1f}{text:>12} us  "
                f"{'same ' if run['same_bits'] else 'OTHER'}  {run['shape']}"
            )
    if ledger:
        yield f"\n{ledger_text([ledger])}"
