"""Each error of a learner changes nothing."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poet_host import isa
from poet_host.resources import resource
from support.float_modes import MODES, PROCESSOR, USUAL, mode_setter
from support.learner_bench import (
    BLOCK,
    BUSY,
    SAMPLES,
    WEIGHTS,
    Device,
    Kind,
    Learner,
    Refused,
    Trace,
    blocks,
    library,
    package,
    stored,
)

HEADER = resource("firmware/include/poet/learner.h")
STATE = ("step", "saved_step", "next_step", "wanted", "samples", "classes", "busy")


# The highest byte of the bytes of the arena, and of the first weight: its bit 6.
LARGE = {"model": [(32 + 2 * 12 + 3, 64)], "plan": [(12 + 3, 255)]}


def refused(name: str, call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with pytest.raises(Refused) as found:
        call(*arguments, **named)
    assert found.value.name == name


def facts(learner: Learner) -> tuple[Any, ...]:
    return tuple(getattr(learner.state(), it) for it in STATE), learner.weights()


def trained(kind: Kind | None = None, unit: int | None = 1, steps: int = 3) -> Learner:
    kind = kind or Kind()
    storage = None if unit is None else Device(blocks(kind, unit), unit)
    learner = Learner(kind, storage)
    for number in range(6):
        assert learner.teach(kind.sample(number), number % kind.classes)
    learner.learn(steps)
    learner.run()
    return learner


def calls(learner: Learner) -> dict[str, Callable[[], object]]:
    """Each function but open."""
    sample = learner.kind.sample(1)
    return {
        "infer": lambda: learner.infer(sample),
        "teach": lambda: learner.call("teach", learner.raw(sample), 0),
        "learn": lambda: learner.call("learn", 1),
        "poll": lambda: learner.call("poll", 0),
        "save": lambda: learner.call("save"),
        "state": learner.state,
        "read": lambda: learner.call("read", 0, 0, learner.ffi.new("uint8_t[4]"), 4),
        "write": lambda: learner.call("write", 0, 0, learner.ffi.new("uint8_t[4]"), 4),
        "adopt": lambda: learner.call("adopt"),
        "forget": lambda: learner.call("forget", SAMPLES | WEIGHTS),
    }


def test_a_learner_that_was_not_opened_is_closed() -> None:
    learner = Learner(Kind(), open=False)
    for call in calls(learner).values():
        refused("closed", call)


def test_memory_must_be_aligned_and_large_enough() -> None:
    learner = Learner(Kind(), open=False)
    for how in ({"offset": 4, "fewer": 4}, {"fewer": 8}, {"fewer": learner.bytes_}):
        before = bytes(learner.ffi.buffer(learner._memory))
        refused("memory", learner.open, **how)
        assert bytes(learner.ffi.buffer(learner._memory)) == before
        for call in calls(learner).values():
            refused("closed", call)
    learner.open()


@pytest.mark.parametrize("unit", [None, 8])
def test_a_damaged_package_is_refused(unit: int | None) -> None:
    kind = Kind()
    whole = package(kind)
    record = library()[0].new("struct poet_package *", whole.record[0])
    storage = None if unit is None else Device(blocks(kind, unit), unit)
    learner = Learner(kind, storage, open=False)
    learner.package = type(whole)(record=record)
    fields: dict[str, Any] = {
        "magic": 0, "classes": 0, "slots": 0, "batch": 0, "channels": 5, "raw": 4, "values_crc": 1
    }  # fmt: skip
    fields |= {"slots": 65_535, "sample_values": 1 << 30}
    for name, wrong in fields.items():
        right = getattr(record, name)
        setattr(record, name, wrong)
        refused("package", learner.open)
        setattr(record, name, right)
    parts = [(record.training, "model"), (record.training, "plan"), (record.forward, "plan")]
    for program, part in parts:
        content = getattr(program, part)
        content = library()[0].cast("uint8_t *", content)
        size = getattr(program, f"{part}_bytes")
        for at, mask in [*((it, 1) for it in range(0, size, 37)), *LARGE[part]]:
            content[at] ^= mask
            refused("package", learner.open)
            refused("closed", learner.forget, SAMPLES | WEIGHTS)
            content[at] ^= mask
    learner.open()
    assert learner.weights() == Trace(kind).replay(0)


def test_too_few_blocks_are_refused() -> None:
    for unit in (0, 1, 8):
        kind = Kind()
        learner = Learner(kind, Device(blocks(kind, unit) - 1, unit), open=False)
        refused("storage_small", learner.open)
        assert not learner.device.changes


def test_a_layout_that_is_too_large_stays_until_it_is_forgotten() -> None:
    """Without an erase, the units of the storage depend on the blocks that were lent first."""
    kind, needed = Kind(), blocks(Kind(), 0)
    first = Learner(kind, Device(2 * needed, 0))
    learner = Learner(kind, Device(0, 0, bytes(first.device.image[: needed * BLOCK])), open=False)
    refused("storage_small", learner.open)
    learner.forget(SAMPLES | WEIGHTS)
    learner.open()
    assert learner.weights() == Trace(kind).replay(0)


def partitioned(first: int, count: int, image: bytes) -> Device:
    """A storage with a table of one partition for a store, and `image` in it."""
    table = struct.pack("<BxxxBxxxII", 0, 0xDA, first, count).rjust(446 + 16, b"\0")
    return Device(0, 8, table.ljust(BLOCK - 2, b"\0") + b"\x55\xaa" + image)


def test_a_storage_whose_first_read_failed_can_be_made_blank() -> None:
    """A partition table that could not be read stays."""
    kind, first, count = Kind(), 8, blocks(Kind(), 8)
    for storage in (
        partitioned(first, count, b"foreign".ljust((first - 1 + count) * BLOCK)),
        Device(0, 8, b"foreign".ljust(count * BLOCK)),
    ):
        table = bytes(storage.image[: 8 * BLOCK])
        storage.fail_at = 0
        learner = Learner(kind, storage, open=False)
        refused("storage_failed", learner.open)
        storage.fail_at = storage.accesses  # it fails again
        refused("storage_failed", learner.forget, SAMPLES | WEIGHTS)
        refused("closed", learner.forget, SAMPLES)
        assert not storage.changes
        learner.forget(SAMPLES | WEIGHTS)
        learner.open()
        assert learner.weights() == Trace(kind).replay(0)
        has_table = table.endswith(b"\xaa", 0, BLOCK)
        assert (storage.image[: 8 * BLOCK] == table) == has_table


def test_a_partition_that_ends_beyond_the_storage_cannot_be_made_blank() -> None:
    storage = partitioned(8, 1 << 20, b"\xff" * blocks(Kind(), 8) * BLOCK)
    learner = Learner(Kind(), storage, open=False)
    refused("storage_small", learner.open)
    refused("storage_small", learner.forget, SAMPLES | WEIGHTS)
    assert not storage.changes


def test_an_erase_unit_without_a_function_that_erases_is_refused() -> None:
    storage = Device(blocks(Kind(), 8), 8)
    storage.record.erase = library()[0].NULL
    learner = Learner(Kind(), storage, open=False)
    refused("storage_failed", learner.open)
    refused("closed", learner.forget, SAMPLES | WEIGHTS)


def test_foreign_contents_stay_until_they_are_forgotten() -> None:
    kind = Kind()
    for unit in (0, 1, 8):
        storage = Device(blocks(kind, unit), unit)
        storage.image[:BLOCK] = b"somebody's own".ljust(BLOCK)
        before = bytes(storage.image)
        learner = Learner(kind, storage, open=False)
        refused("not_blank", learner.open)
        for name, call in calls(learner).items():
            if name != "forget":
                refused("closed", call)
        refused("closed", learner.forget, SAMPLES)
        assert bytes(storage.image) == before
        learner.forget(SAMPLES | WEIGHTS)
        learner.open()
        assert learner.weights() == Trace(kind).replay(0)


@pytest.mark.parametrize("unit", [0, 1, 8])
def test_weights_of_another_model_stay_until_they_are_forgotten(unit: int) -> None:
    kind = Kind(autoencoder=True)
    learner = trained(unit=unit)
    learner.save()
    before = bytes(learner.device.image)
    other = Learner(kind, learner.device, open=False)
    refused("other_model", other.open)
    assert bytes(learner.device.image) == before
    other.forget(SAMPLES | WEIGHTS)
    other.open()
    assert other.weights() == Trace(kind).replay(0)
    assert other.state().samples == 0


@pytest.mark.parametrize(("unit", "function"), [(0, "write"), (1, "erase")])
def test_an_error_of_the_storage_has_one_name_whatever_its_number(unit: int, function: str) -> None:
    storage = Device(blocks(Kind(), unit), unit)
    storage.image[:BLOCK] = b"somebody's own".ljust(BLOCK)
    learner = Learner(Kind(), storage, open=False)
    refused("not_blank", learner.open)
    ffi, _ = library()
    kind = ffi.typeof(getattr(storage.record, function))
    failing = ffi.callback(kind, lambda *_: -5)
    setattr(storage.record, function, failing)
    refused("storage_failed", learner.forget, SAMPLES | WEIGHTS)


@pytest.mark.parametrize("pages", [False, True])
def test_numbers_that_are_not_finite_are_not_adopted(pages: bool) -> None:
    learner = trained(Kind(pages=pages), 0)
    learner.save()
    before = facts(learner)
    size = len(before[1][stored(learner.kind)[0]])
    learner.write(0, np.array([1, np.nan] * (size // 8), "<f4").tobytes())
    refused("not_finite", learner.call, "adopt")
    assert facts(learner) == before
    learner.write(0, bytes(size))
    learner.call("adopt")
    learner.learn(1)
    learner.run()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_sample_must_be_finite(value: float) -> None:
    learner = trained(Kind(raw="float32"))
    sample = learner.kind.sample(1)
    sample[1, 0, 5] = value
    before = facts(learner)
    if value < 3e38 or not np.isfinite(value):
        refused("bad_sample", learner.teach, sample, 0)
        refused("bad_sample", learner.infer, sample)
    assert facts(learner) == before


def test_a_label_must_be_a_class() -> None:
    learner = trained()
    before = facts(learner)
    for label in (3, 2**32 - 1):
        refused("bad_label", learner.teach, learner.kind.sample(1), label)
    auto = trained(Kind(autoencoder=True))
    refused("bad_label", auto.teach, auto.kind.sample(1), 1)
    assert facts(learner) == before


def test_a_call_from_a_callback_is_refused() -> None:
    learner, other = trained(), trained()
    before = facts(learner)
    found = []

    def inside() -> None:
        learner.device.inside = lambda: None
        for call in [learner.open, *calls(learner).values()]:
            code = 0
            taken, learner.device.bus_taken = learner.device.bus_taken, 0
            try:
                call()
            except Refused as error:
                code = 1
                found.append(error.name)
            learner.device.bus_taken = taken
            assert code
        other.poll()  # another learner

    learner.device.inside = inside
    learner.save()
    assert found == ["reentered"] * 11
    assert facts(learner)[1] == before[1]


def test_what_needs_storage_is_refused_without() -> None:
    learner = trained(unit=None)
    before = facts(learner)
    refused("no_storage", learner.save)
    refused("no_storage", learner.write, 0, b"1234")
    assert facts(learner) == before
    refused("no_storage", Learner, Kind(pages=True))
    flash = Device(blocks(Kind(pages=True), 8), 8)
    refused("no_storage", Learner, Kind(pages=True), flash)  # pages do not suit it
    assert not flash.changes


@pytest.mark.parametrize(("pages", "unit"), [(False, None), (False, 1), (True, 0)])
def test_training_that_diverges_goes_back_to_the_last_commit(pages: bool, unit: int | None) -> None:
    kind = Kind(pages=pages, learning_rate=1e20)
    learner = trained(kind, unit, steps=0)
    if unit is not None:
        learner.save()
    learner.learn(9)
    with pytest.raises(Refused, match="not_finite"):
        learner.run()
    state = learner.state()
    assert (state.wanted, state.busy) == (0, False)
    weights = learner.weights()
    if unit is None:
        assert weights == Trace(kind).replay(0)
    else:
        assert state.step == state.saved_step
        assert weights == Learner(kind, learner.device).weights()
    assert learner.poll() == 0


def first_error(learner: Learner) -> tuple[str, int]:
    """Poll until there is one. Return it, and how many accesses there were before that poll."""
    while True:
        accesses = learner.device.accesses
        try:
            learner.poll()
        except Refused as error:
            return error.name, accesses


@pytest.mark.parametrize("call", ["save", "forget", "write"])
@pytest.mark.parametrize("unit", [0, 1])
def test_weights_that_could_not_be_restored_are_restored_later(unit: int, call: str) -> None:
    at = None
    for expected in ("not_finite", "storage_failed"):
        learner = trained(Kind(learning_rate=1e20), unit, steps=0)
        learner.learn(9)
        learner.device.fail_at = at  # the first access that restores the weights
        error, at = first_error(learner)
        assert error == expected
    assert calls(learner)[call]() == 0
    assert learner.weights() == Trace(learner.kind).replay(0)


def test_a_learner_without_storage_goes_on_after_training_diverged() -> None:
    learner = trained(Kind(slots=1, learning_rate=1e20), None, steps=0)
    learner.learn(9)

    def go_on() -> None:
        while True:
            learner.poll()
            for label in range(3):
                learner.teach(learner.kind.sample(9), label)

    refused("not_finite", go_on)
    assert learner.weights() == Trace(learner.kind).replay(0)
    step = learner.state().step
    learner.learn(1)
    assert learner.poll() == BUSY
    learner.run()
    assert learner.state().step == step + 1


@pytest.mark.skipif("sse2" not in PROCESSOR, reason="the processor has another register of modes")
@pytest.mark.parametrize("mode", MODES)
def test_a_processor_that_changes_results_is_refused(mode: int, tmp_path: Path) -> None:
    set_mode = mode_setter(tmp_path)
    learner = trained()
    before = facts(learner)
    learner.learn(1)
    refusals = []
    for call in (learner.run, lambda: learner.infer(learner.kind.sample(1)), learner.open):
        set_mode(USUAL | mode)
        try:
            call()
        except Refused as error:
            refusals.append(error.name)
        finally:
            set_mode(USUAL)
        if call != learner.open:
            learner.learn(0)
            assert facts(learner) == before
            learner.learn(1)
    assert refusals == ["inexact"] * 3
    learner.open()


def test_steps_and_saves_wait_until_tensors_are_adopted() -> None:
    learner = trained()
    names = stored(learner.kind)
    size = len(learner.weights()[names[0]])
    refused("out_of_order", learner.write, 0, b"1234", 4)
    learner.write(0, bytes(size - 4))
    learner.learn(1)
    refused("staged", learner.poll)
    refused("staged", learner.save)
    refused("out_of_order", learner.call, "adopt")
    refused("out_of_order", learner.write, 0, b"1234", 4)
    refused("bad_object", learner.write, 0, bytes(8), size - 4)
    refused("bad_object", learner.write, len(names), b"1234")
    refused("bad_object", learner.read, len(names), 4)
    refused("bad_object", learner.read, 0, size + 1)
    refused("bad_object", learner.read, 0, 2, size - 1)
    refused("out_of_order", learner.write, 1, b"1234")  # the first tensor is not complete
    learner.write(0, bytes(size))
    learner.write(0, b"")
    learner.call("adopt")
    assert learner.weights()[names[0]] == bytes(size)
    learner.run()


def test_a_busy_bus_changes_nothing() -> None:
    learner = trained()
    learner.poll()
    before = facts(learner)
    accesses, learner.device.busy_bus = learner.device.accesses, True
    for name, call in calls(learner).items():
        if name not in ("infer", "learn", "state"):
            assert call() == BUSY, name
    learner.open()
    closed = Learner(Kind(), Device(blocks(Kind(), 1), 1), open=False)
    closed.device.busy_bus = True
    closed.open()
    refused("closed", closed.save)
    assert learner.device.accesses == accesses
    learner.device.busy_bus = False
    assert facts(learner) == before


def test_each_result_has_a_sentence() -> None:
    ffi, lib = library()
    results = {BUSY: "BUSY", **{code: row.name for code, row in isa.by_code("ERROR").items()}}
    known = re.findall(r"\bPOET_ERROR_(\w+) = -\d+(?:,|)\s*/\*", HEADER.read_text())
    texts = {
        name: ffi.string(lib.poet_learner_text(code)).decode() for code, name in results.items()
    }
    assert len({texts[name] for name in ["ok", "BUSY", *known]}) == len(known) + 2
    assert texts["stopped"] == ffi.string(lib.poet_learner_text(99)).decode()
    assert all(text[0].isupper() and text.endswith(".") for text in texts.values())


def test_the_header_lists_the_errors_of_the_table() -> None:
    listed = re.findall(r"\bPOET_ERROR_(\w+) = (-?\d+)", HEADER.read_text())
    assert listed == [(row.name, str(code)) for code, row in isa.by_code("ERROR").items()]
