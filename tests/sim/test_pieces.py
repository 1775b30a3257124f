"""Whole networks of which every tensor is cut train like those of whole tensors."""

from math import prod
from pathlib import Path

import pytest
from poet_host import api
from poet_host.graph.cuts import Cut, blocks_of
from poet_host.graph.graph import Graph
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.slots import pieces
from support import whole_runs as runs
from support.sim_helper import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
STEPS = 2
PIECE_BYTES = 4096


def cuts_of(graph: Graph) -> dict[str, Cut]:
    """Cut each tensor of several elements into at least two pieces, in row-major order."""
    sizes = {node.name: prod(node.shape) for node in graph if node.updates is None}
    return {
        name: Cut(4, (1, 1, count), (1, 1, min(PIECE_BYTES // 4, -(-count // 2))))
        for name, count in sizes.items()
        if count > 1
    }


def cut_schedule(graph: Graph, board: str) -> Schedule:
    """A schedule for the board's RAM."""
    chosen = api.load_board(board)
    profile = api.estimate_profile(chosen)
    plan = api.solve(graph, profile, ram=chosen.arena_bytes, gap=0.99, work_limit=60_000)
    assert plan.statements, plan.status
    schedule = encode(graph, plan, cuts=cuts_of(graph))
    tensors = [tensor for tensor in schedule.model.tensors if tensor.size_bytes > 4]
    assert all(len(pieces(tensor)) > 1 for tensor in tensors)
    return schedule


# The largest operators of resnet8-cifar need 180 KiB, so it does not fit the MKR1000.
@pytest.mark.parametrize(
    ("model", "data", "chip"),
    [
        ("resnet-digits", "digits", "mkr1000"),
        ("resnet-digits", "digits", "nrf52840_dk"),
        ("resnet8-cifar", "synthetic:3x32x32:10", "nrf52840_dk"),
    ],
)
def test_cut_tensors_train_to_the_same_bits(
    model: str, data: str, chip: str, tmp_path: Path
) -> None:
    graph = api.load_graph(model)
    whole = runs.train(runs.schedule(graph), data, steps=STEPS)
    schedule = cut_schedule(graph, chip)
    with runs.board(schedule) as connection:
        assert runs.same(api.train(schedule, connection, data, steps=STEPS), whole)
    with api.connect(f"sim:{chip}") as connection:
        assert runs.same(api.train(schedule, connection, data, steps=STEPS), whole)


def test_pieces_of_4_kib_take_less_than_two_per_cent_more_blocks() -> None:
    """Two per cent of the data's blocks, and not one block more than whole tensors."""
    graph = api.load_graph("resnet8-cifar")
    whole, cut = (model_of_graph(graph, cuts).tensors for cuts in (None, cuts_of(graph)))
    large = [pair for pair in zip(whole, cut, strict=True) if pair[0].size_bytes > PIECE_BYTES]
    data_blocks = sum(blocks_of(tensor.size_bytes) for tensor, _ in large)
    assert len(large) > 60
    assert sum(tensor.blocks for _, tensor in large) < 1.02 * data_blocks
    assert all(one.blocks == other.blocks for one, other in large)
