"""The slices of a planned step last as long on a chip as planned, and change no bits."""

from pathlib import Path

import poet_host as poet
import pytest
from poet_host.schedule.times import longest_slices
from poet_host.sim.board import SimulatedBoard
from support import whole_runs as runs
from support.sim_helper import needs_compiler
from support.sliced_firmware import sliced_firmware

LIMIT_US = 20_000


@pytest.mark.slow
@needs_compiler
def test_slices_last_as_long_as_planned(tmp_path: Path, card: Path) -> None:
    graph = runs.digits()
    problem = poet.problem(graph, "mkr1000", ram="24KiB", slice=LIMIT_US / 1e3)
    schedule = poet.encode(graph, poet.solve(problem, work_limit=5_000))
    planned = longest_slices(schedule)[0].time_us
    assert planned < 1.01 * LIMIT_US
    image = sliced_firmware("mkr1000", tmp_path, graph.kernels)
    with SimulatedBoard("mkr1000", image, card) as chip, poet.connect(chip.port) as board:
        run = poet.train(schedule, board, "digits", steps=2)
    longest = max(step.storage_retries for step in run.steps)  # see sliced_steps.c
    assert 0.9 * planned < longest < 1.25 * planned
    assert runs.same(run, runs.train(schedule, steps=2))
