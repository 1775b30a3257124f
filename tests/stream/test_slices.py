"""Operators in slices: the bits of whole ones, cells within a limit, and what they cost."""

from dataclasses import replace

import poet_host as poet
import pytest
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.plan.problem import Problem
from poet_host.profile.profile import estimate_profile
from poet_host.schedule.times import longest_slices
from poet_host.view.listing import listing
from support import whole_runs as runs
from support.cost_graphs import general
from support.in_place import everything_paged


def kernels_us(problem: Problem) -> float:
    return sum(node.time_us for node in problem.graph.nodes)


def digits(limit: str | None, ram: str = "64KiB") -> Problem:
    profile = estimate_profile(poet.api.load_board("mkr1000"))
    return poet.problem(runs.digits(), profile, ram=ram, streaming=False, slice=limit)


def test_slices_of_20_ms_cost_little() -> None:
    whole, sliced = digits(None), digits("20ms")
    assert sliced.streaming is not None
    cut = {name for name, _ in sliced.streaming.nests}
    assert cut == {node.name for node in whole.graph.nodes if node.time_us > 20_000}
    assert 1 < kernels_us(sliced) / kernels_us(whole) < 1.05


@pytest.mark.parametrize("limit", ["20ms", "8ms"])
def test_a_schedule_in_slices_trains_the_same_weights(limit: str) -> None:
    found = []
    for problem in (digits(None), digits(limit)):
        plan = poet.solve(problem, method="keep-everything")
        schedule = poet.encode(runs.digits(), plan)
        found.append((longest_slices(schedule)[0], runs.train(schedule, steps=2)))
    (before, expected), (after, run) = found
    assert before.time_us > 40_000
    assert after.time_us < 1.01 * 1e3 * float(limit.removesuffix("ms"))
    assert runs.same(run, expected)


def test_without_storage_slices_store_weights_as_whole_operators_do() -> None:
    found = set()
    for limit in (None, "20ms"):
        costs = poet.estimate_profile("mkr1000").without_card()
        problem = poet.problem(runs.digits(), costs, ram="64KiB", slice=limit)
        plan = poet.solve(problem, method="keep-everything")
        schedule = poet.encode(runs.digits(), plan, forward=False)
        assert bool(schedule.meta["slice_us"]) == bool(limit)
        found.add(schedule.model.crc)
    assert len(found) == 1


def test_slices_of_one_image_train_the_same_weights() -> None:
    """They are rows of several channels, and gradients of some channels by some others."""
    graph, found = runs.one_image(), []
    for limit in (None, "2ms"):
        problem = poet.problem(graph, "nrf52840_dk", ram="64KiB", streaming=False, slice=limit)
        schedule = poet.encode(graph, poet.solve(problem, method="keep-everything"))
        found.append(runs.train(schedule, "synthetic:6x13x13:4", steps=2))
    assert problem.streaming is not None
    loops = {name: nest.loops for (name, _), nest in problem.streaming.nests.items()}
    assert {"oh", "h"} <= {loop.axis for each in loops.values() for loop in each}
    assert "c" in {loop.axis for loop in loops["conv2.weight:new"]}
    assert all(each[-1].step > 1 for each in loops.values())
    assert runs.same(*found)


def test_operators_that_overwrite_an_input_by_choice_run_in_slices() -> None:
    b = Builder("bent", data=(1, 4, 16, 16))
    x = b.gelu(b.conv2d(b.data, 4, 1, name="conv"), name="act")
    x = b.linear(b.global_avgpool(x, name="mean"), 4, name="fc")
    graph, found = training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05)), []
    for limit in (None, "5ms"):
        problem = poet.problem(graph, "mkr1000", ram="14KiB", streaming=False, slice=limit)
        plan = replace(everything_paged(problem.graph), problem=problem, ram_bytes=14_336)
        assert {it.node for it in plan.statements if it.mode} == {"act"}
        schedule = poet.encode(graph, plan)
        run = runs.train(schedule, "synthetic:4x16x16:4", steps=2)
        found.append((longest_slices(schedule)[0], run))
    (before, expected), (after, run) = found
    assert problem.streaming is not None
    assert ("act", 1) in problem.streaming.nests
    assert before.time_us > 20_000
    assert after.time_us < 1.01 * 5_000
    assert runs.same(run, expected)


def test_an_operator_that_no_nest_fits_stays_whole() -> None:
    """The operands of fc.weight:new take 14,496 bytes, and the state of a nest more than 504."""
    roomy, tight = digits("20ms"), digits("20ms", ram="15000")
    assert roomy.streaming is not None
    assert tight.streaming is not None
    assert ("fc.weight:new", 0) in roomy.streaming.nests
    assert ("fc.weight:new", 0) not in tight.streaming.nests


def test_operators_of_a_kind_that_need_other_ram_have_nests_of_their_own() -> None:
    """`small` overwrites its input, `large` does not. Both are over the limit."""
    b = Builder("kinds", data=(1, 4, 32, 32))
    x = b.conv2d(b.data, 4, 1, name="conv")
    y = b.conv2d(b.relu(x, name="large"), 4, 1, name="conv1")
    means = b.global_avgpool(x), b.global_avgpool(b.relu(y, name="small"))
    model = b.model(b.softmax_xent(b.add(*means), name="loss"))
    graph = training_graph(model, Sgd(0.05))
    problem = poet.problem(graph, "mkr1000", ram=32_900, streaming=False, slice="1ms")
    assert problem.streaming is not None
    assert ("large", 0) not in problem.streaming.nests
    assert ("small", 0) in problem.streaming.nests


def test_all_operators_over_the_limit_are_named() -> None:
    whole, sliced = digits(None), digits("20ms")
    assert sliced.streaming is not None
    stricter = replace(sliced, streaming=replace(sliced.streaming, slice_us=9_000.0))
    schedule = poet.encode(runs.digits(), poet.solve(stricter, method="keep-everything"))
    found = longest_slices(schedule)
    wanted = {node.name for node in whole.graph.nodes if node.time_us > 9_090}
    assert len(found) == len(wanted) > 10
    assert {it.node for it in found} == wanted
    lines = [line for line in listing(schedule).splitlines() if line.startswith("over the limit: ")]
    assert len(lines) == len(found) - 1


def test_a_cost_graph_has_no_slices() -> None:
    with pytest.raises(BadInput, match="slice"):
        poet.problem(general(1), slice="10ms")
