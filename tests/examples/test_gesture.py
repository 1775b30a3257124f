"""The example gesture: a board learns from a button, without a host, through power cuts."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.stack import stack_bound
from poet_host.sim.scene import Scene, press
from support.command import Command
from support.example import (
    EXAMPLES,
    RAM_START,
    Life,
    build,
    check_readme,
    copy,
    live,
    replayed,
    run_page,
)
from support.sim_helper import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
GESTURES, TEACH, TEST = 3, 8, 12
MOST_RAM, MOST_FLASH = 20_000, 68_000
MOST_INFERENCE_US = 45_000


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("gesture", tmp_path_factory.mktemp("gesture"))


def moved(example: Path, seed: int, teach: int, test: int) -> tuple[Scene, float]:
    """Let motion.py make a scene, and return it with its length in seconds."""
    motion = example / f"motion-{seed}.csv"
    command = [sys.executable, example / "motion.py", motion, f"--seed={seed}"]
    command += [f"--teach={teach}", f"--test={test}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    words = shlex.split(printed)
    presses = [press(at) for option, at in pairwise(words) if option == "--button"]
    return Scene(str(motion), tuple(presses)), float(words[-1].removesuffix("s"))


def test_it_learns_through_power_cuts_and_replays(
    example: Path, tmp_path: Path, poet_host: Command
) -> None:
    def life(seed: int, teach: int, test: int, cut_at: int | None = None) -> Life:
        scene, seconds = moved(example, seed, teach, test)
        return live(example / "gesture.elf", tmp_path / "flash.bin", scene, seconds, cut_at)

    # The first cut comes while the board lays out its flash or saves, the second one later.
    lives = [life(1, 2, 0, 150), life(2, 2, 0, 400), life(3, TEACH, TEST)]
    assert [it.end for it in lives] == ["power cut", "power cut", "slice"]

    found = lives[-1].lines("gesture")
    assert len(found) == GESTURES * (TEACH + TEST)
    held_out = found[GESTURES * TEACH :]  # no step runs then
    wanted = [*range(1, GESTURES + 1)] * TEST
    right = sum(int(line[1]) == number for line, number in zip(held_out, wanted, strict=True))
    assert right >= 0.9 * len(wanted)
    assert max(int(line[3]) for line in held_out) <= MOST_INFERENCE_US

    replayed(lives, example, tmp_path, poet_host)


def test_it_needs_little_memory(example: Path) -> None:
    image = read_elf(example / "gesture.elf")
    assert stack_bound(image, fpu=False) <= image.sections[".stack"][1]
    assert image.symbols["bss_end"] - RAM_START <= MOST_RAM
    assert len(image.flash()[1]) <= MOST_FLASH
    check_readme(example)


def test_the_commands_of_the_tutorial_end_with_the_same_weights(tmp_path: Path) -> None:
    copy("gesture", tmp_path)
    page = EXAMPLES.parent / "docs" / "tutorial" / "firmware.md"
    printed = run_page(page, tmp_path, stop=False).splitlines()  # one command cuts the power
    assert "24" in printed
    found = [int(line.split()[1]) for line in printed if re.match("gesture . after", line)]
    assert len(found) == 36
    assert sum(map(int.__eq__, found[24:], [1, 2, 3] * 4)) >= 11
    device, host = (line.split() for line in printed if line.endswith(".safetensors"))
    assert (device[0], device[1], host[1]) == (host[0], "device.safetensors", "host.safetensors")
