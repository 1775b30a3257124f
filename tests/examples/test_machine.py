"""The example machine: a board learns how a machine vibrates, through power cuts, then warns."""

import subprocess
import sys
from pathlib import Path

import pytest
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.stack import stack_bound
from poet_host.sim.scene import Scene
from support.command import Command
from support.example import RAM_START, build, check_readme, live, replayed
from support.sim_helper import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
WINDOW_S = 256 / 833
LEARNED, MEASURED, NORMAL, FAULTY = 60, 60, 500, 12
SPARE = 40  # windows that pass while the board learns, and is not fast enough
MOST_RAM, MOST_FLASH = 20_000, 68_000


def test_it_learns_through_power_cuts_and_warns(tmp_path: Path, poet_host: Command) -> None:
    example = build("machine", tmp_path)
    elf, flash, motion = example / "machine.elf", tmp_path / "flash.bin", tmp_path / "motion.csv"
    fault_s = WINDOW_S * (LEARNED + MEASURED + NORMAL + SPARE)
    end_s = fault_s + WINDOW_S * FAULTY
    command = [sys.executable, example / "vibration.py", motion, f"--fault={fault_s}"]
    subprocess.run([*command, f"--seconds={end_s}"], check=True, capture_output=True)

    # While the board lays out its flash, and while it is taught a sample.
    cuts = (150, 242, None)
    lives = [live(elf, flash, Scene(str(motion)), end_s, cut_at) for cut_at in cuts]
    assert [it.end for it in lives] == ["power cut", "power cut", "slice"]

    found = [line[0] for line in lives[-1].log if line[0] in ("normal", "warning")]
    first = found.index("warning")
    assert NORMAL <= first <= len(found) - FAULTY + 5
    assert set(found[first:]) == {"warning"}
    replayed(lives, example, tmp_path, poet_host)

    image = read_elf(elf)
    assert stack_bound(image, fpu=False) <= image.sections[".stack"][1]
    assert image.symbols["bss_end"] - RAM_START <= MOST_RAM
    assert len(image.flash()[1]) <= MOST_FLASH
    check_readme(example)
