"""The slices of a planned step last as long on a chip as planned, and change no bits."""

from pathlib import Path

import poet_host as poet
import pytest
from poet_host.graph.graph import Graph
from poet_host.schedule.times import longest_slices
from poet_host.sim.board import SimulatedBoard
from support import whole_runs as runs
from support.sim_helper import needs_compiler
from support.sliced_firmware import sliced_firmware

CASES = [
    ("mkr1000", runs.digits(), "digits", 20.0),
    ("nrf52840_dk", runs.one_image(), "synthetic:6x13x13:4", 2.0),
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("board", "graph", "data", "limit_ms"), CASES)
def test_slices_last_no_longer_than_planned(
    board: str, graph: Graph, data: str, limit_ms: float, tmp_path: Path, card: Path
) -> None:
    problem = poet.problem(graph, board, ram="24KiB", slice=limit_ms)
    schedule = poet.encode(graph, poet.solve(problem, work_limit=5_000))
    planned = longest_slices(schedule)[0].time_us
    assert planned < 1.01e3 * limit_ms
    image = sliced_firmware(board, tmp_path, graph.kernels)
    with SimulatedBoard(board, image, card) as chip, poet.connect(chip.port) as device:
        run = poet.train(schedule, device, data, steps=2)
    longest = max(step.storage_retries for step in run.steps)  # see sliced_steps.c
    assert 0.5 * planned < longest < 1.02 * planned
    assert runs.same(run, runs.train(schedule, data, steps=2))
