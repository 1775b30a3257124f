"""The example gait: a GRU on a board learns how people walk, through a power cut."""

import json
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
from support.example import RAM_START, build, check_readme, live, replayed
from support.sim_helper import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
PEOPLE, TEACH, TEST = 3, 4, 2  # walks of each person
APART_MS = 13_000  # from walk to walk
MOST_RAM, MOST_FLASH = 31_000, 75_000
MORE_THAN_PLANNED = 1.3  # of an inference that waits for the end of a step


def test_it_learns_through_a_power_cut_and_recognises_people(
    tmp_path: Path, poet_host: Command
) -> None:
    example = build("gait", tmp_path)
    elf, flash, walks = example / "gait.elf", tmp_path / "flash.bin", tmp_path / "walk.csv"
    command = [sys.executable, example / "walk.py", walks, f"--teach={TEACH}", f"--test={TEST}"]
    words = shlex.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    presses = [press(at) for option, at in pairwise(words) if option == "--button"]
    scene, end_s = Scene(str(walks), tuple(presses)), float(words[-1].removesuffix("s"))

    lives = [live(elf, flash, scene, end_s, cut_at) for cut_at in (150, None)]
    assert [it.end for it in lives] == ["power cut", "slice"]

    held_out = [line for line in lives[-1].lines("person") if walk_of(line) >= PEOPLE * TEACH]
    assert len(held_out) >= 3 * PEOPLE * TEST
    right = sum(int(line[1]) == walk_of(line) % PEOPLE + 1 for line in held_out)
    assert right >= 0.9 * len(held_out)
    planned_us = json.loads((example / "package" / "package.json").read_text())["infer_waits_us"]
    longest_us = max(int(line[6]) for line in lives[-1].lines("person"))
    assert longest_us <= MORE_THAN_PLANNED * planned_us
    replayed(lives, example, tmp_path, poet_host)

    image = read_elf(elf)
    assert stack_bound(image, fpu=False) <= image.sections[".stack"][1]
    assert image.symbols["bss_end"] - RAM_START <= MOST_RAM
    assert len(image.flash()[1]) <= MOST_FLASH
    check_readme(example)


def walk_of(line: list[str]) -> int:
    """The number of the walk in which a window lies, of which the board has printed the end."""
    return int(line[3]) // APART_MS
