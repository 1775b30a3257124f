"""The decoders in Python and C: C accepts what Python encodes, and both refuse the same."""

import random
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from poet_host import isa
from poet_host.device.board import load_board
from poet_host.graph import models
from poet_host.graph.graph import Graph
from poet_host.graph.training_options import TrainingOptions
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import CostGraph, Problem
from poet_host.profile.profile import estimate_profile
from poet_host.schedule.decode import _Decoder
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import CURRENT, FIXED, INPUT, PAGE, model_bytes
from poet_host.schedule.schedule import Schedule, parse
from poet_host.stream.in_place import with_modes_in_place
from support import toy
from support.memory_board import MemoryBoard, Refused, card
from support.parts import with_header
from support.random_plans import random_plan

NAMES = ["toy", "resnet-digits", "part"]
HEADER = isa.record_size("poet_plan_header")


@cache
def graphs() -> dict[str, Graph]:
    return {
        "toy": toy.graph(),
        "resnet-digits": models.load("resnet-digits", TrainingOptions(batch=1)),
        "part": models.load("resnet-digits", TrainingOptions(batch=1, train="last:1")),
    }


@cache
def costs(name: str) -> CostGraph:
    graph = graphs()[name]
    problem = Problem(cost_graph(graph, estimate_profile(load_board("native"))), ram_bytes=4)
    return with_modes_in_place(problem, graph).graph


@cache
def board() -> MemoryBoard:
    found = MemoryBoard(card(), arena_bytes=1 << 22, residents=128, tensors=256)
    found.format()
    return found


def refusal(schedule: Schedule) -> str:
    """Return why the board refuses a schedule, or an empty text if it accepts it."""
    try:
        board().load(schedule.model_part, schedule.plan_part)
    except Refused as refused:
        return refused.name
    return ""


def random_schedule(name: str, seed: int) -> Schedule:
    rng = random.Random(seed)
    plan = random_plan(costs(name), rng, spread=4096)
    assume(plan is not None)
    assert plan is not None
    return encode(graphs()[name], plan, {"seed": seed})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(NAMES), st.integers(0, 2**32))
def test_the_board_accepts_what_was_encoded(name: str, seed: int) -> None:
    schedule = random_schedule(name, seed)
    facts = board().load(schedule.model_part, schedule.plan_part)
    header = schedule.header
    assert facts == {
        "statement_count": header.statement_count,
        "peak_bytes": header.arena_bytes,
        "resident_max": header.resident_max,
        "queue_max": header.queue_max,
    }


@pytest.mark.parametrize("name", NAMES[:2])
def test_random_plans_overwrite_inputs_as_a_choice(name: str) -> None:
    plans = (random_plan(costs(name), random.Random(seed)) for seed in range(20))
    assert sum(it.mode > 0 for plan in plans if plan for it in plan.statements) > 20


def accepts(schedule: Schedule) -> bool:
    """Return whether the decoder in Python accepts what a board reads of a schedule."""
    try:
        _Decoder(schedule).all()
    except ValueError:
        return False
    return True


def some_schedule(name: str) -> Schedule:
    plans = (random_plan(costs(name), random.Random(seed)) for seed in range(100))
    return encode(graphs()[name], next(plan for plan in plans if plan is not None))


def with_true_header(schedule: Schedule, bits: bytes) -> Schedule:
    """Return the schedule with other statements, and a header that fits what decodes of them."""

    def made(**fields: int) -> Schedule:
        part = schedule.plan_part[:HEADER] + bits
        part = with_header("poet_plan_header", part, bit_bytes=len(bits), **fields)
        return Schedule(schedule.model_part, part, schedule.meta)

    decoder = _Decoder(made())
    try:
        while decoder._next():
            pass
    except ValueError:
        return made()
    most = {name: getattr(decoder.state, name) for name in ("resident_max", "queue_max")}
    return made(statement_count=len(decoder.statements), **most)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:2])
def test_both_decoders_refuse_the_same(name: str) -> None:
    """Bits are changed at random and the CRCs made right, so that only the rules can refuse."""
    rng = random.Random(name)
    judged = {True: 0, False: 0}
    for seed in range(40):
        plan = random_plan(costs(name), random.Random(seed), 4096)
        if plan is None:
            continue
        schedule = encode(graphs()[name], plan)
        bits = schedule.plan_part[HEADER:]
        for _ in range(25):
            changed = bytearray(bits)
            for _ in range(rng.randint(1, 2)):
                at = rng.randrange(8 * len(bits))
                changed[at // 8] ^= 1 << at % 8
            other = with_true_header(schedule, bytes(changed))
            mine = accepts(other)
            assert mine == (refusal(other) == ""), (seed, bytes(changed).hex())
            assert refusal(other) in ("", "bad_plan", "table_small")
            judged[mine] += 1
    assert judged[True] > 5
    assert judged[False] > 200


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_recovered_from_a_schedule(name: str) -> None:
    schedule = some_schedule(name)
    graph = parse(schedule.to_bytes()).graph
    assert model_bytes(model_of_graph(graph)) == schedule.model_part
    for node in graphs()[name]:
        again = graph[node.name]
        for key in ("shape", "role", "phase", "dtype", "start", "op", "sink", "inputs"):
            assert getattr(again, key) == getattr(node, key)
        assert (again.overwrites, again.updates) == (node.overwrites, node.updates)


def test_places_on_storage() -> None:
    """A step never writes into an erase group with tensors that must survive the step."""
    model = some_schedule("part").model
    names = ["fixed", "first", "second", "input", "next input", "page"]
    groups: dict[str, set[int]] = {name: set() for name in names}
    for tensor in model.tensors:
        blocks = range(tensor.block, tensor.block + tensor.blocks)
        here = {block // 64 for block in blocks}
        there = {(block + model.slot_stride) // 64 for block in blocks}
        if tensor.place == FIXED:
            groups["fixed"] |= here
        elif tensor.place == CURRENT:
            groups["first"] |= here
            groups["second"] |= there
        elif tensor.place == INPUT:
            groups["input"] |= here
            groups["next input"] |= there
        elif tensor.place == PAGE:
            groups["page"] |= here
    for i, one in enumerate(names):
        assert groups[one]
        for other in names[i + 1 :]:
            assert not groups[one] & groups[other], (one, other)
    assert model.slot_stride % 64 == 0
    assert model.data_blocks == max(t.block + t.blocks for t in model.tensors if t.place == PAGE)
