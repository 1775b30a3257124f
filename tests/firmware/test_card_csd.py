"""The number of blocks of a card, from any content of its CSD register (SD specification 5.3)."""

import random
import subprocess
from pathlib import Path

import pytest
from poet_host.resources import resource
from support.usb_layer import FLAGS, SANITIZE

PROGRAM = """
#include "card_mount.c"

#include <stdio.h>

int main(void) {
  uint8_t csd[REGISTER];
  while (fread(csd, sizeof csd, 1, stdin) == 1) {
    printf("%u\\n", (unsigned)csd_blocks(csd));
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """card_mount.c with the undefined-behaviour sanitizer, without what uses the bus."""
    folder = tmp_path_factory.mktemp("csd")
    (folder / "csd.c").write_text(PROGRAM)
    firmware = resource("firmware")
    include = [f"-I{firmware / 'include'}", f"-I{firmware / 'port' / 'common'}"]
    unused = ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wno-unused-function"]
    subprocess.run(
        ["cc", *FLAGS, *SANITIZE, *unused, *include, str(folder / "csd.c"), "-o", folder / "csd"],
        check=True,
    )
    return folder / "csd"


def bits(csd: bytes, high: int, low: int) -> int:
    """A field by the numbers of the specification's table."""
    return int.from_bytes(csd, "big") >> low & (1 << high - low + 1) - 1


def expected_blocks(csd: bytes) -> int:
    if bits(csd, 127, 126):
        return (bits(csd, 69, 48) + 1) * 1024 % 2**32  # a card of 2 TiB is none
    length = bits(csd, 83, 80)
    if length < 9:  # no such card: blocks have 512, 1024 or 2048 bytes
        return 0
    return (bits(csd, 73, 62) + 1 << bits(csd, 49, 47) + 2 + length) // 512


def test_any_register_gives_a_number_of_blocks(program: Path) -> None:
    rng = random.Random(5)
    registers = [bytes([rng.choice((0, 0, 0x40)), *rng.randbytes(15)]) for _ in range(2000)]
    registers += [bytes(16), b"\xff" * 16]
    done = subprocess.run([program], input=b"".join(registers), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert [int(line) for line in done.stdout.split()] == [expected_blocks(r) for r in registers]
    assert {bits(csd, 83, 80) for csd in registers} == set(range(16))
