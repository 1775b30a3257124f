"""The firmware that was built is the one that runs."""

import subprocess
import sys
import zlib

import pytest
from poet_host import isa
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf

from tests.hardware.rig import Rig, look

LOADER = (
    "the USB cable (some carry power alone), the loader (MKR1000: press reset twice, the LED "
    "breathes), rights on the port, and --upload-port if the loader has a port of its own"
)


def test_the_firmware_gets_onto_the_board(rig: Rig) -> None:
    if rig.simulated or rig.no_flash:
        pytest.skip("it is there already")
    command = [sys.executable, "-m", "poet_host", "flash"]
    command += ["--board", rig.board, "--port", rig.port]
    command += ["--upload-port", rig.upload_port] if rig.upload_port else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    with look(LOADER):
        assert done.returncode == 0, done.stderr.strip()


def test_what_was_built_is_what_runs(rig: Rig) -> None:
    _, built = read_elf(build_firmware(rig.board)).flash()
    with look(f"{LOADER}; then test_2_hello"), rig.connect() as device:
        rows = device.rows().encode()
        assert zlib.crc32(rows) == device.info.fingerprint == isa.fingerprint(), (
            "the board's fingerprint is not that of this checkout: another firmware runs"
        )
        assert rows in built, "the image that was built holds other rows than the board"
