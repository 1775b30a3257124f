"""The models of MLPerf Tiny fit the tables of both microcontrollers."""

import poet_host as poet
import pytest
from poet_host import api

from bench.tiny import CASES, MODELS


@pytest.mark.parametrize("board", ["mkr1000", "nrf52840_dk"])
def test_a_board_holds_the_tensors_of_each_model(board: str) -> None:
    assert {case.model for case in CASES if case.board == board} == set(MODELS)
    with poet.connect(f"sim:{board}") as connection:
        most = int(connection.device.info.tensor_capacity)
    for model in MODELS:
        assert len(api.load_graph(model).nodes) <= most
