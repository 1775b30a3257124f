"""Build an example for its chip as its README says, and run it on the simulated board."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import pytest
from poet_host.firmware_build.image import read_elf
from poet_host.resources import resource
from poet_host.schedule.schedule import Schedule
from poet_host.sim.scene import Scene
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.command import Command
from support.compiler import compiler

RAM_START = 0x20000000
EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def copy(name: str, folder: Path) -> Path:
    """Return the folder of an example in a new copy of what it needs of the repository."""
    (folder / "firmware").symlink_to(resource("firmware"))
    for it in (name, "nano_33_iot"):
        copytree(EXAMPLES / it, folder / "examples" / it)
    return folder / "examples" / name


def build(name: str, folder: Path) -> Path:
    """Return the folder of an example, built by its Makefile in a copy."""
    made = copy(name, folder)
    command = [compiler("make"), "-s", "-C", str(made)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": PATH}, capture_output=True)
    return made


@dataclass(frozen=True)
class Life:
    """What a board did from power-on to the end of its power."""

    log: list[list[str]]  # the words of each line that it has sent
    end: str
    chip: SimulatedChip

    def lines(self, first: str) -> list[list[str]]:
        return [line for line in self.log if line[0] == first]


def live(elf: Path, flash: Path, scene: Scene, seconds: float, cut_at: int | None = None) -> Life:
    """Run a Nano 33 IoT, until an access of its flash cuts the power, or for a time."""
    faults = [CardFault("flash_power_cut", cut_at)] if cut_at else []
    chip = SimulatedChip("nano_33_iot", elf, None, faults=faults, flash=flash, scene=scene)
    log, end = b"", "slice"
    while end == "slice" and chip.meter.time_us < seconds * 1e6:
        end = chip.run(4_800_000)
        log += chip.take()
    assert end in ("slice", "power cut"), (end, chip.message)
    return Life([line.split() for line in log.decode().splitlines() if line], end, chip)


def check_readme(example: Path) -> None:
    """Assert that an example's README states the sizes of its program, RAM and flash within 1 %."""
    name = example.name
    text = (EXAMPLES / name / "README.md").read_text("utf-8")
    stated = re.findall(r"^\| (\w+).* \| ([\d,]+) bytes \|$", text, re.MULTILINE)
    image = read_elf(example / f"{name}.elf")
    arena_bytes = Schedule.load(example / f"{name}.poet").header.arena_bytes
    sizes = {"arena": arena_bytes, "all": image.symbols["bss_end"] - RAM_START,
             "flash": len(image.flash()[1])}  # fmt: skip
    assert {what: int(number.replace(",", "")) for what, number in stated} == pytest.approx(
        sizes, rel=0.01
    )
    assert f"with {image.sections['.stack'][1]:,} bytes of stack" in text


def run_page(page: Path, folder: Path, stop: bool = True) -> str:
    """Type the commands of a page in a shell, and return what they print.

    `stop`: the first command that fails fails the test.
    """
    found = "".join(re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    environment = {**os.environ, "PATH": PATH, "EXAMPLES": str(EXAMPLES)}
    ran = subprocess.run(["sh", *["-e"][: int(stop)]], input=found, cwd=folder, env=environment,
                         check=False, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def replayed(lives: Sequence[Life], example: Path, folder: Path, poet_host: Command) -> None:
    """Assert that `replay` computes the weights that a board has sent last, to the same bits."""
    (folder / "log").write_text("\n".join(" ".join(line) for it in lives for line in it.log))
    trace, device, host = (
        folder / it for it in ("t.npz", "device.safetensors", "host.safetensors")
    )
    log = example.parent / "nano_33_iot" / "log.py"
    command = [sys.executable, log, folder / "log", example / "package"]
    command += [f"--trace={trace}", f"--weights={device}"]
    steps = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    ran = poet_host("replay", example / "package", "--trace", trace, "--steps", steps,
                    "--save-weights", host)  # fmt: skip
    assert ran.code == 0, ran.err
    assert device.read_bytes() == host.read_bytes()
