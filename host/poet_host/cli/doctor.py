"""The command `doctor`: checks the computer or a board, and prints how to install or fix it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from .. import api
from ..errors import BadInput, PoetError
from . import completion
from .console import Answer, progress, say, show_table
from .declared import option, takes
from .written import check_writable, output_file


@click.command()
@takes
def doctor(
    port: str | None = option(shell_complete=completion.ports),
    bundle: Path | None = output_file(suffix=".zip"),
    no_storage: bool = False,
) -> Answer:
    """Check this computer or a board, and say what to do.

    Without --port, prints how to install what poet-host needs and this computer lacks. The exit
    code is 1 if poet-host cannot run, or if you have no permission to open the port of a connected
    board. With --port, it is 1 if something on the board is wrong.

    --port, -p PORT  Check the board at this port, and not this computer: firmware, last reset,
        supply, card, kernels and link. A port is named as for `profile`. This stops a training step
        of the board. No weights on its card change. [default: this computer is checked]
    --bundle FILE  Write a file about the board that you can send: findings, memory of the firmware,
        times of kernels, registers of the card, and versions.
    --no-storage  The board has no card, so do not check it.
    """
    if port is not None:
        return _check_board(port, bundle, has_card=not no_storage)
    for flag, given in (("--bundle", bundle), ("--no-storage", no_storage)):
        if given:
            raise BadInput(f"{flag} is about a board: name its port with --port")
    results = api.check_computer()
    passed = all(result.ok for result in results if result.essential)
    rows = [
        (it.check, "ok" if it.ok else "FAILED" if it.essential else "missing", it.found)
        for it in results
    ]
    return _answer(passed, rows, {"checks": [asdict(it) for it in results]})


def _check_board(port: str, file: Path | None, *, has_card: bool) -> Answer:
    check_writable(file)
    with progress(f"checking the board at {port}", "kernels") as report:
        findings = api.check_board(port, card=has_card, bundle=file, progress=report)
    if file:
        say(
            f"wrote {file}. It has the serial numbers of the chip and of the card, but no names of "
            "users or folders"
        )
    passed = all(finding.verdict != "wrong" for finding in findings)
    facts = {"findings": [asdict(it) for it in findings], **({"bundle": str(file)} if file else {})}
    return _answer(passed, [(it.check, it.verdict, str(it)) for it in findings], facts)


def _answer(passed: bool, rows: Sequence[Sequence[str]], facts: Mapping[str, object]) -> Answer:
    show = partial(show_table, ("check", "", "found"), rows)
    return Answer({"ok": passed, **facts}, show, code=0 if passed else PoetError.exit_code)
