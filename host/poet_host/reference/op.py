"""The record of an operator, and the table of all kernels in NumPy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .floats import Array, f32

_ZERO = f32(0)


@dataclass(frozen=True)
class Op:
    """The fields of `struct poet_op` that kernels read, and the number of the step."""

    step: int
    n: int = 0
    c: int = 0
    h: int = 0
    w: int = 0
    k: int = 0
    oh: int = 0
    ow: int = 0
    kernel_h: int = 0
    kernel_w: int = 0
    stride_h: int = 0
    stride_w: int = 0
    pad_h: int = 0
    pad_w: int = 0
    groups: int = 0
    variant: int = 0
    seed: int = 0
    key: int = 0
    learning_rate: np.float32 = _ZERO
    weight_decay: np.float32 = _ZERO
    momentum: np.float32 = _ZERO
    beta: np.float32 = _ZERO
    update_rate: np.float32 = _ZERO
    lower_bound: np.float32 = _ZERO
    upper_bound: np.float32 = _ZERO
    epsilon: np.float32 = _ZERO
    probability: np.float32 = _ZERO
    factor: np.float32 = _ZERO

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
