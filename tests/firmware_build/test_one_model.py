"""Firmware with the kernels of one model only."""

from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
from poet_host.errors import BadInput, BoardError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.ledger import memory_ledger
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
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


def waves() -> Schedule:
    """Sines and cosines of small and large arguments, in a plan without a card."""
    b = Builder("waves", data=(4, 8))
    y = b.sin(b.scale(b.linear(b.data, 16, name="a"), 40.0))
    graph = training_graph(b.model(b.mse(b.cos(b.linear(y, 8, name="c")))), Sgd(0.1, 0.0))
    return runs.schedule(graph)


@pytest.mark.slow
@pytest.mark.parametrize(("board", "lacks"), [("mkr1000", True), ("nrf52840_dk", False)])
def test_a_model_brings_kernels_that_the_standard_firmware_lacks(
    board: str, lacks: bool, card: Path
) -> None:
    schedule, rng = waves(), np.random.default_rng(0)
    data = {"x": rng.standard_normal((8, 8), "f4"), "y": rng.standard_normal((8, 8), "f4")}
    image = build_firmware(board)
    if lacks:
        with SimulatedBoard(board, image, card) as whole, poet.connect(whole.port) as device:
            with pytest.raises(BoardError, match=r"\(kernel sine\).* --model FILE") as refused:
                poet.train(schedule, device, data, steps=1)
            assert refused.value.name == "no_kernel"
        image = build_firmware(board, schedule.graph.kernels)
    with SimulatedBoard(board, image, card) as simulated, poet.connect(simulated.port) as device:
        found = poet.train(schedule, device, data, steps=2)
    with poet.connect("native") as device:
        assert runs.same(found, poet.train(schedule, device, data, steps=2))


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
