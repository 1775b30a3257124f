"""A learner whose power is cut at each write and erase, or whose storage fails once."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from support.learner_bench import (
    BLOCK,
    SAMPLES,
    WEIGHTS,
    Device,
    Kind,
    Learner,
    Refused,
    StorageFailed,
    Trace,
    blocks,
    stored,
)
from support.learner_life import Life, cut
from support.memory_board import SURVIVE

STORAGES = [
    pytest.param(Kind(), 0, id="no erase"),
    pytest.param(Kind(), 1, id="flash 1"),
    pytest.param(Kind(), 8, id="flash 8"),
    pytest.param(Kind(pages=True), 0, id="pages"),
    pytest.param(Kind(pages=True, every=3), 0, id="stays"),
]
CUT = [*STORAGES, pytest.param(Kind(pages=True, accumulate=3), 0, id="accumulates")]
SLOW = pytest.mark.slow
EVERY = 13  # in the quick tests, so many writes and erases from one cut to the next


def cuts(kind: Kind, unit: int, every: int, survive: str = "all") -> int:
    found = 1
    while cut(kind, unit, found, survive):
        found += every
    return found


@pytest.mark.parametrize(("kind", "unit"), CUT)
def test_a_power_cut_leaves_a_committed_step_and_whole_samples(kind: Kind, unit: int) -> None:
    assert cuts(kind, unit, EVERY) > 90


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "unit"), CUT)
def test_a_power_cut_at_each_write_and_erase(kind: Kind, unit: int) -> None:
    assert cuts(kind, unit, 1) >= 90


@pytest.mark.parametrize("survive", sorted(set(SURVIVE) - {"all"}))
@pytest.mark.parametrize("pages", [False, True])
def test_a_card_loses_what_it_was_not_asked_to_flush(pages: bool, survive: str) -> None:
    assert cuts(Kind(pages=pages), 0, 2 * EVERY, survive) > 100


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_second_cut_follows_soon(again: int) -> None:
    for cut_at in range(20, 200, 17):
        life = Life(Kind(), 1)
        device = life.device(cut_at)
        for _ in range(3):
            with pytest.raises(Refused):
                life.begin(device)
            life.power_is_cut()
            device = Device(0, 1, device.after_the_cut())
            device.cut_at = again
        device.cut_at = None
        life.begin(device)


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_an_access_that_fails_once_changes_nothing(kind: Kind, unit: int) -> None:
    life = Life(kind, unit)
    whole = life.device()
    life.begin(whole)
    for fail_at in range(3, whole.accesses, EVERY):
        life = Life(kind, unit)
        device = life.device()
        device.fail_at = fail_at
        with pytest.raises(Refused, match="storage_failed"):
            life.begin(device)
        life.unsure = []  # an error keeps no sample
        life.begin(device)  # opens again


def trained(kind: Kind, unit: int) -> tuple[Device, Trace]:
    device = Device(blocks(kind, unit), unit)
    learner, trace = Learner(kind, device), Trace(kind)
    for label in (0, 1, 2, 1):
        assert trace.teach(learner, label % kind.classes)
    learner.learn(4)
    learner.run()
    learner.save()
    return device, trace


def outcomes(
    kind: Kind, unit: int, change: Callable[[Learner], None], device: Device | None = None
) -> set[tuple[int, int, tuple[bytes, ...]]]:
    """Do something, with a cut at each write and erase. Return what the next start finds."""
    device = device or trained(kind, unit)[0]
    found = set()
    cut_at = 0
    ended = False
    while not ended:
        tried = Device(0, unit, bytes(device.image))
        learner = Learner(kind, tried)
        cut_at += 1
        tried.cut_at = tried.changes + cut_at
        try:
            change(learner)
            ended = True
        except StorageFailed:
            pass
        again = Learner(kind, Device(0, unit, tried.after_the_cut()))
        weights = tuple(again.weights().values())
        found.add((again.state().step, again.state().samples, weights))
    assert cut_at > 1
    return found


@pytest.mark.parametrize("what", [SAMPLES, WEIGHTS, SAMPLES | WEIGHTS])
@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_to_forget_is_done_or_not(kind: Kind, unit: int, what: int) -> None:
    _, trace = trained(kind, unit)
    old, new = (tuple(trace.replay(step).values()) for step in (4, 0))
    after = (4, 0 if what & SAMPLES else 4, new if what & WEIGHTS else old)
    found = outcomes(kind, unit, lambda it: it.forget(what))
    assert after in found
    assert found <= {(4, 4, old), after}  # a torn block may have a whole record


@pytest.mark.parametrize("what", [WEIGHTS, SAMPLES | WEIGHTS])
@pytest.mark.parametrize("pages", [False, True])
def test_frozen_weights_of_another_package_are_forgotten_or_not(pages: bool, what: int) -> None:
    first, second = (Kind(pages=pages, train="last:1", start=it) for it in (1, 2))
    device, trace = trained(first, 0)
    old, new = (tuple(it.values()) for it in (trace.replay(4), Trace(second).replay(0)))
    assert old[0] != new[0]  # frozen
    after = (4, 0 if what & SAMPLES else 4, new)
    found = outcomes(second, 0, lambda it: it.forget(what), device)
    assert after in found <= {(4, 4, old), after}  # a torn block may have a whole record


@pytest.mark.parametrize("pages", [False, True])
def test_frozen_weights_are_forgotten_later_if_an_access_fails(pages: bool) -> None:
    first, second = (Kind(pages=pages, train="last:1", start=it) for it in (1, 2))
    device, trace = trained(first, 0)
    old, new = (it.replay(step) for it, step in ((trace, 4), (Trace(second), 0)))
    found = []
    for fail_at in range(500):
        tried = Device(0, 0, bytes(device.image))
        learner = Learner(second, tried)
        tried.fail_at = tried.accesses + fail_at
        try:
            learner.forget(WEIGHTS)
            break
        except StorageFailed:
            found.append(Learner(second, Device(0, 0, bytes(tried.image))).weights())
        learner.forget(WEIGHTS)
        for it in (learner, Learner(second, Device(0, 0, bytes(tried.image)))):
            assert (it.weights(), it.state().step, it.state().samples) == (new, 4, 4)
            it.learn(1)
            it.run()
    assert old in found
    assert (new in found) == pages
    assert all(it in (old, new) for it in found)


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_a_sample_fits_the_steps_although_a_commit_failed(kind: Kind, unit: int) -> None:
    device, trace = trained(kind, unit)
    image = bytes(device.image)
    failures = 0
    for fail_at in range(200):
        tried = Device(0, unit, image)
        learner = Learner(kind, tried)
        now = Trace(kind, [*trace.x], [*trace.taught])
        learner.learn(3)
        tried.fail_at = tried.accesses + fail_at
        try:
            learner.run()
            learner.save()
            break
        except StorageFailed:
            failures += 1
        now.teach(learner, 0)
        again = Learner(kind, Device(0, unit, bytes(tried.image)))
        again.learn(4)
        again.run()
        assert again.weights() == now.replay(again.state().step), fail_at
    assert failures > 5


@pytest.mark.parametrize("go_on", [Learner.save, Learner.run])
@pytest.mark.parametrize("every", [1, 3])
def test_a_commit_is_whole_although_an_access_failed_before(
    every: int, go_on: Callable[[Learner], None]
) -> None:
    kind = Kind(pages=True, every=every)
    image = bytes(trained(kind, 0)[0].image)
    for polls in range(0, 100, 2):
        device = Device(0, 0, image)
        device.us_per_call = 1
        learner = Learner(kind, device)
        learner.learn(2 * every)
        learner.run()  # now not every commit is read back
        learner.learn(every)
        for _ in range(polls):
            learner.poll()
        device.fail_at = device.accesses
        with pytest.raises(StorageFailed):
            learner.teach(kind.sample(9), 0)
        with suppress(StorageFailed):
            go_on(learner)
        saved = learner.state().saved_step
        again = Learner(kind, Device(0, 0, bytes(device.image)))
        assert again.state().step == saved, polls


@pytest.mark.parametrize("what", [SAMPLES, WEIGHTS, SAMPLES | WEIGHTS])
@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_to_forget_changes_nothing_if_an_access_fails(kind: Kind, unit: int, what: int) -> None:
    device, trace = trained(kind, unit)
    failures = 0
    for fail_at in range(500):
        tried = Device(0, unit, bytes(device.image))
        learner = Learner(kind, tried)
        tried.fail_at = tried.accesses + fail_at
        try:
            learner.forget(what)
            break
        except StorageFailed:
            failures += 1
        for it in (learner, Learner(kind, Device(0, unit, bytes(tried.image)))):
            assert (it.state().samples, it.state().step) == (4, 4)
            assert it.weights() == trace.replay(4)
            it.learn(1)
            it.run()
            assert it.weights() == trace.replay(5)
    assert failures > 1


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_the_loss_is_that_of_the_last_step(kind: Kind, unit: int) -> None:
    device, _ = trained(kind, unit)
    learner = Learner(kind, device)
    loss = learner.state().loss
    assert loss > 0
    learner.write(0, bytes(len(learner.weights()[stored(kind)[0]])))
    for change in (lambda: learner.call("adopt"), lambda: learner.forget(WEIGHTS)):
        change()
        assert learner.state().loss == loss
        assert Learner(kind, Device(0, unit, bytes(device.image))).state().loss == loss


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_a_damaged_sample_is_left_out(kind: Kind, unit: int) -> None:
    device, trace = trained(kind, unit)
    damaged = bytearray(trace.x[3].tobytes())
    at = device.image.index(damaged)
    learner = Learner(kind, device)
    device.image[at] ^= 1
    learner.learn(30)
    with pytest.raises(StorageFailed):
        learner.run()
    learner.run()
    assert learner.state().step == 34
    assert learner.state().samples == Learner(kind, device).state().samples == 3


@pytest.mark.parametrize("pages", [False, True])
def test_a_sample_that_the_storage_lost_is_left_out(pages: bool) -> None:
    kind = Kind(pages=pages)
    device = Device(blocks(kind, 0))
    learner = Learner(kind, device)
    for number in range(kind.slots + 1):
        assert learner.teach(kind.sample(number), 0)
    learner.learn(1)
    learner.run()
    learner.save()
    device.lose_at = device.changes + 1
    assert learner.teach(kind.sample(9), 0)  # where the first one lies
    learner.learn(30)
    with pytest.raises(StorageFailed):
        learner.run()
    learner.run()
    assert learner.state().step == 31


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_to_adopt_is_done_or_not(kind: Kind, unit: int) -> None:
    _, trace = trained(kind, unit)
    names = stored(kind)
    old = trace.replay(4)
    new = {**old, names[0]: bytes(len(old[names[0]])), names[3]: b"\1" * len(old[names[3]])}

    def adopt(learner: Learner) -> None:
        for number in (3, 0):
            learner.write(number, new[names[number]])
        learner.call("adopt")

    found = outcomes(kind, unit, adopt)
    assert found == {(4, 4, tuple(old.values())), (4, 4, tuple(new.values()))}


WIDE = [
    pytest.param(replace(kind, channels=50), unit, id=it.id)
    for it in STORAGES[:4]
    for kind, unit in [it.values]
]


def staged(kind: Kind, unit: int) -> tuple[Learner, bytes]:
    """A learner to which the first 512 bytes of the first tensor were written, and the tensor."""
    content = np.random.default_rng(1).normal(0, 0.1, kind.channels * 6).astype("<f4").tobytes()
    learner = Learner(kind, trained(kind, unit)[0])
    learner.write(0, content[:BLOCK])
    return learner, content


@pytest.mark.parametrize(("kind", "unit"), WIDE)
def test_a_sample_that_is_taught_between_two_writes_loses_no_block(kind: Kind, unit: int) -> None:
    learner, content = staged(kind, unit)
    assert learner.teach(kind.sample(1), 0)
    learner.write(0, content[BLOCK:], BLOCK)
    learner.call("adopt")
    assert learner.weights()[stored(kind)[0]] == content


def check_that_it_must_be_written_again(learner: Learner, kind: Kind, content: bytes) -> None:
    with pytest.raises(Refused, match="out_of_order"):
        learner.call("adopt")
    learner.write(0, content)
    learner.call("adopt")
    assert learner.weights()[stored(kind)[0]] == content


@pytest.mark.parametrize(("kind", "unit"), WIDE)
def test_a_tensor_is_written_again_after_an_access_failed(kind: Kind, unit: int) -> None:
    failures = 0
    for fail_at in range(50):
        learner, content = staged(kind, unit)
        learner.device.fail_at = learner.device.accesses + fail_at
        try:
            learner.teach(kind.sample(1), 0)
            break
        except StorageFailed:
            failures += 1
        with pytest.raises(Refused, match="out_of_order"):
            learner.write(0, content[BLOCK:], BLOCK)
        check_that_it_must_be_written_again(learner, kind, content)
    assert failures > 1


@pytest.mark.parametrize(("kind", "unit"), WIDE)
def test_a_tensor_that_the_storage_lost_is_not_adopted(kind: Kind, unit: int) -> None:
    for lost in range(1, 3):
        learner, content = staged(kind, unit)
        learner.device.lose_at = learner.device.changes + lost
        with pytest.raises(StorageFailed):
            learner.write(0, content[BLOCK:], BLOCK)
        check_that_it_must_be_written_again(learner, kind, content)


CHANGES: dict[str, Callable[[Learner], object]] = {
    "adopt": lambda it: it.call("adopt"),
    "forget": lambda it: it.forget(WEIGHTS),
}


def fail_to_change(kind: Kind, unit: int, image: bytes, what: str, access: int) -> Learner | None:
    """A learner whose storage was off from an access of a change on, and is back again."""
    learner = Learner(kind, Device(0, unit, image))
    if what == "adopt":
        learner.write(0, bytes(24 * kind.channels))
    learner.device.off_at = learner.device.accesses + access
    try:
        CHANGES[what](learner)
    except StorageFailed:
        learner.device.off_at = None
        return learner
    return None


def train_and_save(learner: Learner) -> None:
    learner.forget(0)  # what is staged
    learner.learn(1)
    learner.run()
    learner.save()


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_after_a_change_that_failed_a_power_cut_leaves_weights(
    kind: Kind, unit: int, again: bool, what: str
) -> None:
    image = bytes(trained(kind, unit)[0].image)
    access = 0
    while fail_to_change(kind, unit, image, what, access):
        for cut_at in range(1, 20):
            learner = fail_to_change(kind, unit, image, what, access)
            assert learner is not None
            device = learner.device
            device.cut_at = device.changes + cut_at
            try:
                (CHANGES[what] if again else train_and_save)(learner)
                break
            except StorageFailed:
                Learner(kind, Device(0, unit, device.after_the_cut())).weights()
        access += 1 if unit else 3
    assert access > 20


LIVES = [
    *(it.values for it in STORAGES),
    (Kind(raw="float32", slots=1), 2),
    (Kind(raw="uint8", slots=2), 0),
    (Kind(autoencoder=True), 1),
    (Kind(train="last:1"), 1),
    (Kind(pages=True, train="last:1"), 0),
    (Kind(pages=True, every=2), 0),
]


def do_something(life: Life, learner: Learner, rng: random.Random) -> None:
    what = rng.random()
    if what < 0.12:
        life.teach(learner)
    elif what < 0.2:
        learner.learn(rng.randint(0, 4))
    elif what < 0.24:
        learner.save()
    elif what < 0.3:
        life.infer(learner)
    elif what < 0.33:
        life.check(learner)
    else:
        learner.poll(rng.choice((0, 0, 1, 50)))


@pytest.mark.parametrize("seed", [*range(9), *(pytest.param(i, marks=SLOW) for i in range(9, 60))])
def test_anything_in_any_order_with_failures_and_cuts(seed: int) -> None:
    rng = random.Random(seed)
    kind, unit = LIVES[seed % len(LIVES)]
    life = Life(kind, unit)
    device = life.device()
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.7:
            device.cut_at = rng.randint(1, 120)
        device.survive = SURVIVE[rng.choice([*SURVIVE])]
        device.us_per_call = rng.randint(0, 9)
        device.is_busy = lambda: rng.random() < 0.3
        try:
            learner = Learner(kind, device)
            life.check(learner)
            for _ in range(rng.randint(5, 150)):
                if rng.random() < 0.02:
                    device.fail_at = device.accesses + rng.randint(0, 30)
                if rng.random() < 0.02:
                    device.off_at = device.accesses + rng.randint(0, 30)
                try:
                    do_something(life, learner, rng)
                except StorageFailed:
                    if device.changes == device.cut_at:
                        raise
                    life.unsure = []  # an error keeps no sample
                    if rng.random() < 0.5:
                        device.off_at = None  # the outage is over
                life.saved = learner.state().saved_step
            device.off_at = None
            life.check(learner)
        except StorageFailed:
            life.power_is_cut()
        device = Device(0, unit, device.after_the_cut())
    life.check(Learner(kind, device))
