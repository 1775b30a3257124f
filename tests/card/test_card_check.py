"""`card check`: every kind of damage on a card is found, and what can be saved is true."""

import errno
import os
import random
import time
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host.card.card_device import CardDevice
from poet_host.card.card_file import CardFile
from poet_host.card.job import make_job
from poet_host.card.note import PLACES
from poet_host.data.fitted import fit
from poet_host.device.device import TENSOR
from poet_host.graph.weights import start_values
from poet_host.run.run import Run
from poet_host.schedule import slots
from poet_host.schedule.model import CURRENT, FIXED, FORMAT, INPUT, SHARED
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import NativeBoard
from support import whole_runs as runs
from support.card_image import BLOCK, PREPARED, newest_commit, read_image
from support.command import Command

STEPS, LAST = 3, 9
MIB = 1 << 20
DATA = poet.Dataset(
    "few",
    np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32),
    np.arange(5),
)


@cache
def small() -> Schedule:
    """A model with FIXED, CURRENT and INPUT tensors, and pages."""
    return runs.schedule(poet.load("resnet-digits", train="last:2", batch=2))


class Card:
    """A card image in which tests damage one thing."""

    def __init__(self, path: Path, schedule: Schedule) -> None:
        self.path, self.model = path, schedule.model
        self.job = slots.job_block(schedule.model.data_blocks)

    def change(self, block: int, at: int = 0) -> None:
        """Invert a bit of a byte, from the start of a block of the partition on."""
        with self.path.open("rb+") as file:
            file.seek((PREPARED + block) * BLOCK + at)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0x10]))

    def place(self, number: int, slot: int) -> tuple[int, int]:
        """The first block of a tensor in a slot, and the position of its trailer from there."""
        (piece,) = slots.pieces(self.model.tensors[number])
        block = slots.slot_block(self.model, slot) + piece.block
        return block, piece.trailer - piece.block * BLOCK

    def copy(self, number: int, source: str, target: str) -> None:
        """Replace a slot's blocks by those of the slot with another role."""
        size = self.model.tensors[number].blocks * BLOCK
        (to, _), (since, _) = (self.place(number, self.slot(role)) for role in (target, source))
        with self.path.open("rb+") as file:
            file.seek((PREPARED + since) * BLOCK)
            old = file.read(size)
            file.seek((PREPARED + to) * BLOCK)
            file.write(old)

    def commit(self, row: dict[str, Any], **changed: Any) -> None:
        """Write a commit record with changed fields."""
        states = {name: slots.State(**row[name]) for name in ("now", "prior")}
        about = {key: value for key, value in row.items() if key not in ("magic", "crc")}
        made = slots.Commit(**about | states | changed)
        with self.path.open("rb+") as file:
            file.seek((PREPARED + slots.COMMIT_BLOCKS[made.sequence % 2]) * BLOCK)
            file.write(made.to_bytes())

    def first(self, place: int, flags: int = 0) -> int:
        """The first tensor of a place, with the flag SHARED or without it."""
        found = enumerate(self.model.tensors)
        return next(i for i, t in found if (t.place, t.flags & SHARED) == (place, flags))

    def slot(self, role: str) -> int:
        current: int = newest_commit(self.path)["slot"]
        return (current + ("current", "next", "prior").index(role)) % slots.SLOTS

    def report(self, **options: Any) -> poet.CardReport:
        return poet.check_card(self.path, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Schedule, Run]:
    """A card with the weights of two steps, a note, and a job that goes on with them."""
    path, schedule = tmp_path_factory.mktemp("trained") / "card.img", small()
    poet.prepare_storage(path, 64 * MIB)
    run = runs.train(schedule, DATA, storage=path, steps=STEPS)
    with poet.open_card(path, writable=True) as opened:
        poet.write_card(schedule, opened, DATA, steps=LAST, resume=True)
    return path, schedule, run


@pytest.fixture
def card(trained: tuple[Path, Schedule, Run], tmp_path: Path) -> Card:
    copy = tmp_path / "card.img"
    read_image(trained[0]).write_to(copy)
    return Card(copy, trained[1])


def test_a_whole_card(card: Card, poet_host: Command) -> None:
    before = card.path.read_bytes()
    found = poet_host("card", "check", card.path, "--json")
    assert found.code == 0
    report = found.json
    assert report["format"] == FORMAT
    assert report["problems"] == []
    assert report["step"] == report["weights"]["step"] == STEPS
    assert report["prior"]["step"] == STEPS - 1
    assert report["weights"]["is_whole"]
    assert report["prior"]["is_whole"]
    assert report["weights"]["tensors"] == len(start_values(small().graph, 0))
    assert (report["model_part"], report["plan_part"]) == ("whole", "whole")
    assert "resnet-digits" in report["notes"]
    assert sorted(c["step"] for c in report["commits"]) in ([2, 3], [3, 3])
    pages = [t for t in card.model.tensors if t.place not in (FIXED, CURRENT, INPUT)]
    assert 0 < report["page_count"] <= len(pages)
    assert len(report["tensors"]) == report["weights"]["tensors"] + 2
    for tensor in report["tensors"]:
        states = {slot["role"]: slot["state"] for slot in tensor["slots"]}
        assert tensor["place"] in states or states.keys() == {"current", "prior", "next"}
        assert tensor["place"] == "input" or tensor["name"] in small().names
        wanted = {"fixed": "whole", "current": "whole", "prior": "whole", "next": "old"}
        assert all(states[role] == wanted[role] for role in states if role != "input")
    job = report["job"]
    assert (job["first_step"], job["last_step"], job["losses"]) == (STEPS, LAST, 0)
    assert (job["samples"], job["damaged_samples"], job["is_whole"]) == (5, 0, True)
    table = poet_host("card", "check", card.path)
    assert table.code == 0
    for word in ("step 3", "step 2", "number", "5 of 5 samples"):
        assert word in table.out
    assert card.path.read_bytes() == before


@pytest.mark.parametrize("part", ["data", "trailer"])
@pytest.mark.parametrize("role", ["current", "prior", "fixed"])
def test_a_damaged_slot(role: str, part: str, card: Card, poet_host: Command) -> None:
    number = card.first(FIXED if role == "fixed" else CURRENT)
    slot = 0 if role == "fixed" else card.slot(role)
    block, trailer = card.place(number, slot)
    card.change(block, 0 if part == "data" else trailer)
    report = card.report()
    held = {"current": [report.prior], "prior": [report.weights], "fixed": []}[role]
    lost = {"current": [report.weights], "prior": [report.prior]}
    for state in held:
        assert state is not None
        assert state.is_whole
    for state in lost.get(role, [report.weights, report.prior]):
        assert state is not None
        assert state.damaged == (number,)
    assert report.step == {"current": STEPS - 1, "prior": STEPS, "fixed": None}[role]
    result = poet_host("card", "check", card.path, "--json")
    assert (result.code, result.json["exit_code"]) == (1, 1)
    assert str(card.path) in result.json["error"]
    name = next(t.name for t in report.tensors if t.number == number)
    table = poet_host("card", "check", card.path)
    table.fails(1, card.path)
    assert f"{name}" in table.out
    assert f"slot {slot}" in table.out


@pytest.mark.parametrize("role", ["next", "input"])
def test_slots_that_a_power_cut_may_leave_incomplete(role: str, card: Card) -> None:
    number = card.first(INPUT if role == "input" else CURRENT)
    slot = 0 if role == "input" else card.slot("next")
    card.change(card.place(number, slot)[0])
    report = card.report()
    assert report.problems == ()
    tensor = next(t for t in report.tensors if t.number == number)
    assert tensor.slots[slot].state in ("damaged", "old")
    assert report.step == STEPS


@pytest.mark.parametrize("part", ["data", "trailer"])
def test_damage_in_a_shared_block_is_of_one_tensor(part: str, card: Card) -> None:
    number = card.first(CURRENT, SHARED)
    (piece,) = slots.pieces(card.model.tensors[number])
    block, trailer = card.place(number, card.slot("current"))
    card.change(block, piece.at if part == "data" else trailer)
    report = card.report()
    assert report.weights is not None
    assert report.weights.damaged == (number,)
    assert report.step == STEPS - 1


def test_a_shared_block_that_the_card_did_not_write(card: Card) -> None:
    number = card.first(CURRENT, SHARED)
    block = card.model.tensors[number].block
    card.copy(number, "prior", "current")
    report = card.report()
    assert report.weights is not None
    assert report.weights.damaged == tuple(
        i
        for i, tensor in enumerate(card.model.tensors)
        if tensor.place == CURRENT and tensor.block == block
    )
    assert len(report.weights.damaged) > 1


def test_a_slot_that_the_card_did_not_write(card: Card) -> None:
    number = card.first(CURRENT)
    card.copy(number, "prior", "current")
    report = card.report()
    assert report.weights is not None
    assert report.weights.damaged == (number,)
    slot = report.tensors[number].slots[card.slot("current")]
    assert (slot.role, slot.state) == ("current", "old")
    assert report.step == STEPS - 1


def test_a_wrong_digest(card: Card) -> None:
    """A slot and its trailer were both written for another attempt at the step."""
    newest = newest_commit(card.path)
    state = slots.State(**newest["now"] | {"digest": newest["now"]["digest"] ^ 1})
    card.commit(newest, now=state)
    report = card.report()
    assert report.weights is not None
    assert (report.weights.damaged, report.weights.is_digest_right) == ((), False)
    assert report.step == STEPS - 1


def test_no_commit_follows_the_last_one(card: Card) -> None:
    card.commit(newest_commit(card.path), sequence=slots.LAST_SEQUENCE)
    report = card.report()
    assert (report.step, report.problems) == (STEPS, ())
    before, number = read_image(card.path), card.first(CURRENT)
    with CardDevice(card.path, writable=True) as opened:
        opened.model = card.model
        with pytest.raises(poet.BadInput, match="has counted its last commit"):
            opened.write(TENSOR, number, bytes(card.model.tensors[number].size_bytes))
    assert read_image(card.path) == before


def test_commit_records(card: Card) -> None:
    """The newest one may be incomplete after a power cut: then the one before counts."""
    newest = newest_commit(card.path)
    card.change(slots.COMMIT_BLOCKS[newest["sequence"] % 2], 8)
    report = card.report()
    assert [commit.state for commit in report.commits].count("damaged") == 1
    assert report.problems == ()
    assert report.step in (STEPS, STEPS - 1)
    card.change(slots.COMMIT_BLOCKS[1 - newest["sequence"] % 2], 8)
    report = card.report()
    assert report.problems
    assert (report.step, report.weights, report.tensors) == (None, None, ())


def test_damaged_notes(card: Card, poet_host: Command) -> None:
    for place in PLACES:
        card.change(slots.MODEL_BLOCK, place + 20)
    report = card.report()
    assert report.notes == (None, None)
    assert all(tensor.name is None for tensor in report.tensors)
    assert report.step == STEPS
    poet_host("card", "check", card.path).fails(1, "--schedule")
    report = card.report(schedule=small())
    assert report.tensors[card.first(CURRENT)].name == small().names[card.first(CURRENT)]


def test_a_damaged_model_part(card: Card, tmp_path: Path, poet_host: Command) -> None:
    card.change(slots.MODEL_BLOCK, 200)
    report = card.report()
    assert (report.model_part, report.plan_part) == ("damaged", "foreign")
    assert (report.step, report.weights) == (None, None)
    small().save(tmp_path / "m.poet")
    runs.schedule(runs.digits()).save(tmp_path / "other.poet")
    poet_host("card", "check", card.path).fails(1, "--schedule")
    check = ("card", "check", card.path, "--json", "--schedule")
    poet_host(*check, tmp_path / "other.poet").fails(2, "--schedule")
    found = poet_host(*check, tmp_path / "m.poet")
    assert (found.code, found.json["step"], found.json["exit_code"]) == (1, STEPS, 1)
    assert found.json["weights"]["is_whole"]


def test_a_damaged_plan_part(card: Card) -> None:
    """The job cannot run without it."""
    card.change(slots.PLAN_BLOCK, 30)
    report = card.report()
    assert report.plan_part == "damaged"
    assert report.problems
    assert report.step == STEPS


def test_a_model_part_of_another_schedule(card: Card) -> None:
    with poet.open_card(card.path, writable=True) as opened:
        other = runs.small()
        opened.device.load(other.model_part, other.plan_part)
    report = card.report()
    assert (report.model_part, report.plan_part, report.step) == ("foreign", "whole", None)
    report = card.report(schedule=small())
    assert report.step == STEPS


@pytest.mark.parametrize("part", ["record", "order", "sample"])
def test_a_damaged_job(part: str, card: Card, poet_host: Command) -> None:
    job = make_job(small(), fit(DATA, small().graph), 0, STEPS, LAST - STEPS)
    at = {"record": 8, "order": BLOCK + 5, "sample": job.sample_block * BLOCK + 700}
    card.change(card.job, at[part])
    report = card.report()
    assert report.job is not None
    assert not report.job.is_whole
    assert report.job.damaged_samples == (part == "sample")
    assert report.step == STEPS
    poet_host("card", "check", card.path).fails(1, "job")


def test_a_plan_of_another_schedule_than_that_of_the_job(card: Card, poet_host: Command) -> None:
    other = runs.schedule(small().graph, "200%", "chen-sqrt")
    assert other.model.crc == small().model.crc
    assert len(other.plan_part) != len(small().plan_part)
    with poet.open_card(card.path, writable=True) as opened:
        opened.device.load(other.model_part, other.plan_part)
    (problem,) = card.report().problems
    assert "not that of the job" in problem
    assert poet_host("card", "check", card.path).code == 1


def test_the_losses_of_a_job(card: Card) -> None:
    """A board alone has trained a part of it."""
    arena_bytes = small().meta["plan"]["ram_bytes"] // 4 * 4
    with NativeBoard(card.path, arena_bytes, alone=True) as running:
        give_up = time.monotonic() + 60
        while newest_commit(card.path)["now"]["step"] < STEPS + 2:
            assert time.monotonic() < give_up
            assert running.ended is None
            time.sleep(0.01)
        running.kill()
    report = card.report()
    assert report.problems == ()
    assert report.job is not None
    assert report.step is not None
    done = report.step - STEPS
    assert report.job.board == "native"
    assert report.job.losses in (done - 1, done)


@pytest.mark.parametrize("where", ["slot", "commit records", "model part", "job", "store"])
def test_blocks_that_cannot_be_read(
    where: str, card: Card, monkeypatch: pytest.MonkeyPatch, poet_host: Command
) -> None:
    """The device of a worn card returns errors."""
    number = card.first(CURRENT)
    bad = {
        "slot": (card.place(number, card.slot("current"))[0],),
        "commit records": slots.COMMIT_BLOCKS,
        "model part": (slots.MODEL_BLOCK,),
        "job": (card.job + 1,),
        "store": (0,),
    }[where]

    class Worn(FileIO):
        def read(self, size: int | None = -1, /) -> Any:
            begin, length = self.seek(0, os.SEEK_CUR), size or 0
            for block in bad:
                at = (PREPARED + block) * BLOCK
                if begin < at + BLOCK and begin + length > at:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    monkeypatch.setattr(CardFile, "_opened", lambda card, path: Worn(path))
    result = poet_host("card", "check", card.path)
    result.fails(1, card.path)
    weights = card.path.with_name("w.safetensors")
    if where == "slot":
        assert card.report().step == STEPS - 1
        poet_host("card", "export", card.path, weights).fails(1, f"step {STEPS}", "--prior")
        assert poet_host("card", "export", card.path, weights, "--prior").code == 0
    elif where in ("job", "store"):
        assert card.report().step == STEPS
        assert poet_host("card", "export", card.path, weights).code == 0
    else:
        assert poet_host("card", "export", card.path, weights).code in (1, 2)
        assert not weights.exists()


def test_frozen_weights_of_a_schedule_without_storage_are_whole(tmp_path: Path) -> None:
    path, graph = tmp_path / "card.img", poet.load("resnet-digits", train="last:1")
    poet.prepare_storage(path, 64 * MIB)
    problem = poet.problem(graph, "native", ram="100%", storage=False)
    plan = poet.solve(problem, method="keep-everything")
    runs.train(poet.encode(graph, plan), storage=path, steps=2)
    assert poet.check_card(path).problems == ()


def test_a_card_without_weights(tmp_path: Path, poet_host: Command) -> None:
    path = tmp_path / "empty.img"
    poet.prepare_storage(path, 64 * MIB)
    report = poet_host("card", "check", path, "--json")
    assert (report.code, report.json["step"], report.json["weights"]) == (0, None, None)
    assert [commit["state"] for commit in report.json["commits"]] == ["whole", "whole"]
    assert (report.json["model_part"], report.json["job"]) == ("empty", None)


@pytest.mark.parametrize("end", [0, 511, PREPARED * BLOCK, 11 * MIB, 17 * MIB, 23 * MIB])
def test_a_torn_image(end: int, card: Card, poet_host: Command) -> None:
    with card.path.open("rb+") as file:
        file.truncate(end)
    result = poet_host("card", "check", card.path)
    assert result.code in (1, 2)
    assert str(card.path) in result.err.replace("\n", "")


def test_a_half_copied_image_has_a_report(card: Card, poet_host: Command) -> None:
    for end in (card.path.stat().st_size - 1, (PREPARED + slots.MODEL_BLOCK) * BLOCK + PLACES[0]):
        os.truncate(card.path, end)
        report = poet_host("card", "check", card.path, "--json")
        assert report.code == 1
        assert "the image ends before its partition" in report.json["problems"][0]


def test_a_torn_schedule_without_weights_does_no_harm(tmp_path: Path, poet_host: Command) -> None:
    """A host was killed, or the power was cut, before the first step."""
    path = tmp_path / "torn.img"
    poet.prepare_storage(path, 64 * MIB)
    with path.open("rb+") as file:
        file.seek((PREPARED + slots.MODEL_BLOCK) * BLOCK)
        file.write(small().model_part[:BLOCK])
    report = poet_host("card", "check", path, "--json")
    assert (report.code, report.json["model_part"]) == (0, "damaged")


def test_damaged_stores(card: Card, poet_host: Command) -> None:
    card.change(0, 8)
    card.change(slots.MODEL_BLOCK, 40)
    poet_host("card", "check", card.path).fails(2, card.path)


@pytest.mark.parametrize("damaged", ["current", "prior", None])
def test_weights_of_a_card_without_the_record_of_its_store(
    damaged: str | None, card: Card, trained: tuple[Path, Schedule, Run], poet_host: Command
) -> None:
    """The identity of the card is found out from a tensor that is whole."""
    _, schedule, run = trained
    card.change(0, 12)
    if damaged:
        card.change(card.place(card.first(CURRENT), card.slot(damaged))[0])
    report = card.report()
    step = STEPS - 1 if damaged == "current" else STEPS
    assert report.step == step
    assert "--erase-card" in " ".join(report.problems)
    poet_host("card", "check", card.path).fails(1, card.path)
    weights = card.path.with_name("w.safetensors")
    options = ["--prior"] if damaged == "current" else []
    assert poet_host("card", "export", card.path, weights, *options).code == 0
    wanted = run.weights if step == STEPS else runs.train(schedule, DATA, steps=step).weights
    saved = poet.load_weights(weights, schedule.graph)
    assert all(saved[name].tobytes() == wanted[name].tobytes() for name in saved)


def test_weights_that_pass_are_the_trained_ones(
    card: Card, trained: tuple[Path, Schedule, Run], tmp_path: Path
) -> None:
    """After any change of bytes: check and export agree, and no other weights are exported."""
    whole, schedule, run = trained
    wanted = {STEPS: run.weights, STEPS - 1: runs.train(schedule, DATA, steps=STEPS - 1).weights}
    blocks = sorted(read_image(whole).blocks)
    rng, weights = random.Random(0), tmp_path / "w.safetensors"
    counts = {STEPS: 0, STEPS - 1: 0, None: 0}
    for _ in range(60):
        changes = [
            (rng.choice(blocks) - PREPARED, rng.randrange(BLOCK)) for _ in range(rng.choice((1, 4)))
        ]
        changes = [change for change in changes if change[0] > 0]
        for change in changes:
            card.change(*change)
        report = card.report(schedule=schedule)
        is_prior = report.step is not None and not (report.weights and report.weights.is_whole)
        counts[report.step] += 1
        if report.step is None:
            with pytest.raises(poet.PoetError):
                poet.export_card(card.path, weights, schedule=schedule)
        else:
            poet.export_card(card.path, weights, schedule=schedule, prior=is_prior)
            found = poet.load_weights(weights, schedule.graph)
            assert poet.step_of_weights(weights) == report.step
            values = wanted[report.step]
            assert all(found[name].tobytes() == values[name].tobytes() for name in found)
        for change in reversed(changes):
            card.change(*change)
    assert min(counts.values()) > 0
