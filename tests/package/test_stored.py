"""Weights and samples that the host reads from a learner's storage, or writes to it."""

import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import isa
from poet_host.card.weights import SavedWeights, load_weights, save_weights
from poet_host.data.classes import Classes
from poet_host.data.facts import NO_FACTS, DataFacts
from poet_host.data.normalization import NONE, Normalization
from poet_host.data.taught import Taught, drawn
from poet_host.errors import BadInput
from poet_host.graph.weights import Weights
from poet_host.package.folder import write
from poet_host.package.packaged import Packaged
from poet_host.package.sizes import most_storage_blocks, own_blocks
from poet_host.package.stored import LearnerStore, lay_out
from poet_host.package.trace import raw_samples
from poet_host.schedule.slots import DATA_BLOCK
from support.command import Command
from support.learner_bench import (
    BATCH,
    BLOCK,
    SAMPLES,
    SEED,
    Device,
    Kind,
    Learner,
    Refused,
    Trace,
    blocks,
    packaged,
    schedule,
    start,
    stored,
)

STORAGES = [(Kind(), 0), (Kind(), 1), (Kind(slots=2, raw="uint8"), 8), (Kind(pages=True), 0)]
CARD = -1  # instead of an erase unit: a card with the store of a host


def a_device(kind: Kind, unit: int) -> Device:
    if unit != CARD:
        return Device(blocks(kind, unit), unit)
    total = DATA_BLOCK + packaged(kind).schedule.model.data_blocks + own_blocks(packaged(kind), 1)
    record = isa.pack(
        "poet_store", magic=isa.constants()["POET_STORE_MAGIC"], version=3, total_blocks=total,
        identity=5,
    )[:-4]  # fmt: skip
    record += zlib.crc32(record).to_bytes(4, "little")
    return Device(0, 0, record.ljust(total * BLOCK, b"\0"))


def table_of(first: int, count: int) -> bytes:
    """Return the block of a partition table with one partition for a store."""
    table = bytearray(BLOCK)
    struct.pack_into("<BxxxBxxxII", table, 446 + 16, 0, 0xDA, first, count)
    return bytes(table[:510]) + b"\x55\xaa"


def stored_samples(path: Path, made: Packaged) -> dict[str, np.ndarray[Any, Any]]:
    with LearnerStore(path, made) as store:
        return store.samples()


def as_bytes(weights: Weights, kind: Kind) -> dict[str, bytes]:
    return {name: weights[name].tobytes() for name in stored(kind)}


def image(device: Device, path: Path) -> Path:
    path.write_bytes(device.image)
    return path


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *STORAGES,
        (Kind(pages=True, every=3), 0),
        (Kind(), CARD),
        (Kind(pages=True, train="last:1"), CARD),
        (Kind(train="last:1"), 8),
    ],
)
def test_a_step_draws_from_stored_samples_what_the_device_draws(
    kind: Kind, unit: int, tmp_path: Path
) -> None:
    device = a_device(kind, unit)
    learner, trace = Learner(kind, device), Trace(kind)
    for number in range(17):
        while not trace.teach(learner, number % 3):
            learner.run()
        learner.learn(1)
        learner.run()
    learner.save()
    with LearnerStore(image(device, tmp_path / "image"), packaged(kind)) as store:
        found = store.samples()
        assert (as_bytes(store.weights(), kind), store.committed_step) == (learner.weights(), 17)
    assert found["x"].dtype == packaged(kind).raw.dtype
    taught = [*map(Taught, found["y"].tolist(), found["next_step"].tolist())]
    for step in range(18, 60):
        ours = drawn(taught, SEED, step, BATCH, kind.slots)
        theirs = drawn(trace.taught, SEED, step, BATCH, kind.slots)
        assert ours
        assert theirs
        for i, j in zip(ours, theirs, strict=True):
            assert found["x"][i].tobytes() == trace.x[j].tobytes()
            assert found["y"][i] == trace.taught[j].label


def test_the_store_is_found_in_its_partition_and_may_be_empty(tmp_path: Path) -> None:
    kind, first = Kind(), 24
    own = blocks(kind, 8)
    device = Device(0, 8, table_of(first, own) + b"\xff" * (first + own - 1) * BLOCK)
    learner = Learner(kind, device)
    path = tmp_path / "image"
    assert len(stored_samples(image(device, path), packaged(kind))["x"]) == 0
    learner.teach(kind.sample(1), 2)
    assert stored_samples(image(device, path), packaged(kind))["y"].tolist() == [2]
    learner.forget(SAMPLES)
    assert len(stored_samples(image(device, path), packaged(kind))["x"]) == 0


def test_a_damaged_sample_is_left_out(tmp_path: Path) -> None:
    kind = Kind()
    device = Device(blocks(kind, 1), 1)
    learner = Learner(kind, device)
    for label in (0, 1):
        learner.teach(kind.sample(label), label)
    device.image[device.image.index(kind.sample(0).tobytes())] ^= 1
    found = stored_samples(image(device, tmp_path / "image"), packaged(kind))
    assert found["y"].tolist() == [1]
    assert np.array_equal(found["x"][0], kind.sample(1))


def test_another_store_than_that_of_the_package_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(4096))
    with pytest.raises(BadInput, match="has no store of a learner"):
        stored_samples(path, packaged(Kind()))
    device = Device(blocks(Kind(), 1), 1)
    Learner(Kind(), device)
    for other in (Kind(slots=2), Kind(raw="int8"), Kind(autoencoder=True)):
        with pytest.raises(BadInput, match="of the package"):
            stored_samples(image(device, path), packaged(other))


@pytest.mark.parametrize("unit", [0, 1, 8])
def test_a_package_that_keeps_another_number_of_samples_goes_on(unit: int, tmp_path: Path) -> None:
    """Its records lie where those of the first package lay."""
    kind, other, path = Kind(slots=9), Kind(slots=2), tmp_path / "image"
    device = Device(blocks(kind, unit) * (1 if unit else 2), unit)
    learner = Learner(kind, device)
    learner.teach(kind.sample(1), 1)
    learner.learn(3)
    learner.run()
    learner.save()
    for count in range(2):
        other, kind = kind, other
        again = Learner(kind, Device(0, unit, bytes(device.image)))
        device = again.device
        assert (again.state().step, again.state().samples) == (3, 0)
        again.teach(kind.sample(count), 2)
        with LearnerStore(image(device, path), packaged(kind)) as store:
            assert as_bytes(store.weights(), kind) == learner.weights()
            assert store.samples()["y"].tolist() == [2]
        with pytest.raises(BadInput, match="of the package"):
            stored_samples(path, packaged(other))


@pytest.mark.parametrize("kind", [Kind(), Kind(train="last:1")], ids=str)
def test_a_computer_continues_the_training_of_a_device(
    kind: Kind, tmp_path: Path, poet_host: Command
) -> None:
    folder = tmp_path / "small"
    write(packaged(kind), "c", folder)
    device = Device(blocks(kind, 8), 8)
    learner, trace = Learner(kind, device), Trace(kind)
    for number in range(9):
        assert trace.teach(learner, number % 3)
        learner.learn(1)
        learner.run()
    learner.save()
    weights, samples, after = (tmp_path / it for it in ("w.safetensors", "s.npz", "a.safetensors"))
    kept = image(device, tmp_path / "i.img")
    poet_host(
        "card", "read", folder, "--storage", kept, "--samples", samples, "--save-weights", weights
    )
    poet_host(
        "train", folder, "--port", "native", "--data", samples, "--from-samples", "--resume",
        "--load-weights", weights, "--steps", "20", "--save-weights", after,
    )  # fmt: skip
    learner.learn(11)
    learner.run()
    assert as_bytes(load_weights(after, kind.graph), kind) == learner.weights()

    # and the device continues with the weights, and one more sample of each class
    new = np.stack([kind.sample(50 + label) for label in range(3)])
    np.savez(samples, x=new, y=np.arange(3))
    done = poet_host(
        "card", "write", folder, "-o", kept, "--data", samples, "--load-weights", after, "--json"
    )
    assert done.json["samples"] == 12
    again = Learner(kind, Device(0, 8, kept.read_bytes()))
    assert (again.weights(), again.state().step) == (learner.weights(), 20)
    for label in range(3):
        assert learner.teach(new[label], label)
    for it in (learner, again):
        it.learn(5)
        it.run()
    assert again.weights() == learner.weights()


def test_weights_of_a_device_without_samples_move_to_another_package(
    tmp_path: Path, poet_host: Command
) -> None:
    old, new = Kind(), Kind(slots=9)
    for kind, name in ((old, "old"), (new, "new")):
        write(packaged(kind), "c", tmp_path / name)
    learner = Learner(old, Device(blocks(old, 8), 8))
    learner.teach(old.sample(1), 2)
    learner.learn(3)
    learner.run()
    learner.forget(SAMPLES)
    kept, weights = image(learner.device, tmp_path / "i.img"), tmp_path / "w.safetensors"
    reads = ("card", "read", tmp_path / "old", "--storage", kept, "--save-weights", weights)
    assert poet_host(*reads).code == 0
    writes = ("card", "write", tmp_path / "new", "-o", kept, "--erase-card", "--json")
    poet_host(*writes).fails(2, "--data", "--load-weights")
    assert poet_host(*writes, "--load-weights", weights).json["samples"] == 0
    again = Learner(new, Device(0, 0, kept.read_bytes()))
    assert (again.weights(), again.state().step) == (learner.weights(), 3)

    schedule(old).save(tmp_path / "old.poet")
    poet_host("card", "write", tmp_path / "old.poet", "-o", kept, "--load-weights", weights).fails(
        2, "--data"
    )


@pytest.mark.parametrize(
    "kind", [Kind(), Kind(pages=True), Kind(raw="uint8", slots=2), Kind(train="last:1")], ids=str
)
def test_a_host_makes_the_storage_of_a_new_device(
    kind: Kind, tmp_path: Path, poet_host: Command
) -> None:
    write(packaged(kind), "c", tmp_path / "small")
    trace = Trace(kind)
    for number in range(14):
        trace.x.append(kind.sample(number))
        trace.taught.append(Taught(number % 3, 1))
    data, made = tmp_path / "data.npz", tmp_path / "new.img"
    np.savez(data, x=np.stack(trace.x), y=[it.label for it in trace.taught])
    words = ("card", "write", tmp_path / "small", "--data", data, "-o", made)
    poet_host("storage", "prepare", made)  # not yet the storage of a learner
    refused = poet_host(*words)
    refused.fails(2, made)
    before = made.read_bytes()
    assert poet_host(*words, *re.findall(r"--erase-card", refused.err)).code == 0
    assert made.read_bytes()[:BLOCK] == before[:BLOCK]  # the partition table stays
    assert len(made.read_bytes()) == len(before)
    learner = Learner(kind, Device(0, 0, made.read_bytes()))
    assert learner.state().samples == 3 * kind.slots
    learner.learn(7)
    learner.run()
    assert learner.weights() == trace.replay(7)


def test_a_cut_while_a_new_device_forgets_its_samples_hides_none(tmp_path: Path) -> None:
    kind, made = Kind(), tmp_path / "new.img"
    write(packaged(kind), "c", tmp_path / "small")
    data = np.stack([kind.sample(number) for number in range(3)]), np.arange(3)
    assert poet.write_learner(made, tmp_path / "small", data) == 3
    device = Device(0, 0, made.read_bytes())
    learner = Learner(kind, device)
    device.cut_at = device.changes + 1
    device.survive = lambda count: [-1]  # half of the record
    with pytest.raises(Refused):
        learner.forget(SAMPLES)
    device = Device(0, 0, device.after_the_cut())
    for _ in range(2):
        assert Learner(kind, device).state().samples == 3
        device = Device(0, 0, bytes(device.image))


def test_samples_for_a_device_whose_first_start_was_cut_are_kept(tmp_path: Path) -> None:
    kind, path, found = Kind(), tmp_path / "i.img", 0
    write(packaged(kind), "c", tmp_path / "small")
    data = np.stack([kind.sample(number) for number in range(3)]), np.arange(3)
    for cut_at in range(1, 100):
        device = Device(blocks(kind, 8), 8)
        device.cut_at = cut_at
        try:
            Learner(kind, device)
        except Refused:
            path.write_bytes(device.after_the_cut())
        else:
            break
        try:
            poet.write_learner(path, tmp_path / "small", data)
        except BadInput:  # the store does not exist yet
            continue
        found += 1
        assert Learner(kind, Device(0, 8, path.read_bytes())).state().samples == 3
    assert found


def test_weights_are_not_written_next_to_samples_of_another_package(tmp_path: Path) -> None:
    kind, path = Kind(), tmp_path / "i.img"
    lay_out(path, packaged(kind))
    before = path.read_bytes()
    other = packaged(replace(kind, slots=kind.slots + 1))
    with (
        LearnerStore(path, other, writable=True) as store,
        pytest.raises(BadInput, match="samples"),
    ):
        store.put_weights(other.weights, 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("normalization", [None, NONE], ids=str)
def test_weights_that_normalise_nothing_fit_a_package_without_normalisation(
    normalization: Normalization | None, tmp_path: Path
) -> None:
    """They may come from another program, which states no step: then the device's own goes on."""
    made = replace(packaged(Kind()), weights=SavedWeights(start(Kind()), NO_FACTS))
    write(made, "c", tmp_path / "small")
    weights, image_path = tmp_path / "w.safetensors", tmp_path / "new.img"
    facts = DataFacts(normalization=normalization)
    save_weights(weights, made.schedule.graph, SavedWeights(start(Kind()), facts))
    data = np.stack([Kind().sample(0)]), np.zeros(1, int)
    assert poet.write_learner(image_path, tmp_path / "small", data, weights) == 1
    assert poet.read_learner(image_path, tmp_path / "small")[1] == 0


def named(kind: Kind, *classes: str) -> SavedWeights:
    return SavedWeights(start(kind), DataFacts(Classes(classes), kind.normalization))


def written(made: Packaged, tmp_path: Path, data: Any, weights: Any = None) -> int:
    write(made, "c", tmp_path / "small")
    return poet.write_learner(tmp_path / "new.img", tmp_path / "small", data, weights)


def ignoring(number: int) -> poet.Schedule:
    """A schedule of the same model, whose loss ignores a label."""
    graph = replace(Kind().graph, criterion=f"cross-entropy:ignore_index={number}")
    return poet.encode(
        graph, poet.solve(poet.problem(graph, "native", storage=False), work_limit=500)
    )


def test_an_autoencoder_is_taught_its_samples_again(tmp_path: Path, poet_host: Command) -> None:
    kind, samples = Kind(autoencoder=True, raw="float32"), tmp_path / "s.npz"
    folder, old, new = (tmp_path / name for name in ("small", "new.img", "moved.img"))
    x = np.stack([kind.sample(number).reshape(12) for number in range(3)])
    assert written(packaged(kind), tmp_path, {"x": x}) == 3
    assert poet.save_samples(old, folder, samples) == 3
    words = ("card", "write", folder, "-o", new, "--data", samples, "--json")
    done = poet_host(*words)
    assert done.json.get("samples") == 3, done
    with LearnerStore(new, packaged(kind)) as store:
        np.testing.assert_array_equal(store.samples()["x"], x)


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        (["a", "b"], [], "write labels as numbers"),
        ([0, 255], [], "ignores some of the labels"),
        ([0, 255], ["a", "b", "c"], "ignores some of the labels"),
        (["a", "d"], ["a", "b", "c"], "d"),
    ],
)
def test_labels_that_a_device_cannot_be_taught_are_refused(
    labels: list[Any], names: list[str], words: str, tmp_path: Path
) -> None:
    kind = Kind()
    made = replace(packaged(kind), schedule=ignoring(255), weights=named(kind, *names))
    classes = tuple(sorted(set(labels))) if isinstance(labels[0], str) else ()
    y = np.array([classes.index(it) for it in labels] if classes else labels)
    data = poet.Dataset("d", np.stack([kind.sample(0)] * 2), y, classes=Classes(classes))
    with pytest.raises(BadInput, match=words):
        raw_samples(data, made, made.weights.classes)


def test_a_loss_that_ignores_a_class_makes_no_package() -> None:
    with pytest.raises(BadInput, match="ignores class 1"):
        replace(packaged(Kind()), schedule=ignoring(1))


def test_weights_for_a_device_are_checked_and_completed(tmp_path: Path) -> None:
    """Tensors that are not given are those of the package, and not zeros."""
    kind = Kind()
    made = replace(packaged(kind), weights=named(kind, "a", "b", "c"))
    data = np.stack([kind.sample(0)]), np.zeros(1, int)
    name, value = next((it, v) for it, v in start(kind).items() if ":" not in it)
    one = {name: value + 1}
    assert written(made, tmp_path, data, one) == 1
    stored, _ = poet.read_learner(tmp_path / "new.img", tmp_path / "small")
    assert as_bytes(stored, kind) == as_bytes({**start(kind), **one}, kind)
    for wrong, words in (
        ({"wrong": value}, "no parameter wrong"),
        ({name: value[:1]}, "shape"),
        ({name: value * np.nan}, "holds NaN"),
        (named(kind, "c", "b", "a"), "has a, b, c"),
    ):
        with pytest.raises(BadInput, match=words):
            written(made, tmp_path, data, wrong)


def test_the_weights_of_a_device_number_the_classes_of_its_samples(tmp_path: Path) -> None:
    kind = Kind()
    made = replace(packaged(kind), weights=SavedWeights(start(kind), NO_FACTS))
    facts = DataFacts(Classes(("stop", "go", "left")), NONE)
    x, words = np.stack([kind.sample(number) for number in range(3)]), ("go", "left", "stop")
    data = poet.Dataset("d", x, np.arange(3), classes=Classes(words))
    written(made, tmp_path, data, SavedWeights(start(kind), facts))
    found = stored_samples(tmp_path / "new.img", made)
    numbers = {x.tobytes(): label for x, label in zip(found["x"], found["y"], strict=True)}
    assert [numbers[kind.sample(number).tobytes()] for number in range(3)] == [1, 2, 0]


@pytest.mark.parametrize("board", ["native", "sim:mkr1000"])
def test_a_board_reads_and_fills_the_card_of_a_device(
    board: str, tmp_path: Path, poet_host: Command
) -> None:
    kind, folder, first = Kind(), tmp_path / "small", 64
    write(packaged(kind), "c", folder)
    lent = most_storage_blocks(packaged(kind))
    made = tmp_path / "card.img"
    made.write_bytes(table_of(first, lent).ljust(1 << 20, b"\0"))
    weights, samples = tmp_path / "w.safetensors", tmp_path / "s.npz"
    x = np.stack([kind.sample(number) for number in range(4)])
    np.savez(samples, x=x, y=[0, 1, 2, 0])
    port = ("--port", board, "--storage", made)
    poet_host("card", "read", folder, *port).fails(2, "no store of a learner")
    writes = ("card", "write", folder, *port, "--data", samples)
    poet_host(*writes).fails(2, "no store of a learner")
    assert poet_host(*writes, "--erase-card", "--json").json == {"file": None, "samples": 4}

    device = Device(0, 0, made.read_bytes())
    learner = Learner(kind, device)
    learner.learn(7)
    learner.run()
    learner.save()
    made.write_bytes(device.image)
    poet_host("card", "read", folder, *port, "--samples", samples, "--save-weights", weights)
    assert as_bytes(load_weights(weights, kind.graph), kind) == learner.weights()
    with np.load(samples) as found:
        assert sorted(map(bytes, found["x"])) == sorted(map(bytes, x))

    assert poet_host(*writes, "--load-weights", weights, "--json").json["samples"] == 8
    again = Learner(kind, Device(0, 0, made.read_bytes()))
    assert (again.weights(), again.state().step) == (learner.weights(), 7)
    assert made.read_bytes()[: first * BLOCK] == device.image[: first * BLOCK]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["card", "read", "DIR", "--samples", "s.npz"], "--storage FILE"),
        (["card", "read", "DIR", "--storage", "a.img", "--log", "a.jsonl"], "omit"),
        (["card", "read", "DIR", "--port", "native"], "--storage"),
        (["card", "write", "DIR", "--data", "digits", "--port", "native"], "--storage"),
        (["card", "write", "DIR", "--data", "digits", "-o", "a.img", "--steps", "3"], "omit"),
        (["card", "write", "DIR", "--data", "digits", "-o", "a.img", "--no-shuffle"], "omit"),
        (["card", "write", "DIR", "--data", "digits", "-o", "a.img", "--seed", "7"], "omit"),
        (["card", "write", "DIR", "--data", "half.npz", "-o", "a.img"], "not raw ones of int16"),
        (["train", "DIR", "--data", "s.npz", "--from-samples", "--augment", "flip", "--port",
          "native", "--save-weights", "w.safetensors"], "omit --normalize"),
        (["train", "DIR", "--data", "s.npz", "--from-samples", "--no-shuffle", "--port",
          "native", "--save-weights", "w.safetensors"], "--no-shuffle"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_samples_are_refused(
    command: list[str],
    words: str,
    tmp_path: Path,
    poet_host: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(packaged(Kind()), "c", tmp_path / "DIR")
    np.savez("half.npz", x=np.full((2, 2, 1, 6), 0.5), y=np.zeros(2, int))
    poet_host(*command).fails(2, words)
    assert not Path("a.img").exists()
