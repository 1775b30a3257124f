"""Weights taken off a card without a board, and cards written without one."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api, isa
from poet_host.card.note import PLACES
from poet_host.device.device import JOB, MODEL, PLAN
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.run.run import Run
from poet_host.schedule import slots
from poet_host.schedule.model import CURRENT, FIXED, Model
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.card_image import BLOCK, PREPARED, newest_commit, read_image
from support.command import Command
from support.onnx_judge import imported
from support.onnx_models import Residual, legacy

STEPS, MIB = 3, 1 << 20


def user_model() -> Graph:
    """An imported model, whose file has other names and shapes than the graph."""
    return imported(legacy(Residual(), torch.zeros(2, 1, 8, 8)), loss="cross-entropy")


def trained(card: Path, make: Callable[[], Graph] = runs.digits) -> tuple[Schedule, Run]:
    schedule = runs.schedule(make())
    return schedule, runs.train(schedule, data_for(make), storage=card, steps=STEPS)


def data_for(make: Callable[[], Graph]) -> str:
    return "tokens:12:40:8" if make is runs.texts else "digits"


@pytest.fixture
def on_card(card: Path, tmp_path: Path) -> Run:
    """A trained card.img, and m.poet."""
    schedule, run = trained(card)
    schedule.save(tmp_path / "m.poet")
    return run


def change(card: Path, block: int, at: int = 0, count: int = 1) -> None:
    """Invert bits of bytes on the card, from byte `at` of a block of the partition on."""
    with card.open("rb+") as file:
        file.seek((PREPARED + block) * BLOCK + at)
        data = file.read(count)
        file.seek(-count, 1)
        file.write(bytes(byte ^ 0x10 for byte in data))


def place_of(card: Path, model: Model, number: int, *, prior: bool = False) -> tuple[int, int]:
    """The first block of a tensor in the committed slot, and the position of its trailer in it."""
    tensor, slot = model.tensors[number], newest_commit(card)["slot"] - prior
    slot = slot % slots.SLOTS if tensor.place == CURRENT else 0
    (piece,) = slots.pieces(tensor)
    block = slots.slot_block(model, slot) + piece.block
    return block, piece.trailer - piece.block * BLOCK


@pytest.mark.parametrize("make", [runs.digits, runs.texts, user_model])
def test_exported_weights_are_those_that_a_board_reads(
    make: Callable[[], Graph], card: Path, tmp_path: Path, poet_host: Command
) -> None:
    schedule, run = trained(card, make)
    schedule.save(tmp_path / "m.poet")
    files = [tmp_path / f"{name}.safetensors" for name in ("run", "board", "read", "export")]
    poet.save_weights(files[0], schedule.graph, run.weights, STEPS)
    read = ("card", "read", tmp_path / "m.poet", "--storage", card, "--save-weights")
    assert poet_host(*read, files[1], "--port", "native").code == 0
    assert poet_host(*read, files[2]).code == 0
    before = card.read_bytes()
    made = poet_host("card", "export", card, files[3], "--json").json
    assert made == {
        "file": str(files[3]), "model": schedule.graph.name, "step": STEPS, "prior": False,
    }  # fmt: skip
    assert len({file.read_bytes() for file in files}) == 1
    assert poet_host("card", "export", card, files[3], "--schedule", tmp_path / "m.poet").code == 0
    assert files[3].read_bytes() == files[0].read_bytes()
    assert card.read_bytes() == before


def test_weights_that_stream_in_parts_of_rows_are_exported_in_row_major_order(card: Path) -> None:
    schedule, data = runs.in_columns()
    run = runs.train(schedule, data, storage=card, steps=STEPS)
    weights = card.with_name("w.safetensors")
    poet.export_card(card, weights)
    saved = poet.load_weights(weights, schedule.graph)
    assert all(saved[name].tobytes() == run.weights[name].tobytes() for name in run.weights)


def test_weights_of_the_step_before(
    on_card: Run, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    weights = tmp_path / "w.safetensors"
    made = poet_host("card", "export", card, weights, "--prior", "--json").json
    assert (made["step"], made["prior"]) == (STEPS - 1, True)
    earlier = runs.train(runs.schedule(runs.digits()), steps=STEPS - 1)
    saved = poet.load_weights(weights, runs.digits())
    assert all(saved[name].tobytes() == earlier.weights[name].tobytes() for name in saved)
    assert poet.step_of_weights(weights) == STEPS - 1


@pytest.mark.parametrize("part", ["data", "trailer"])
@pytest.mark.parametrize("place", [CURRENT, FIXED])
def test_damaged_weights_are_not_written(
    part: str, place: int, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    schedule = runs.schedule(api.load("resnet-digits", train="last:1"))
    runs.train(schedule, storage=card, steps=STEPS)
    model = schedule.model
    number = next(i for i, tensor in enumerate(model.tensors) if tensor.place == place)
    block, trailer = place_of(card, model, number)
    change(card, block, 0 if part == "data" else trailer)
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"the old file")
    advice = "--prior" if place == CURRENT else "copy"
    poet_host("card", "export", card, weights).fails(1, f"step {STEPS}", advice)
    assert weights.read_bytes() == b"the old file"
    rescued = poet_host("card", "export", card, weights, "--prior")
    assert rescued.code == (0 if place == CURRENT else 1)


def test_an_old_slot_is_not_taken_for_the_current_one(on_card: Run, card: Path) -> None:
    """The card acknowledged the writes of the last step and did not make them."""
    model = runs.schedule(runs.digits()).model
    number = next(i for i, tensor in enumerate(model.tensors) if tensor.place == CURRENT)
    size = model.tensors[number].blocks * BLOCK
    (now, _), (before, _) = (place_of(card, model, number, prior=prior) for prior in (False, True))
    with card.open("rb+") as file:
        file.seek((PREPARED + before) * BLOCK)
        old = file.read(size)
        file.seek((PREPARED + now) * BLOCK)
        file.write(old)
    with pytest.raises(poet.Damaged):
        poet.export_card(card, card.with_name("w.safetensors"))


def test_a_card_without_a_note_needs_the_schedule(
    on_card: Run, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    for place in PLACES:
        change(card, slots.MODEL_BLOCK, place)
    weights, schedule = tmp_path / "w.safetensors", tmp_path / "m.poet"
    poet_host("card", "export", card, weights).fails(2, "--schedule")
    runs.schedule(runs.digits(0.9, 0.0005)).save(tmp_path / "other.poet")
    other = ("--schedule", tmp_path / "other.poet")
    poet_host("card", "export", card, weights, *other).fails(2, "resnet-digits")
    assert poet_host("card", "export", card, weights, "--schedule", schedule).code == 0
    saved = poet.load_weights(weights, runs.digits())
    assert all(saved[name].tobytes() == on_card.weights[name].tobytes() for name in saved)


@pytest.mark.parametrize("what", ["model part", "commit records"])
def test_damaged_records(
    what: str, on_card: Run, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    blocks = {"model part": (slots.MODEL_BLOCK,)}
    for block in blocks.get(what, slots.COMMIT_BLOCKS):
        change(card, block, 40 if what == "model part" else 8)
    weights, schedule = tmp_path / "w.safetensors", tmp_path / "m.poet"
    poet_host("card", "export", card, weights).fails(2, card)
    assert not weights.exists()
    by_schedule = poet_host("card", "export", card, weights, "--schedule", schedule)
    assert by_schedule.code == (0 if what == "model part" else 2)


def test_a_schedule_solved_with_the_learning_rate_replaces_a_damaged_model_part(
    card: Path, tmp_path: Path, poet_host: Command
) -> None:
    schedule, weights = tmp_path / "m.poet", tmp_path / "w.safetensors"
    runs.schedule(runs.digits()).save(schedule)
    run = runs.train(Schedule.load(schedule), storage=card, steps=1, lr=0.5)
    change(card, slots.MODEL_BLOCK, 200)
    export = ("card", "export", card, weights, "--schedule", schedule)
    poet_host(*export).fails(2, "solve it again with this --lr")
    poet_host("card", "check", card, "--schedule", schedule).fails(2, "solved with this --lr")
    again = runs.schedule(runs.digits(learning_rate=0.5))
    again.save(schedule)
    assert poet_host(*export).code == 0
    found = poet.load_weights(weights, again.graph)
    assert all(found[name].tobytes() == run.weights[name].tobytes() for name in found)


def test_a_torn_image_is_damaged(on_card: Run, card: Path, poet_host: Command) -> None:
    """The copy of a card ended early."""
    with card.open("rb+") as file:
        file.truncate((PREPARED + slots.DATA_BLOCK) * BLOCK)
    poet_host("card", "export", card, card.with_name("w.safetensors")).fails(1, card)
    poet_host("card", "read", card.with_name("m.poet"), "--storage", card).fails(1, card)


@pytest.mark.parametrize("kind", ["missing", "folder", "device", "pipe", "text", "empty"])
def test_files_that_are_not_cards(kind: str, tmp_path: Path, poet_host: Command) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("text", "empty"):
        path.write_bytes(b"photographs" * 100 if kind == "text" else b"")
    poet_host("card", "export", path, tmp_path / "w.safetensors").fails(2, path)


def test_a_card_that_a_board_uses_is_left_alone(card: Path, poet_host: Command) -> None:
    with poet.connect("native", storage=card):
        poet_host("card", "export", card, card.with_name("w.safetensors")).fails(1, card)


def test_the_output_is_neither_the_card_nor_another_format(
    on_card: Run, card: Path, poet_host: Command
) -> None:
    poet_host("card", "export", card, card).fails(2, card)
    poet_host("card", "export", card, card.with_name("w.onnx")).fails(2, "w.onnx")


# Cards of another storage format.


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_card_of_another_format_is_refused_with_what_to_do(
    version: int, on_card: Run, card: Path, tmp_path: Path, poet_host: Command
) -> None:
    at, size = PREPARED * BLOCK, isa.record_size("poet_store")
    with card.open("rb+") as file:
        file.seek(at)
        row = isa.unpack("poet_store", file.read(size)) | {"version": version}
        raw = isa.pack("poet_store", **row)[:-4]
        file.seek(at)
        file.write(raw + zlib.crc32(raw).to_bytes(4, "little"))
    before, poet_file = read_image(card), tmp_path / "m.poet"
    named = (f"format {version}", *(("card export",) if version < 3 else ()))
    weights = tmp_path / "w.safetensors"
    write = ("card", "write", poet_file, "--data", "digits", "--steps", 1)
    board = ("--port", "native", "--storage", card)
    readers: tuple[tuple[object, ...], ...] = (
        ("card", "check", card),
        ("card", "export", card, weights),
        ("card", "export", card, weights, "--prior", "--schedule", poet_file),
        ("card", "read", poet_file, "--storage", card),
    )
    for command in (
        *(readers if version != 2 else ()),
        (*write, "-o", card),
        ("card", "read", poet_file, *board),
        (*write, *board),
        ("train", poet_file, *board, "--data", "digits", "--save-weights", weights),
    ):
        poet_host(*command).fails(2, *named)
    assert read_image(card) == before
    assert not weights.exists()


# Cards written without a board.


@pytest.mark.parametrize("make", [runs.digits, runs.texts, user_model])
def test_a_board_finds_on_an_image_what_it_would_have_written(
    make: Callable[[], Graph], card: Path, tmp_path: Path
) -> None:
    schedule = runs.schedule(make())
    with runs.board(schedule, card) as board:
        by_board = poet.write_card(schedule, board, data_for(make), steps=4, seed=2)
        job_bytes = board.device.job_room() - 256 * BLOCK  # without those for measurements
        objects = [(MODEL, 512 << 10), (PLAN, len(schedule.plan_part)), (JOB, min(job_bytes, MIB))]
        wanted = [board.device.read(number, 0, size) for number, size in objects]
        weights = poet.read_card(schedule, board)[1]
    image = tmp_path / "image.img"
    poet.prepare_storage(image, card.stat().st_size)
    with poet.open_card(image, writable=True) as opened:
        state = poet.write_card(schedule, opened, data_for(make), steps=4, seed=2)
        assert (state.first, state.last, state.committed) == (0, 4, 0)
        assert [opened.device.read(number, 0, size) for number, size in objects] == wanted
    assert state.classes == by_board.classes
    with runs.board(schedule, image) as board:
        assert board.device.info.committed_step == 0
        found, values = poet.read_card(schedule, board)
        assert [board.device.read(number, 0, size) for number, size in objects] == wanted
    assert (found.first, found.last, len(found.losses)) == (0, 4, 0)
    assert all(values[name].tobytes() == weights[name].tobytes() for name in weights)
    assert newest_commit(image)["now"] | {"generation": 0, "digest": 0} == (
        newest_commit(card)["now"] | {"generation": 0, "digest": 0}
    )


def test_a_host_continues_on_an_image(tmp_path: Path, card: Path) -> None:
    """The batches of the first step go to slots that `write_card` has left empty."""
    schedule = runs.schedule(runs.digits())
    with poet.open_card(card, writable=True) as opened:
        poet.write_card(schedule, opened, "digits", steps=9)
    run = runs.train(schedule, storage=card, steps=STEPS, resume=True)
    assert runs.same(run, runs.train(schedule, steps=STEPS))
    with pytest.raises(BadInput, match="--resume"), poet.open_card(card) as opened:
        poet.write_card(schedule, opened, "digits", steps=9)
    with poet.open_card(card, writable=True) as opened:
        state = poet.write_card(schedule, opened, "digits", steps=9, resume=True)
        assert (state.first, state.committed) == (STEPS, STEPS)
        state = poet.write_card(schedule, opened, "digits", steps=9, erase_card=True)
        assert (state.first, state.committed) == (0, 0)


def test_a_new_image_has_room_for_a_large_model(tmp_path: Path, poet_host: Command) -> None:
    b = Builder("wide", data=(1, 1500))
    model = b.model(b.mse(b.linear(b.data, 1500, name="fc"), name="loss"))
    graph = training_graph(model, Sgd(0.1), "all")
    schedule = runs.schedule(graph)
    schedule.save(tmp_path / "m.poet")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((2, 1500)), y=rng.random((2, 1500)))
    image = tmp_path / "c.img"
    write = ("card", "write", tmp_path / "m.poet", "--data", tmp_path / "d.npz", "-o", image)
    assert poet_host(*write).code == 0
    assert image.stat().st_size > 64 * MIB
    with runs.board(schedule, image) as board:
        state, _ = poet.read_card(schedule, board)
    assert state is not None
    assert state.last == 2
