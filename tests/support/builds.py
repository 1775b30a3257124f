"""Build what many tests need. Workers that need it at the same time would each build it.

PYTHONPATH=tests python -m support.builds [slow]      `slow`: for the slow tests, too
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from poet_host.errors import PoetError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.native import build_library, build_native
from poet_host.sim.chip_library import build_chip_library
from support import clib

QUICK = (build_native, build_library, clib.library)
SLOW = (
    partial(build_native, sanitize=True), partial(build_firmware, "mkr1000"),
    partial(build_firmware, "nrf52840_dk"), build_chip_library,
)  # fmt: skip


def build(one: Callable[[], object]) -> None:
    """Build one of them. Where a compiler is missing, tests say so."""
    with suppress(PoetError):
        one()


def main() -> None:
    wanted = (*QUICK, *(SLOW if sys.argv[1:] == ["slow"] else ()))
    with ThreadPoolExecutor(os.cpu_count()) as builders:
        list(builders.map(build, wanted))


if __name__ == "__main__":
    main()
