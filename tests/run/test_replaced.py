"""Only --erase-card loses what a card holds; a model can move to another layout."""

from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api, isa
from poet_host.card.card import held
from poet_host.card.note import write_note
from poet_host.device.device import MODEL
from poet_host.errors import BadInput, LinkBroken
from poet_host.graph.graph import Graph
from poet_host.run.run import weights_sha256
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import Command
from torch import nn


def model(**options: Any) -> Graph:
    return api.load("resnet-digits", **options)


def trained_by(kind: str, card: Path) -> None:
    if kind == "this model":
        runs.train(runs.small(), storage=card, steps=2)
    elif kind == "another model":
        runs.train(runs.schedule(model(momentum=0.9)), storage=card, steps=1)
    elif kind == "another batch":
        runs.train(runs.schedule(model(batch=2)), storage=card, steps=2)
    else:
        written = runs.small() if kind == "a job" else runs.schedule(model(batch=2))
        with runs.board(written, card) as connection:
            poet.write_card(written, connection, "digits", steps=5)


KINDS = ["this model", "another model", "another batch", "a job", "a job of another batch"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["train", "card write"])
def test_a_card_that_holds_something_is_refused(
    kind: str, command: str, card: Path, poet_host: Command, tmp_path: Path
) -> None:
    schedule, weights = tmp_path / "digits.poet", tmp_path / "w.safetensors"
    runs.small().save(schedule)
    trained_by(kind, card)
    before = card.read_bytes()

    def call(*more: object) -> Any:
        given = (schedule, "--data", "digits", "--steps", 1, *more)
        if command == "card write":
            return poet_host("card", "write", *given, "-o", card)
        board = ("--port", "native", "--storage", card, "--save-weights", weights)
        return poet_host("train", *given, *board)

    call().fails(2, "--resume", "--erase-card")
    assert not weights.exists()
    assert card.read_bytes() == before
    assert call("--erase-card").code == 0


def test_a_connection_may_replace_weights_that_it_returned() -> None:
    schedule = runs.schedule(runs.digits())
    with runs.board(schedule) as connection:
        first = poet.train(schedule, connection, "digits", steps=2)
        again = poet.train(schedule, connection, "digits", steps=2)
    assert runs.same(first, again)


@pytest.mark.parametrize("at", [1, 2])
def test_a_connection_keeps_weights_that_it_did_not_return(at: int) -> None:
    schedule = runs.schedule(runs.digits())

    def fail(step: Any, last: int) -> None:
        if step.step == at:
            raise RuntimeError("a defect of the caller")

    with runs.board(schedule) as connection:
        poet.train(schedule, connection, "digits", steps=2)
        with pytest.raises(RuntimeError):
            poet.train(schedule, connection, "digits", steps=2, on_step=fail)
        with pytest.raises(BadInput, match="--erase-card"):
            poet.train(schedule, connection, "digits", steps=2)


def test_a_connection_keeps_weights_that_the_caller_has_not_read() -> None:
    schedule = runs.schedule(runs.digits())
    with runs.board(schedule) as connection:
        poet.train(schedule, connection, "digits", steps=2)
        training = poet.begin_training(schedule, connection, "digits", seed=1)
        training.step()
        training.step()
        with pytest.raises(BadInput, match="--erase-card"):
            poet.train(schedule, connection, "digits", steps=2)


def test_bad_input_erases_no_card(card: Path, train: Any, tmp_path: Path) -> None:
    graph, log = runs.digits(), tmp_path / "log.jsonl"
    weights = runs.train(runs.schedule(graph), storage=card, steps=2).weights
    named = tmp_path / "named.safetensors"
    poet.save_weights(named, graph, weights, 2, ("zero", *"abcdefghi"))
    row = ",".join(["0.5"] * 64)
    (tmp_path / "new.csv").write_text(f"{row},zero\n" * 4 + f"{row},dozen\n" * 4)
    log.write_text("before")
    before = card.read_bytes()
    train(
        runs.schedule(graph), "--storage", card, "--load-weights", named, "--log", log,
        "--erase-card", data=tmp_path / "new.csv",
    ).fails(2, "dozen")  # fmt: skip
    assert card.read_bytes() == before
    assert log.read_text() == "before"


def straight(schedule: Schedule, first: Any, until: int) -> str:
    """Training from the weights of a run, in one go on a card of its own."""
    done = runs.train(
        schedule, steps=until, weights=first.weights, first_step=first.last_step, seed=0
    )
    return weights_sha256(done.weights)


@pytest.mark.parametrize("options", [{"batch": 2}, {"learning_rate": 0.005}, {"weight_decay": 0.1}])
def test_the_same_model_moves_to_another_layout(options: Any, card: Path) -> None:
    first = runs.train(runs.small(), storage=card, steps=3)
    other = runs.schedule(model(**options))
    moved: list[tuple[str, int]] = []
    with runs.board(other, card) as connection:
        run = poet.train(
            other, connection, "digits", steps=6, resume=True,
            before_moving=lambda weights, step: moved.append((weights_sha256(weights), step)),
        )  # fmt: skip
        assert held(connection.device).step == 6  # type: ignore[union-attr]
    assert moved == [(weights_sha256(first.weights), 3)]
    assert [step.step for step in run.steps] == [4, 5, 6]
    assert weights_sha256(run.weights) == straight(other, first, 6)
    # And from there on it is the card's own layout.
    again = runs.train(other, storage=card, steps=7, resume=True)
    assert weights_sha256(again.weights) == straight(other, first, 7)


def test_a_card_is_read_in_its_own_layout_and_not_overwritten_by_an_evaluation(card: Path) -> None:
    first = runs.train(runs.small(), storage=card, steps=2)
    before = card.read_bytes()
    other = runs.schedule(model(batch=2))
    with runs.board(other, card) as connection:
        state, weights = poet.read_card(other, connection)
        assert state is None
        assert weights_sha256(weights) == weights_sha256(first.weights)
        for given in (None, weights):
            with pytest.raises(BadInput, match="the schedule that trained them"):
                poet.evaluate(other, connection, "digits", samples=8, weights=given)
    assert card.read_bytes() == before


@pytest.mark.slow
def test_a_native_board_has_the_ram_of_both_layouts(
    card: Path, poet_host: Command, tmp_path: Path
) -> None:
    first = runs.train(runs.schedule(runs.digits()), storage=card, steps=2)
    schedule, weights = tmp_path / "two.poet", tmp_path / "w.safetensors"
    other = runs.schedule(model(batch=2), "60%", "poet")
    other.save(schedule)
    at = ("--port", "native", "--storage", card)
    assert poet_host("card", "read", schedule, "--storage", card).code == 0
    given = ("--data", "digits", "--steps", 4, "--save-weights", weights, "--json")
    done = poet_host("train", schedule, *at, *given, "--resume")
    assert done.code == 0, done.err
    assert done.json["weights_sha256"] == straight(other, first, 4)


def test_a_job_does_not_replace_another_layout(card: Path) -> None:
    runs.train(runs.schedule(runs.digits()), storage=card, steps=1)
    other = runs.schedule(model(batch=2))
    with (
        poet.connect("native", storage=card, arena_bytes="1MiB") as connection,
        pytest.raises(BadInput, match="--load-weights FILE to --resume"),
    ):
        poet.write_card(other, connection, "digits", steps=3, resume=True)
    with poet.connect("native", storage=card, arena_bytes="1MiB") as connection:
        weights = poet.read_card(other, connection)[1]
        poet.write_card(other, connection, "digits", steps=3, weights=weights, first_step=1)


def test_weights_are_in_a_file_while_they_move(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runs.train(runs.schedule(runs.digits()), storage=card, steps=1)

    def cut(*arguments: Any) -> None:
        raise LinkBroken("the board is gone")

    other = runs.schedule(model(batch=2))
    with poet.connect("native", storage=card, arena_bytes="1MiB") as connection:
        monkeypatch.setattr(connection.device, "begin", cut)
        with pytest.raises(LinkBroken, match=r"--load-weights \S+") as broken:
            poet.train(other, connection, "digits", steps=2, resume=True)
    path = Path(str(broken.value).split()[-1])
    saved = poet.load_weights(path, model(batch=2))
    path.unlink()
    assert weights_sha256(saved) == weights_sha256(first.weights)


def test_a_layout_that_needs_more_ram_is_refused(card: Path) -> None:
    runs.train(runs.schedule(runs.digits()), storage=card, steps=1)
    with pytest.raises(BadInput, match="card read"):
        runs.train(runs.schedule(model(batch=2)), storage=card, steps=2, resume=True)


def test_a_note_is_kept_until_the_next_model_is_committed(card: Path) -> None:
    schedule, other = runs.schedule(runs.digits()), runs.schedule(model(batch=2))
    runs.train(schedule, storage=card, steps=1)
    with runs.board(schedule, card) as connection:
        for _ in range(3):  # as power cuts leave it, again and again
            write_note(connection.device, other)
            found = held(connection.device)
            assert found is not None
            assert found.note is not None
            assert found.note.model_crc == schedule.model.crc
            assert found.note.model == "resnet-digits"


@pytest.mark.parametrize("damage", [b"\xff", b"\0" * 600])
def test_a_damaged_note_loses_no_weights(damage: bytes, card: Path) -> None:
    schedule = runs.schedule(runs.digits())
    runs.train(schedule, storage=card, steps=1)
    places = (isa.constants()["POET_NOTE_OFFSET"], isa.constants()["POET_NOTE_BYTES"])
    with runs.board(schedule, card) as connection:
        for at in (places[0], sum(places)):
            connection.device.write(MODEL, 0, damage, start=at + 16)
        assert held(connection.device).note is None  # type: ignore[union-attr]
        with pytest.raises(BadInput, match="another card"):
            poet.train(runs.schedule(model(batch=2)), connection, "digits", steps=2, resume=True)
    assert runs.train(schedule, storage=card, steps=2, resume=True).last_step == 2


CONSTANTS = {
    "class weights": (
        lambda: nn.Linear(6, 2), (6,), {"loss": "cross-entropy:class_weights=1,5"},
        {"loss": "cross-entropy:class_weights=5,1"},
    ),
    "batch of first states": (
        lambda: nn.Sequential(nn.GRU(3, 2, batch_first=True), Last()), (4, 3), {"batch": 2},
        {"batch": 3},
    ),
}  # fmt: skip


class Last(nn.Module):
    """The last step of a sequence."""

    def forward(self, found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return found[0][:, -1]


@pytest.mark.parametrize("storage", [True, False])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_resumed_run_has_the_constants_of_its_own_schedule(
    kind: str, storage: bool, card: Path, tmp_path: Path
) -> None:
    make, shape, *both = CONSTANTS[kind]
    torch.manual_seed(0)
    module, file = make(), tmp_path / "w.safetensors"

    def made(options: Any) -> tuple[Graph, Schedule]:
        options = {"batch": 2, "loss": "cross-entropy", **options}
        graph = poet.load(module, torch.randn(options["batch"], *shape), **options)
        plan = poet.solve(poet.problem(graph, "native", storage=storage), method="keep-everything")
        return graph, poet.encode(graph, plan)

    (graph, first), (_, other) = map(made, both)
    data = {"x": torch.randn(12, *shape), "y": torch.arange(12) % 2}
    with poet.connect("native", storage=card if storage else None) as board:
        poet.save_weights(file, graph, poet.train(first, board, data, steps=4).weights, 4)
        ours = poet.train(other, board, data, steps=8, resume=True).weights
    with poet.connect("native") as board:
        theirs = poet.train(other, board, data, steps=8, weights=file, first_step=4).weights
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
