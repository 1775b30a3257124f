"""Check a connected board, and write a bundle about it."""

import warnings
from contextlib import ExitStack
from pathlib import Path

from ..check.board_check import BoardCheck, Finding
from ..check.bundle import bundle as make_bundle
from ..device.device import Progress
from ..errors import BoardError, PoetWarning
from ..files import write_whole
from .connection import connect, runs_here, warn_of_emulation

_OTHER_FIRMWARE = ("bad_version", "bad_fingerprint")


def check_board(
    port: str | Path,
    *,
    card: bool = True,
    bundle: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Check the board at `port`: firmware, last reset, supply, card, kernels and link.

    `port`: see `connect`. If `card` is False, the board has no card. `bundle`: a file about the
    board to write (.zip), with findings, memory of the firmware, times of kernels and versions. The
    board stops a training step that runs. No weights on its card change. Raises LinkBroken if the
    board does not answer any more.
    """
    check = None
    with ExitStack() as stack:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PoetWarning)  # the findings say the same
                connection = stack.enter_context(connect(port, card=card))
        except BoardError as error:
            if error.name not in _OTHER_FIRMWARE:
                raise
            findings = [Finding("firmware", "wrong", str(error))]
        else:
            warn_of_emulation(connection)
            check = BoardCheck(connection.device, card)
            check.run(progress)
            findings = check.findings
        if bundle:
            write_whole(bundle, make_bundle(findings, check, is_simulated=runs_here(str(port))))
    return findings
