"""What transfers cost the simulated boards: the committed figures hold."""

import pytest
from support.sim_helper import needs_compiler

from bench.transfers_board import measure

pytestmark = needs_compiler
# Processor's cycles a byte, and least time / time.
FIGURES = {
    ("mkr1000", False): (5.46, 0.925),
    ("mkr1000", True): (9.39, 0.931),
    ("nrf52840_dk", False): (7.51, 0.950),
    ("nrf52840_dk", True): (10.48, 0.931),
}


@pytest.mark.parametrize(("board", "write"), FIGURES)
def test_a_transfer_costs_what_was_measured(board: str, write: bool) -> None:
    found = measure(board, write)
    assert (found.cycles_per_byte, found.bus_share) == pytest.approx(
        FIGURES[board, write], rel=0.05
    )
