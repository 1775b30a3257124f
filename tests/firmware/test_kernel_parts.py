"""Kernels called for parts of an operator give the bits of the whole operator."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from poet_host import isa
from support import clib, kernel_parts
from support.kernel_cases import EXAMPLES
from support.kernel_parts_cases import random_case

KERNELS = isa.kernels()


def test_every_kernel_has_parts() -> None:
    for row in KERNELS.values():
        names = [name.removeprefix("+") for name in row.parts]
        assert names, row.name
        assert len({*names}) == len(names)
        assert {*names} <= {"pass", *row.fields}, row.name


@pytest.mark.parametrize("op", KERNELS)
@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_parts_give_the_bits_of_the_whole(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(op, rng)
    got, wanted = kernel_parts.run(case, rng), case.c()
    assert clib.same_bits(got.reshape(wanted.shape), wanted), case.attrs
