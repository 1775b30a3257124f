"""Cards by which a board trains alone: the weights and losses of the same training with a host."""

import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import api
from poet_host.card.job import check_room
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.fitted import classes_of, fit, samples_of_step, samples_of_steps, tokens_of
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import NativeBoard
from support import whole_runs as runs
from support.card_image import BLOCK, DATA_BLOCK, PREPARED, newest_commit
from support.command import Command, Result
from support.sim_helper import needs_compiler

WAIT_S = 60.0


def write(schedule: Schedule, card: Path, data: Any = "digits", **how: Any) -> Any:
    with runs.board(schedule, card) as connection:
        return poet.write_card(schedule, connection, data, **how)


def read(schedule: Schedule, card: Path) -> Any:
    with runs.board(schedule, card) as connection:
        return poet.read_card(schedule, connection)


def committed(card: Path) -> int:
    return int(newest_commit(card)["now"]["step"])


def alone(schedule: Schedule, card: Path, until: int, board: str = "native") -> None:
    """Switch a board on with the card in it, and nobody near, until it has come so far.

    `board` is the name of the program that runs here.
    """
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with NativeBoard(card, arena_bytes, board=board, alone=True) as running:
        wait_for(until, card, running)
        running.kill()


def wait_for(step: int, card: Path, running: Any, limit_s: float = WAIT_S) -> None:
    """Wait until the running board has committed a step."""
    give_up = time.monotonic() + limit_s
    while committed(card) < step:
        assert time.monotonic() < give_up
        assert running.ended is None
        time.sleep(0.01)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_job_of_samples_in_parts_of_rows_trains_the_same_bits(samples: int, card: Path) -> None:
    schedule, data = runs.in_columns(samples)
    how: dict[str, Any] = {"steps": 4, "seed": 3}
    write(schedule, card, data, **how)
    alone(schedule, card, 4)
    wanted = runs.train(schedule, data, **how)
    state, weights = read(schedule, card)
    assert state.losses.tolist() == [step.loss for step in wanted.steps]
    assert all(weights[it].tobytes() == value.tobytes() for it, value in wanted.weights.items())


def test_a_job_whose_samples_a_board_cannot_put_together_is_refused(card: Path) -> None:
    """Each part of the batch has values of both samples."""
    schedule, data = runs.in_columns(2, 8_192)
    run = runs.train(schedule, data, storage=card, steps=1)
    for how in ({"resume": True}, {"erase_card": True}, {}):
        with pytest.raises(BadInput, match="--no-streaming"):
            write(schedule, card, data, steps=2, **how)
    _, weights = read(schedule, card)
    assert all(weights[it].tobytes() == value.tobytes() for it, value in run.weights.items())


def test_a_job_goes_on_after_an_evaluation_that_a_power_cut_ended(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = runs.schedule(runs.digits(), "100%", "poet")
    how: dict[str, Any] = {"steps": 6, "seed": 3}
    write(schedule, card, **how)
    alone(schedule, card, 2)
    with monkeypatch.context() as patch:
        patch.setattr("poet_host.run.evaluate.put_back", lambda *_: None)
        with runs.board(schedule, card) as connection:
            poet.evaluate(schedule, connection, "digits", samples=4)
    with runs.board(schedule, card) as connection:
        values = start_values(schedule.graph, 1)
        poet.evaluate(schedule, connection, "digits", weights=values, samples=4)
    alone(schedule, card, 6)
    _, weights = read(schedule, card)
    straight = runs.train(schedule, **how)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)


def texts_data() -> Dataset:
    graph: Graph = runs.texts()
    rng = np.random.default_rng(0)
    x = rng.integers(0, tokens_of(graph), (9, *graph[graph.data].shape[1:]))
    return fit(Dataset("texts", x, rng.integers(0, classes_of(graph), 9)), graph)


@pytest.mark.parametrize("make", [runs.digits, runs.texts])
def test_training_without_a_host_has_the_same_bits(make: Any, card: Path) -> None:
    schedule = runs.schedule(make(), "100%", "keep-everything")
    data = "digits" if make is runs.digits else texts_data()
    how: dict[str, Any] = {"steps": 6, "seed": 3, "lr_schedule": "cosine", "warmup": 2}
    state = write(schedule, card, data, **how)
    assert (state.first, state.last, state.committed, len(state.losses)) == (0, 6, 0, 0)
    alone(schedule, card, 6)
    state, weights = read(schedule, card)
    straight = runs.train(schedule, data, **how)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)
    assert state.losses.tolist() == [step.loss for step in straight.steps]
    assert (state.committed, state.last) == (6, 6)


def test_training_continues_after_a_power_cut_and_after_a_host(card: Path) -> None:
    schedule = runs.small()
    write(schedule, card, steps=10_000)  # more than it makes before a kill that comes late
    for _ in range(3):
        alone(schedule, card, committed(card) + 3)  # which ends in the middle of a step
    at = committed(card)
    # A host takes over, and the board goes on alone once more.
    assert runs.train(schedule, storage=card, steps=at + 2, resume=True).last_step == at + 2
    assert committed(card) == at + 2
    alone(schedule, card, at + 4)
    state, weights = read(schedule, card)
    straight = runs.train(schedule, steps=state.committed)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)
    losses = [step.loss for step in straight.steps]
    for step, (found, wanted) in enumerate(zip(state.losses.tolist(), losses, strict=True), 1):
        # What a kill kept from being noted, and what the host has trained, is not there.
        assert found == wanted or (step in (at, at + 1, at + 2) and np.isnan(found)), step


@pytest.mark.slow
def test_a_host_stops_training_between_two_commits(card: Path) -> None:
    schedule = runs.small()
    write(schedule, card, steps=100_000)
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with api.start_board("native", card, arena_bytes, alone=True) as running:
        wait_for(2, card, running)
        with poet.connect(running.port) as connection:
            state, weights = poet.read_card(schedule, connection)
            assert 2 <= state.committed < 100_000
            assert connection.device.hello().committed_step == state.committed
    straight = runs.train(schedule, steps=state.committed)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)


def test_training_with_a_host_ends_a_job(card: Path) -> None:
    schedule = runs.small()
    write(schedule, card, steps=50)
    with pytest.raises(BadInput, match=r"--resume.*--erase-card"):
        runs.train(schedule, storage=card, steps=1)
    assert read(schedule, card)[0] is not None
    runs.train(schedule, storage=card, steps=1, erase_card=True)
    assert read(schedule, card)[0] is None
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with (
        api.start_board("native", card, arena_bytes, alone=True) as running,
        poet.connect(running.port) as connection,
    ):
        assert connection.device.info.committed_step == 1


def test_a_job_that_does_not_fit_is_refused_first(tmp_path: Path) -> None:
    card, schedule = tmp_path / "tight.img", runs.small()
    poet.prepare_storage(card, (PREPARED + DATA_BLOCK + schedule.model.data_blocks + 700) * BLOCK)
    runs.train(schedule, storage=card, steps=1)
    with pytest.raises(BadInput, match=r"needs [\d,]+ bytes .* card has only [\d,]+ bytes"):
        write(schedule, card, steps=4, resume=True)
    assert committed(card) == 1  # and the weights are there still
    assert read(schedule, card)[0] is None


@pytest.mark.parametrize("run", [poet.train, poet.write_card])
def test_the_weights_of_a_resumed_run_are_not_erased(run: Any, card: Path) -> None:
    schedule = runs.small()
    runs.train(schedule, storage=card, steps=1)
    with runs.board(schedule, card) as connection, pytest.raises(BadInput, match="--erase-card"):
        run(schedule, connection, "digits", steps=2, resume=True, erase_card=True)
    assert committed(card) == 1


def test_a_job_needs_a_card_that_may_be_written(card: Path) -> None:
    before = card.read_bytes()
    with (
        poet.open_card(card) as opened,
        pytest.raises(BadInput, match="pass writable=True to open_card"),
    ):
        poet.write_card(runs.small(), opened, "digits", steps=3)
    assert card.read_bytes() == before


def test_a_job_needs_a_schedule_that_uses_the_card(card: Path) -> None:
    problem = poet.problem(runs.digits(), "native", ram="100%", storage=False)
    schedule = poet.encode(runs.digits(), poet.solve(problem, work_limit=1_000, gap=0.9))
    before = card.read_bytes()
    with pytest.raises(BadInput, match="--no-storage"):
        write(schedule, card, steps=1, erase_card=True)
    assert card.read_bytes() == before


@pytest.mark.parametrize("how", [{"augment": "flip"}, {"draw": lambda _: range(4)}])
def test_samples_that_a_job_would_not_change_are_refused(card: Path, how: Any) -> None:
    before = card.read_bytes()
    with pytest.raises(BadInput, match=next(iter(how))):
        write(runs.small(), card, replace(load_data("digits"), **how), steps=1)
    assert card.read_bytes() == before


def test_more_steps_than_a_card_has_room_for_are_refused_before_any_work(
    files: Path, poet_host: Command
) -> None:
    card, schedule = files / "c.img", runs.small()
    poet.prepare_storage(card, 64 << 20)
    before = card.read_bytes()
    for steps in (10**8, 10**18):  # a list of so many samples would take minutes, or no computer
        with pytest.raises(BadInput, match=f"{steps:,} steps needs"):
            write(schedule, card, steps=steps, erase_card=True)
    assert card.read_bytes() == before
    made = partial(poet_host, "card", "write", files / "m.poet", "--data", "digits", "-o")
    made(files / "new.img", "--epochs", 10**8).fails(2, "bytes", "epochs")
    assert not (files / "new.img").exists()


def test_the_refusal_of_a_job_says_how_many_steps_have_room() -> None:
    data, room = fit(load_data("digits"), runs.small().graph), 10**7
    with pytest.raises(BadInput) as refused:
        check_room(data, 4, 10**9, room)
    found = re.search(r"at most ([\d,]+) steps", str(refused.value))
    assert found
    most = int(found[1].replace(",", ""))
    check_room(data, 4, most, room)
    with pytest.raises(BadInput):
        check_room(data, 4, most + 1, room)


def test_a_job_has_the_samples_of_every_step_in_order() -> None:
    data = fit(load_data("digits"), runs.small().graph)
    per_epoch = data.steps_per_epoch
    many = samples_of_steps(data, 4, 7, per_epoch - 3, per_epoch + 5)
    one = [samples_of_step(data, 4, 7, per_epoch - 3 + i) for i in range(per_epoch + 5)]
    assert np.array_equal(many, np.concatenate(one))


@needs_compiler
@pytest.mark.slow
def test_a_simulated_chip_trains_alone(tmp_path: Path, card: Path) -> None:
    schedule = runs.schedule(runs.digits(), "40%", "poet")
    write(schedule, card, steps=2, lr_schedule="cosine")
    with api.start_board("mkr1000", card, alone=True) as running:
        wait_for(2, card, running, 5 * WAIT_S)
    state, weights = read(schedule, card)
    straight = runs.train(schedule, steps=2, lr_schedule="cosine")
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)
    assert state.losses.tolist() == [step.loss for step in straight.steps]
    assert state.board == "mkr1000"


# The command line.


@pytest.fixture
def files(tmp_path: Path) -> Path:
    runs.small().save(tmp_path / "m.poet")
    return tmp_path


def test_an_image_is_made_written_and_read(files: Path, poet_host: Command) -> None:
    image, schedule = files / "new.img", files / "m.poet"

    def written(*more: object) -> Result:
        return poet_host("card", "write", schedule, "--data", "digits", "-o", image, *more)

    made = written("--steps", 3, "--seed", 5, "--json").json
    assert made["job"] == {"first_step": 0, "last_step": 3, "losses": []}
    assert image.stat().st_size == 64 * runs.MIB
    alone(runs.small(), image, 3)
    result = poet_host(
        "card", "read", schedule, "--storage", image, "--json",
        "--save-weights", files / "w.safetensors", "--log", files / "l.jsonl",
    )  # fmt: skip
    straight = runs.train(runs.small(), steps=3, seed=5)
    assert result.json["job"]["losses"] == [step.loss for step in straight.steps]
    assert poet.step_of_weights(files / "w.safetensors") == 3
    saved = poet.load_weights(files / "w.safetensors", runs.digits())
    assert all(saved[name].tobytes() == straight.weights[name].tobytes() for name in saved)
    assert (files / "l.jsonl").read_text().count('"event": "step"') == 3
    assert result.json["board"] == "native"
    shown = poet_host("card", "read", schedule, "--storage", image).out
    assert "3 of 3" in shown
    # Going on, by the card's weights and by the file's.
    assert written("--resume", "--steps", 5, "--seed", 5, "--json").json["job"]["first_step"] == 3
    alone(runs.small(), image, 5)
    weights = read(runs.small(), image)[1]
    straight = runs.train(runs.small(), steps=5, seed=5)
    assert all(straight.weights[name].tobytes() == weights[name].tobytes() for name in weights)
    more = ("--load-weights", files / "w.safetensors", "--resume", "--steps", 4, "--json")
    assert written(*more).json["job"]["first_step"] == 3


def test_a_log_names_the_board_that_trained_alone(
    files: Path, card: Path, poet_host: Command
) -> None:
    """Here the card is read in the native board."""
    write(runs.small(), card, steps=2)
    assert read(runs.small(), card)[0].board == ""

    def named() -> tuple[str, str]:
        log = files / "l.jsonl"
        asked = ("card", "read", files / "m.poet", "--storage", card, "--json", "--log", log)
        found = poet_host(*asked).json["board"]
        return found, json.loads(log.read_text().splitlines()[0])["board"]

    assert named() == ("native", "native")
    alone(runs.small(), card, 2, board="mkr1000")
    assert named() == ("mkr1000", "mkr1000")
    assert "mkr1000" in poet_host("card", "read", files / "m.poet", "--storage", card).out


def test_only_erase_card_replaces_weights_of_another_model(
    files: Path, card: Path, poet_host: Command
) -> None:
    runs.train(runs.schedule(runs.digits(0.9, 0.0005)), storage=card, steps=1)
    before = card.read_bytes()

    def written(*more: object) -> Result:
        return poet_host("card", "write", files / "m.poet", "--data", "digits", "-o", card, *more)

    written("--resume").fails(2, "resnet-digits")
    written().fails(2, "--resume", "--erase-card")
    assert card.read_bytes() == before
    assert written("--erase-card").code == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "-o FILE"),
        (("-o", "{0}/new.img", "--port", "native"), "-o FILE"),
        (("-o", "{0}/new.img", "--storage", "{0}/other.img"), "omit --storage"),
        (("-o", "{0}/new.img", "--epochs", 1, "--steps", 1), "--epochs and --steps"),
        (("--port", "native"), "--storage"),
        (("--port", "sim:mkr1000"), "--storage"),
        (("-o", "{0}/new.img", "--resume"), "new.img"),
        (("-o", "{0}/new.img", "--data", "synthetic:3x8x8:10"), "x has shape"),
        (("-o", "{0}/none/new.img"), "none"),
        (("-o", "{0}/m.poet"), "m.poet"),
        (("-o", "/dev/null"), "/dev/null"),
        (("-o", "{0}/foreign.img"), "partition"),
        (("--port", "native", "--storage", "{0}/none.img"), "none.img"),
    ],
)
def test_wrong_cards_are_refused(
    arguments: tuple[str, ...], named: str, files: Path, poet_host: Command
) -> None:
    (files / "foreign.img").write_bytes(b"somebody's photographs" * 100_000)
    before = {path: path.read_bytes() for path in files.iterdir()}
    given = [str(word).format(files) for word in arguments]
    result = poet_host("card", "write", files / "m.poet", "--data", "digits", *given)
    assert result.code != 0
    assert named in result.err
    assert {path: path.read_bytes() for path in files.iterdir()} == before


def test_devices_are_not_prepared(poet_host: Command) -> None:
    poet_host("storage", "prepare", "/dev/null", "--force").fails(2, "/dev/null")
    assert not Path("/dev/null").is_file()
