"""The option --port of `doctor`: check a connected board, and write a bundle about it."""

import warnings
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from .. import api
from ..check.board_check import BoardCheck, Finding
from ..check.bundle import bundle
from ..errors import BoardError, PoetWarning
from ..files import write_whole
from .console import emit, progress, say, say_emulated, show_table
from .written import check_writable

_OTHER_FIRMWARE = ("bad_version", "bad_fingerprint")


def check_board(port: str, file: Path | None, *, has_card: bool, as_json: bool) -> int:
    """Check the board at a port, print the findings, and return the exit code of the command."""
    check_writable(file)
    check = None
    with ExitStack() as stack:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PoetWarning)  # the findings say the same
                connection = stack.enter_context(api.connect(port, card=has_card))
        except BoardError as error:
            if error.name not in _OTHER_FIRMWARE:
                raise
            findings = [Finding("firmware", "wrong", str(error))]
        else:
            say_emulated(connection)
            check = BoardCheck(connection.device, has_card)
            with progress(f"checking {connection.board.name}") as report:
                check.run(lambda done, total: report(done, total, "kernels"))
            findings = check.findings
        if file:
            with progress(f"measuring for {file}"):
                data = bundle(findings, check, is_simulated=api.runs_here(port))
            write_whole(file, data)
            say(
                f"wrote {file}. It has the serial numbers of the chip and of the card, but no "
                "names of users or folders"
            )
    passed = all(finding.verdict != "wrong" for finding in findings)
    if as_json:
        found = {"ok": passed, "findings": [asdict(finding) for finding in findings]}
        emit(found | ({"bundle": str(file)} if file else {}))
    else:
        rows = [(it.check, it.verdict, str(it)) for it in findings]
        show_table(("check", "", "found"), rows)
    return 0 if passed else 1
