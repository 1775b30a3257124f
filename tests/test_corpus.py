"""Files that poet-host wrote: every later version reads them, or refuses them with what to do."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from card.test_card import wait_for
from poet_host import isa
from poet_host.card.card_device import CardDevice
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, load_cost_graph
from poet_host.plan.plan import Statement, plan_from_json
from poet_host.plan.problem import Problem
from poet_host.plan.verify import verify
from poet_host.profile.profile import Profile
from poet_host.run.run import Run
from poet_host.schedule.decode import decode
from poet_host.schedule.nests import Streamed
from poet_host.schedule.schedule import Schedule, parse
from poet_host.sim.native import NativeBoard
from support import corpus, whole_runs as runs
from support.card_image import BLOCK, PREPARED
from support.command import Command

WRITE_AGAIN = "the operators have changed: see support/corpus.py"


def unpacked(folder: Path, name: str, to: Path) -> Path:
    path = to / name.removesuffix(".xz")
    path.write_bytes(corpus.content(folder / name))
    return path


def schedule(name: str) -> Schedule:
    try:
        return parse(corpus.content(corpus.NOW / f"{name}.poet.xz"))
    except BadInput as error:
        pytest.fail(f"{error} ({WRITE_AGAIN})")


def same_weights(run: Run, name: str) -> bool:
    saved = poet.load_weights(corpus.NOW / f"{name}.safetensors", schedule(name).graph)
    return all(saved[key].tobytes() == value.tobytes() for key, value in run.weights.items())


def keeps(now: Any, then: Any) -> bool:
    """Does a value that was read and is written again have all that the file had?"""
    if isinstance(then, dict):
        return all(key in now and keeps(now[key], value) for key, value in then.items())
    if isinstance(then, list):
        return len(now) == len(then) and all(map(keeps, now, then))
    return bool(now == then)


def test_a_lost_or_changed_value_is_seen() -> None:
    assert keeps({"a": [1, {"b": 2}], "new": 0}, {"a": [1, {"b": 2}]})
    assert not keeps({"a": [1, {}]}, {"a": [1, {"b": 2}]})
    assert not keeps({"a": [1]}, {"a": [1, 2]})


def test_a_schedule_has_the_statements_of_its_plan() -> None:
    found = [it for it in decode(schedule("small")) if isinstance(it, Statement)]  # not waits
    wanted = plan_from_json(corpus.value("small.plan.json")).statements
    assert [(it.op, it.node, it.offset) for it in found] == [
        (it.op, it.node, it.offset) for it in wanted
    ]
    computed = [it.node for it in found if it.op == "compute"]
    assert len(computed) > len(set(computed))
    assert any(
        it.also_offsets or it.mode
        for it in decode(schedule("streamed"))
        if isinstance(it, Statement)
    )


@pytest.mark.parametrize("folder", [corpus.NOW, corpus.BEFORE])
@pytest.mark.parametrize("name", ["small", "fused"])
def test_a_plan_obeys_the_laws_with_its_costs(name: str, folder: Path) -> None:
    graph = load_cost_graph(folder / f"{name}.graph.json")
    assert graph.version == (2 if name == "fused" else 3 if folder == corpus.NOW else 1)
    plan = plan_from_json(corpus.value(f"{name}.plan.json", folder))
    verify(Problem(graph, plan.ram_bytes), plan)  # also the energy, time and peak that it states
    assert keeps(dump_cost_graph(graph), corpus.value(f"{name}.graph.json", folder))
    assert keeps(plan.to_json(), corpus.value(f"{name}.plan.json", folder))


@pytest.mark.parametrize("folder", [corpus.NOW, corpus.BEFORE])
def test_a_profile_and_a_run_lose_nothing(folder: Path) -> None:
    found = Profile.load(folder / "profile.json")
    assert keeps(json.loads(json.dumps(found.to_json())), corpus.value("profile.json", folder))
    weights = poet.load_weights(folder / "small.safetensors", schedule("small").graph)
    run = Run.load(folder / "run.json", dict(weights))
    assert len(run.steps) == corpus.STEPS
    assert keeps(json.loads(json.dumps(run.to_json())), corpus.value("run.json", folder))


def test_schedules_train_to_the_same_bits() -> None:
    for name, data in corpus.SCHEDULES.items():
        run = runs.train(schedule(name), data, steps=corpus.STEPS)
        assert same_weights(run, name), name
        if name == "small":
            recorded = Run.load(corpus.NOW / "run.json")
            assert [step.loss for step in run.steps] == [step.loss for step in recorded.steps]


def statements(made: Schedule) -> set[str]:
    """The kinds of statements in a schedule."""
    found, computed = set[str](), set[str]()
    for it in decode(made):
        if not isinstance(it, Statement):
            found.add("wait")
            continue
        kind: str = it.op
        if isinstance(it, Streamed):
            kind = "pair" if it.nest.also else "statistics" if it.nest.statistics else "stream"
        elif it.mode:
            kind = "in place"
        found |= {kind, "again: " + kind} if it.node in computed else {kind}
        computed |= {it.node} if it.op == "compute" else set()
    return found


def test_every_part_of_the_format_is_in_a_file(tmp_path: Path) -> None:
    """A part that the format gains must be in a file too."""
    values = isa.constants().items()
    wanted = {
        name for name, _ in values
        if re.match(r"POET_(FLAG|PLACE|MODEL|CURVE)_(?!MAGIC)|POET_PART_(?!NEEDED)", name)
    }  # fmt: skip
    wanted |= {"compute", "again: compute", "page_in", "page_out", "free", "wait", "in place"}
    wanted |= {"stream", "again: stream", "again: statistics", "pair", "statistics"}
    wanted |= {"cut", "home", "commit_every"}
    found = set[str]()

    def named(kind: str, *numbers: int, flags: int = 0) -> set[str]:
        own = {name: value for name, value in values if name.startswith(f"POET_{kind}_")}
        return {name for name, value in own.items() if value in numbers or value & flags}

    for name in corpus.SCHEDULES:
        made = schedule(name)
        parts = (made.model_part, made.plan_part, made.meta, made.origin, made.forward_part)
        found |= named("PART", *(number for number, part in enumerate(parts, 1) if part))
        for program in (made, made.forward):
            if program is None:
                continue
            header = program.model_part[: isa.record_size("poet_model")]
            row, model = isa.unpack("poet_model", header), program.model
            found |= statements(program) | named("MODEL", flags=row["flags"])
            for tensor in model.tensors:
                found |= named("PLACE", tensor.place) | named("FLAG", flags=tensor.flags)
            found |= {"cut"} if model.cuts else set()
            found |= {"home"} if program.header.home_count else set()
            found |= {"commit_every"} if program.header.commit_every > 1 else set()
    with CardDevice(unpacked(corpus.NOW, "job.img.xz", tmp_path)) as card:
        model = card.model_on_card()
        found |= named("CURVE", *(rate.curve for rate in model.rates))
    assert wanted - found == set()


def test_every_record_is_in_a_file() -> None:
    """Each record with a magic number begins a block of a card, or a .poet file."""
    images = [corpus.content(path) for path in corpus.NOW.glob("*.xz")]
    begins = {image[at : at + 4] for image in images for at in range(0, len(image), 512)}
    parts = {made.plan_part[:4] for made in map(schedule, corpus.SCHEDULES)}
    magic = {n: v.to_bytes(4, "little") for n, v in isa.constants().items() if "_MAGIC" in n}
    assert {name for name, value in magic.items() if value not in begins | parts} == set()


def test_a_card_is_read_and_continued(tmp_path: Path, poet_host: Command) -> None:
    card = unpacked(corpus.NOW, "card.img.xz", tmp_path)
    weights = tmp_path / "weights.safetensors"
    checked = poet_host("card", "check", card, "--json")
    assert (checked.code, checked.json["format"]) == (0, 3)
    assert poet_host("card", "export", card, weights).code == 0
    assert weights.read_bytes() == (corpus.NOW / "small.safetensors").read_bytes()
    small = schedule("small")
    run = runs.train(small, storage=card, steps=corpus.STEPS + 2, resume=True)
    assert len(run.steps) == 2
    assert runs.same(run, runs.train(small, steps=corpus.STEPS + 2))


def test_a_job_trains_to_the_same_bits(tmp_path: Path) -> None:
    card, made = unpacked(corpus.NOW, "job.img.xz", tmp_path), schedule("staying")
    arena_bytes = made.meta["plan"]["ram_bytes"] // 4 * 4
    with NativeBoard(card, arena_bytes, alone=True) as board:
        wait_for(corpus.JOB_STEPS, card, board)
        board.kill()
    with runs.board(made, card) as connection:
        state, weights = poet.read_card(made, connection)
    assert state is not None
    saved = poet.load_weights(corpus.NOW / "job.safetensors", made.graph)
    assert (state.committed, len(state.losses)) == (corpus.JOB_STEPS, corpus.JOB_STEPS)
    assert all(saved[name].tobytes() == value.tobytes() for name, value in weights.items())


def test_the_storage_of_a_learner_is_read_and_repeated(tmp_path: Path, poet_host: Command) -> None:
    image, folder = unpacked(corpus.NOW, "device.img.xz", tmp_path), corpus.NOW / "device"
    trace, samples = corpus.NOW / "device-trace.npz", tmp_path / "samples.npz"
    kept, repeated = tmp_path / "kept.safetensors", tmp_path / "repeated.safetensors"
    read = ("card", "read", folder, "--storage", image, "--samples", samples)
    assert poet_host(*read, "--save-weights", kept).code == 0
    replay = ("replay", folder, "--trace", trace, "--steps", corpus.DEVICE_STEPS)
    assert poet_host(*replay, "--save-weights", repeated).code == 0
    graph = Schedule.load(folder / "extras" / "small.poet").graph
    one, other = (poet.load_weights(path, graph) for path in (kept, repeated))
    assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}
    with np.load(trace) as taught, np.load(samples) as found:
        given = {x.tobytes() for x in taught["x"]}
        assert {x.tobytes() for x in found["x"]} <= given
        assert len(found["x"]) > corpus.DEVICE.slots


# Version 2 of cards and schedules.


def test_a_schedule_of_version_2_is_refused(tmp_path: Path, poet_host: Command) -> None:
    path = unpacked(corpus.BEFORE, "small.poet.xz", tmp_path)
    poet_host("show", path).fails(2, path, "format 2", "solve again", "card export")


def test_a_card_of_version_2_moves(tmp_path: Path, poet_host: Command) -> None:
    moves(corpus.BEFORE, "small.safetensors", schedule("small"), corpus.STEPS, tmp_path, poet_host)


def test_both_states_of_a_card_of_version_2_without_the_record_of_its_store(tmp_path: Path) -> None:
    card = unpacked(corpus.BEFORE, "card.img.xz", tmp_path)
    files = [tmp_path / f"{i}.safetensors" for i in range(4)]
    poet.export_card(card, files[0])
    poet.export_card(card, files[1], prior=True)
    with card.open("rb+") as file:
        file.seek(PREPARED * BLOCK)
        file.write(bytes(BLOCK))
    poet.export_card(card, files[2])
    poet.export_card(card, files[3], prior=True)
    assert [file.read_bytes() for file in files[2:]] == [file.read_bytes() for file in files[:2]]
    assert poet.check_card(card).format == 2


def moves(
    folder: Path, saved: str, again: Schedule, done: int, tmp_path: Path, poet_host: Command
) -> None:
    """A card's weights move by the commands that the refusal names, and training continues to the
    same bits."""
    card = unpacked(folder, "card.img.xz", tmp_path)
    now, weights = tmp_path / "now.poet", tmp_path / "weights.safetensors"
    again.save(now)
    train = (
        "train", now, "--port", "native", "--storage", card, "--data", "digits", "--steps",
        done + 2, "--save-weights", tmp_path / "trained.safetensors",
    )  # fmt: skip
    poet_host(*train, "--resume").fails(2, "`poet-host card export CARD weights.safetensors")
    poet_host("card", "write", now, "--data", "digits", "-o", card).fails(2, card, "card export")
    checked = poet_host("card", "check", card, "--json")
    assert (checked.code, checked.json["plan_part"]) == (0, "earlier")
    assert poet_host("card", "export", card, weights).code == 0
    assert weights.read_bytes() == (folder / saved).read_bytes()
    result = poet_host(*train, "--resume", "--load-weights", weights, "--erase-card")
    assert result.code == 0, result.err
    found = poet.load_weights(tmp_path / "trained.safetensors", again.graph)
    whole = runs.train(again, steps=done + 2)
    assert all(found[key].tobytes() == value.tobytes() for key, value in whole.weights.items())


# A version with other operators.


def test_an_older_schedule_is_refused(tmp_path: Path, poet_host: Command) -> None:
    path = unpacked(corpus.OLDER, "schedule.poet.xz", tmp_path)
    poet_host("show", path).fails(2, path, "format 2", "solve again")


def test_an_older_card_moves(tmp_path: Path, poet_host: Command) -> None:
    again = runs.schedule(corpus.tiny())
    moves(corpus.OLDER, "weights.safetensors", again, 5, tmp_path, poet_host)
