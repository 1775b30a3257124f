"""Folders of images and sounds, and what training draws from samples."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import soundfile
from PIL import Image
from poet_host.api.inputs import fitted as as_fitted
from poet_host.card.weights import SavedWeights, load_weights
from poet_host.data.augment import augmentation_of
from poet_host.data.classes import Classes
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.facts import NO_FACTS, DataFacts
from poet_host.data.fitted import FittedData, adapted, batch_of_step, fit, samples_of_steps
from poet_host.data.normalization import Normalization
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from support import whole_runs as runs
from support.command import Command, Result

COLOURS = {"cat": (255, 0, 0), "dog": (0, 0, 255)}
RATE_HZ = 8000


def classifier(*shape: int, classes: int = 2, batch: int = 2) -> Graph:
    b = Builder("tiny", (batch, *shape))
    loss = b.softmax_xent(b.linear(b.flatten(b.data), classes))
    return training_graph(b.model(loss), Sgd(0.1))


def autoencoder(*shape: int) -> Graph:
    b = Builder("same", (2, *shape))
    return training_graph(b.model(b.mse(b.conv2d(b.data, shape[0], 1))), Sgd(0.1))


def images(path: Path, *halves: str, suffix: str = ".png", count: int = 3) -> Path:
    for half in halves or ("",):
        for name, colour in COLOURS.items():
            folder = path / half / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (6, 10), colour).save(folder / f"{i}{suffix}")
    return path


def sound(path: Path, hertz: float, seconds: float = 1.0, rate_hz: int = RATE_HZ) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    soundfile.write(path, np.sin(2 * np.pi * hertz * time_s) / 2, rate_hz)
    return path


@pytest.mark.parametrize(("halves", "held"), [((), False), (("train", "test"), True),
                                              (("train", "val"), True)])  # fmt: skip
def test_the_folder_of_an_image_is_its_class(
    tmp_path: Path, halves: tuple[str, ...], held: bool
) -> None:
    path = images(tmp_path / "pets", *halves)
    (path / ".thumbs").mkdir()
    (path / "notes.md").write_text("not an image")
    data = load_data(path, graph=classifier(3, 5, 4))
    assert data.classes == ("cat", "dog")
    assert data.x.shape == (6, 3, 5, 4)
    assert data.x.dtype == np.float32
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    for x, label in zip(data.x, data.y, strict=True):
        assert (x == np.array(list(COLOURS.values())[label])[:, None, None] / 255).all()
    assert (data.x_test is not None) == held
    if held:
        assert np.array_equal(data.x_test, data.x)  # type: ignore[arg-type]
        assert np.array_equal(data.y_test, data.y)  # type: ignore[arg-type]


def test_samples_are_held_out_in_one_folder_only(tmp_path: Path) -> None:
    path = images(tmp_path / "pets", "train", "val", "test")
    with pytest.raises(BadInput, match=r"test, train, val: samples .* move val out"):
        load_data(path, graph=classifier(3, 5, 4))


def test_halves_are_known_among_other_folders(tmp_path: Path) -> None:
    path = images(tmp_path / "pets", "Train", "Test")
    (path / "out").mkdir()
    images(path / "Train" / "cat" / ".thumbs")
    data = load_data(path, graph=classifier(3, 5, 4))
    assert (tuple(data.classes), len(data.x)) == (("cat", "dog"), 6)
    assert data.x_test is not None
    alone = load_data(images(tmp_path / "alone", "train"), graph=classifier(3, 5, 4))
    assert (tuple(alone.classes), alone.x_test) == (("cat", "dog"), None)


def test_folders_with_numbers_are_in_their_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / str(number)).mkdir()
        Image.new("RGB", (6, 10)).save(tmp_path / str(number) / "0.png")
    graph = classifier(3, 5, 4, classes=3)
    data = fit(load_data(tmp_path, graph=graph), graph)
    assert tuple(data.classes) == ("1", "2", "10")
    assert adapted(data, NO_FACTS, is_trained=False).y.tolist() == [0, 1, 2]
    assert adapted(data, DataFacts(Classes(("1", "10", "2")))).y.tolist() == [0, 2, 1]
    with pytest.raises(BadInput, match="01, 02"):  # PyTorch trained: 1, 10, 2
        adapted(data, NO_FACTS)
    given = Dataset("d", data.x, data.y, classes=data.classes)  # an order that the user chose
    assert adapted(fit(given, graph), NO_FACTS).y.tolist() == [0, 1, 2]
    for number in (1, 2):
        (tmp_path / str(number)).rename(tmp_path / f"0{number}")
    named = fit(load_data(tmp_path, graph=graph), graph)
    assert adapted(named, NO_FACTS).y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("halves", "message"),
    [
        (("flowers",), r"archive/flowers instead"),
        (("flowers/train", "flowers/test"), r"archive/flowers instead"),
        (("Training", "Testing"), r"Testing.*Training.*train/.*test/"),
        (("train/flowers", "test/flowers"), r"flowers.*train/.*test/"),
    ],
)
def test_folders_above_the_classes_are_not_classes(
    tmp_path: Path, halves: tuple[str, ...], message: str
) -> None:
    path, graph = images(tmp_path / "archive", *halves), classifier(3, 5, 4)
    with pytest.raises(BadInput, match=message):
        load_data(path, graph=graph)
    assert len(load_data(path, graph=graph, labels=False).x) >= 6
    for folder in path.glob("**/cat"):
        Image.new("RGB", (6, 10)).save(folder.parent / "0.png")  # each of them has a file
        Image.new("RGB", (6, 10)).save(folder.parents[1] / "0.png")
    assert load_data(path, graph=graph).classes


def test_an_image_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    path, exif = images(tmp_path / "pets", suffix=".jpg"), Image.Exif()
    exif[274] = 6  # to be turned clockwise
    left = Image.new("RGB", (10, 10))
    left.paste((255, 255, 255), (0, 0, 5, 10))
    left.save(path / "cat" / "0.jpg", exif=exif)
    upper = load_data(path, graph=classifier(3, 4, 4)).x[0]
    assert (upper[:, 0] > 0.9).all()
    assert (upper[:, 3] < 0.1).all()


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_than_8_bits_are_refused(tmp_path: Path, mode: str) -> None:
    path = images(tmp_path / "pets")
    Image.new(mode, (6, 10), 1000).save(path / "cat" / "0.tiff")
    with pytest.raises(BadInput, match=r"0\.tiff: .*8 bits"):
        load_data(path, graph=classifier(1, 5, 4))


def test_images_take_the_channels_of_the_model(tmp_path: Path) -> None:
    path = images(tmp_path / "pets", suffix=".bmp")
    grey = load_data(path, graph=classifier(1, 8, 8))
    assert grey.x.shape == (6, 1, 8, 8)
    assert np.allclose(grey.x[0], 76 / 255)  # ITU-R 601: 0.299 red
    assert load_data(path, graph=classifier(4, 8, 8)).x[0, 3].min() == 1  # opaque


def test_what_learns_its_samples_or_predicts_needs_no_classes(tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.new("L", (4, 4), 51 if name == "a.png" else 255).save(tmp_path / name)
    for graph, labels in ((autoencoder(1, 4, 4), True), (classifier(1, 4, 4), False)):
        data = load_data(tmp_path, graph=graph, labels=labels)
        assert data.x[:, 0, 0, 0].tolist() == [np.float32(0.2), 1]
        assert not data.classes
    with pytest.raises(BadInput, match="not in folders"):
        load_data(tmp_path, graph=classifier(1, 4, 4))


def test_a_sound_becomes_what_the_model_takes(tmp_path: Path) -> None:
    """Bands of a sine are loud at its frequency; the spectrum is turned as the model has it."""
    sound(tmp_path / "low" / "1.wav", 300)
    sound(tmp_path / "high" / "1.wav", 2500, seconds=0.25)
    for shape in ((1, 24, 10), (24, 10), (10, 24)):
        data = load_data(tmp_path, graph=classifier(*shape), sample_rate_hz=RATE_HZ)
        assert data.classes == ("high", "low")
        assert data.x.shape == (2, *shape)
        high, low = data.x.reshape(2, *shape[-2:])
        if shape[-1] == 24:
            high, low = high.T, low.T
        assert low.mean(0).argmax() < 3 < high[:10].mean(0).argmax()
        assert np.allclose(high[-1], np.log(np.float32(1e-6)))  # silence after 0.25 s
    wave = load_data(tmp_path, graph=classifier(1, 2000), sample_rate_hz=RATE_HZ // 2)
    assert wave.x.shape == (2, 1, 2000)
    assert 0.3 < wave.x[1].max() <= 0.6
    crossings = int((np.diff(np.sign(wave.x[1, 0])) > 0).sum())
    assert abs(crossings - 150) < 3  # 300 Hz for half a second


def test_samples_of_files_are_not_scaled_twice(tmp_path: Path) -> None:
    """Weights that learnt pixels from 0 to 255 keep a scale that would divide them again."""
    photos, sounds = images(tmp_path / "photos"), tmp_path / "sounds"
    for name in COLOURS:
        sound(sounds / name / "1.wav", 300)

    def used(path: Path, shape: tuple[int, ...], scale: float, offset: float = 0.0) -> FittedData:
        graph = classifier(*shape)
        data = fit(load_data(path, graph=graph, sample_rate_hz=RATE_HZ), graph)
        return adapted(data, DataFacts(normalization=Normalization((offset,), (scale,))))

    for path, shape in ((photos, (3, 4, 4)), (sounds, (1, 2000))):
        assert used(path, shape, 0.25, 0.5).normalization
        used(path, shape, 2.0)  # sounds from -1 to 1, scaled to 0..1
        for scale in (255.0, 32768.0):
            with pytest.raises(BadInput, match=r"\.npz"):
                used(path, shape, scale)
    used(sounds, (24, 10), 255.0)  # of a spectrogram
    graph = runs.digits()
    known = DataFacts(normalization=Normalization((0.0,), (255.0,)))
    weights = SavedWeights(start_values(graph, 0), known)
    with pytest.raises(BadInput, match=r"\.npz"):
        poet.predict(runs.schedule(graph), photos, weights=weights)


def test_the_sample_rate_travels_with_the_weights(
    tmp_path: Path, card: Path, poet_host: Command
) -> None:
    folder, schedule, file = tmp_path / "sounds", tmp_path / "m.poet", tmp_path / "w.safetensors"
    for name in COLOURS:
        sound(folder / name / "1.wav", 300)
    runs.schedule(classifier(1, 24, 10), method="keep-everything").save(schedule)

    def run(command: str, *more: object) -> Result:
        return poet_host(command, schedule, "--port", "native", "--data", folder, *more)

    rate = ("--sample-rate", RATE_HZ)
    trained = run("train", *rate, "--storage", card, "--steps", 1, "--save-weights", file)
    assert trained.code == 0, trained.err
    assert load_weights(file, poet.Schedule.load(schedule).graph).facts.sample_rate_hz == RATE_HZ
    uses: list[tuple[object, ...]] = [
        ("evaluate", "--weights", file), ("evaluate", "--storage", card),
        ("predict", "--weights", file, "-o", tmp_path / "answers.csv"),
        ("train", "--resume", "--storage", card, "--steps", 2, "--save-weights", file),
    ]  # fmt: skip
    for command, *more in uses:
        refused = run(str(command), *more)
        assert refused.code == 2
        assert "--sample-rate 8000" in " ".join(refused.err.split())
        assert run(str(command), *more, *rate).code == 0


def broken(path: Path) -> Path:
    images(path)
    (path / "cat" / "1.png").write_bytes(b"\x89PNG no image")
    return path


def mixed(path: Path) -> Path:
    sound(images(path) / "cat" / "1.wav", 300)
    return path


def more_in_test(path: Path) -> Path:
    images(path, "train", "test")
    (path / "test" / "dog").rename(path / "test" / "cow")
    return path


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (broken, (3, 4, 4), "1.png: the file cannot be read"),
        (mixed, (3, 4, 4), "images and sounds"),
        (more_in_test, (3, 4, 4), '"cow" occurs only in test'),
        (images, (2, 4, 4), "not images"),
        (images, (16,), "not images"),
        (lambda path: sound(path / "a" / "1.wav", 300).parents[1], (3, 24, 10), "not sounds"),
        (lambda path: next(images(path).rglob("*.png")), (3, 4, 4), "this is one image or sound"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, make: Any, shape: tuple[int, ...], message: str
) -> None:
    path = make(tmp_path / "pets")
    with pytest.raises(BadInput, match=message):
        load_data(path, graph=classifier(*shape))


def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BadInput, match=r"pip install 'poet-host\[images\]'"):
        load_data(images(tmp_path), graph=classifier(3, 4, 4))
    with pytest.raises(BadInput, match="pass its graph"):
        load_data(tmp_path)


def fitted(data: Dataset, shape: tuple[int, ...]) -> FittedData:
    return fit(data, classifier(*shape, classes=3, batch=4))


def numbered(count: int, shape: tuple[int, ...]) -> Dataset:
    x = np.random.default_rng(1).uniform(1, 2, (count, *shape)).astype(np.float32)
    return Dataset("d", x, np.arange(count) % 7 // 3)  # classes 0, 1, 2: 3, 3 and 1 of 7


def test_balance_draws_each_class_equally_often_and_every_sample_in_time() -> None:
    data = fitted(Dataset(**{**vars(numbered(70, (2,))), "balance": True}), (2,))
    epoch = samples_of_steps(data, 4, 0, 0, 17)
    counts = np.bincount(data.y[epoch])
    assert counts.max() - counts.min() <= 1
    assert set(data.y[epoch[:3]]) == {0, 1, 2}
    assert set(samples_of_steps(data, 4, 0, 0, 17 * 9)) == set(range(70))
    assert not np.array_equal(epoch, samples_of_steps(data, 4, 0, 17, 17))
    some = replace(data, y=np.where(np.arange(70) % 2, data.y, 3))  # 3: an ignored label
    assert set(some.y[samples_of_steps(some, 4, 0, 0, 17)]) == {0, 1, 2}


def test_augmentation_follows_from_seed_and_step_alone() -> None:
    plain = fitted(numbered(40, (3, 6, 6)), (3, 6, 6))
    data = fitted(
        Dataset(**{**vars(numbered(40, (3, 6, 6))), "augment": "flip,crop:2,noise:0.5"}), (3, 6, 6)
    )
    first, again, other = (batch_of_step(data, 4, seed, 5)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(data.x, plain.x)  # held data does not change


def test_each_change_of_a_sample_is_what_it_says() -> None:
    x = np.random.default_rng(2).uniform(1, 2, (200, 1, 5, 4)).astype(np.float32)
    flipped = augmentation_of("flip").apply(x, 0, 0)
    mirrored = (flipped == x[..., ::-1]).all((1, 2, 3))
    assert (mirrored | (flipped == x).all((1, 2, 3))).all()
    assert 60 < mirrored.sum() < 140
    cropped = augmentation_of("crop:1").apply(x, 0, 0)
    places = set()
    for before, after in zip(x[:, 0], cropped[:, 0], strict=True):
        ways = [(v, h) for v in (-1, 0, 1) for h in (-1, 0, 1)
                if np.array_equal(np.pad(before, 1)[1 - v:6 - v, 1 - h:5 - h], after)]  # fmt: skip
        assert len(ways) == 1
        places.add(ways[0])
    assert len(places) == 9
    shifted = augmentation_of("shift:2").apply(x, 0, 0)  # along the longer axis
    lost = (shifted == 0).sum((1, 2, 3))
    assert set(lost) == {0, 4, 8}
    noisy = augmentation_of("noise:0.25").apply(x, 0, 0) - x
    assert noisy.std() == pytest.approx(0.25, rel=0.05)


def test_an_autoencoder_learns_the_changed_samples() -> None:
    x = np.ones((8, 1, 4, 4), np.float32)
    data = fit(Dataset("d", x, x, augment=augmentation_of("noise:1")), autoencoder(1, 4, 4))
    assert data.y is data.x
    samples, labels = batch_of_step(data, 2, 0, 0)
    assert np.array_equal(samples, labels)


@pytest.mark.parametrize(
    ("how", "shape", "message"),
    [
        ("turn", (3, 4, 4), "use flip, crop"),
        ("crop", (3, 4, 4), "use flip, crop"),
        ("flip,flip", (3, 4, 4), "twice"),
        ("flip", (12,), "only images"),
        ("crop:4", (3, 4, 4), "nothing of an image"),
        ("shift:12", (12,), "nothing of a sample"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    how: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        fitted(Dataset(**{**vars(numbered(8, shape)), "augment": how}), shape)


def labelled(*shape: int, classes: int = 0) -> tuple[Graph, np.ndarray]:
    """Return a model of 8 x 8 pixels whose labels have a shape, and eight labels."""
    b = Builder("places", (2, 1, 8, 8))
    out = b.linear(b.flatten(b.data), math.prod(shape) * (classes or 1))
    out = b.reshape(out, (2, *shape, *([classes] if classes else ())))
    loss = b.softmax_xent(out) if classes else b.mse(out)
    return training_graph(b.model(loss), Sgd(0.1)), np.zeros((8, *shape), np.int64)


@pytest.mark.parametrize(
    ("shape", "classes", "move"),
    [((8, 8), 3, True), ((4, 4), 3, True), ((8,), 3, True), ((1, 8, 8), 0, True),
     ((8, 8), 0, True), ((1, 4, 4), 0, True), ((5,), 3, False), ((), 3, False), ((8,), 0, False)],
)  # fmt: skip
def test_samples_do_not_move_away_from_labels_of_their_positions(
    shape: tuple[int, ...], classes: int, move: bool
) -> None:
    graph, y = labelled(*shape, classes=classes)
    x = np.ones((8, 1, 8, 8), np.float32)
    fit(Dataset("d", x, y, augment=augmentation_of("noise:1")), graph)
    for how in ("flip", "crop:2", "shift:2"):
        data = Dataset("d", x, y, augment=augmentation_of(how))
        if move:
            with pytest.raises(BadInput, match="positions"):
                fit(data, graph)
        else:
            fit(data, graph)


@pytest.mark.parametrize(
    ("sample", "outputs", "move"), [((3, 8), 8, True), ((8, 3), 8, True), ((1, 8), 8, True),
                                    ((3, 8), 3, False), ((8, 3), 5, False)],
)  # fmt: skip
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_samples_do_not_move_away_from_values_of_their_time_steps(
    sample: tuple[int, ...], outputs: int, move: bool, loss: str
) -> None:
    b = Builder("times", (2, *sample))
    graph = training_graph(
        b.model(getattr(b, loss)(b.linear(b.flatten(b.data), outputs))), Sgd(0.1)
    )
    x, y = np.ones((8, *sample), np.float32), np.zeros((8, outputs))
    data = Dataset("d", x, y, augment=augmentation_of("shift:2"))
    if move:
        with pytest.raises(BadInput, match="positions"):
            fit(data, graph)
    else:
        fit(data, graph)


def test_balance_needs_classes_and_an_order_of_its_own() -> None:
    x = np.ones((8, 1, 4, 4), np.float32)
    with pytest.raises(BadInput, match="no classes"):
        fit(Dataset("d", x, x, balance=True), autoencoder(1, 4, 4))
    with pytest.raises(BadInput, match="omit --no-shuffle"):
        fitted(Dataset(**{**vars(numbered(8, (2,))), "balance": True, "shuffle": False}), (2,))
    data, graph = Dataset(**{**vars(numbered(8, (2,))), "balance": True}), classifier(2, classes=3)
    for given in (data, fit(data, graph)):
        with pytest.raises(BadInput, match="omit --no-shuffle"):
            as_fitted(given, graph, shuffle=False)
    assert as_fitted(replace(data, shuffle=False), graph, shuffle=True).shuffle
