"""Nests in the C runtime: random nests of every kernel give the bits of the whole kernel."""

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from poet_host import isa
from poet_host.graph.cuts import Cut
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from support import clib
from support.kernel_cases import Case, make
from support.kernel_parts_cases import random_case
from support.nest_cases import CONV
from support.nest_runs import run
from support.nests import operator_of, random_nest

KERNELS = isa.kernels()


def with_period(case: Case, period: int) -> tuple[Case, np.ndarray]:
    """The case with a period, and its output in step 1."""
    changed = replace(case, attrs={**case.attrs, "period": period})
    assert case.overwrites is not None
    if period < 2:
        return changed, case.c()
    if case.sink != "accumulate":
        return changed, case.inputs[case.overwrites]
    return changed, replace(case, sink="store", inputs=case.inputs[:-1], overwrites=None).c()


@pytest.mark.parametrize("op", KERNELS)
@settings(max_examples=2 if os.environ.get("POET_SANITIZE") else 8, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_nests_give_the_bits_of_the_whole(op: str, seed: int) -> None:
    case = replace(random_case(op, np.random.default_rng(seed)), step=1)
    rng = random.Random(seed)
    wanted = case.c()
    if "period" in isa.attributes(op, case.sink):
        case, wanted = with_period(case, rng.randrange(4))
    one = random_nest(rng, operator_of(case))
    got = run(
        case, one, queue=rng.randint(1, 8), cache=rng.randint(1, 4), lane_checks=rng.random() < 0.5
    )
    assert clib.same_bits(got, wanted), (case.attrs, one.cuts, one.nest)


@pytest.mark.parametrize("ring", [None, Ring(1, 0), Ring(2, 1)], ids=str)
@pytest.mark.parametrize(
    ("op", "sink", "loops"),
    [
        ("conv2d", "none", (Loop("n", 1), Loop("k", 4), Loop("c", 4))),
        ("conv2d_grad_input", "none", (Loop("n", 1), Loop("c", 4))),
        ("linear_grad_weight", "sgd", (Loop("k", 3),)),
    ],
)
def test_a_cell_may_have_parts_of_rows(
    op: str, sink: str, loops: tuple[Loop, ...], ring: Ring | None
) -> None:
    """The second input is whole in RAM, or a slab is whole, and cells have ranges of channels."""
    case = make(op, CONV, 1, sink=sink)
    slab = ring and replace(ring, depth=min(ring.depth, len(loops) - 1))
    rings = (None, slab, *(None for _ in case.inputs[1:]))
    one = NestedOperator(operator_of(case), (None,) * len(rings), Nest(loops, rings))
    assert clib.same_bits(run(case, one), case.c())


@pytest.mark.parametrize("stride", [1, 2])
def test_a_slab_ends_with_the_last_part_that_a_window_touches(stride: int) -> None:
    """The last part of the rows is short: a slab that ends before it has no room for it."""
    h, kernel = 7, 3 if stride == 1 else 1
    attrs = {"n": 1, "c": 1, "k": 2, "groups": 1, "h": h, "w": 5, "oh": -(-h // stride), "ow": 5}
    attrs |= {"kernel_h": kernel, "stride_h": stride, "pad_h": kernel // 2}
    attrs |= {"kernel_w": 1, "stride_w": 1, "pad_w": 0}
    case = make("conv2d", attrs, 1)
    rows = Cut(4 * 5, (1, 1, h), (1, 1, 3))
    rings = (Ring(1, 1), *(None for _ in case.inputs[1:]), Ring(1, 0))
    cuts = (rows, *(None for _ in case.inputs))
    one = NestedOperator(operator_of(case), cuts, Nest((Loop("oh", 1),), rings))
    assert clib.same_bits(run(case, one), case.c())
