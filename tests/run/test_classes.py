"""Words as labels: a class keeps its number, in files of weights and on cards."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.data.classes import EXAMPLES, Classes, classes_from_json, examples_of, numbers_by
from poet_host.errors import BadInput
from support import whole_runs as runs
from support.command import Command, Result

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STEPS = 24


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    path = tmp_path / "digits.poet"
    runs.schedule(runs.digits()).save(path)
    return path


def table(path: Path, x: Any, words: list[str]) -> Path:
    with path.open("w", newline="") as file:
        for row, word in zip(x.reshape(len(x), -1), words, strict=True):
            csv.writer(file).writerow([*map(repr, row.tolist()), word])
    return path


@pytest.fixture
def digits(tmp_path: Path) -> tuple[Any, Any]:
    data = poet.load_data("digits")
    return data.x[:240], data.y[:240]


@pytest.fixture
def trained(poet_host: Command, schedule: Path, card: Path, tmp_path: Path, digits: Any) -> Any:
    """A table, a card and weights that were trained on it; `(command, more)` runs a command."""
    x, y = digits
    data = table(tmp_path / "all.csv", x, [NAMES[label] for label in y])

    def call(command: str, data: Path, *more: object) -> Result:
        given = ("--port", "native", "--data", data, "--json", *more)
        return poet_host(command, schedule, *given)

    done = call(
        "train", data, "--storage", card, "--steps", STEPS,
        "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert done.code == 0
    assert done.json["classes"] == sorted(NAMES)
    return call


@pytest.mark.slow
@pytest.mark.parametrize("source", ["file", "card"])
def test_weights_number_the_classes_of_later_tables(
    source: str, trained: Any, digits: Any, tmp_path: Path
) -> None:
    x, y = digits
    weights = ("--storage", tmp_path / "card.img")
    if source == "file":
        weights = ("--weights", tmp_path / "w.safetensors")

    def accuracy(rows: Any, names: Any = NAMES) -> Any:
        data = table(tmp_path / "t.csv", x[rows], [names[label] for label in y[rows]])
        return trained("evaluate", data, *weights)

    everything = accuracy(np.arange(len(x))).json["accuracy"]
    assert everything > 0.2
    assert accuracy(np.random.default_rng(1).permutation(len(x))).json["accuracy"] == everything
    some = np.flatnonzero((y != 3) & (y != 7))
    # Against labels as numbers, in the order of the alphabet, in a file without words.
    numbers = np.array([sorted(NAMES).index(name) for name in NAMES])[y[some]]
    np.savez(tmp_path / "some.npz", x=x[some], y=numbers)
    known = trained("evaluate", tmp_path / "some.npz", *weights).json["accuracy"]
    assert accuracy(some).json["accuracy"] == known > 0.2
    new = accuracy(some, [*NAMES[:2], "dozen", *NAMES[3:]])
    assert (new.code, "dozen" in new.err) == (2, True)
    exchanged = accuracy(np.arange(len(x)), NAMES[3:] + NAMES[:3])
    assert exchanged.code == 2
    assert "renamed" in exchanged.err
    two = list(NAMES)
    two[4], two[9] = two[9], two[4]
    assert accuracy(np.arange(len(x)), two).code == 2


def test_a_header_row_of_numbers_is_skipped_on_request(
    trained: Any, digits: Any, tmp_path: Path
) -> None:
    x, y = digits
    data = table(tmp_path / "t.csv", x[:8], [NAMES[label] for label in y[:8]])
    data.write_text(",".join(map(str, range(64))) + ",one\n" + data.read_text())
    for header, samples in (("yes", 8), ("no", 9)):
        weights = ("--weights", tmp_path / "w.safetensors", "--header", header)
        assert trained("evaluate", data, *weights).json["samples"] == samples


def test_resumed_training_keeps_the_numbers_of_classes(
    trained: Any, digits: Any, tmp_path: Path
) -> None:
    x, y = digits
    some = np.flatnonzero(y < 8)
    data = table(tmp_path / "some.csv", x[some], [NAMES[label] for label in y[some]])
    by_card = trained(
        "train", data, "--storage", tmp_path / "card.img", "--steps", STEPS + 3, "--resume",
        "--save-weights", tmp_path / "v.safetensors",
    )  # fmt: skip
    assert by_card.json["classes"] == sorted(NAMES)
    by_file = trained(
        "train", data, "--load-weights", tmp_path / "w.safetensors", "--steps", STEPS + 3,
        "--resume", "--save-weights", tmp_path / "u.safetensors",
    )  # fmt: skip
    assert by_file.json["weights_sha256"] == by_card.json["weights_sha256"]
    graph = runs.digits()
    assert poet.load_weights(tmp_path / "v.safetensors", graph).classes == tuple(sorted(NAMES))
    numbers = np.array([sorted(NAMES).index(name) for name in NAMES])[y[some]]
    np.savez(tmp_path / "some.npz", x=x[some], y=numbers)
    plain = trained(
        "train", tmp_path / "some.npz", "--load-weights", tmp_path / "w.safetensors", "--resume",
        "--steps", STEPS + 3, "--save-weights", tmp_path / "t.safetensors",
    )  # fmt: skip
    assert plain.json["weights_sha256"] == by_card.json["weights_sha256"]


def test_a_card_for_training_without_a_host_has_class_names(
    poet_host: Command, schedule: Path, tmp_path: Path, digits: Any
) -> None:
    x, y = digits
    data = table(tmp_path / "all.csv", x, [NAMES[label] for label in y])
    card = tmp_path / "alone.img"
    wrote = poet_host("card", "write", schedule, "--data", data, "-o", card, "--steps", 3)
    assert wrote.code == 0
    weights = tmp_path / "w.safetensors"
    assert (
        poet_host("card", "read", schedule, "--storage", card, "--save-weights", weights).code == 0
    )
    assert poet.load_weights(weights, runs.digits()).classes == tuple(sorted(NAMES))


def test_words_as_labels_for_weights_without_class_names(
    poet_host: Command, schedule: Path, tmp_path: Path, digits: Any
) -> None:
    x, y = digits
    graph, weights = runs.digits(), tmp_path / "plain.safetensors"
    poet.save_weights(weights, graph, runs.train(runs.schedule(graph), steps=1).weights, 1)
    some = np.flatnonzero(y < 8)

    def code(rows: Any) -> int:
        data = table(tmp_path / "t.csv", x[rows], [NAMES[label] for label in y[rows]])
        given = ("--port", "native", "--data", data, "--weights", weights)
        return poet_host("evaluate", schedule, *given).code

    assert code(np.arange(len(x))) == 0  # as many words as classes: by the alphabet
    assert code(some) == 2
    data = table(tmp_path / "t.csv", x[some], [NAMES[label] for label in y[some]])
    resumed = poet_host(
        "train", schedule, "--port", "native", "--data", data, "--load-weights", weights,
        "--resume", "--steps", 2, "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert resumed.code == 2


def test_class_names_stay_when_later_labels_are_numbers(
    trained: Any, digits: Any, tmp_path: Path
) -> None:
    x, y = digits
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    weights = tmp_path / "v.safetensors"
    trained(
        "train", tmp_path / "numbers.npz", "--load-weights", tmp_path / "w.safetensors",
        "--resume", "--steps", STEPS + 1, "--save-weights", weights,
    )  # fmt: skip
    assert poet.load_weights(weights, runs.digits()).classes == tuple(sorted(NAMES))


def test_exchanged_names_differ_from_corrected_labels() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.random((60, 4)), np.arange(60) % 3
    known = Classes(("a", "b", "c"), examples_of(rows, labels))
    assert classes_from_json(known.to_json()) == known
    kept = classes_from_json(known.to_json())
    assert len(kept.examples) == 3 * EXAMPLES

    def numbers(names: tuple[str, ...], labels: Any) -> list[int]:
        return numbers_by(kept, Classes(names, examples_of(rows, labels)), "data").tolist()

    assert numbers(("a", "b", "c"), labels) == [0, 1, 2]
    assert numbers(("c", "b", "a"), 2 - labels) == [2, 1, 0]
    corrected = labels.copy()
    corrected[::7] = 1
    assert numbers(("a", "b", "c"), corrected) == [0, 1, 2]
    with pytest.raises(BadInput, match="renamed"):
        numbers(("a", "b", "c"), (labels + 1) % 3)


@pytest.mark.parametrize(
    "value",
    [
        {"names": ["a", "a"], "examples": {}},
        {"names": ["a", 3], "examples": {}},
        {"names": ["a", "\ud800"], "examples": {}},
        {"names": ["a"], "examples": {"00000000": 1}},
        {"names": ["a"], "examples": {"zz": 0}},
        {"names": ["a"], "examples": {"1" + 8 * "0": 0}},
        {"names": ["a"]},
        7,
    ],
)
def test_damaged_names_are_refused(value: Any) -> None:
    with pytest.raises((BadInput, ValueError, TypeError, KeyError)):
        classes_from_json(value)


def test_names_may_come_with_arrays(digits: Any, tmp_path: Path) -> None:
    """In Python a data set has names too; they are Classes, and must be enough."""
    x, y = digits
    schedule = runs.schedule(runs.digits())
    named = poet.Dataset("mine", x, y, classes=NAMES)  # type: ignore[arg-type]
    run = runs.train(schedule, named, steps=2)
    assert run.classes == NAMES
    poet.save_weights(tmp_path / "w.safetensors", runs.digits(), run.weights, 2)
    assert poet.load_weights(tmp_path / "w.safetensors", runs.digits()).classes == NAMES
    new = poet.Dataset("new", x, y, classes=(*NAMES[:9], "dozen"))  # type: ignore[arg-type]
    with runs.board(schedule) as connection, pytest.raises(BadInput, match="dozen"):
        poet.evaluate(schedule, connection, new, weights=run.weights)
    with runs.board(schedule) as connection:
        few = poet.Dataset("few", x, y, classes=NAMES[:3])  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="names 3 classes"):
            poet.train(schedule, connection, few, steps=1)
        more = poet.Dataset("many", x, y, classes=(*NAMES, "ten"))  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="names 11 classes"):
            poet.train(schedule, connection, more, steps=1)
