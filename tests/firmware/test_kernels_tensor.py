"""Kernels on whole tensors and of transformers: C equals the NumPy reference bit for bit."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from poet_host import isa
from support import clib
from support.kernel_cases import SINKS, Case, check, make

from tests.firmware.test_kernels import common, images, seeds, sizes

ORDERS = list(permutations(range(4)))
ELEMENTWISE = [
    name
    for name, row in isa.kernels().items()
    if {*row.letters, row.output} == {"X"} and not row.has_sink and row.in_place is None
    and "ORDER" not in row.rules
]  # fmt: skip
sinks = st.sampled_from(SINKS)
broadcasts = st.integers(0, 255)


@common
@given(images(), broadcasts, seeds, sinks, st.floats(-4, 4, width=32))
def test_broadcasting(
    a: dict[str, int], variant: int, seed: int, sink: tuple[str, float], factor: float
) -> None:
    a = a | {"variant": variant}
    for op in ("add", "sub", "mul"):
        check(make(op, a, seed))
    a = a | {"factor": factor}
    check(make("scale", a, seed))
    for op in ("reduce", "reduce_product"):
        check(make(op, a, seed, sink=sink[0], decay=sink[1]))


@common
@given(images(), seeds, st.sampled_from([0.01, 1.0, 5.0, 1e4]), st.integers(0, 1))
def test_elementwise(a: dict[str, int], seed: int, scale: float, variant: int) -> None:
    a = a | {"variant": variant, "lower_bound": -0.5, "upper_bound": 1.25, "factor": 0.75}
    for op in ELEMENTWISE:
        case = make(op, a | {"probability": 0.25, "seed": 3, "key": 1}, seed)
        first = case.inputs[0] * np.float32(scale)
        check(replace(case, inputs=[first, *case.inputs[1:]]))


IN_PLACE = [
    (name, at)
    for name, row in isa.kernels().items()
    if row.in_place is None
    for at in row.may_overwrite
]


@common
@given(images(), seeds)
def test_a_kernel_may_overwrite_what_its_row_says(a: dict[str, int], seed: int) -> None:
    for op, at in IN_PLACE:
        sizes = a | {"h": 1, "w": 1} if op.startswith("layernorm") else a
        case = make(op, sizes | {"variant": 0, "epsilon": 0.1, "probability": 0.25}, seed)
        check(replace(case, overwrites=at))


@common
@given(images(), st.sampled_from(ORDERS), seeds)
def test_transpose(a: dict[str, int], order: tuple[int, ...], seed: int) -> None:
    variant = sum(axis << 2 * i for i, axis in enumerate(order))
    case = make("transpose", a | {"variant": variant}, seed)
    check(case)
    wanted = case.inputs[0].transpose(order).reshape(case.shape)
    assert clib.same_bits(case.c(), np.ascontiguousarray(wanted))


@common
@given(images(), sizes, st.integers(0, 7), seeds)
def test_parts(a: dict[str, int], k: int, begin: int, seed: int) -> None:
    check(make("concat", a | {"k": k}, seed))
    part = a | {"oh": min(begin, a["c"] - 1)}
    part |= {"k": min(k, a["c"] - part["oh"])}
    check(make("slice", part, seed))
    check(make("slice_grad", part, seed))


@common
@given(images(), sizes, st.integers(1, 3), st.integers(0, 31), seeds, sinks)
def test_matmul(
    a: dict[str, int], k: int, heads: int, variant: int, seed: int, sink: tuple[str, float]
) -> None:
    del a["c"]
    a = a | {"k": k, "groups": heads, "variant": variant, "factor": 0.75}
    case = make("matmul", a, seed, sink=sink[0], decay=sink[1])
    check(case)
    if sink[0] == "store":  # NumPy's own product, of the operands as they lie
        sides = {"a": (a["h"], k), "b": (k, a["w"])}
        left, right = (
            _view(x, a["n"], heads, *sides[name], bool(variant & turned), bool(variant & apart))
            for x, name, turned, apart in zip(case.inputs, "ab", (1, 2), (4, 8), strict=True)
        )
        wanted = left.astype(np.float64) @ right * 0.75
        wanted = wanted.swapaxes(1, 2) if variant & 16 else wanted
        np.testing.assert_allclose(case.c().reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def _view(
    x: np.ndarray, n: int, heads: int, rows: int, columns: int, turned: bool, side_by_side: bool
) -> np.ndarray:
    shape = (columns, rows) if turned else (rows, columns)
    if side_by_side:
        x = x.reshape(n, shape[0], heads, shape[1]).transpose(0, 2, 1, 3)
    x = x.reshape(n, heads, *shape)
    return np.swapaxes(x, 2, 3) if turned else x


@common
@given(images(), seeds, st.booleans(), st.integers(0, 1), st.sampled_from([0.01, 1.0, 30.0, 1e20]))
def test_softmax(a: dict[str, int], seed: int, masked: bool, causal: int, scale: float) -> None:
    case = make("softmax", a | {"variant": causal}, seed, bias=masked)
    x = case.inputs[0] * np.float32(scale)
    case = Case("softmax", case.attrs, [x, *case.inputs[1:]], case.shape)
    check(case)
    y = case.c().reshape(-1, a["w"])
    sums = y.astype(np.float64).sum(axis=1)
    assert ((np.abs(sums - 1) < 1e-5) | (y == 0).all(axis=1)).all()
    check(make("softmax_grad", a, seed))


def test_what_is_not_seen_is_zero_and_a_row_that_sees_nothing_too() -> None:
    a = {"n": 2, "c": 1, "h": 2, "w": 3}
    x = np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3)
    mask = np.array([[5, 0, 7], [0, 0, 0]], np.int32)
    y = Case("softmax", a, [x, mask], x.shape).c()
    assert (y[0, 0, :, 1] == 0).all()
    assert (y[0, 0, :, [0, 2]] > 0).all()
    assert not y[1].any()
    causal = Case("softmax", a | {"variant": 1}, [x], x.shape).c()
    assert causal[0, 0, 0].tolist() == [1, 0, 0]
    assert causal[0, 0, 1, 2] == 0
    assert causal[0, 0, 1, 1] > 0


@common
@given(sizes, st.integers(1, 12), seeds, sinks)
def test_layernorm(n: int, c: int, seed: int, sink: tuple[str, float]) -> None:
    a = {"n": n, "c": c, "epsilon": 1e-5}
    for op in ("layernorm_stats", "layernorm", "layernorm_grad_input"):
        check(make(op, a, seed))
    check(make("layernorm_grad_weight", a, seed, sink=sink[0], decay=sink[1]))


@common
@given(st.integers(1, 12), sizes, sizes, seeds, sinks)
def test_embedding(n: int, c: int, k: int, seed: int, sink: tuple[str, float]) -> None:
    a = {"n": n, "c": c, "k": k, "padding": seed % (k + 1)}
    check(make("embedding", a, seed))
    check(make("embedding_grad", a, seed, sink=sink[0], decay=sink[1]))


@pytest.mark.parametrize("token", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_token_out_of_range_is_not_a_number_and_reads_nothing(token: int) -> None:
    case = make("embedding", {"n": 2, "c": 4, "k": 3}, 1)
    case.inputs[0][1] = token
    for y in (case.c(), case.numpy()):
        assert np.isnan(y[1]).all()
        assert not np.isnan(y[0]).any()
    gradient = make("embedding_grad", {"n": 2, "c": 4, "k": 3}, 1, sink="store")
    gradient.inputs[0][:] = (1, token)
    check(gradient)
    assert clib.same_bits(gradient.c()[1], gradient.inputs[1][0] + np.float32(0))


@common
@given(
    images(),
    seeds,
    st.integers(1, 2**32 - 1),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 0.9, 0.999]),
)
def test_adam(a: dict[str, int], seed: int, step: int, decayed: bool, beta: float) -> None:
    average = a | {"beta": beta, "weight_decay": 0.01 if decayed else 0.0}
    for op in ("average", "average_square"):
        case = make(op, average, seed, bias=decayed)
        check(Case(op, average, case.inputs, case.shape, overwrites=1, step=step))
    check(make("adam_step", a | {"learning_rate": 0.03, "epsilon": 1e-8}, seed))


def test_the_first_average_is_the_gradient_itself() -> None:
    a = {"n": 1, "c": 5, "h": 1, "w": 1, "beta": 0.999}
    case = make("average", a, 3, bias=False)
    g = case.inputs[0]
    zeros = np.zeros_like(g)
    first = Case("average", a, [g, zeros], g.shape, overwrites=1, step=1)
    assert np.array_equal(first.c(), g)


def test_averages_leave_padding_out_if_asked() -> None:
    a = {"n": 1, "c": 1, "h": 3, "w": 3, "oh": 2, "ow": 2, "kernel_h": 3, "kernel_w": 3}
    a |= {"stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}
    ones = np.ones((1, 1, 3, 3), np.float32)
    assert (Case("avgpool2d", a | {"variant": 1}, [ones], (1, 1, 2, 2)).c() == 1).all()
    assert (Case("avgpool2d", a, [ones], (1, 1, 2, 2)).c() == np.float32(4) / 9).all()
    for op in ("avgpool2d", "avgpool2d_grad"):
        check(make(op, a | {"variant": 1}, 4))
