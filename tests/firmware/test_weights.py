"""Schedules without storage: weights stay in RAM, and a commit copies them to storage."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from poet_host import isa
from poet_host.schedule.encode import encode
from poet_host.schedule.model import model_bytes, read_model
from support import toy
from support.card_image import BLOCK, CardImage
from support.memory_board import PARTITION, MemoryBoard, Refusal, Refused, card, refusal
from support.toy_boards import begin, give_batch, load, run_in_ram, trained, truth, weights

KIND = "in RAM"
STEPS, EVERY = 4, 2
run = partial(run_in_ram, every=EVERY)
each_storage = pytest.mark.parametrize("is_flash", [False, True])


def board(storage: CardImage | None = None, **how: Any) -> MemoryBoard:
    return MemoryBoard(card() if storage is None else storage, **how)


def begun(is_flash: bool, **how: Any) -> MemoryBoard:
    """A board with the toy's weights of seed 1."""
    found = board(is_flash=is_flash, **how)
    found.format()
    load(found, KIND)
    begin(found)
    return found


@each_storage
@pytest.mark.parametrize("cache", [1, 3])
def test_the_bits_are_those_of_a_schedule_with_storage(is_flash: bool, cache: int) -> None:
    found = begun(is_flash, cache=cache)
    for step in range(1, STEPS + 1):
        run(found, step, step)
        found.save()
        assert weights(found) == truth()[step]
    assert found.storage is not None
    again = board(found.storage, is_flash=is_flash)
    assert again.hello()["committed_step"] == STEPS
    load(again, KIND)
    assert weights(again) == truth()[STEPS]


@each_storage
def test_steps_write_nothing_and_a_save_counts_its_erases(is_flash: bool) -> None:
    found = begun(is_flash)
    writes = found.writes
    give_batch(found)
    result = found.step(1)
    assert found.writes == writes
    assert result["peak_bytes"] == toy.schedule(KIND).header.arena_bytes
    before = found.erases
    saved = found.save()
    assert saved["step"] == 1
    assert saved["erases"] == found.erases - before == (2 if is_flash else 0)  # slot and record
    writes = found.writes
    assert found.save()["step"] == 1  # nothing to do
    assert found.writes == writes


@each_storage
def test_power_cut_at_every_write_and_erase(is_flash: bool) -> None:
    probe = begun(is_flash)
    start = probe.storage.copy()
    again = board(start.copy(), is_flash=is_flash)
    load(again, KIND)
    loaded = again.writes
    run(again, 1, STEPS)
    seen = set()
    for cut_at in range(loaded, again.writes + 1):
        cut = board(start.copy(), is_flash=is_flash, cut_at=cut_at)
        committed = 0  # last step that a save has confirmed
        try:
            load(cut, KIND)
            for step in range(1, STEPS + 1):
                run(cut, step, step)
                committed = cut.state.committed.now.step
        except Refused:
            pass
        after = board(cut.storage, is_flash=is_flash)
        step = after.hello()["committed_step"]
        assert step in (committed, committed + EVERY), f"cut at write {cut_at}"
        load(after, KIND)
        assert weights(after) == truth()[step], f"cut at write {cut_at}"
        seen.add(step)
        if step < STEPS:
            run(after, step + 1, STEPS)
        assert weights(after) == truth()[STEPS], f"cut at write {cut_at}"
    assert seen == {0, 2, STEPS}


@each_storage
def test_power_cut_during_the_upload_leaves_the_old_weights_or_the_new(is_flash: bool) -> None:
    start = begun(is_flash)
    run(start, 1, 2)
    new = toy.values(2)
    writes, was = start.writes, start.storage.copy()
    begin(start, seed=2)
    for cut_at in range(start.writes - writes + 1):
        cut = board(was.copy(), is_flash=is_flash)
        load(cut, KIND)
        cut.cut_at = cut.writes + cut_at
        with suppress(Refused):
            begin(cut, seed=2)
        after = board(cut.storage, is_flash=is_flash)
        load(after, KIND)
        step = after.hello()["committed_step"]
        assert weights(after) == (truth()[2] if step else (new[toy.W], new[toy.V]))


def test_a_damaged_slot_gives_way_to_the_commit_before() -> None:
    found = begun(is_flash=False)
    run(found, 1, 4)
    slot = found.state.committed.slot
    image, stride = found.storage, toy.schedule(KIND).model.slot_stride
    data_block = PARTITION + 3 * isa.constants()["POET_UNIT_BLOCKS"]
    image[(data_block + slot * stride) * BLOCK] ^= 1
    after = board(image)
    load(after, KIND)
    assert after.hello()["committed_step"] == 2
    assert weights(after) == truth()[2]
    run(after, 3, 4)
    assert weights(after) == truth()[4]


def test_a_failed_step_continues_from_the_commit() -> None:
    """A step that ends early has changed weights in RAM."""
    found = begun(is_flash=True)
    run(found, 1, 2)
    give_batch(found)
    found.write(2, toy.T, 0, b"\x00\x00\xc0\x7f" * (toy.SIZES[1] // 4))
    assert refusal(found.step, 3).name == "not_finite"
    assert refusal(found.save).name == "wrong_step"
    assert weights(found) == truth()[2]
    assert refusal(found.step, 4) == Refusal("wrong_step", 2)
    run(found, 3, 4)
    assert weights(found) == truth()[4]


def test_new_weights_that_were_not_begun_are_dropped() -> None:
    found = begun(is_flash=True)
    run(found, 1, 2)
    found.write(2, toy.W, 0, toy.values(2)[toy.W])
    assert refusal(found.save).name == "wrong_step"
    run(found, 3, 4)
    assert weights(found) == truth()[4]


def test_all_weights_must_be_written_first() -> None:
    found = board(is_flash=True)
    found.format()
    load(found, KIND)
    found.write(2, toy.W, 0, toy.values(1)[toy.W])
    found.write(2, toy.V, 0, toy.values(1)[toy.V][:-4])  # not its last bytes
    assert refusal(found.begin, 0) == Refusal("bad_object", toy.V)
    assert refusal(found.step, 1).name == "wrong_step"


@each_storage
def test_a_tensor_of_which_a_part_was_written_is_not_committed(is_flash: bool) -> None:
    found, new = begun(is_flash), toy.values(2)
    run(found, 1, 2)
    half = len(new[toy.W]) // 2
    found.write(2, toy.W, 0, new[toy.W][:half])
    found.write(2, toy.V, 0, new[toy.V])
    assert refusal(found.begin, 5) == Refusal("bad_object", toy.W)
    assert refusal(found.write, 2, toy.W, half, new[toy.W][half:]).name == "out_of_order"
    assert found.hello()["committed_step"] == 2
    found.write(2, toy.W, 0, new[toy.W][:half])
    found.write(2, toy.W, half, new[toy.W][half:])
    found.begin(5)
    assert weights(found) == (new[toy.W], new[toy.V])


@each_storage
def test_bytes_of_a_tensor_in_ram_come_in_order_or_again(is_flash: bool) -> None:
    found, new = begun(is_flash), toy.values(2)
    for number in (toy.X, toy.W):
        last = (2, number, toy.SIZES[toy.W] - 4, bytes(4)) if number else (2, 0, 596, bytes(4))
        assert refusal(found.write, *last) == Refusal("out_of_order", number)
        found.write(2, number, 0, new[number][:8])
        assert refusal(found.write, 2, number, 12, new[number][12:]).name == "out_of_order"
        for offset in (0, 8, 8, 400):
            end = 400 if offset == 8 else len(new[number]) if offset else 8
            found.write(2, number, offset, new[number][offset:end])
    found.begin(0)
    assert weights(found) == (new[toy.W], truth()[0][1])


@each_storage
def test_tensors_that_were_not_written_keep_their_committed_values(is_flash: bool) -> None:
    found, new = begun(is_flash), toy.values(2)[toy.W]
    run(found, 1, 2)
    run(found, 3, 3)  # not committed
    found.write(2, toy.W, 0, new)
    found.begin(9)
    assert weights(found) == (new, truth()[2][1])
    give_batch(found)
    found.step(10)
    found.begin(9)  # a repeated request: step 10 is lost
    assert refusal(found.step, 11) == Refusal("wrong_step", 9)
    found.begin(8)
    assert weights(found) == (new, truth()[2][1])


def test_a_step_does_not_begin_with_a_part_of_a_batch() -> None:
    found, other = begun(is_flash=True), toy.values(2)
    give_batch(found)
    found.write(2, toy.X, 0, other[toy.X][:100])
    found.write(2, toy.T, 0, toy.values(1)[toy.T])
    assert refusal(found.step, 1) == Refusal("page_damaged", toy.X)
    give_batch(found)
    found.step(1)
    rest = (2, toy.X, 100, other[toy.X][100:])  # of a batch that step 1 has used up
    assert refusal(found.write, *rest).name == "out_of_order"
    run(found, 2, 2)
    assert weights(found) == truth()[2]


def test_other_work_in_the_arena_loses_the_batch_and_tensors_that_were_not_begun() -> None:
    found, new = begun(is_flash=True), toy.values(2)
    give_batch(found)
    found.write(3, 0, 0, bytes(4096))
    assert refusal(found.step, 1).name == "page_damaged"
    run(found, 1, 2)
    found.write(2, toy.W, 0, new[toy.W])
    found.write(3, 0, 0, bytes(4096))
    assert refusal(found.begin, 3).name == "no_schedule"
    load(found, KIND)
    run(found, 3, 4)
    assert weights(found) == truth()[4]


def test_flash_takes_no_schedule_with_storage() -> None:
    found = board(is_flash=True)
    found.format()
    assert refusal(load, found, "frugal").name == "no_storage"
    assert trained(card(), 1).save()["step"] == 1  # with a card, each step commits


def refused(**changes: Any) -> Refusal:
    """Load the toy with changes to its tensors, by number: replace(tensor, ...)."""
    schedule = toy.schedule(KIND)
    tensors = list(schedule.model.tensors)
    for number, change in changes.items():
        tensors[int(number[1:])] = replace(tensors[int(number[1:])], **change)
    part = model_bytes(replace(schedule.model, tensors=tuple(tensors)))
    plan = bytearray(schedule.plan_part)
    plan[8:12] = read_model(part, "test").crc.to_bytes(4, "little")
    found = board()
    found.format()
    return refusal(found.load, part, bytes(plan))


PLACES = {name: isa.constants()[f"POET_PLACE_{name}"] for name in ("FIXED", "PAGE", "CURRENT")}


@pytest.mark.parametrize(
    "changes",
    [
        {"t2": {"place": PLACES["FIXED"]}},
        {"t4": {"place": PLACES["PAGE"], "block": 24}},
        {"t2": {"flags": 1 | 2}},  # stored, and kept: then nothing may renew it
        {"t9": {"block": 0}},  # v1 renews w, but overwrites v
        {"t0": {"place": PLACES["CURRENT"], "block": 6}},  # x is never renewed
    ],
)
def test_models_that_break_a_rule_are_refused(changes: dict[str, Any]) -> None:
    assert refused(**changes).name == "bad_table"


def test_a_plan_that_loses_a_weight_is_refused_by_both_sides() -> None:
    plan = toy.in_ram()
    lost = replace(plan, statements=(*plan.statements, replace(plan.statements[-2], node="v1")))
    with pytest.raises(Exception, match="tensor 3 begins the step at"):
        encode(toy.graph(), lost, storage=False)
    graph = toy.graph()
    elsewhere = tuple(
        replace(node, overwrites=None) if node.name == "w1" else node for node in graph
    )
    with pytest.raises(Exception, match="w1 updates w in other memory"):
        encode(replace(graph, nodes=elsewhere), plan, storage=False)


@pytest.mark.parametrize("op", ["page_out", "page_in"])
def test_transfers_are_refused(op: str) -> None:
    plan = toy.in_ram()
    first = plan.statements[0]
    paged = replace(first, op=op, node="w" if op == "page_in" else "y", workspace_offset=None)
    statements = (first, paged, *plan.statements[1:])
    with pytest.raises(Exception, match=r"cannot be (paged out|encoded)"):
        encode(toy.graph(), replace(plan, statements=statements), storage=False)
