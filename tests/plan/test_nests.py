"""Nests: laws, memory of parts, and what moves; the walk against boxes of NumPy."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from poet_host import isa
from poet_host.graph.cuts import Cut
from poet_host.graph.operands import AXES, Operator
from poet_host.plan.box import Box
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from poet_host.plan.parts import LawError, parts_of
from support import kernel_parts
from support.kernel_cases import samples
from support.nests import operator_of, random_nest

CONV = {"n": 2, "c": 6, "h": 5, "w": 5, "k": 8, "oh": 5, "ow": 5, "groups": 1}
CONV |= {"kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1}
FORWARD = Operator("conv2d", "none", 2, CONV)
UPDATE = Operator("conv2d_grad_weight", "sgd", 3, CONV, 2)
X = Cut(100, (1, 2, 6), (1, 1, 2))
W = Cut(36, (1, 8, 6), (1, 4, 2))
Y = Cut(100, (1, 2, 8), (1, 1, 4))
NEST = Nest((Loop("n", 1), Loop("k", 4), Loop("c", 2)), (Ring(2, 3), Ring(2, 3), Ring(2, 2)))
RENEW = Nest(
    (Loop("k", 4), Loop("c", 2), Loop("n", 1)),
    (Ring(2, 3), Ring(1, 3), Ring(2, 2), Ring(2, 2)),
)


def test_axes_are_fields_of_operators() -> None:
    assert {*AXES} == {
        name.removeprefix("+") for row in isa.kernels().values() for name in row.parts
    }


@pytest.mark.parametrize("case", samples(), ids=lambda case: f"{case.op}-{case.sink}")
def test_axes_of_operands_agree_with_the_parts_of_kernels(case: object) -> None:
    free, summed = kernel_parts.cuttable(case)
    operator = operator_of(case)
    assert (sorted(operator.free_axes), list(operator.summed)) == (sorted(free), summed)
    axes = operator.operand(len(case.inputs))
    wanted = kernel_parts.box(
        case, kernel_parts.output_axes(case), {axis: range(1) for axis in free}
    )
    found = [slice(0, a.per) if a.cut_by in free else slice(None) for a in axes]
    assert [s.stop for s in found][: len(wanted)] == [s.stop for s in wanted]


def test_buffers_and_traffic_of_a_convolution() -> None:
    nest = NestedOperator(FORWARD, (X, W, Y), NEST)
    assert nest.ring_bytes == (2 * 200, 2 * 4 * 2 * 36, 2 * 4 * 100)
    assert nest.sums_bytes == 0
    assert nest.workspace_bytes == nest.state_bytes + sum(nest.ring_bytes)
    assert nest.transfers(0) == {200: 2 * 2 * 3}  # x again for each part of k
    assert nest.transfers(1) == {288: 2 * 2 * 3}
    assert nest.stores == {400: 4}
    assert (sum(nest.loads.elements()), sum(nest.stores.elements())) == (
        12 * 200 + 12 * 288,
        2 * 8 * 100,
    )


def test_a_renewed_parameter_has_one_ring_and_sums() -> None:
    nest = NestedOperator(UPDATE, (X, Y, W, W), RENEW)
    assert nest.ring_bytes[2] == 0
    assert nest.sums_bytes == 4 * 2 * 36
    assert nest.transfers(2) == nest.stores == {288: 6}


BROKEN = [
    ("axes", FORWARD, replace(NEST, loops=(Loop("h", 1), *NEST.loops[1:]))),
    ("steps", FORWARD, replace(NEST, loops=(Loop("n", 3), *NEST.loops[1:]))),
    ("steps", FORWARD, replace(NEST, loops=(Loop("c", 3), Loop("k", 4), Loop("c", 2)))),
    ("loops", FORWARD, replace(NEST, loops=(Loop("n", 1),) * 8)),
    ("operands", FORWARD, replace(NEST, operands=(None, None))),
    ("rings", FORWARD, replace(NEST, operands=(Ring(3, 3), Ring(2, 3), None))),
    ("rings", FORWARD, replace(NEST, operands=(Ring(2, 4), Ring(2, 3), None))),
    ("output", FORWARD, replace(NEST, operands=(None, Ring(2, 3), Ring(2, 3)))),
    ("place", FORWARD, replace(NEST, in_place=False)),
    ("place", UPDATE, replace(RENEW, in_place=False)),
    ("place", UPDATE, replace(RENEW, operands=(*RENEW.operands[:3], Ring(1, 2)))),
    ("place", UPDATE, replace(RENEW, operands=(*RENEW.operands[:3], None))),
    ("parts", FORWARD, replace(NEST, loops=(Loop("n", 1), Loop("k", 4), Loop("c", 1)))),
    ("cells", FORWARD, replace(NEST, loops=(Loop("n", 1), Loop("k", 4), Loop("c", 3)),
                               operands=(None, None, None))),
]  # fmt: skip


@pytest.mark.parametrize(("law", "operator", "nest"), BROKEN)
def test_each_law_is_checked(law: str, operator: Operator, nest: Nest) -> None:
    cuts = (X, W, Y) if operator is FORWARD else (X, Y, W, W)
    with pytest.raises(LawError) as found:
        NestedOperator(operator, cuts, nest)
    assert found.value.law == law


def test_terms_ascend() -> None:
    bias = Operator("grad_bias", "store", 1, {**CONV})
    good = Nest((Loop("n", 1), Loop("k", 4), Loop("oh", 2)), (None, None))
    y = Cut(20, (2, 8, 5), (1, 4, 2))
    NestedOperator(bias, (y, None), good)
    for loops in ((Loop("oh", 2), Loop("n", 1)), (Loop("oh", 2),), (Loop("n", 2), Loop("oh", 2))):
        with pytest.raises(LawError) as found:
            NestedOperator(bias, (None, None), replace(good, loops=loops))
        assert found.value.law == "terms"


def test_cuts_must_be_along_axes_of_the_operator() -> None:
    for cut in (Cut(4, (1, 1, 300), (1, 1, 100)), Cut(4, (1, 1, 100), (1, 1, 50))):
        with pytest.raises(LawError) as found:
            NestedOperator(FORWARD, (cut, W, Y), NEST)
        assert found.value.law == "cut"
    other = replace(W, part=(1, 4, 6))
    with pytest.raises(LawError) as found:
        NestedOperator(UPDATE, (X, Y, W, other), RENEW)
    assert found.value.law == "place"
    several = replace(X, piece_parts=2)
    with pytest.raises(LawError) as found:
        NestedOperator(FORWARD, (several, W, Y), NEST)
    assert found.value.law == "parts"


def test_a_box_knows_which_cells_are_dense() -> None:
    """Against an array that holds the position of each element in memory."""
    rng = random.Random(3)
    dense = 0
    for _ in range(3000):
        size = tuple(rng.randint(1, 4) for _ in range(4))
        part = tuple(rng.randint(1, s) for s in size)
        cell = tuple(rng.randint(1, s) for s in size)
        place, at = np.zeros(size, int), 0
        for corner in product(*(range(0, s, p) for s, p in zip(size, part, strict=True))):
            view = place[tuple(slice(a, a + p) for a, p in zip(corner, part, strict=True))]
            view[...] = at + np.arange(view.size).reshape(view.shape)
            at += view.size
        wanted = True
        for corner in product(*(range(0, s, c) for s, c in zip(size, cell, strict=True))):
            view = place[tuple(slice(a, a + c) for a, c in zip(corner, cell, strict=True))]
            wanted &= bool((view.reshape(-1) == view.flat[0] + np.arange(view.size)).all())
        held = Box(size, part).holds(cell)
        assert wanted or not held
        dense += held
    assert dense > 300


def test_slabs_of_random_nests_cover_their_tensors() -> None:
    rng = random.Random(5)
    streamed = 0
    for case in samples():
        operator = operator_of(case)
        nest = random_nest(rng, operator)
        shapes = [tuple(a.size for a in operator.operand(i)) for i in range(nest.count + 1)]
        for i, ring in enumerate(nest.nest.operands):
            if ring is None:
                continue
            streamed += 1
            loads = np.zeros(shapes[i], int)
            for slab in nest.slabs(i):
                box = loads[tuple(slice(*side) for side in slab)]
                box += 1
                assert box.size * 4 <= nest.box(i).size_bytes
            moved = sum(size * count for size, count in nest.transfers(i).items())
            assert moved == 4 * loads.sum()
            assert loads.min() >= 1
            if i == nest.count or i == nest.overwritten:
                assert loads.max() == 1
    assert streamed > 100


def test_a_cut_axis_may_be_several_axes_of_an_operand() -> None:
    sizes = {"n": 2, "groups": 3, "h": 4, "w": 6, "k": 5, "variant": 4}
    matmul = Operator("matmul", "store", 2, sizes)  # a: (n, h, groups, k)
    axes = matmul.operand(0)
    assert parts_of(axes, Cut(60, (1, 1, 8), (1, 1, 2))) == (1, 2, 3, 5)
    assert parts_of(axes, Cut(4, (1, 8, 15), (1, 8, 10))) == (2, 4, 2, 5)
    assert parts_of(axes, Cut(4, (1, 1, 120), (1, 1, 5))) == (1, 1, 1, 5)
    for part in (3, 4, 7):
        with pytest.raises(LawError):
            parts_of(axes, Cut(4, (1, 8, 15), (1, 8, part)))
    with pytest.raises(LawError):
        parts_of(axes, Cut(60, (1, 1, 8), (1, 1, 3)))
