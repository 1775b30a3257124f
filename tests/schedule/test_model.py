"""The model part: it is read as written; errors name broken tables and unusable graphs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph, Node
from poet_host.schedule import slots
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import (
    CURRENT,
    INPUT,
    KEEP,
    LOSS,
    NEXT,
    ONCE,
    PAGE,
    STORED,
    Model,
    Operator,
    model_bytes,
    read_model,
)
from support import toy
from support.parts import with_header

FORMAT = Path(__file__).parents[2] / "schedules" / "FORMAT.md"
GRAPH = toy.graph()


def test_tables_are_read_as_written() -> None:
    model = model_of_graph(GRAPH)
    again = read_model(model_bytes(model), "here")
    assert again.tensors == model.tensors
    assert (again.slot_stride, again.data_blocks) == (model.slot_stride, model.data_blocks)
    for mine, theirs in zip(again.operators, model.operators, strict=True):
        assert (mine.kernel, mine.sink, mine.inputs) == (theirs.kernel, theirs.sink, theirs.inputs)
        assert mine.overwrites == theirs.overwrites
        for name, value in theirs.attrs.items():
            assert mine.attrs.get(name, 0) == pytest.approx(value)
    assert model_bytes(again) == model_bytes(model)


def test_a_model_that_no_card_can_hold_is_refused() -> None:
    limit = slots.MOST_DATA_BLOCKS
    assert f"`data_blocks` is at most {limit:,}." in FORMAT.read_text(encoding="utf-8")
    assert 0.99 * limit < model_of_graph(toy.graph(340 << 20)).data_blocks <= limit
    with pytest.raises(BadInput, match=r"graph toy: .* GiB"):
        model_of_graph(toy.graph(342 << 20))


@pytest.mark.parametrize("part", ["model", "plan"])
def test_a_part_that_boards_do_not_read_is_refused(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"poet_host.schedule.encode.{part.upper()}_BLOCKS", 0)
    with pytest.raises(BadInput, match=f"the {part} part of the schedule has .* bytes"):
        encode(GRAPH, toy.lavish())


def test_places_and_flags_follow_the_graph() -> None:
    model = model_of_graph(GRAPH)
    names = [node.name for node in GRAPH if node.stored] + [n.name for n in GRAPH if not n.stored]
    by_name = dict(zip(names, model.tensors, strict=True))
    assert [by_name[name].place for name in ("x", "t")] == [INPUT] * 2
    assert [by_name[name].place for name in ("w", "v")] == [CURRENT] * 2
    assert [by_name[name].place for name in ("y", "z", "loss", "dz", "dy")] == [PAGE] * 5
    for new, old in (("v1", "v"), ("w1", "w")):
        assert by_name[new].place == NEXT
        assert by_name[new].flags == KEEP | ONCE
        assert by_name[new].block == by_name[old].block
    assert by_name["x"].flags == STORED
    assert by_name["loss"].flags == LOSS
    # Second slots come after all first slots, and no areas overlap.
    end = max(t.block + t.blocks for t in model.tensors if t.place in (INPUT, CURRENT))
    assert end <= model.slot_stride
    pages = [t for t in model.tensors if t.place == PAGE]
    second = max(t.block + t.blocks for t in model.tensors if t.place in (INPUT, CURRENT))
    assert min(t.block for t in pages) >= second + model.slot_stride


def test_a_trailer_may_need_a_block_of_its_own() -> None:
    by_size = {t.size_bytes: t.blocks for t in model_of_graph(GRAPH).tensors}
    assert by_size[900] == 2
    tensor = model_of_graph(GRAPH).tensors[0]
    sizes = (4, 504, 508, 512, 1016, 1020)
    assert [replace(tensor, size_bytes=size).blocks for size in sizes] == [1, 1, 2, 2, 2, 3]


def first(model: Model, **change: Any) -> Model:
    return replace(model, operators=(replace(model.operators[0], **change), *model.operators[1:]))


def resized(model: Model, size_bytes: int) -> Model:
    return replace(
        model, tensors=(replace(model.tensors[0], size_bytes=size_bytes), *model.tensors[1:])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: first(m, kernel=200), "kernel of operator 4"),
        (lambda m: first(m, sink=99), "sink of operator 4"),
        (lambda m: first(m, attrs={**m.operators[0].attrs, "period": 3}), "period of operator 4"),
        (lambda m: first(m, inputs=(0, 4)), "inputs of operator 4"),
        (lambda m: first(m, overwrites=3), "overwrites of operator 4"),
        (lambda m: first(m, overwrites=0), "overwrites of operator 4"),
        (lambda m: resized(m, 0), "size of tensor 0"),
        (lambda m: resized(m, 6), "size of tensor 0"),
        (
            lambda m: replace(m, tensors=(replace(m.tensors[0], flags=0), *m.tensors[1:])),
            "flags of tensor 0",
        ),
    ],
)
def test_a_broken_table_is_named(change: Callable[[Model], Model], message: str) -> None:
    broken = change(model_of_graph(GRAPH))
    with pytest.raises(BadInput, match=message) as caught:
        read_model(model_bytes(broken), "here")
    assert str(caught.value).startswith("here")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("keep_count", 1, "keep_count"), ("version", 9, "format 9")],
)
def test_a_broken_header_is_named(field: str, value: int, message: str) -> None:
    part = model_bytes(model_of_graph(GRAPH))
    part = with_header("poet_model", part, **{field: value})
    with pytest.raises(BadInput, match=message):
        read_model(part, "here")


def changed(name: str, **change: Any) -> Graph:
    nodes = tuple(replace(n, **change) if n.name == name else n for n in GRAPH)
    return replace(GRAPH, nodes=nodes)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: changed("z", attrs={"speed": 1}), "z: .* speed .*poet_op"),
        (lambda: changed("z", op="magic"), "z: .*operator magic"),
        (lambda: changed("z", sink="magic"), "the sink magic"),
        (lambda: changed("w1", updates="v1"), "updates v1, .* not a stored"),
        (lambda: changed("dz", inputs=("z",) * 9), "dz: .* 9 inputs"),
    ],
)
def test_graphs_that_no_board_can_run(graph: Callable[[], Graph], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        model_of_graph(graph())


def test_an_update_is_as_large_as_what_it_updates() -> None:
    nodes = (
        Node("x", (4,), "data"),
        Node("w", (8,), "parameter"),
        Node("loss", (1,), op="mse", inputs=("x", "x"), attrs={"n": 1, "c": 4, "h": 1, "w": 1}),
        Node("new", (4,), op="add", inputs=("x", "w"), updates="w"),
    )
    with pytest.raises(BadInput, match=r"new updates w, .* size"):
        model_of_graph(Graph("g", nodes, "x", "x", "loss", "loss"))
    twice = (*nodes[:3], *(replace(nodes[3], name=name, shape=(8,)) for name in ("a", "b")))
    with pytest.raises(BadInput, match=r"graph g: several nodes update w"):
        model_of_graph(Graph("g", twice, "x", "x", "loss", "loss"))


def test_too_many_tensors() -> None:
    model = Model(model_of_graph(GRAPH).tensors[:1] * 65_535, (), 64, 64)
    with pytest.raises(BadInput, match="65,535 tensors"):
        model_bytes(model)
    assert model_bytes(replace(model, tensors=model.tensors[1:]))


def test_frees_go_by_first_appearance() -> None:
    assert Operator(1, (5, 3, 5, 4), overwrites=3).freeable == (5, 4)


def test_a_plan_without_a_place_for_its_workspace() -> None:
    plan = toy.frugal()
    statements = tuple(replace(s, workspace_offset=None) for s in plan.statements)
    with pytest.raises(BadInput, match="workspace_offset"):
        encode(GRAPH, replace(plan, statements=statements))
