"""Convolutions with the statistics of their output, in the C runtime: the bits of the whole."""

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from poet_host.errors import BadInput
from poet_host.graph.cuts import Cut
from poet_host.graph.graph import Graph
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from poet_host.schedule.bits import BitWriter, width
from poet_host.schedule.decode import decode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import ONCE
from poet_host.schedule.nests import Streamed
from poet_host.schedule.schedule import Schedule
from poet_host.view.listing import listing
from support import clib
from support.nest_cases import FORWARD, C, K, N, W, X, Y
from support.nest_runs import answer_to, with_nest
from support.nests import operator_of
from support.statistics_nests import (
    case_of,
    graph_of_statistics,
    random_statistics,
    random_statistics_case,
    run_statistics,
    schedule_of_statistics,
)


@pytest.mark.parametrize("before", [(), ("alone",), ("both",)])
@settings(max_examples=5 if os.environ.get("POET_SANITIZE") else 40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_statistics_have_the_bits_of_the_whole(before: tuple[str, ...], seed: int) -> None:
    case, rng = random_statistics_case(seed), random.Random(seed)
    one = random_statistics(rng, case)
    y, stats = run_statistics(
        case, one, before, queue=rng.randint(1, 8), cache=rng.randint(1, 4),
        lane_checks=rng.random() < 0.5,
    )  # fmt: skip
    about = (case.conv.attrs, one.cuts, one.nest)
    assert clib.same_bits(y, case.conv.c()), about
    assert clib.same_bits(stats, replace(case.stats, inputs=[y]).c()), about


CASE = case_of(FORWARD)
RINGS = (Ring(1, 3), Ring(2, 3), Ring(2, 1))
GOOD = Nest((K, N, C), RINGS, statistics=True)
CUTS = (X, W, Y, Cut(4, (1, 2, 8), (1, 2, 4), 2))
ONE = NestedOperator(operator_of(CASE.conv), CUTS, GOOD)
BANDS = (Cut(100, (1, 2, 6), (1, 1, 1)), Cut(36, (1, 8, 6), (1, 4, 1)))
C1, OH = Loop("c", 1), Loop("oh", 3)
BAD = [
    ("statistics", CUTS, replace(GOOD, operands=(*RINGS[:2], Ring(2, 2)))),
    ("statistics", (*CUTS[:3], None), GOOD),
    ("statistics", (*CUTS[:3], Cut(4, (1, 2, 8), (1, 2, 2), 4)), GOOD),
    ("statistics", (*CUTS[:3], Cut(4, (1, 2, 8), (1, 1, 4), 4)), GOOD),
    ("statistics", (*BANDS, Cut(20, (2, 8, 5), (2, 4, 3)), CUTS[3]),
     Nest((K, C1, N, OH), (Ring(1, 3), Ring(2, 2), Ring(2, 1)), statistics=True)),
    ("statistics", (*BANDS, Cut(20, (2, 8, 5), (1, 4, 3)), CUTS[3]),
     Nest((K, OH, C1, N), (Ring(1, 4), Ring(2, 3), Ring(2, 2)), statistics=True)),
    ("statistics", (*CUTS[:2], Cut(4, (1, 80, 5), (1, 1, 3)), Cut(4, (1, 2, 8), (1, 2, 1), 8)),
     replace(GOOD, loops=(C,), operands=(Ring(1, 1), Ring(2, 1), Ring(1, 0)))),
    ("output", CUTS, replace(GOOD, loops=(C, K, N), operands=(*RINGS[:2], Ring(2, 2)))),
]  # fmt: skip


def raw(
    cuts: tuple[Cut | None, ...],
    nest: Nest,
    graph: Graph,
    numbers: tuple[int, ...] = (3,),
    flags: int = 0,
) -> Schedule:
    """A schedule whose only statement has these numbers of tensors and this nest.

    `flags`: more flags of the statistics.
    """
    plain = schedule_of_statistics(CASE, ONE)
    by_name = {
        name: cut for name, cut in zip(("x", "w", "y", "stats"), cuts, strict=True) if cut
    }  # fmt: skip
    model = model_of_graph(graph, by_name)
    last = replace(model.tensors[-1], flags=model.tensors[-1].flags | flags)
    model = replace(model, tensors=(*model.tensors[:-1], last))
    start = BitWriter()
    start.code("111111")
    for number in numbers:
        start.put(number, width(len(graph.nodes)))
    return with_nest(plain, model, operator_of(CASE.conv), nest, start, "00")


GRAPH = graph_of_statistics(CASE)
END = ("bad_plan", 1)  # all statements are right, but y does not count for `arena_bytes`


def test_good_statistics_are_read_as_they_were_written() -> None:
    for before, marks in ((), 1), (("alone",), 2), (("both",), 2):
        schedule = schedule_of_statistics(CASE, ONE, before=before)
        found = [it for it in decode(schedule) if isinstance(it, Streamed)]
        assert len(found) == marks
        assert (found[-1].nest, found[-1].node, found[-1].also) == (GOOD, "y", "stats")
        assert sum("also stats at" in row for row in listing(schedule).splitlines()) == (
            marks - (before == ("alone",))
        )
    assert answer_to(raw(CUTS, GOOD, GRAPH)) == END


@pytest.mark.parametrize(("law", "cuts", "nest"), BAD)
def test_each_law_of_statistics_is_checked(
    law: str, cuts: tuple[Cut | None, ...], nest: Nest
) -> None:
    if law == "statistics":  # the only law that it breaks
        NestedOperator(ONE.operator, cuts[:3], replace(nest, statistics=False))
    schedule = raw(cuts, nest, GRAPH)
    assert answer_to(schedule) == ("bad_plan", 0)
    with pytest.raises(BadInput, match=f"law `{law}`"):
        decode(schedule)


def other(**changed: Any) -> Graph:
    """The graph with another node stats, which may read another tensor of the size of y."""
    nodes = [replace(node, **changed) if node.name == "stats" else node for node in GRAPH]
    nodes.insert(2, replace(GRAPH["w"], name="v", shape=FORWARD.shape))
    return replace(GRAPH, nodes=tuple(nodes))


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": ("v",)},
        {"op": "global_avgpool", "shape": (2, 8)},
        {"attrs": CASE.stats.attrs | {"n": 1, "h": 10}},
        {"attrs": CASE.stats.attrs | {"h": 25, "w": 1}},
    ],
)
def test_statistics_are_those_of_the_output_of_the_convolution(changed: dict[str, Any]) -> None:
    assert answer_to(raw(CUTS, GOOD, other(), (4,))) == END
    schedule = raw(CUTS, GOOD, other(**changed), (4,))
    assert answer_to(schedule) == ("bad_plan", 0)
    with pytest.raises(BadInput, match="breaks a rule"):
        decode(schedule)


@pytest.mark.parametrize(
    ("numbers", "flags"),
    [((0, 3), 0), ((0, 2), 0), ((0, 1), 0), ((0, 0), 0), ((2,), 0), ((3,), ONCE)],
)
def test_statistics_that_repeat_were_computed_before(numbers: tuple[int, ...], flags: int) -> None:
    """They have not the flag ONCE."""
    schedule = raw(CUTS, GOOD, GRAPH, numbers, flags)
    assert answer_to(schedule) == ("bad_plan", 0)
    with pytest.raises(BadInput, match="breaks a rule"):
        decode(schedule)
