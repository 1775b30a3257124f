"""Firmware with the kernels of one model only."""

from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
from poet_host.errors import BadInput, BoardError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.ledger import memory_ledger
from poet_host.resources import resource
from poet_host.schedule.schedule import Schedule
from poet_host.sim.board import SimulatedBoard
from support import whole_runs as runs
from support.command import Command
from support.sim_helper import needs_compiler

pytestmark = needs_compiler
EXAMPLE = resource("schedules") / "resnet-digits-mkr1000.poet"
BOARDS = {"mkr1000": 7_000, "nrf52840_dk": 9_000}  # bytes of flash that the example saves


@pytest.mark.parametrize("board", BOARDS)
def test_firmware_of_one_model(board: str, tmp_path: Path, card: Path, poet_host: Command) -> None:
    image = tmp_path / "small.elf"
    built = poet_host("build", board, "--output", image, "--model", EXAMPLE)
    assert built.code == 0, built.err
    whole, small = (
        memory_ledger(board, path).flash_bytes for path in (build_firmware(board), image)
    )
    assert whole - small >= BOARDS[board]
    example = Schedule.load(EXAMPLE)
    other = runs.schedule(runs.mixed())
    nothing = {"x": np.zeros((2, 3, 8, 8), "f4"), "y": np.zeros((2, 4), "f4")}
    with SimulatedBoard(board, image, card) as simulated, poet.connect(simulated.port) as device:
        with pytest.raises(BoardError, match=r"\(kernel \w+\).* --model FILE") as refused:
            poet.train(other, device, nothing, steps=1)
        assert (refused.value.name, refused.value.exit_code) == ("no_kernel", BadInput.exit_code)
        trained = poet.train(example, device, "digits", steps=1)
    with poet.connect("native") as device:
        assert runs.same(trained, poet.train(example, device, "digits", steps=1))


def test_wrong_choices_are_refused(tmp_path: Path, poet_host: Command) -> None:
    image = tmp_path / "image.elf"
    for command, message in (
        (("build", "native", "-o", image, "--model", EXAMPLE), "always has all kernels"),
        (("build", "mkr1000", "-o", image, "--model", tmp_path / "none.poet"), "none.poet"),
        (("flash", "--board", "mkr1000", "--image", image, "--model", EXAMPLE), "leave it out"),
    ):
        done = poet_host(*command)
        assert done.code == BadInput.exit_code
        assert message in done.err
        assert not image.exists()
