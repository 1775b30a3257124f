"""The record of an operator, and the table of all kernels in NumPy, by their names in isa.def.

A kernel takes an `Op` and its inputs, which have the shapes of isa.def. Each sum adds its terms in
the order that firmware/include/poet/kernel.h defines. So one vector operation adds one term to all
elements of the output. If a kernel computes a parameter's gradient, it returns the gradient;
`step.run_kernel` applies the sink.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa import field_types
from .floats import Array, f32


class Op:
    """The fields of `struct poet_op` that a kernel reads, and the number of the step."""

    # Fields that are factors of arrays; all others have their type by `__getattr__`.
    learning_rate: np.float32
    weight_decay: np.float32
    momentum: np.float32
    update_rate: np.float32
    beta: np.float32
    factor: np.float32

    def __init__(self, step: int, **fields: int | np.float32) -> None:
        self.step = step
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        """Return a field that the operator does not have: 0."""
        kind = field_types("poet_op").get(name)
        if kind is None:
            raise AttributeError(f"struct poet_op has no field {name}")
        return f32(0) if kind == "float" else 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, self.h, self.w)

    @property
    def grouped_input(self) -> tuple[int, ...]:
        return (self.n, self.groups, self.c // self.groups, self.h, self.w)

    @property
    def grouped_output(self) -> tuple[int, ...]:
        return (self.n, self.groups, self.k // self.groups, self.oh, self.ow)

    @property
    def grouped_weight(self) -> tuple[int, ...]:
        of_group = (self.k // self.groups, self.c // self.groups)
        return (self.groups, *of_group, self.kernel_h, self.kernel_w)

    @property
    def pooled_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, self.oh, self.ow)

    @property
    def per_channel(self) -> np.float32:
        """Return the number of elements of one channel in the whole batch, as a float."""
        return f32(self.n * self.h * self.w)


KERNELS: dict[str, Callable[..., Array]] = {}


def kernel(function: Callable[..., Array]) -> Callable[..., Array]:
    """Add a function to `KERNELS`. The function must have the name of a kernel of isa.def."""
    KERNELS[function.__name__] = function
    return function


def by_channel(x: Array) -> Array:
    """Convert an array (n, c, h, w) to (c, n * h * w)."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
