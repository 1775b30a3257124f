"""Evaluation on boards: the host's bits, in any RAM that holds an operator, and nothing changed."""

from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import FittedData, classes_of, fit, tokens_of
from poet_host.errors import BadInput, PoetError
from poet_host.graph.autodiff import Adam, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
from poet_host.run.evaluate import Evaluation, evaluate
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import Command
from support.sim_helper import needs_compiler

SAMPLES = 5  # of batches of 2 or 4: the last one is never full


def data_for(graph: Graph) -> FittedData:
    rng = np.random.default_rng(0)
    x, y = graph[graph.data], graph[graph.label]
    values = rng.standard_normal((SAMPLES, *x.shape[1:]), dtype=np.float32)
    if x.dtype == "int32":
        values = rng.integers(0, tokens_of(graph), (SAMPLES, *x.shape[1:]))
    labels: Any = rng.integers(0, classes_of(graph), (SAMPLES, *y.shape[1:]))
    if y.dtype == "float32":
        labels = rng.standard_normal((SAMPLES, *y.shape[1:]), dtype=np.float32)
    return fit(Dataset("drawn", values, labels), graph)


def schedule_of(graph: Graph) -> Schedule:
    return runs.schedule(graph, "75%", "poet")


def on_board(schedule: Schedule, weights: Any = None, port: str = "native") -> Any:
    weights = start_values(schedule.graph, 3) if weights is None else weights
    arena = {"arena_bytes": schedule.meta["plan"]["ram_bytes"]} if port == "native" else {}
    with poet.connect(port, **arena) as at:
        return evaluate(at.device, schedule, weights, data_for(schedule.graph), "training")


def loss_of(graph: Graph, answers: np.ndarray, y: np.ndarray) -> float:
    answers = answers.astype(np.float64).reshape(*y.shape, -1)
    if graph[graph.label].dtype == "float32":
        return float(np.mean((answers[..., 0] - y) ** 2))
    answers -= np.log(np.exp(answers).sum(axis=-1, keepdims=True))
    return float(-np.mean(np.take_along_axis(answers, y[..., None], -1)))


@pytest.mark.parametrize("make", [runs.digits, runs.mixed, runs.texts])
def test_a_board_answers_with_the_bits_of_the_host(make: Any) -> None:
    graph, data = make(), data_for(make())
    values = start_values(graph, 3)
    wanted = logits(graph, values, data.x).reshape(SAMPLES, -1)
    found = on_board(schedule_of(graph))
    assert found.outputs.tobytes() == wanted.tobytes()
    assert found.samples == SAMPLES
    assert found.loss == pytest.approx(loss_of(graph, wanted, data.y), rel=1e-5)
    assert found.time_us > 0
    classes = graph[graph.label].dtype == "int32"
    right = poet.accuracy(graph, values, data.x, data.y) if classes else None
    assert found.accuracy == right


def test_outputs_that_stream_in_parts_of_rows_are_answered_in_row_major_order() -> None:
    schedule, data = runs.in_columns()
    values = start_values(schedule.graph, 3)
    wanted = logits(schedule.graph, values, data.x)
    with runs.board(schedule) as board:
        found = poet.predict(schedule, data, connection=board, weights=values)
    assert found.outputs.tobytes() == wanted.tobytes()


def test_a_schedule_without_a_forward_program_is_refused() -> None:
    graph = runs.digits()
    schedule = poet.encode(graph, runs.plan(graph, "75%", "poet"), forward=False)
    assert schedule.forward is None
    with pytest.raises(BadInput, match="--no-forward"):
        on_board(schedule)


@pytest.mark.parametrize(("least_bytes", "why"), [(5000, "needs 5,000 bytes"), (0, "ended first")])
def test_a_schedule_without_room_for_an_inference_says_why(
    monkeypatch: pytest.MonkeyPatch, least_bytes: int, why: str
) -> None:
    monkeypatch.setattr("poet_host.api.forward._planned", lambda *_: least_bytes)
    graph = runs.digits()
    with pytest.warns(poet.PoetWarning, match=why):
        schedule = poet.encode(graph, runs.plan(graph, "75%", "poet"))
    assert schedule.forward is None


@pytest.mark.slow
@pytest.mark.parametrize(("board", "ram"), [("mkr1000", "24KiB"), ("nrf52840_dk", "220KiB")])
@pytest.mark.parametrize("model", ["lenet-digits", "linear", "dscnn-speech"])
def test_a_model_answers_in_the_ram_in_which_it_trains(model: str, board: str, ram: str) -> None:
    """All models: `make bench-forward`."""
    graph = poet.load(model, batch=4)
    assert isinstance(graph, Graph)
    plan = poet.solve(poet.problem(graph, board, ram=ram), work_limit=3000, gap=0.5)
    schedule, data = poet.encode(graph, plan), data_for(graph)
    found = on_board(schedule)
    wanted = logits(graph, start_values(graph, 3), data.x)
    assert found.outputs.tobytes() == wanted.tobytes()


def test_weights_of_another_model_are_refused() -> None:
    schedule = runs.small()
    weights = dict(start_values(schedule.graph, 3))
    left_out = {name: value for name, value in weights.items() if name != "conv1.weight"}
    with pytest.raises(BadInput, match=r"weights: conv1\.weight of resnet-digits is missing"):
        on_board(schedule, left_out)
    with pytest.raises(BadInput, match=r"conv1\.weight has shape \(3,\), but resnet-digits needs"):
        on_board(schedule, {**weights, "conv1.weight": np.zeros(3)})


def test_an_output_that_is_not_finite_is_an_error() -> None:
    graph = runs.mixed()
    huge = {name: np.full_like(value, 1e30) for name, value in start_values(graph, 0).items()}
    with pytest.raises(PoetError, match="output of mixed for drawn"):
        on_board(schedule_of(graph), huge)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"half": "held-out"}, "held out"),
        ({"half": "best"}, "`half` .*'best'"),
        ({"samples": 0}, "^0 samples"),
    ],
)
def test_missing_samples_are_refused(how: Any, message: str) -> None:
    schedule = schedule_of(runs.mixed())
    with poet.connect("native") as at, pytest.raises(BadInput, match=message):
        evaluate(at.device, schedule, None, data_for(schedule.graph), **{"half": None, **how})


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("port", ["sim:mkr1000", "sim:nrf52840_dk"])
def test_simulated_boards_compute_the_same_answers(port: str) -> None:
    graph = runs.digits()
    data = data_for(graph)
    plan = poet.solve(graph, port.removeprefix("sim:"), work_limit=2_000)
    found = on_board(poet.encode(graph, plan), port=port)
    wanted = logits(graph, start_values(graph, 3), data.x)
    assert found.outputs.tobytes() == wanted.tobytes()


# From a card, and from a file.


@pytest.fixture
def trained(card: Path, tmp_path: Path) -> tuple[Path, Schedule]:
    """A card with the weights after two steps, and the schedule that trained them."""
    schedule = runs.small()
    run = runs.train(schedule, storage=card, steps=2)
    poet.save_weights(tmp_path / "w.safetensors", runs.digits(), run.weights, 2)
    schedule.save(tmp_path / "m.poet")
    return card, schedule


def of_card(card: Path, schedule: Schedule, **how: Any) -> Evaluation:
    with runs.board(schedule, card) as connection:
        return poet.evaluate(schedule, connection, "digits", **how)


def test_evaluation_does_not_change_the_weights_on_the_card(
    trained: tuple[Path, Schedule],
) -> None:
    card, schedule = trained
    before = runs.train(schedule, storage=card, steps=2, resume=True).weights
    other = {name: value + 1 for name, value in before.items()}
    assert of_card(card, schedule, samples=30, weights=other).loss > 0
    found = of_card(card, schedule, samples=30)
    assert (found.half, found.samples) == ("held-out", 30)
    weights = runs.train(schedule, storage=card, steps=2, resume=True).weights
    data = poet.load_data("digits")
    assert found.accuracy == poet.accuracy(
        runs.digits(), weights, data.x_test[:30], data.y_test[:30]
    )
    progress: list[tuple[int, int]] = []
    found = of_card(
        card, schedule, half="training", samples=6, progress=lambda *now: progress.append(now)
    )
    assert (found.half, progress) == ("training", [(i + 1, 6) for i in range(6)])
    # Training continues from the same step.
    assert runs.same(
        runs.train(schedule, storage=card, steps=3, resume=True), runs.train(schedule, steps=3)
    )


def test_a_card_trained_with_other_rates_is_evaluated(card: Path) -> None:
    schedule = runs.small()
    run = runs.train(schedule, storage=card, steps=2, learning_rate=0.05, warmup=4)
    found = of_card(card, schedule, samples=30)
    x = poet.load_data("digits").x_test[:30]
    assert found.outputs.tobytes() == logits(runs.digits(), run.weights, x).tobytes()
    more = {"learning_rate": 0.05, "warmup": 4}
    again = runs.train(schedule, storage=card, steps=3, resume=True, **more)
    assert runs.same(again, runs.train(schedule, steps=3, **more))


def test_a_card_of_another_model_is_refused_and_unchanged(trained: tuple[Path, Schedule]) -> None:
    card, _ = trained
    before = card.read_bytes()
    other = runs.schedule(runs.digits(0.9, 0.0005))
    for weights in (None, start_values(other.graph, 0)):
        with pytest.raises(BadInput, match=r"weights of .*resnet-digits"):
            of_card(card, other, weights=weights)
        assert card.read_bytes() == before


def test_weights_that_another_schedule_trained_are_called_so(
    trained: tuple[Path, Schedule],
) -> None:
    graph = poet.load("resnet-digits", batch=2, momentum=0.0, weight_decay=0.0)
    with pytest.raises(BadInput, match=r'of "resnet-digits" that another schedule trained'):
        of_card(trained[0], runs.schedule(graph))


def test_evaluate_on_the_command_line(
    trained: tuple[Path, Schedule], tmp_path: Path, poet_host: Command
) -> None:
    card, _ = trained

    def evaluated(*more: object) -> Any:
        return poet_host(
            "evaluate", tmp_path / "m.poet", "--port", "native", "--data", "digits",
            "--samples", 6, *more,
        )  # fmt: skip

    from_card = evaluated("--storage", card, "--json").json
    from_file = evaluated("--weights", tmp_path / "w.safetensors", "--json").json
    assert {**from_card, "time_us": 0} == {**from_file, "time_us": 0}
    assert from_card["samples"] == 6
    assert from_card["half"] == "held-out"
    shown = evaluated("--storage", card).out
    assert f"{from_card['loss']:.4f}" in shown
    assert f"{from_card['accuracy']:.1%}" in shown
    assert sum(map(sum, from_card["confusion"])) == 6
    assert "labels by predicted class" in shown
    for arguments, named in (
        ((), "--storage"),
        (("--weights", card), "card.img"),
        (("--storage", tmp_path / "none.img"), "none.img"),
        (("--storage", card, "--data", "synthetic:3x8x8:10"), "x has shape"),
        (("--storage", card, "--samples", 0), "samples"),
    ):
        evaluated(*arguments).fails(2, named)
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 1, 8, 8), np.float32), y=np.zeros(8, np.int32))
    no_test = ("--storage", card, "--data", tmp_path / "d.npz", "--half", "held-out")
    evaluated(*no_test).fails(2, "--test-split")


# Whatever can be trained can be evaluated.


def wide() -> Graph:
    """A layer of 64 KiB, whose training by Adam streams in the 24 KiB of the MKR1000."""
    b = Builder("wide", data=(4, 64))
    x = b.relu(b.linear(b.data, 256, name="hidden"))
    return training_graph(b.model(b.softmax_xent(b.linear(x, 4), name="loss")), Adam(0.001), "all")


def train_and_evaluate(
    poet_host: Command, schedule: Path, data: object, *options: object, normalize: str = "none"
) -> None:
    weights = schedule.with_suffix(".safetensors")
    given = ("--port", "native", "--data", data, "--json", *options)
    training = ("--normalize", normalize, "--steps", 2, "--save-weights", weights)
    trained = poet_host("train", schedule, *given, *training)
    assert trained.code == 0, trained.err
    found = poet_host("evaluate", schedule, *given, "--weights", weights)
    assert found.code == 0, found.err
    assert found.json["accuracy"] == trained.json["accuracy"]
    shown = poet_host("evaluate", schedule, *given[:4], *options, "--weights", weights)
    assert f"{found.json['loss']:.4f}" in shown.out
    assert " ms" in shown.out


def test_the_commands_of_the_guide(tmp_path: Path, poet_host: Command) -> None:
    graph, mkr1000 = wide(), poet.load_board("mkr1000")
    plan = poet.solve(graph, mkr1000, gap=0.9, work_limit=20_000)
    poet.encode(graph, plan).save(tmp_path / "mine.poet")
    rows = np.random.default_rng(0).standard_normal((60, 65))
    rows[:, -1] = np.arange(60) % 4
    np.savetxt(tmp_path / "mine.csv", rows, fmt=["%.6f"] * 64 + ["%d"], delimiter=",")
    train_and_evaluate(
        poet_host, tmp_path / "mine.poet", tmp_path / "mine.csv", "--test-split", 0.2,
        normalize="standard",
    )  # fmt: skip


@pytest.mark.slow
def test_resnet8_in_the_ram_of_the_mkr1000(tmp_path: Path, poet_host: Command) -> None:
    schedule = tmp_path / "r8.poet"
    solved = poet_host(
        "solve", "resnet8-cifar", "--board", "mkr1000", "--time-limit", 1, "-o", schedule
    )
    assert solved.code == 0
    train_and_evaluate(poet_host, schedule, "synthetic:3x32x32:10")


@needs_compiler
@pytest.mark.slow
def test_weights_in_the_flash_of_a_chip(tmp_path: Path, poet_host: Command) -> None:
    """A schedule without storage, on a board without a card."""
    schedule, flash = tmp_path / "m.poet", tmp_path / "flash.bin"
    problem = poet.problem(runs.digits(), "nrf52840_dk", ram="64KiB", storage=False)
    poet.encode(runs.digits(), poet.solve(problem, gap=0.5, work_limit=20_000)).save(schedule)
    board = ("--port", "sim:nrf52840_dk", "--storage", flash, "--data", "digits", "--json")
    weights = tmp_path / "w.safetensors"
    trained = poet_host("train", schedule, *board, "--steps", 1, "--save-weights", weights)
    assert trained.code == 0, trained.err
    from_flash = poet_host("evaluate", schedule, *board, "--samples", 4)
    assert from_flash.code == 0, from_flash.err
    from_file = poet_host("evaluate", schedule, *board, "--samples", 4, "--weights", weights)
    assert from_file.json["loss"] == from_flash.json["loss"]
