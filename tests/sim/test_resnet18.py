"""The paper's ResNet-18 makes a whole training step in the RAM of a simulated nRF52840."""

import pytest
from poet_host import api
from support import whole_runs as runs
from support.sim_helper import needs_compiler

BOARD = "nrf52840_dk"
DATA = "synthetic:3x32x32:10"


@needs_compiler
@pytest.mark.slow  # 25 s: a billion instructions
def test_a_step_has_the_bits_of_unlimited_memory() -> None:
    graph = api.load_graph("resnet18-cifar")
    assert graph.batch == 1
    board = api.load_board(BOARD)
    profile = api.estimate_profile(board)
    plan = api.solve(graph, profile, ram=board.arena_bytes, gap=0.99, work_limit=120_000)
    assert plan.statements, plan.status
    whole = runs.train(runs.schedule(graph), DATA, steps=1)
    with api.connect(f"sim:{BOARD}") as connection:
        run = api.train(api.encode(graph, profile, plan), connection, DATA, steps=1)
    assert run.board == BOARD
    assert run.peak_bytes <= board.arena_bytes < whole.peak_bytes / 8
    assert board.arena_bytes < 256 * 1024
    assert run.steps[0].loss == whole.steps[0].loss
    assert runs.same(run, whole)
