"""The picture of a nest shows what its price says; about 4 s."""

from itertools import pairwise

from bench.nest_picture import drawn


def test_the_lanes_of_the_picture_take_the_time_of_the_price() -> None:
    found = drawn()
    lanes = (
        [bar for bar in found.bars if bar.operand is None],
        [bar for bar in found.bars if bar.operand is not None],
    )
    for lane in lanes:
        assert all(a.end_us <= b.begin_us for a, b in pairwise(lane))
    assert {bar.operand for bar in lanes[1]} == {0, 1, 2}  # both inputs and the output stream
    end_us = max(bar.end_us for bar in found.bars)
    assert abs(end_us / found.cost.wall_us - 1) < 0.02
    hidden_us = found.cost.time_us + found.cost.transfer_us - end_us
    assert hidden_us > 0.9 * min(found.cost.time_us, found.cost.transfer_us)
