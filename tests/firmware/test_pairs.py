"""Pairs in the C runtime: both gradients of an operator in one nest have the bits of the whole."""

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
from poet_host.schedule.nests import Streamed
from poet_host.schedule.schedule import Schedule
from support import clib
from support.kernel_cases import make
from support.nest_cases import CONV, C, K, N, W, X, Y
from support.nest_runs import answer_to, with_nest
from support.nests import operator_of
from support.pairs import (
    KERNELS,
    PairCase,
    graph_of_pair,
    random_pair,
    random_pair_case,
    run_pair,
    schedule_of_pair,
)


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=8 if os.environ.get("POET_SANITIZE") else 40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_pairs_give_the_bits_of_the_whole(name: str, seed: int) -> None:
    case = random_pair_case(name, seed)
    rng = random.Random(seed)
    one = random_pair(rng, case)
    new, dx = run_pair(
        case, one, queue=rng.randint(1, 8), cache=rng.randint(1, 4), lane_checks=rng.random() < 0.5
    )
    about = (case.weight.attrs, one.cuts, one.nest)
    is_due = case.weight.attrs["period"] < 2  # in step 1
    assert clib.same_bits(new, case.weight.c() if is_due else case.weight.inputs[2]), about
    assert clib.same_bits(dx, case.input.c()), about


SIZES = CONV | {"learning_rate": 0.1}
CASE = PairCase(
    make("conv2d_grad_weight", SIZES, 1, sink="sgd"), make("conv2d_grad_input", SIZES, 1)
)
RINGS = (Ring(1, 3), Ring(2, 3), Ring(2, 2), Ring(2, 2))
GOOD = Nest((C, K, N), RINGS, also=(Ring(2, 1),))
CUTS = (X, Y, W, W, X)
BAD = [
    ("pair", CUTS, replace(GOOD, also=(Ring(2, 2),))),
    ("pair", CUTS, replace(GOOD, also=(Ring(2, 3),))),
    ("output", CUTS, replace(GOOD, operands=(*RINGS[:2], Ring(1, 3), Ring(1, 3)))),
    ("parts", (*CUTS[:4], Cut(100, (1, 2, 6), (1, 1, 3))), GOOD),
    ("pair", CUTS, replace(GOOD, loops=(C, K, N, Loop("oh", 1)))),
]


def raw_pair(cuts: tuple[Cut, ...], nest: Nest, graph: Graph) -> Schedule:
    """A schedule whose only statement is this pair, which streams all operands."""
    one = NestedOperator(operator_of(CASE.weight), CUTS, GOOD)
    plain = schedule_of_pair(CASE, one)
    by_name = dict(zip(("x", "dy", "w", "out", "dx"), cuts, strict=True))
    del by_name["out"]
    start = BitWriter()
    start.code("111111")
    start.put(len(graph.nodes) - 1, width(len(graph.nodes)))
    model = model_of_graph(graph, by_name)
    return with_nest(plain, model, operator_of(CASE.weight), nest, start, "0")


def refused(schedule: Schedule) -> bool:
    return answer_to(schedule) == ("bad_plan", 0)


def test_a_good_pair_is_read_as_it_was_written() -> None:
    one = NestedOperator(operator_of(CASE.weight), CUTS, GOOD)
    (found,) = decode(schedule_of_pair(CASE, one))
    assert isinstance(found, Streamed)
    assert found.nest == GOOD
    assert not refused(raw_pair(CUTS, GOOD, graph_of_pair(CASE)))


@pytest.mark.parametrize(("law", "cuts", "nest"), BAD)
def test_each_law_of_pairs_is_checked(law: str, cuts: tuple[Cut, ...], nest: Nest) -> None:
    schedule = raw_pair(cuts, nest, graph_of_pair(CASE))
    assert refused(schedule)
    with pytest.raises(BadInput, match=f"law `{law}`"):
        decode(schedule)


def other(graph: Graph, **changed: Any) -> Graph:
    """The graph with another node dx."""
    nodes = (replace(node, **changed) if node.name == "dx" else node for node in graph)
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": ("x", "x"), "op": "mul", "attrs": {"n": 2, "c": 6, "h": 5, "w": 5}},
        {"inputs": ("other", "w")},
        {"inputs": ("dy", "v")},
        {"attrs": CASE.input.attrs | {"stride_w": 2, "pad_w": 3}},
    ],
)
def test_only_both_gradients_of_one_operator_are_a_pair(changed: dict[str, Any]) -> None:
    """They read the same output gradient and the same weight, and have the same sizes."""
    plain = graph_of_pair(CASE)
    more = tuple(replace(plain[name], name=new) for name, new in (("dy", "other"), ("w", "v")))
    graph = replace(plain, nodes=(*plain.nodes[:3], *more, *plain.nodes[3:]))
    graph = other(graph, **changed)
    schedule = raw_pair(CUTS, GOOD, graph)
    assert refused(schedule)
    with pytest.raises(BadInput, match="breaks a rule"):
        decode(schedule)
