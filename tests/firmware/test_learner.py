"""A device that learns from samples of its own (poet/learner.h)."""

import math
import struct

import numpy as np
import pytest
from support.learner_bench import (
    BLOCK,
    BUSY,
    SAMPLES,
    SLOTS,
    WEIGHTS,
    Device,
    Kind,
    Learner,
    Trace,
    blocks,
    outputs_of,
    stored,
)

KINDS = [
    Kind(),
    Kind(pages=True),
    Kind(autoencoder=True),
    Kind(raw="float32"),
    Kind(raw="int8", slots=1),
    Kind(raw="uint8", pages=True),
    Kind(pages=True, every=3),
]
UNITS = (None, 0, 1, 8)  # None: no storage


def device(kind: Kind, unit: int | None) -> Device | None:
    return None if unit is None else Device(blocks(kind, unit), unit)


def taught(learner: Learner, count: int = 6) -> Trace:
    trace = Trace(learner.kind)
    for number in range(count):
        assert trace.teach(learner, number % learner.kind.classes)
    return trace


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_weights_are_those_of_the_reference_over_the_drawn_samples(
    kind: Kind, unit: int | None
) -> None:
    if kind.pages and unit != 0:
        return
    learner = Learner(kind, device(kind, unit))
    assert learner.weights() == Trace(kind).replay(0)
    trace, rng = taught(learner), np.random.default_rng(3)
    learner.learn(30)
    polls = 0
    while learner.poll(int(rng.integers(3))):
        polls += 1
        if polls % 9 == 0:
            trace.teach(learner, int(rng.integers(kind.classes)))
    assert learner.state().step == 30
    assert learner.weights() == trace.replay(30)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_outputs_are_those_of_the_reference_between_all_slices(
    kind: Kind, unit: int | None
) -> None:
    if kind.pages and unit != 0:
        return
    learner = Learner(kind, device(kind, unit))
    trace, sample, polls = taught(learner), kind.sample(99), 0
    learner.learn(6)
    while learner.poll():
        polls += 1
        if polls % 5 == 0:
            outputs = learner.infer(sample)
            expected = outputs_of(kind, trace.replay(learner.state().step), sample)
            assert outputs.tobytes() == expected.tobytes()
    assert polls >= 25
    assert learner.weights() == trace.replay(6)


def test_the_state_says_what_was_done_and_what_is_to_be_done() -> None:
    kind = Kind()
    learner = Learner(kind, device(kind, 1))
    state = learner.state()
    assert (state.step, state.saved_step, state.next_step, state.wanted) == (0, 0, 1, 0)
    assert math.isnan(state.loss)
    learner.learn(3)
    assert learner.poll() == 0  # without samples there is nothing to do
    taught(learner, 5)
    state = learner.state()
    assert (state.samples, state.classes, state.wanted, state.busy) == (5, 3, 3, False)
    assert learner.poll() == BUSY
    state = learner.state()
    assert (state.step, state.next_step, state.wanted, state.busy) == (0, 2, 3, True)
    learner.run()
    state = learner.state()
    assert (state.step, state.saved_step, state.next_step, state.wanted) == (3, 0, 4, 0)
    assert 0 < state.loss < 3
    learner.save()
    assert learner.state().saved_step == 3
    again = Learner(kind, learner.device)
    assert again.state().loss == state.loss
    assert again.state().wanted == 0


def test_steps_that_are_wanted_add_up_and_can_be_cancelled() -> None:
    learner = Learner(Kind())
    trace = taught(learner)
    learner.learn(2)
    learner.learn(3)
    assert learner.state().wanted == 5
    learner.poll()
    learner.learn(0)
    assert (learner.state().wanted, learner.state().busy) == (0, True)
    learner.run()
    assert learner.state().step == 1  # the running step was finished
    learner.learn(2**32 - 1)
    learner.learn(2**32 - 1)
    assert learner.state().wanted > 2**32 - 10
    learner.learn(0)
    learner.learn(1)
    learner.run()
    assert learner.weights() == trace.replay(2)


def test_a_poll_ends_when_its_budget_is_used_up() -> None:
    learner = Learner(Kind())
    taught(learner)
    learner.device.us_per_call = 10
    learner.learn(5)
    slices = 1
    while learner.poll(0):
        slices += 1
    learner.learn(5)
    begin = learner.device.now
    assert learner.poll(200) == BUSY
    assert 200 <= learner.device.now - begin < 300
    calls = 2
    while learner.poll(200):
        calls += 1
    assert calls < slices / 2
    learner.learn(5)
    assert learner.poll(10_000_000) == 0
    assert learner.state().step == 15


def test_a_full_class_replaces_its_oldest_and_waits_for_a_commit() -> None:
    kind = Kind()
    learner = Learner(kind, device(kind, 1))
    trace = taught(learner, 3 * SLOTS)
    assert learner.state().samples == 3 * SLOTS
    learner.learn(4)
    learner.run()
    assert trace.teach(learner, 0)  # there is one more place
    before = learner.state()
    assert not trace.teach(learner, 0)
    state = learner.state()
    assert (state.step, state.samples, state.busy) == (before.step, before.samples, True)
    learner.run()
    assert learner.state().saved_step == 4
    assert trace.teach(learner, 0)
    learner.learn(4)
    learner.run()
    assert learner.state().samples == 3 * SLOTS
    assert learner.weights() == trace.replay(8)


@pytest.mark.parametrize("unit", [0, 8])
def test_a_new_start_goes_on_whatever_the_package_begins_with(unit: int) -> None:
    kind = Kind()
    learner = Learner(kind, device(kind, unit))
    trace = taught(learner)
    learner.learn(4)
    learner.run()
    learner.save()
    learner.learn(2)
    learner.run()
    other = Learner(Kind(start=2), learner.device)
    assert other.weights() == trace.replay(4)
    other.learn(2)
    other.run()
    assert other.weights() == trace.replay(6)


@pytest.mark.parametrize(("before", "after"), [("int8", "uint8"), ("uint8", "int8")])
def test_samples_of_another_type_are_forgotten(before: str, after: str) -> None:
    kind = Kind(raw=before)
    learner = Learner(kind, device(kind, 1))
    trace = taught(learner)
    learner.learn(4)
    learner.run()
    learner.save()
    other = Learner(Kind(raw=after), learner.device)
    assert (other.state().samples, other.state().step) == (0, 4)
    assert other.weights() == trace.replay(4)


def test_the_store_lies_in_its_partition() -> None:
    kind = Kind()
    first, own = 24, blocks(kind, 8)
    table = bytearray(BLOCK)
    struct.pack_into("<BxxxBxxxII", table, 446 + 16, 0, 0xDA, first, own)
    table[510:] = b"\x55\xaa"
    image = bytes(table) + b"\x11" * (first - 1) * BLOCK + b"\0" * own * BLOCK + b"\x22" * BLOCK
    storage = Device(0, 8, image)
    storage.image[first * BLOCK : -BLOCK] = b"\xff" * own * BLOCK
    learner = Learner(kind, storage)
    trace = taught(learner)
    learner.learn(3)
    learner.run()
    learner.save()
    assert storage.image[: first * BLOCK] == image[: first * BLOCK]
    assert storage.image[-BLOCK:] == image[-BLOCK:]
    assert Learner(kind, Device(0, 8, bytes(storage.image))).weights() == trace.replay(3)


def test_several_learners_take_turns() -> None:
    kinds = [Kind(), Kind(pages=True), Kind(autoencoder=True), Kind()]
    learners = [Learner(it, device(it, 0)) for it in kinds]
    traces = [taught(it) for it in learners]
    for learner in learners:
        learner.learn(5)
    while sum(learner.poll() for learner in learners):
        pass
    for learner, trace in zip(learners, traces, strict=True):
        assert learner.weights() == trace.replay(5)


def test_learners_on_ranges_of_one_storage_leave_each_other_alone() -> None:
    kinds = [Kind(), Kind(slots=2), Kind(autoencoder=True)]
    devices = [device(it, 8) for it in kinds]
    storage = bytearray(b"".join(bytes(it.image) for it in devices))
    at = 0
    for it in devices:
        it.image = memoryview(storage)[at : at + len(it.image)]
        at += len(it.image)
    learners = [Learner(*both) for both in zip(kinds, devices, strict=True)]
    traces = [taught(it) for it in learners]
    for learner in learners:
        learner.learn(3)
    while sum(learner.poll() for learner in learners):
        pass
    for learner, trace in zip(learners, traces, strict=True):
        learner.save()
        assert Learner(learner.kind, learner.device).weights() == trace.replay(3)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("pages", [False, True])
def test_to_forget_is_to_begin_again(pages: bool, unit: int | None) -> None:
    if pages and unit != 0:
        return
    kind = Kind(pages=pages)
    learner = Learner(kind, device(kind, unit))
    taught(learner)
    learner.learn(3)
    for what in (SAMPLES, WEIGHTS, SAMPLES | WEIGHTS):
        learner.poll()
        learner.forget(what)
        step = learner.state().step
        if what & SAMPLES:
            assert learner.state().samples == 0
            taught(learner)
        if what & WEIGHTS:
            assert learner.weights() == Trace(kind).replay(0)
        else:
            assert step == 1
        learner.learn(1)
        learner.run()
        assert learner.state().step > step
    assert learner.weights() != Trace(kind).replay(0)


@pytest.mark.parametrize(("kind", "unit"), [(Kind(), 0), (Kind(), 8), (Kind(pages=True), 0)])
def test_tensors_that_are_written_take_effect_when_they_are_adopted(kind: Kind, unit: int) -> None:
    learner = Learner(kind, device(kind, unit))
    trace = taught(learner)
    learner.learn(3)
    learner.poll()
    names, old = stored(kind), trace.replay(1)
    rng = np.random.default_rng(1)
    new = {it: rng.normal(0, 0.1, len(old[it]) // 4).astype("<f4").tobytes() for it in names[1:]}
    for name in [*new, names[2]]:  # one of them twice
        for at in range(0, len(new[name]), 20):
            learner.write(names.index(name), new[name][at : at + 20], at)
    assert learner.weights() == old
    learner.call("adopt")
    assert learner.weights() == {names[0]: old[names[0]], **new}
    assert (learner.state().step, learner.state().saved_step) == (1, 1)
    learner.run()
    assert learner.state().step == 3
    assert Learner(kind, learner.device).weights() != old


@pytest.mark.parametrize("how", ["open", "forget"])
def test_what_is_not_adopted_is_dropped(how: str) -> None:
    kind = Kind()
    learner = Learner(kind, device(kind, 1))
    taught(learner)
    old = learner.weights()
    learner.write(0, bytes(len(old[stored(kind)[0]])))
    if how == "open":
        learner.open()
    else:
        learner.forget(SAMPLES)
    learner.call("adopt")
    assert learner.weights() == old


def test_part_of_a_tensor_is_read() -> None:
    learner = Learner(Kind())
    name = stored(learner.kind)[0]
    assert learner.read(0, 12, offset=8) == learner.weights()[name][8:20]
