"""Layers that walk along time: C equals the NumPy reference, which equals PyTorch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from poet_host import isa
from support import clib
from support.kernel_cases import Case, check, make
from torch import Tensor

from tests.firmware.test_shapes import operand_bytes

KERNELS = [name for name, row in isa.kernels().items() if "STEPS" in row.rules]
FORWARD = [name for name in KERNELS if not name.endswith("_grad")]
sizes = st.fixed_dictionaries(
    {"n": st.integers(1, 5), "c": st.integers(1, 3), "w": st.integers(1, 6)}
    | {"oh": st.integers(0, 1), "groups": st.integers(0, 3), "k": st.integers(0, 1)}
)


@pytest.mark.parametrize("op", KERNELS)
@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(0, 2**32 - 1))
def test_c_equals_the_reference(op: str, a: dict[str, int], seed: int) -> None:
    check(make(op, a, seed))


def _steps(op: str, case: Case) -> tuple[Tensor, list[Tensor]]:
    """The hidden states after each step by PyTorch, and the operands that have gradients."""
    a = {name: int(value) for name, value in case.attrs.items()}
    n, c, w, k = (a[name] for name in "ncwk")
    operands = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in case.inputs]
    x, weight, bias, h, *cells = (
        operand.reshape(shape)
        for operand, shape in zip(operands, [(n, c, k), (k, w), (k,), (c, w), (c, w)], strict=False)
    )
    found: list[Tensor] = [x] * n
    for row in range(n)[:: -1 if a["groups"] else 1]:
        if cells:
            terms = x[row] + h @ weight.T + bias
            i, f, o = (torch.sigmoid(terms.chunk(4, 1)[gate]) for gate in (0, 1, 3))
            cells = [f * cells[0] + i * torch.tanh(terms.chunk(4, 1)[2])]
            h = found[row] = o * torch.tanh(cells[0])
            continue
        new, reset, update = (h @ weight.T + bias).chunk(3, 1)
        of_reset, of_update, of_new = x[row].chunk(3, 1)
        z = torch.sigmoid(of_update + update)
        h = (1 - z) * torch.tanh(of_new + torch.sigmoid(of_reset + reset) * new) + z * h
        found[row] = h
    return torch.stack(found), operands


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("is_back", [0, 1])
@pytest.mark.parametrize("wide", [0, 1])
def test_the_reference_equals_pytorch(op: str, is_back: int, wide: int) -> None:
    a = {"n": 4, "c": 3, "w": 5, "oh": wide, "groups": is_back}
    case = make(op, a, 3)
    states = case.numpy()
    blocks = states.reshape(4, 3, -1, 5)
    y, operands = _steps(op, case)
    np.testing.assert_allclose(blocks[:, :, -1], y.detach().numpy(), rtol=1e-5, atol=1e-6)
    gradient = make(f"{op}_grad", a, 4)
    dy = gradient.inputs[4]
    gradient.inputs[:4] = [case.inputs[0], states, *case.inputs[1:3]]
    y.backward(torch.tensor(dy.reshape(y.shape), dtype=torch.float64))
    found = gradient.numpy().reshape(4, 3, 4 + wide, 5)
    of_input = found[:, :, 1:4] if op == "gru" else found[:, :, :4]
    wanted = operands[0].grad
    assert wanted is not None
    np.testing.assert_allclose(of_input.reshape(wanted.shape), wanted.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("op", KERNELS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_all_later_steps(op: str, value: float) -> None:
    case = make(op, {"n": 3, "c": 1, "w": 2, "oh": 1, "groups": 0}, 5)
    at = 2 if op.endswith("_grad") else 0  # a gradient walks the other way
    case.inputs[-1 if at else 0].reshape(3, -1)[at] = value
    with np.errstate(invalid="ignore"):
        got, wanted = case.c(), case.numpy().reshape(case.shape)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    if np.isnan(value):
        assert np.isnan(got.reshape(3, -1)).any(1).all()
    finite = ~np.isnan(wanted)
    assert clib.same_bits(got[finite], wanted[finite])


@pytest.mark.parametrize(
    "change",
    [{"h": 4}, {"h": 1}, {"k": 14}, {"k": 25}, {"variant": 0x44}, {"variant": 0}, {"w": 0}],
)
@pytest.mark.parametrize("op", KERNELS)
def test_sizes_that_do_not_fit_each_other_are_refused(op: str, change: dict[str, int]) -> None:
    case = make(op, {"n": 2, "c": 3, "w": 5}, 1)
    attrs = {**case.attrs, **change}
    count = len(case.inputs)
    assert 0 not in operand_bytes(op, "none", dict(case.attrs), count, None)  # type: ignore[arg-type]
    assert operand_bytes(op, "none", attrs, count, None) == [0] * (count + 1)  # type: ignore[arg-type]
