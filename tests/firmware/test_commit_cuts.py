"""Power cuts while some tensors stay in RAM, some do not, and operators stream."""

import pytest
from fuzz.commit_cuts import EQUAL, OPTIMISERS, cuts, training
from poet_host import isa


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_cut_at_a_random_write_leaves_a_committed_step(name: str) -> None:
    one = training(name)
    board = one.board(one.start.copy())
    one.train(board, 0)
    assert board.state.model.flags & isa.constants()["POET_MODEL_FOUR_SLOTS"]
    assert board.state.plan.home_count > 2
    assert "stream" in {statement for statement, _ in board.statements()}
    found = cuts(name, 12, seed=1)
    assert {it.removesuffix(EQUAL) for it in found} >= {"step 0", "step 10", "step 20"}
    assert all(it.endswith(EQUAL) for it in found), found
