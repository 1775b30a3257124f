"""Samples that the host reads from a learner's storage."""

import struct
from pathlib import Path

import numpy as np
import pytest
from poet_host.card.weights import SavedWeights, load_weights, save_weights
from poet_host.data.taught import Taught, drawn
from poet_host.errors import BadInput
from poet_host.package.folder import write
from poet_host.package.stored import stored_samples
from support.command import Command
from support.learner_bench import (
    BATCH,
    BLOCK,
    SAMPLES,
    SEED,
    Device,
    Kind,
    Learner,
    Trace,
    blocks,
    packaged,
)

STORAGES = [(Kind(), 0), (Kind(), 1), (Kind(slots=2, raw="uint8"), 8), (Kind(pages=True), 0)]


def image(device: Device, path: Path) -> Path:
    path.write_bytes(device.image)
    return path


@pytest.mark.parametrize(("kind", "unit"), STORAGES)
def test_a_step_draws_from_stored_samples_what_the_device_draws(
    kind: Kind, unit: int, tmp_path: Path
) -> None:
    device = Device(blocks(kind, unit), unit)
    learner, trace = Learner(kind, device), Trace(kind)
    for number in range(17):
        while not trace.teach(learner, number % 3):
            learner.run()
        learner.learn(1)
        learner.run()
    learner.save()
    found = stored_samples(image(device, tmp_path / "image"), packaged(kind))
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
    table = bytearray(BLOCK)
    struct.pack_into("<BxxxBxxxII", table, 446 + 16, 0, 0xDA, first, own)
    table[510:] = b"\x55\xaa"
    device = Device(0, 8, bytes(table) + b"\xff" * (first + own - 1) * BLOCK)
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
        with pytest.raises(BadInput, match="has no samples of the package"):
            stored_samples(image(device, path), packaged(other))


def test_a_computer_continues_the_training_of_a_device(tmp_path: Path, poet_host: Command) -> None:
    kind, folder = Kind(), tmp_path / "small"
    write(packaged(kind), "c", folder)
    device = Device(blocks(kind, 8), 8)
    learner, trace = Learner(kind, device), Trace(kind)
    for number in range(9):
        assert trace.teach(learner, number % 3)
        learner.learn(1)
        learner.run()
    learner.save()
    weights, samples, after = (tmp_path / it for it in ("w.safetensors", "s.npz", "a.safetensors"))
    graph = kind.graph
    values = {
        name: np.frombuffer(content, "<f4").reshape(graph[name].shape)
        for name, content in learner.weights().items()
    }
    save_weights(weights, graph, SavedWeights(values, packaged(kind).weights.facts), 9)
    poet_host(
        "card", "read", folder, "--storage", image(device, tmp_path / "i.img"),
        "--samples", samples,
    )  # fmt: skip
    poet_host(
        "train", folder, "--port", "native", "--data", samples, "--from-samples", "--resume",
        "--load-weights", weights, "--steps", "20", "--save-weights", after,
    )  # fmt: skip
    learner.learn(11)
    learner.run()
    found = load_weights(after, graph)
    assert {name: found[name].tobytes() for name in learner.weights()} == learner.weights()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["card", "read", "DIR", "--samples", "s.npz"], "name it with --storage FILE"),
        (["train", "DIR", "--data", "s.npz", "--from-samples", "--augment", "flip", "--port",
          "native", "--save-weights", "w.safetensors"], "omit --normalize"),
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
    poet_host(*command).fails(2, words)
