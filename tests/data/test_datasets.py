"""Data sets: the built-in digits, files, what is refused, and the order of batches."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.fitted import batch_of_step, fit, steps_per_epoch
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from sklearn.datasets import load_digits


def classifier(batch: int = 4, shape: tuple[int, ...] = (3,), classes: int = 2) -> Graph:
    b = Builder("tiny", (batch, *shape))
    loss = b.softmax_xent(b.linear(b.flatten(b.data), classes))
    return training_graph(b.model(loss), Sgd(0.1))


def regression(batch: int = 4, outputs: int = 2) -> Graph:
    b = Builder("line", (batch, 3))
    return training_graph(b.model(b.mse(b.linear(b.data, outputs))), Sgd(0.1))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


GOOD_X = np.zeros((8, 3), np.float32)
GOOD_Y = np.arange(8) % 2


def test_digits_are_those_of_scikit_learn() -> None:
    bunch, data = load_digits(), load_data("digits")
    assert data.x_test is not None
    assert data.y_test is not None
    x = np.concatenate([data.x, data.x_test])
    assert x.dtype == np.float32
    assert x.shape == (1797, 1, 8, 8)
    assert np.array_equal(x[:, 0] * 16, bunch.images)
    assert np.array_equal(np.concatenate([data.y, data.y_test]), bunch.target)
    assert len(data.x_test) == 360


def test_synthetic_data_is_the_same_every_time_and_separable() -> None:
    first, second = load_data("synthetic:3x4x4:5"), load_data("synthetic:3x4x4:5")
    assert first.x.shape == (512, 3, 4, 4)
    assert first.x_test is not None
    assert first.y_test is not None
    assert set(first.y) == set(range(5))
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.y_test, second.y_test)  # type: ignore[arg-type]
    means = np.stack([first.x[first.y == k].mean(0) for k in range(5)])
    distance = ((first.x_test[:, None] - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == first.y_test).mean() > 0.9


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic", "synthetic:3x32x32", "synthetic:0x3:2", "synthetic:00x3:2", "synthetic:3:0",
        "synthetic:3:00", "synthetic:3:x", f"synthetic:{'9' * 5000}:2", f"synthetic:3:{'9' * 5000}",
        f"synthetic:{'1x' * 70}1:2",
    ],
)  # fmt: skip
def test_bad_synthetic_is_refused(spec: str) -> None:
    with pytest.raises(BadInput, match="synthetic:SHAPE:CLASSES"):
        load_data(spec)


@pytest.mark.parametrize(
    "spec",
    ["tokens:64:99999999999999999999:10", "tokens:64:2147483649:10", f"tokens:{'9' * 5000}:64:10"],
)
def test_bad_tokens_are_refused(spec: str) -> None:
    with pytest.raises(BadInput, match=r"LENGTH .* 2 .* WORDS 12 to 2147483648"):
        load_data(spec)


def test_tokens_of_the_most_words_fit_their_type() -> None:
    found = load_data("tokens:8:2147483648:2").x
    assert found.dtype == np.int32
    assert found.min() == 0
    assert found.max() > 2**30


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic:3x1024x1024:10",
        "synthetic:3:99999999999",
        "tokens:999999:20:2",
        "tokens:8:20:999999999",
    ],
)
def test_built_in_data_that_would_fill_the_host_is_refused(spec: str) -> None:
    with pytest.raises(BadInput, match="more than 1 GiB"):
        load_data(spec)


def test_a_file_is_read_and_cast(tmp_path: Path) -> None:
    path = save(
        tmp_path / "d.npz",
        x=GOOD_X.astype(np.uint8),
        y=GOOD_Y.astype(np.int64),
        x_test=GOOD_X[:1],
        y_test=GOOD_Y[:1],
    )
    data = fit(load_data(path), classifier())
    assert data.x.dtype == np.float32
    assert data.y.dtype == np.int32
    assert data.y_test is not None
    assert data.y_test.dtype == np.int32


def test_a_file_may_be_named_as_built_in_data_begins(tmp_path: Path) -> None:
    for name in ("synthetic.npz", "synthetic_2", "digits.npz", "tokens.npz"):
        with (tmp_path / name).open("wb") as file:
            np.savez(file, x=GOOD_X, y=GOOD_Y)
        with contextlib.chdir(tmp_path):
            assert load_data(name).name == name


def test_regression_targets_stay_floats() -> None:
    data = fit(Dataset("d", np.ones((4, 3)), np.full((4, 2), 0.5)), regression())
    assert data.y.dtype == np.float32
    assert np.array_equal(data.y, np.full((4, 2), 0.5, np.float32))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no file"):
        load_data(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04broken", b"\x93NUMPY\x01\x00broken"]
)
def test_a_file_that_is_not_an_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"not a readable \.npz"):
        load_data(path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    path = save(tmp_path / "d.npz", x=np.array([{}], dtype=object), y=GOOD_Y)
    with pytest.raises(BadInput, match=r"not a readable \.npz"):
        load_data(path)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npy"
    np.save(path, GOOD_X)
    with pytest.raises(BadInput, match=r"numpy\.savez"):
        load_data(path)


@pytest.mark.parametrize("keys", [("x",), ("a", "b"), ("x", "y", "x_test")])
def test_wrong_keys_are_refused(tmp_path: Path, keys: tuple[str, ...]) -> None:
    path = save(tmp_path / "d.npz", **dict.fromkeys(keys, GOOD_X))
    with pytest.raises(BadInput, match="must hold x and y"):
        load_data(path)


REFUSED: list[tuple[str, Any, Any, str]] = [
    ("shape", np.zeros((8, 5)), GOOD_Y, r"\(8, 5\), .*tiny needs \(N, 3\)"),
    ("rank", np.zeros((8, 3, 1)), GOOD_Y, r"\(8, 3, 1\), .*tiny needs \(N, 3\)"),
    ("scalar", np.float32(1), GOOD_Y, r"shape \(\), .*tiny needs"),
    ("label shape", GOOD_X, np.eye(8, 2, dtype=int), r"y has shape \(8, 2\), .*tiny needs \(N,\)"),
    ("text", np.full((8, 3), "a"), GOOD_Y, "not a numeric type"),
    ("complex", np.zeros((8, 3), complex), GOOD_Y, "not a numeric type"),
    ("lengths", GOOD_X, GOOD_Y[:7], "8 samples, .*y has 7"),
    ("empty", GOOD_X[:0], GOOD_Y[:0], "no samples"),
    ("few", GOOD_X[:3], GOOD_Y[:3], "do not fill one batch of 4"),
    ("nan", np.where(np.arange(24).reshape(8, 3) == 7, np.nan, 0), GOOD_Y, "sample 2"),
    ("infinite", np.full((8, 3), np.inf), GOOD_Y, "24 numbers"),
    ("too large for fp32", np.full((8, 3), 1e300), GOOD_Y, "NaN or infinity"),
    ("float labels", GOOD_X, GOOD_Y + 0.5, "must be integers"),
    ("whole float labels", GOOD_X, GOOD_Y * 1.0, r"y\.astype\(int\)"),
    ("truths", GOOD_X, GOOD_Y == 1, r"y\.astype\(int\)"),
    ("one-hot labels", GOOD_X, np.eye(2)[GOOD_Y], r"y\.argmax\(-1\)"),
    ("a column of labels", GOOD_X, GOOD_Y[:, None], r"y\.reshape\(-1\)"),
    ("a column more", GOOD_X[:, :, None], GOOD_Y, r"x\.reshape\(-1, 3\)"),
    ("label high", GOOD_X, GOOD_Y + 1, r"label 2 of sample 1 is not in 0\.\.1"),
    ("label negative", GOOD_X, GOOD_Y - 1, r"label -1 of sample 0"),
]


@pytest.mark.parametrize(("name", "x", "y", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_data_that_does_not_fit_the_model_is_refused(
    name: str, x: Any, y: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        fit(Dataset("d", np.asarray(x), y), classifier())


def test_channels_that_come_last_are_reported() -> None:
    graph = classifier(shape=(3, 4, 4))
    with pytest.raises(BadInput, match=r"numpy\.moveaxis\(x, -1, 1\)"):
        fit(Dataset("d", np.zeros((8, 4, 4, 3)), GOOD_Y), graph)


def test_held_out_data_is_checked_too() -> None:
    with pytest.raises(BadInput, match="x_test holds NaN"):
        fit(Dataset("d", GOOD_X, GOOD_Y, GOOD_X * np.nan, GOOD_Y), classifier())


def test_batches_cover_an_epoch_in_an_order_of_its_own() -> None:
    data = Dataset("d", np.arange(10), np.arange(10) * 2)
    assert steps_per_epoch(data, 3) == 3
    epochs = []
    for epoch in range(2):
        batches = [batch_of_step(data, 3, 7, 3 * epoch + i) for i in range(3)]
        assert all(np.array_equal(2 * x, y) for x, y in batches)
        seen = np.concatenate([x for x, _ in batches])
        assert len(set(seen.tolist())) == 9
        epochs.append(seen.tolist())
    assert epochs[0] != epochs[1]


def test_a_batch_follows_from_seed_and_step_alone() -> None:
    data = Dataset("d", np.arange(50), np.arange(50))
    again = [batch_of_step(data, 4, 1, step)[0].tolist() for step in (17, 17)]
    assert again[0] == again[1]
    assert batch_of_step(data, 4, 2, 17)[0].tolist() != again[0]


def test_texts_of_tokens_are_learnable_and_always_the_same() -> None:
    texts = load_data("tokens:20:50:3")
    assert texts.x.shape == (512, 20)
    assert texts.x.dtype == texts.y.dtype == np.int32
    assert texts.x_test is not None
    assert (texts.x[:, 0] == 1).all()
    assert texts.x.min() == 0
    assert texts.x.max() < 50
    padding = texts.x == 0  # after the words alone, and never a whole text
    assert (np.diff(padding.astype(int), axis=1) >= 0).all()
    assert padding[:, :5].sum() == 0
    assert np.array_equal(load_data("tokens:20:50:3").x, texts.x)
    counts = [np.bincount(texts.x[texts.y == topic].ravel(), minlength=50) for topic in range(3)]
    likely = np.array([np.log((count[2:] + 1) / count[2:].sum()) for count in counts])
    words = np.stack([np.bincount(x, minlength=50)[2:] for x in texts.x_test])
    assert np.mean((words @ likely.T).argmax(1) == texts.y_test) > 0.9


@pytest.mark.parametrize("spec", ["tokens:1:50:3", "tokens:20:11:3", "tokens:20:50:0", "tokens:x"])
def test_texts_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(BadInput, match="write tokens:"):
        load_data(spec)


def test_a_label_of_another_shape_is_refused_with_the_loss_that_it_needs() -> None:
    with pytest.raises(BadInput, match=r"y has shape \(4,\), .* --loss cross-entropy"):
        fit(Dataset("d", np.ones((4, 3)), np.zeros(4)), regression())
    with pytest.raises(BadInput, match=r"y has shape \(4, 5\), .* --loss mse"):
        fit(Dataset("d", np.ones((4, 3)), np.zeros((4, 5))), classifier())


def test_a_folder_without_arrays_is_refused_with_a_way(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.mp4").write_bytes(b"ftyp")
    (tmp_path / "x.json").write_text("[]")
    for path in (tmp_path, tmp_path / "x.json"):
        with pytest.raises(BadInput, match=r"numpy\.savez"):
            load_data(path)
