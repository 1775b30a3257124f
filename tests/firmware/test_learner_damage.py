"""A learner goes on although committed weights are damaged, or a write of a commit was lost."""

from contextlib import suppress

import numpy as np
import pytest
from firmware.test_learner_power import CHANGES, STORAGES, trained
from support.learner_bench import (
    SAMPLES,
    WEIGHTS,
    Device,
    Kind,
    Learner,
    StorageFailed,
    Trace,
    outputs_of,
    stored,
)


def trained_on(kind: Kind, unit: int) -> tuple[Learner, Trace]:
    """A learner whose steps 4 and 5 are committed, and what it was taught."""
    device, trace = trained(kind, unit)
    learner = Learner(kind, device)
    learner.learn(1)
    learner.run()
    learner.save()
    return learner, trace


def damage(device: Device, content: bytes) -> None:
    device.image[device.image.index(content)] ^= 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_a_change_is_refused_if_damage_undoes_a_step(kind: Kind, unit: int, change: str) -> None:
    names, undone = stored(kind), 0
    for name in names[1:]:
        learner, trace = trained_on(kind, unit)
        new = bytes(kind.graph[names[0]].size_bytes)
        learner.write(0, new)
        damage(learner.device, trace.replay(5)[name])
        try:
            CHANGES[change](learner)
        except StorageFailed:
            undone += learner.state().step == 4
        else:
            assert learner.state().step == 5
            expected = new if change == "adopt" else trace.replay(0)[names[0]]
            assert learner.read(0, len(new)) == expected
    # what is paged is not restored, and what is forgotten is not read
    assert undone or kind == Kind(pages=True) or change == "forget"


def test_the_loss_is_not_that_of_a_step_that_damage_undid() -> None:
    kind = Kind(pages=True)
    loss = Learner(kind, trained(kind, 0)[0]).state().loss
    learner, trace = trained_on(kind, 0)
    assert learner.state().loss != loss
    damage(learner.device, trace.replay(5)[stored(kind)[0]])
    with pytest.raises(StorageFailed):
        learner.read(0, 4)
    assert (learner.state().step, learner.state().loss) == (4, loss)


@pytest.mark.parametrize("every", [1, 4])
def test_an_inference_undoes_steps_until_its_weights_are_whole(every: int) -> None:
    """Step 6, if it is not committed, and step 5."""
    kind, last = Kind(pages=True, every=every, channels=8), 6 if every > 1 else 5
    for name in ("conv.weight", "fc.weight", "fc.bias"):  # which do not stay in RAM
        learner, trace = trained_on(kind, 0)
        learner.learn(last - 5)
        learner.run()
        for step in range(last, 4, -1):
            damage(learner.device, trace.replay(step)[name])
            with pytest.raises(StorageFailed):
                learner.infer(kind.sample(1))
            assert learner.state().step == step - 1
        weights = trace.replay(learner.state().step)
        found = learner.infer(kind.sample(1))
        assert np.array_equal(found, outputs_of(kind, weights, kind.sample(1))[0])


def test_a_lost_write_of_a_commit_costs_no_committed_step() -> None:
    kind, failures, lost = Kind(pages=True, every=3), 0, 1
    while True:
        learner, trace = trained_on(kind, 0)
        device = learner.device
        device.lose_at = device.changes + lost
        learner.learn(1)  # step 6 commits
        try:
            learner.run()
        except StorageFailed:
            failures += 1
            assert (learner.state().step, learner.state().saved_step) == (5, 5)
            learner.run()
        assert learner.state().saved_step == 6
        assert learner.weights() == trace.replay(6)
        if device.changes < device.lose_at:
            break
        lost += 1
    assert failures


def test_a_sample_is_not_older_than_a_commit_that_may_be_on_storage() -> None:
    """A save of two steps fails. Then a write that is lost undoes these steps."""
    kind = Kind(pages=True, every=4)
    device, trace = trained(kind, 0)
    image, undone = bytes(device.image), 0
    for access in range(20):
        learner = Learner(kind, Device(0, 0, image))
        device, now = learner.device, Trace(kind, [*trace.x], [*trace.taught])
        learner.learn(2)
        learner.run()
        device.fail_at = device.accesses + access
        with suppress(StorageFailed):
            learner.save()
        device.fail_at = None
        learner.learn(2)
        device.lose_at = device.changes + 1
        with suppress(StorageFailed):
            learner.run()
        undone += learner.state().step == 4
        now.teach(learner, 0)
        again = Learner(kind, Device(0, 0, bytes(device.image)))
        again.learn(2)
        again.run()
        assert again.weights() == now.replay(again.state().step), access
    assert undone > 3


@pytest.mark.parametrize("what", [0, SAMPLES])
@pytest.mark.parametrize("pages", [False, True])
def test_frozen_weights_that_were_half_forgotten_are_repaired(pages: bool, what: int) -> None:
    """Although the samples are forgotten next."""
    first, second = (Kind(pages=pages, train="last:1", start=it) for it in (1, 2))
    device, trace = trained(first, 0)
    whole = trace.replay(4), Trace(second).replay(0)
    failures = 0
    for access in range(500):
        learner = Learner(second, Device(0, 0, bytes(device.image)))
        learner.device.off_at = learner.device.accesses + access
        try:
            learner.forget(WEIGHTS)
            break
        except StorageFailed:
            failures += 1
            learner.device.off_at = None
        learner.forget(what)
        again = Learner(second, Device(0, 0, bytes(learner.device.image)))
        assert again.weights() in whole, access
    assert failures > 20
