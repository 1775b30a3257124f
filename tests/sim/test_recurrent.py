"""Recurrent weights larger than the RAM of a simulated M0+: they are read in rows, in each step."""

import poet_host as poet
import pytest
from poet_host import api
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from support import whole_runs as runs
from support.sim_helper import needs_compiler

BOARD, UNITS, DATA = "mkr1000", 48, "synthetic:3x8:4"


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_rows_give_the_bits_of_the_native_board(kind: str) -> None:
    b = Builder(kind, data=(1, 3, 8))
    x = b.linear(b.reshape(b.data, (3, 1, 8)), (3 + (kind == "lstm")) * UNITS)
    x = b.layer(kind, (x,), name="layer")
    x = b.linear(b.reshape(b.slice(x, 0, 2, 3), (1, UNITS)), 4)
    graph = training_graph(b.model(b.softmax_xent(x)), Sgd(0.05))
    board = api.load_board(BOARD)
    profile = api.estimate_profile(board)
    plan = api.solve(graph, profile, ram=board.arena_bytes, gap=0.9, work_limit=2_000)
    assert graph["layer.weight"].size_bytes > board.arena_bytes
    with poet.connect(f"sim:{BOARD}") as connection:
        run = poet.train(api.encode(graph, profile, plan), connection, DATA, steps=2)
    assert run.board == BOARD
    assert runs.same(run, runs.train(runs.schedule(graph), DATA, steps=2))
