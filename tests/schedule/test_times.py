"""The longest slice of a schedule."""

import pytest
from fuzz.commit_cuts import training
from poet_host.device.board import load_board
from poet_host.resources import resource
from poet_host.schedule.decode import decode
from poet_host.schedule.nests import Streamed
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.times import longest_slices
from poet_host.view.listing import rows


def test_the_longest_slice_is_the_longest_kernel() -> None:
    schedule = Schedule.load(resource("schedules") / "resnet-digits-mkr1000.poet")
    (found,) = longest_slices(schedule)
    kernels = [row for row in rows(schedule) if row.statement.startswith("compute")]
    longest = max(kernels, key=lambda row: row.time_us or 0.0)
    assert found.op == "conv2d_grad_input"
    like = pytest.approx(longest.time_us)
    assert found.node in [row.tensor for row in kernels if row.time_us == like]
    most = load_board("mkr1000").estimate.slices[found.op]
    assert most > 1
    assert found.time_us == pytest.approx(most * (longest.time_us or 0.0))


def test_a_cell_of_a_nest_is_a_slice() -> None:
    schedule = training("sgd").schedule
    kernels = [row for row in rows(schedule) if row.statement.startswith("compute")]
    longest = max(kernels, key=lambda row: row.time_us or 0.0)
    (nest,) = [
        it for it in decode(schedule) if isinstance(it, Streamed) and it.own == longest.tensor
    ]
    (found,) = longest_slices(schedule)
    assert found.node == nest.own
    (loop,) = nest.nest.loops
    cells = -(-int(schedule.graph[nest.own].attrs["k"]) // loop.step)
    assert cells > 2
    assert found.time_us < (longest.time_us or 0.0) / (cells - 1)
