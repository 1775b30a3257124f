"""Predictions: the reference's bits in files, from data with and without labels."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.card.weights import SavedWeights
from poet_host.data.classes import Classes
from poet_host.data.datasets import Dataset
from poet_host.data.facts import DataFacts
from poet_host.data.normalization import Normalization
from poet_host.errors import BadInput, PoetError
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
from poet_host.run.predict import Prediction
from support import whole_runs as runs
from support.command import Command

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOVED = Normalization((0.5,), (0.25,))
ROWS = 7


def autoencoder() -> Graph:
    b = Builder("autoencoder", data=(2, 6))
    x = b.linear(b.relu(b.linear(b.data, 3, name="code")), 6, name="decoded")
    return training_graph(b.model(b.mse(x, name="loss")), Sgd(0.05), "all")


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """`(graph, facts)` writes m.poet and w.safetensors, and returns the values of the weights."""

    def make(graph: Graph, facts: DataFacts | None = None) -> Any:
        runs.schedule(graph, "100%", "keep-everything").save(tmp_path / "m.poet")
        values = start_values(graph, 5)
        weights = SavedWeights(values, facts) if facts else values
        poet.save_weights(tmp_path / "w.safetensors", graph, weights, 1)
        return values

    return make


def predicted(poet_host: Command, folder: Path, data: object, name: str, *more: object) -> Any:
    given = (folder / "m.poet", "--data", data, "-o", folder / name, "--json", *more)
    weights = () if "--storage" in more else ("--weights", folder / "w.safetensors")
    return poet_host("predict", *given, *weights)


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_classes_with_their_probabilities(made: Any, tmp_path: Path, poet_host: Command) -> None:
    graph = runs.digits()
    values = made(graph, DataFacts(Classes(NAMES), MOVED))
    digits = poet.load_data("digits")
    x, y = digits.x[:ROWS], digits.y[:ROWS]
    np.save(tmp_path / "only.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "words.npz", x=x, y=np.array(["a", "b"])[y % 2])  # not labels of training
    flat = x.reshape(ROWS, -1)
    np.savetxt(tmp_path / "plain.csv", flat, "%.9g", delimiter=",")
    np.savetxt(tmp_path / "labelled.csv", np.column_stack([flat, y]), "%.9g", delimiter=",")
    words = [",".join([*map(str, row), NAMES[n]]) for row, n in zip(flat.tolist(), y, strict=True)]
    (tmp_path / "words.csv").write_text("\n".join(words))
    wanted = logits(graph, values, MOVED.apply("x", x))
    exact = wanted.astype(np.float64)
    shares = np.exp(exact - exact.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    for name, labels in (
        ("only.npy", None), ("x.npz", None), ("words.npz", ["ab"[n % 2] for n in y]),
        ("plain.csv", None), ("labelled.csv", [str(n) for n in y]),
        ("words.csv", [NAMES[n] for n in y]),
    ):  # fmt: skip
        found = predicted(poet_host, tmp_path, tmp_path / name, "out.csv")
        assert found.code == 0, found.err
        chosen = wanted.argmax(1)
        assert found.json["samples"] == ROWS
        assert found.json["counts"] == np.bincount(chosen, minlength=10).tolist()
        head, *rows = rows_of(tmp_path / "out.csv")
        if labels is not None:
            assert [head.pop(0), *(row.pop(0) for row in rows)] == ["label", *labels]
        assert head == ["class", "index", *(f"p({name})" for name in NAMES)]
        assert [row[:2] for row in rows] == [[NAMES[n], str(n)] for n in chosen]
        assert np.allclose(np.array([row[2:] for row in rows], float), shares, rtol=1e-6)
        assert predicted(poet_host, tmp_path, tmp_path / name, "out.npz").code == 0
        arrays = np.load(tmp_path / "out.npz")
        assert arrays["outputs"].tobytes() == wanted.tobytes()
        assert arrays["predicted"].tolist() == chosen.tolist()
        assert arrays["classes"].tolist() == list(NAMES)
        assert ("labels" in arrays) == (labels is not None)
        written = np.array([row[2:] for row in rows]).astype(np.float32)
        assert arrays["probabilities"].tobytes() == written.tobytes()


def test_boards_and_python_predict_the_same(
    made: Any, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    graph = runs.digits()
    schedule = runs.schedule(graph, "100%", "keep-everything")
    data = poet.load_data("digits", normalize="0.5:0.25")
    run = runs.train(schedule, data, storage=card, steps=1)
    schedule.save(tmp_path / "m.poet")
    poet.save_weights(tmp_path / "w.safetensors", graph, run.weights, 1)
    wanted = logits(graph, run.weights, data.x_test[:6])
    at = ("--port", "native", "--samples", 6)
    for options in (at, (*at, "--storage", card), ("--samples", 6)):
        found = predicted(poet_host, tmp_path, "digits", "out.npz", *options)
        assert found.code == 0, found.err
        assert found.json["half"] == "held-out"
        assert (found.json["time_us"] is not None) == ("native" in options)
        assert np.load(tmp_path / "out.npz")["outputs"].tobytes() == wanted.tobytes()
    x = poet.load_data("digits").x_test[:6]
    torch = pytest.importorskip("torch")
    for given in (x, torch.tensor(x), {"x": x}):
        result = poet.predict(schedule, given, weights=run.weights)
        assert result.outputs.tobytes() == wanted.tobytes()
        assert result.predicted.tolist() == wanted.argmax(1).tolist()
        assert repr(result) == "<Prediction of resnet-digits: 6 samples>"
    unlabelled = Dataset("held out", data.x[:4], data.y[:4], x)
    found = poet.predict(schedule, unlabelled, weights=run.weights)
    assert (found.outputs.tobytes(), found.labels) == (wanted.tobytes(), None)
    with runs.board(schedule, card) as board:
        by_card = poet.predict(schedule, x, connection=board)
    assert by_card.outputs.tobytes() == wanted.tobytes()


def test_an_autoencoder_learns_and_answers_samples_alone(
    made: Any, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    graph = autoencoder()
    made(graph)
    x = np.random.default_rng(2).normal(4, 2, (40, 6)).astype(np.float32)
    np.savez(tmp_path / "twice.npz", x=x, y=(x - x.mean()) / x.std())
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    np.savetxt(tmp_path / "x.csv", x, "%.9g", delimiter=",")
    hashes = set()
    for name in ("x.npy", "x.npz", "x.csv"):
        trained = poet_host(
            "train", tmp_path / "m.poet", "--port", "native", "--data", tmp_path / name,
            "--normalize", "standard", "--steps", 5, "--test-split", 0.2, "--json",
            "--save-weights", tmp_path / "w.safetensors",
        )  # fmt: skip
        assert trained.code == 0, trained.err
        hashes.add(trained.json["weights_sha256"])
    assert len(hashes) == 1
    weights = poet.load_weights(tmp_path / "w.safetensors", graph)
    assert weights.normalization is not None
    normal = weights.normalization.apply("x", x)
    wanted = logits(graph, weights, normal)
    found = predicted(poet_host, tmp_path, tmp_path / "x.csv", "out.csv")
    assert found.code == 0, found.err
    head, *rows = rows_of(tmp_path / "out.csv")
    assert head == [f"value {i}" for i in range(6)]
    assert np.array(rows).astype(np.float32).tobytes() == wanted.tobytes()
    schedule = poet.Schedule.load(tmp_path / "m.poet")
    with runs.board(schedule) as board:
        judged = poet.evaluate(schedule, board, x, weights=weights)
        both = (normal, normal)
        data = Dataset("both", *both, normalization=weights.normalization)
        assert judged.loss == poet.evaluate(schedule, board, data, weights=weights).loss
    assert judged.mae == pytest.approx(np.mean(np.abs(wanted - normal)), rel=1e-6)
    assert judged.rmse == pytest.approx(np.sqrt(np.mean((wanted - normal) ** 2)), rel=1e-6)
    one = runs.train(schedule, x, steps=2)
    assert runs.same(one, runs.train(schedule, (x, x), steps=2))


def test_a_class_for_each_position_needs_arrays(
    made: Any, tmp_path: Path, poet_host: Command
) -> None:
    b = Builder("tagger", (2, 4), "int32")
    words = b.linear(b.embedding(b.data, 9, 6, name="table"), 3, name="tags")
    graph = training_graph(b.model(b.softmax_xent(words, name="loss")), Sgd(0.1), "all")
    values = made(graph)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 9, (5, 4)))
    predicted(poet_host, tmp_path, tmp_path / "x.npy", "out.csv").fails(2, "npz")
    assert predicted(poet_host, tmp_path, tmp_path / "x.npy", "out.npz").code == 0
    arrays = np.load(tmp_path / "out.npz")
    x = np.load(tmp_path / "x.npy").astype(np.int32)
    assert arrays["outputs"].tobytes() == logits(graph, values, x).tobytes()
    assert arrays["predicted"].shape == (5, 4)


def test_wrong_input_is_refused_in_a_sentence(
    made: Any, tmp_path: Path, poet_host: Command
) -> None:
    made(runs.digits())
    good = tmp_path / "x.npy"
    np.save(good, np.zeros((2, 1, 8, 8), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((2, 1, 9, 9)))
    np.save(tmp_path / "nan.npy", np.full((2, 1, 8, 8), np.nan))
    np.save(tmp_path / "none.npy", np.zeros((0, 1, 8, 8)))
    np.savez(tmp_path / "half.npz", x=np.zeros((2, 1, 8, 8)), y_test=np.zeros(2))
    (tmp_path / "short.csv").write_text("1,2,3\n4,5,6\n")
    for data, what in (
        ("wide.npy", "x has shape"), ("nan.npy", "NaN"), ("none.npy", "no samples"),
        ("half.npz", "x_test"), ("short.csv", "x has shape"), ("away.csv", "away.csv"),
    ):  # fmt: skip
        predicted(poet_host, tmp_path, tmp_path / data, "out.csv").fails(2, what)
    predicted(poet_host, tmp_path, good, "out.json").fails(2, "must end in .csv or .npz")
    predicted(poet_host, tmp_path, good, "away/out.csv").fails(2, "folder")
    predicted(poet_host, tmp_path, good, "x.npy").fails(2, "must end in")
    predicted(poet_host, tmp_path, good, "out.csv", "--half", "held-out").fails(2, "held out")
    at = (tmp_path / "m.poet", "--data", good, "-o", tmp_path / "out.csv")
    poet_host("predict", *at).fails(2, "--weights")
    poet_host("predict", *at, "--weights", tmp_path / "v").fails(2, "v cannot be read")
    poet_host("predict", *at, "--port", "native").fails(2, "--weights")
    training = ("--port", "native", "--data", good, "--save-weights", tmp_path / "v.safetensors")
    poet_host("train", tmp_path / "m.poet", *training).fails(2, "single array")
    assert not (tmp_path / "out.csv").exists()
    schedule = runs.schedule(runs.digits())
    with pytest.raises(BadInput, match="`weights`"):
        poet.predict(schedule, np.zeros((1, 1, 8, 8)))
    huge = {
        name: np.full_like(value, 1e30) for name, value in start_values(runs.mixed(), 0).items()
    }
    with pytest.raises(PoetError, match="output of mixed for data is not finite"):
        poet.predict(runs.schedule(runs.mixed()), np.ones((1, 3, 8, 8)), weights=huge)


def test_labels_outside_the_classes_keep_their_number() -> None:
    digits, graph = poet.load_data("digits"), runs.digits()
    data = Dataset("some", digits.x[:3], np.array([4, -1, 255]), classes=Classes(NAMES))
    found = poet.predict(runs.schedule(graph), data, weights=start_values(graph, 5))
    assert found.labels == ["four", -1, 255]


def test_a_single_number_in_place_of_labels_is_not_used() -> None:
    digits, graph = poet.load_data("digits"), runs.digits()
    found = poet.predict(
        runs.schedule(graph), (digits.x[:3], np.array(1)), weights=start_values(graph, 5)
    )
    assert len(found.outputs) == 3
    assert found.labels is None


def test_an_output_may_have_the_name_of_a_parameter_of_numpy(tmp_path: Path) -> None:
    outputs = np.ones(3, [("file", "<f4"), ("allow_pickle", "<f4")])
    found = Prediction(
        outputs=outputs, time_us=1.0, model="m", data="d", half="train", has_classes=False
    )
    found.save(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {
            "file": [1, 1, 1], "allow_pickle": [1, 1, 1]
        }  # fmt: skip
