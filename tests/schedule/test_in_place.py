"""A result whose place is that of an input overwrites it: what encoders and decoders allow."""

from dataclasses import replace
from typing import Any

import pytest
from poet_host import isa
from poet_host.errors import BadInput, PoetError
from poet_host.graph.cuts import Cut
from poet_host.graph.graph import Graph, Node
from poet_host.plan.nests import Loop, Nest
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.decode import Wait, decode
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import Model, model_bytes
from poet_host.schedule.schedule import Schedule, parse
from poet_host.view.listing import rows
from support.memory_board import MemoryBoard, Refused, card
from support.parts import plan_of_model

SHAPE, SIZE = (1, 4, 2, 2), 64
ATTRS = {"n": 1, "c": 4, "h": 2, "w": 2}
HALVES, QUARTERS = Cut(16, (1, 1, 4), (1, 1, 2)), Cut(16, (1, 1, 4), (1, 1, 1))
NEST = Nest((Loop("c", 1),), (None, None))
KERNEL = {name: row.code for name, row in isa.kernels().items()}


def chain(last: str = "sigmoid", *inputs: str) -> Graph:
    """x, a = relu(x), b = tanh(a), c = last(inputs)."""

    def value(name: str, op: str, *names: str) -> Node:
        return Node(name, SHAPE, phase="forward", op=op, inputs=names, attrs=ATTRS)

    nodes = (
        Node("x", SHAPE, "data"),
        value("a", "relu", "x"),
        value("b", "tanh", "a"),
        value("c", last, *(inputs or ("a",))),
    )
    return Graph("chain", nodes, "x", "x", "c", "c")


def plan_of(*statements: tuple[Any, ...]) -> Plan:
    """Each statement is an operation, a node, and perhaps an offset and a mode."""
    made = [Statement(*it[:3], mode=it[3] if len(it) > 3 else 0) for it in statements]
    return Plan("feasible", 1 << 20, statements=tuple(made))


BEGIN = (("page_in", "x", 0), ("compute", "a", SIZE), ("compute", "b", 2 * SIZE))
GOOD = plan_of(*BEGIN, ("compute", "c", SIZE, 1), ("free", "b"))


def answer(schedule: Schedule) -> str:
    """Return why a board refuses a schedule; an empty text if it accepts it."""
    board = MemoryBoard(card())
    board.format()
    try:
        board.load(schedule.model_part, schedule.plan_part)
    except Refused as refused:
        return refused.name
    return ""


def with_model(schedule: Schedule, model: Model) -> Schedule:
    part = model_bytes(model)
    return Schedule(part, plan_of_model(schedule.plan_part, part), schedule.meta)


def test_a_result_takes_the_place_of_its_input() -> None:
    schedule = parse(encode(chain(), GOOD).to_bytes())
    assert answer(schedule) == ""
    assert [s for s in decode(schedule) if not isinstance(s, Wait)] == list(GOOD.statements)
    assert schedule.header.arena_bytes == 3 * SIZE
    computes = {row.tensor: row for row in rows(schedule) if row.statement == "compute"}
    assert computes["c"].what.endswith("in place of a")
    assert "in place" not in computes["b"].what
    assert computes["b"].ram_bytes == computes["c"].ram_bytes == 3 * SIZE


def test_a_wait_protects_what_is_on_its_way_out() -> None:
    plan = plan_of(*BEGIN, ("page_out", "a"), ("compute", "c", SIZE, 1))
    found = decode(encode(chain(), plan))
    assert [it for it in found if isinstance(it, Wait)] == [Wait(0), Wait(0)]
    assert isinstance(found[-2], Wait)


@pytest.mark.parametrize(
    ("last", "inputs"),
    [("slice_grad", "a"), ("add", "aa"), ("add", "bx")],
    ids=["a kernel that may not", "an input that occurs twice", "no input"],
)
def test_the_encoder_refuses_other_places(last: str, inputs: str) -> None:
    with pytest.raises(PoetError, match="mode 1"):
        encode(chain(last, *inputs), GOOD)


def test_a_stored_tensor_is_not_overwritten() -> None:
    plan = plan_of(("page_in", "x", 0), ("compute", "a", 0, 1))
    with pytest.raises(PoetError, match="mode 1"):
        encode(chain(), plan)


def test_mode_0_overwrites_nothing_by_its_place() -> None:
    with pytest.raises(PoetError, match="in use already"):
        encode(chain(), plan_of(*BEGIN, ("compute", "c", SIZE)))


@pytest.mark.parametrize(
    ("changes", "size_bytes"),
    [
        ({"kernel": KERNEL["transpose"], "attrs": {**ATTRS, "variant": 0xE4}}, SIZE),
        ({"kernel": KERNEL["add"], "inputs": (1, 1)}, SIZE),
        ({"kernel": KERNEL["scale"], "attrs": {**ATTRS, "n": 2, "variant": 1}}, 2 * SIZE),
    ],
    ids=["kernel", "twice", "size"],
)
def test_readers_refuse_a_hostile_operator(changes: dict[str, Any], size_bytes: int) -> None:
    """The statements stay the same. The last operator is another one."""
    good = encode(chain(), GOOD)
    model = good.model
    last = replace(model.operators[-1], **changes)
    tensor = replace(model.tensors[-1], size_bytes=size_bytes)
    other = with_model(
        good,
        replace(
            model,
            operators=(*model.operators[:-1], last),
            tensors=(*model.tensors[:-1], tensor),
        ),
    )
    assert answer(good) == ""
    assert answer(other) == "bad_plan"
    with pytest.raises(BadInput, match="in use already"):
        decode(other)


@pytest.mark.parametrize(("cut", "fits"), [(HALVES, True), (QUARTERS, False), (None, False)])
def test_a_nest_needs_the_same_parts(cut: Cut | None, fits: bool) -> None:
    graph, nests = chain(), {("a", 0): NEST, ("b", 0): NEST, ("c", 1): NEST}
    constants = isa.constants()
    workspace = constants["POET_NEST_BYTES"] + 2 * constants["POET_NEST_OPERAND_BYTES"]
    computes = (
        Statement("compute", name, offset, 3 * SIZE, mode)
        for name, offset, mode in (("a", SIZE, 0), ("b", 2 * SIZE, 0), ("c", SIZE, 1))
    )
    plan = Plan("feasible", 1 << 20, statements=(Statement("page_in", "x", 0), *computes))
    same = {"a": HALVES, "c": HALVES}
    good = encode(graph, plan, cuts=same, nests=nests)
    assert good.header.arena_bytes == 3 * SIZE + workspace
    assert answer(good) == ""
    assert [s.mode for s in decode(good) if isinstance(s, Statement) and s.node == "c"] == [1]
    cuts = {"a": HALVES, "c": cut} if cut else {"a": HALVES}
    other = with_model(good, model_of_graph(graph, cuts))
    assert (answer(other) == "") == fits
    if not fits:
        with pytest.raises(BadInput):
            decode(other)
        with pytest.raises(PoetError, match="in use already"):
            encode(graph, plan, cuts=cuts, nests=nests)
