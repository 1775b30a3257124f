"""Normalisation travels with weights: in their file, on cards, and back, to the same bits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.card import note
from poet_host.data.datasets import Dataset, normalized
from poet_host.data.fitted import fit
from poet_host.data.normalization import NONE, Normalization
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values
from poet_host.schedule.schedule import Schedule
from safetensors.numpy import load_file, save_file
from support import whole_runs as runs
from support.command import Command, Result

from tests.card.test_card import alone

STEPS = 12


def test_each_number_is_rounded_as_a_board_rounds_it() -> None:
    x = np.random.default_rng(4).normal(300, 70, (5, 3, 2, 2)).astype(np.float32)
    one, channels, values = (
        Normalization(tuple(np.linspace(280, 330, count)), tuple(np.linspace(50, 90, count)))
        for count in (1, 3, 12)
    )
    for found, per_channel in ((one, 12), (channels, 4), (values, 1)):
        got = found.apply("x", x).reshape(5, 12)
        for i, sample in enumerate(x.reshape(5, 12)):
            for j, value in enumerate(sample):
                offset, scale = found.offset[j // per_channel], found.scale[j // per_channel]
                assert got[i, j] == (value - np.float32(offset)) / np.float32(scale)
        assert Normalization(*map(tuple, json.loads(json.dumps(found.to_json())).values())) == found
    assert NONE.apply("x", x) is x
    assert Normalization((0.3,), (0.1,)).to_json() == {"offset": [0.3], "scale": [0.1]}
    with pytest.raises(BadInput, match="12 values, but its normalisation has 5 channels"):
        Normalization((0.0,) * 5, (1.0,) * 5).apply("x", x)


@pytest.mark.parametrize(
    ("offset", "scale"),
    [((), ()), ((0.0,), (0.0,)), ((1e39,), (1.0,)), ((0.0, 1.0), (1.0,)), ((0.0,), (1e-50,))],
)
def test_impossible_numbers_are_refused(offset: Any, scale: Any) -> None:
    with pytest.raises(BadInput, match="as many offsets as scales"):
        Normalization(offset, scale)


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """Digits as rows of pixels from 0 to 255: 200 for training and 60 others."""
    digits = poet.load_data("digits")
    for name, part in (("mine", slice(0, 200)), ("other", slice(200, 260))):
        rows = np.column_stack([digits.x[part].reshape(-1, 64) * 255, digits.y[part]])
        np.savetxt(tmp_path / f"{name}.csv", rows, "%.7g", delimiter=",")
    return tmp_path / "mine.csv", tmp_path / "other.csv"


@pytest.fixture
def call(tables: tuple[Path, Path], card: Path, tmp_path: Path, poet_host: Command) -> Any:
    """Train on the first table with `--normalize standard`; `(command, *more)` runs a command."""
    runs.schedule(runs.digits()).save(tmp_path / "m.poet")

    def run(command: str, *more: object) -> Result:
        given = (tmp_path / "m.poet", "--port", "native", "--test-split", 0.3, "--json")
        return poet_host(command, *given, "--data", tables[0], *more)

    trained = run(
        "train", "--normalize", "standard", "--steps", STEPS, "--storage", card,
        "--save-weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    run.accuracy = trained.json["accuracy"]  # type: ignore[attr-defined]
    return run


def test_evaluation_needs_no_options(
    call: Any, tables: tuple[Path, Path], tmp_path: Path, poet_host: Command
) -> None:
    card, exported, read = (
        tmp_path / name for name in ("card.img", "e.safetensors", "r.safetensors")
    )
    schedule, file = tmp_path / "m.poet", tmp_path / "w.safetensors"
    assert poet_host("card", "export", card, exported).code == 0
    read_to = ("--storage", card, "--save-weights", read)
    assert poet_host("card", "read", schedule, *read_to).code == 0
    graph = runs.digits()
    known = poet.load_weights(file, graph).normalization
    assert known is not None
    assert len(known.scale) == 64  # a pair for each column
    for source in (exported, read):
        assert poet.load_weights(source, graph).normalization == known
    for weights in (("--storage", card), ("--weights", file), ("--weights", exported)):
        assert call("evaluate", *weights).json["accuracy"] == call.accuracy
    again = call("evaluate", "--weights", file, "--normalize", "standard")  # the same numbers
    assert again.json["accuracy"] == call.accuracy
    raw = poet.load_data(tables[1], graph=graph)
    with poet.connect("native", arena_bytes=1 << 20) as board:
        as_rows = poet.evaluate(schedule, board, raw, weights=file)
        x, y = fit(raw, graph).x, fit(raw, graph).y
        as_images = poet.evaluate(schedule, board, (x, y), weights=file)
        ready = Dataset("mine", known.apply("x", x), y, normalization=known)
        assert as_rows.loss == as_images.loss
        assert as_rows.loss == poet.evaluate(schedule, board, ready, weights=file).loss
    plain = {name: value.copy() for name, value in poet.load_weights(file, graph).items()}
    assert as_rows.accuracy == poet.accuracy(graph, plain, known.apply("x", x), y)


def test_training_continues_with_it(call: Any, card: Path, tmp_path: Path) -> None:
    image, results = card.read_bytes(), []
    for source in ((), ("--load-weights", tmp_path / "w.safetensors")):
        for options in ((), ("--normalize", "standard")):
            card.write_bytes(image)
            result = call(
                "train", "--resume", *source, *options, "--storage", card,
                "--steps", STEPS + 4, "--save-weights", tmp_path / "v.safetensors",
            )  # fmt: skip
            assert result.code == 0, result.err
            results.append((result.json["weights_sha256"], result.json["accuracy"]))
            kept = poet.load_weights(tmp_path / "v.safetensors", runs.digits())
            assert kept.normalization
    assert len(set(results)) == 1


def test_a_board_that_trains_alone_gets_it(
    call: Any, tables: tuple[Path, Path], tmp_path: Path, poet_host: Command
) -> None:
    image, file, by_card = (tmp_path / name for name in ("a.img", "w.safetensors", "a.safetensors"))
    more = ("--load-weights", file, "--resume", "--steps", STEPS + 2)
    data = ("--data", tables[0], "--test-split", 0.3)
    written = poet_host("card", "write", tmp_path / "m.poet", *data, "-o", image, *more)
    assert written.code == 0, written.err
    alone(Schedule.load(tmp_path / "m.poet"), image, STEPS + 2)
    assert poet_host("card", "export", image, by_card).code == 0
    hosted = call("train", *more, "--save-weights", tmp_path / "h.safetensors")
    found = poet.load_weights(by_card, runs.digits())
    assert poet.weights_sha256(found) == hosted.json["weights_sha256"]
    assert found.normalization == poet.load_weights(file, runs.digits()).normalization


def test_another_normalisation_is_refused(call: Any, tables: Any, tmp_path: Path) -> None:
    file, card = tmp_path / "w.safetensors", tmp_path / "card.img"
    save = ("--steps", STEPS + 1, "--save-weights", tmp_path / "v.safetensors", "--resume")
    before = card.read_bytes()
    for how in ("none", "0:255"):
        for arguments in (
            ("evaluate", "--weights", file), ("evaluate", "--storage", card),
            ("train", *save, "--storage", card), ("train", *save, "--load-weights", file),
        ):  # fmt: skip
            call(*arguments, "--normalize", how).fails(2, "Omit --normalize")
        other = ("--data", tables[1], "--normalize", "standard")  # other numbers
        call("evaluate", "--weights", file, *other).fails(2, "differs")
    assert card.read_bytes() == before
    assert not (tmp_path / "v.safetensors").exists()


def test_weights_without_it_take_what_is_given(card: Path) -> None:
    """Weights of earlier versions and of PyTorch do not say how their samples were normalised."""
    schedule = runs.schedule(runs.digits())
    data = poet.load_data("digits")
    run = runs.train(schedule, data, steps=2)
    assert run.weights.normalization == NONE  # type: ignore[attr-defined]
    moved, earlier = normalized(data, "0.5:0.25"), dict(run.weights)
    with runs.board(schedule, card) as board:
        with pytest.raises(BadInput, match=r"weights \(none\). Omit --normalize"):
            poet.evaluate(schedule, board, moved, weights=run.weights)
        found = poet.evaluate(schedule, board, moved, weights=earlier)
        assert found.loss != poet.evaluate(schedule, board, data, weights=earlier).loss
        more = poet.train(schedule, board, moved, steps=3, weights=earlier, first_step=2)
        assert more.weights.normalization == moved.normalization  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "damage",
    [{"offset": [0.5]}, {"offset": [0.5], "scale": [-1]}, {"offset": ["a"], "scale": [1]}, 7],
)
def test_damaged_facts_of_weights_are_refused(damage: Any, tmp_path: Path) -> None:
    graph, path = runs.digits(), tmp_path / "w.safetensors"
    poet.save_weights(path, graph, start_values(graph, 0), 1)
    about = json.dumps({"model": graph.name, "normalization": damage})
    save_file(load_file(path), path, {"poet-host": about})
    with pytest.raises(BadInput, match=r"w\.safetensors: .*normalisation are damaged"):
        poet.load_weights(path, graph)


def test_a_card_without_space_for_a_note_trains_with_samples_as_they_are(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = runs.schedule(runs.digits())
    straight = runs.train(schedule, steps=2)
    monkeypatch.setattr(note, "_MOST_BYTES", 0)
    runs.train(schedule, storage=card, steps=1)
    assert runs.same(runs.train(schedule, storage=card, steps=2, resume=True), straight)


def test_one_that_a_card_cannot_hold_erases_nothing(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = runs.schedule(runs.digits())
    runs.train(schedule, storage=card, steps=1)
    before = card.read_bytes()
    data = normalized(poet.load_data("digits"), "standard")
    monkeypatch.setattr(note, "_MOST_BYTES", len(note.note_content(schedule, data.facts)) - 1)
    with runs.board(schedule, card) as board, pytest.raises(BadInput, match="too little space"):
        poet.train(schedule, board, data, steps=1, erase_card=True)
    assert card.read_bytes() == before
