"""A learner whose storage fails for a while: what a call refused is not found later."""

from collections.abc import Callable
from math import isnan

import pytest
from firmware.test_learner_power import STORAGES, trained
from support.learner_bench import (
    BLOCK,
    SAMPLES,
    WEIGHTS,
    Device,
    Kind,
    Learner,
    Refused,
    StorageFailed,
    blocks,
    stored,
)

CHANGES: dict[str, Callable[[Learner], object]] = {
    "teach": lambda it: it.teach(it.kind.sample(9), 0),
    "forget samples": lambda it: it.forget(SAMPLES),
    "forget weights": lambda it: it.forget(WEIGHTS),
    "forget both": lambda it: it.forget(SAMPLES | WEIGHTS),
    "write": lambda it: it.write(0, bytes(24 * it.kind.channels)),
}


def facts(learner: Learner) -> tuple[object, ...]:
    state = learner.state()
    return learner.weights(), state.step, state.samples, state.classes, state.next_step


def fails(learner: Learner, call: Callable[[Learner], object]) -> bool:
    try:
        call(learner)
    except StorageFailed:
        return True
    return False


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_what_an_outage_refused_is_not_found_later(kind: Kind, unit: int, what: str) -> None:
    """`off_at`: the storage fails from this access on, until the call has ended."""
    image, failures = bytes(trained(kind, unit)[0].image), 0
    for access in range(60):
        learner = Learner(kind, Device(0, unit, image))
        before = facts(learner)
        learner.device.off_at = learner.device.accesses + access
        if not fails(learner, CHANGES[what]):
            break
        failures += 1
        learner.device.off_at = None
        assert facts(learner) == before
        learner.learn(1)
        learner.run()
        learner.save()
        after = facts(learner)
        assert facts(Learner(kind, Device(0, unit, bytes(learner.device.image)))) == after
        assert after[1:3] == (5, before[2])
    assert failures > 1


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_samples_that_follow_an_outage_are_kept(kind: Kind, unit: int) -> None:
    image = bytes(trained(kind, unit)[0].image)
    for access in range(20):
        learner = Learner(kind, Device(0, unit, image))
        learner.device.off_at = learner.device.accesses + access
        if not fails(learner, CHANGES["forget samples"]):
            break
        learner.device.off_at = None
        assert learner.teach(kind.sample(9), 0)
        known = learner.state().samples
        again = Learner(kind, Device(0, unit, bytes(learner.device.image)))
        assert again.state().samples == known > 1


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_what_is_staged_outlives_an_access_that_fails(kind: Kind, unit: int) -> None:
    """An access of `forget`, and of the first write of another tensor."""
    names, image, failures = stored(kind), bytes(trained(kind, unit)[0].image), 0
    new = {it: bytes(kind.graph[it].size_bytes) for it in names[:2]}
    for call in (CHANGES["forget samples"], lambda it: it.write(1, new[names[1]])):
        for access in range(20):
            learner = Learner(kind, Device(0, unit, image))
            learner.write(0, new[names[0]])
            before = learner.weights()
            learner.device.fail_at = learner.device.accesses + access
            if not fails(learner, call):
                break
            failures += 1
            learner.call("adopt")
            assert learner.weights() == before | {names[0]: new[names[0]]}
    assert failures > 3


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_a_first_write_that_fails_does_not_stop_training(kind: Kind, unit: int) -> None:
    image, failures = bytes(trained(kind, unit)[0].image), 0
    for access in range(20):
        learner = Learner(kind, Device(0, unit, image))
        learner.device.fail_at = learner.device.accesses + access
        if not fails(learner, CHANGES["write"]):
            break
        failures += 1
        learner.learn(1)
        learner.run()
        learner.save()
        assert learner.state().saved_step == 5
    assert failures


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_an_outage_during_a_step_costs_no_more_than_the_step(kind: Kind, unit: int) -> None:
    for polls in range(1, 12):
        learner = Learner(kind, Device(0, unit, bytes(trained(kind, unit)[0].image)))
        learner.learn(2)
        for _ in range(polls):
            learner.poll()
        known = learner.state().samples
        learner.device.off_at = learner.device.accesses + 1  # the sample may be on storage
        assert fails(learner, CHANGES["teach"])
        fails(learner, lambda it: it.poll())
        learner.device.off_at = None
        learner.run()
        learner.infer(kind.sample(5))
        learner.save()
        state = learner.state()
        assert (state.step, state.saved_step, state.samples) == (6, 6, known)
        again = Learner(kind, Device(0, unit, bytes(learner.device.image)))
        assert (again.weights(), again.state().samples) == (learner.weights(), known)


def test_a_store_of_larger_units_says_that_the_storage_is_too_small() -> None:
    image = bytes(trained(Kind(), 8)[0].image)
    with pytest.raises(Refused, match="storage_small"):
        Learner(Kind(), Device(0, 8, image[: 16 * BLOCK]))


def test_nothing_is_erased_beyond_what_was_lent() -> None:
    device = Device(8, 8)
    device.record.blocks = 5
    learner = Learner(Kind(), device, open=False)
    with pytest.raises(Refused, match="storage_small"):
        learner.open()
    device.image[5 * BLOCK :] = other = b"other" * BLOCK
    with pytest.raises(Refused, match="storage_small"):
        learner.forget(SAMPLES | WEIGHTS)
    assert device.image[5 * BLOCK :] == other


def test_the_loss_is_not_that_of_steps_that_were_undone() -> None:
    kind = Kind(pages=True, every=4)
    undone = 0
    for access in range(0, 40, 3):
        learner = Learner(kind, Device(blocks(kind, 0)))
        learner.teach(kind.sample(1), 0)
        learner.learn(3)
        learner.run()
        assert not isnan(learner.state().loss)
        learner.learn(1)
        learner.device.fail_at = learner.device.accesses + access
        if not fails(learner, lambda it: it.run()):
            break
        state = learner.state()
        assert isnan(state.loss) == (state.step == 0)
        undone += isnan(state.loss)
    assert undone
