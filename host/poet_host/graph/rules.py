"""The parts of a row of the table of operators; operators.py has the table.

A row names kernels by rules. `Rule("x", "conv2d_grad_input", "dy weight")` says that this kernel
computes the gradient of `x`. Operands are the inputs of the row (`x`, `a`, `b`, `label`), its
parameters, `y` and `dy` (the output and its gradient), and what other rules of the row compute.
An operand with `?` is left out where the layer has none. Nothing is computed that nobody reads.
isa.def says what a kernel reads and how much work it does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

Shape = tuple[int, ...]
Fields = Mapping[str, int | float]
Pair = int | tuple[int, int]
Padding = Pair | tuple[tuple[int, int], tuple[int, int]]
"""One number for all sides, one for each axis, or those before and after each axis."""


@dataclass(frozen=True)
class Parameter:
    """A stored tensor of a layer. A rule, not a gradient, updates a state."""

    shape: Shape
    start: str
    role: Literal["parameter", "state"] = "parameter"


@dataclass(frozen=True)
class Spec:
    """One use of an operator."""

    shape: Shape  # of the output
    fields: Fields  # of poet_op
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    label: tuple[Shape, Literal["float32", "int32"]] | None = None  # of a loss


@dataclass(frozen=True)
class Rule:
    """How a kernel computes `y`, a gradient, the next value of a state, or what those read."""

    makes: str
    kernel: str  # "": the operand itself
    operands: str
    shape: Callable[[Fields], Shape] | None = None  # of a tensor that other rules read
    fields: Callable[[Fields], Fields] | None = None  # of the kernel, from those of the layer
    when: Callable[[Fields], bool] | None = None  # the rule holds only where this is true

    @property
    def names(self) -> list[str]:
        """The operands, without `?`."""
        return [name.removesuffix("?") for name in self.operands.split()]


@dataclass(frozen=True)
class Operator:
    """A row. Without a forward rule, the output is the input in another shape."""

    spec: Callable[..., Spec]  # of the inputs' shapes and the options; ValueError says the reason
    forward: tuple[Rule, ...]
    backward: tuple[Rule, ...] = ()
    inputs: tuple[str, ...] = ("x",)
    frozen: str | None = None  # the row for a layer none of whose parameters is trained
    shareable: bool = True  # may other layers use its parameters?
    tokens: tuple[str, ...] = ()  # inputs of int32, which only the data can be
    onnx: str = ""  # the ONNX operator of one input that is the same; its attributes are options

    @property
    def is_loss(self) -> bool:
        return "label" in self.inputs


def of_one_kernel(
    kernel: str, spec: Callable[..., Spec], gradient_reads: str, onnx: str = ""
) -> Operator:
    """The row of a kernel of `x` whose gradient is the kernel of that name with `_grad`."""
    backward = (Rule("x", f"{kernel}_grad", gradient_reads),)
    return Operator(spec, (Rule("y", kernel, "x"),), backward, onnx=onnx)


def elementwise(x: Shape) -> Spec:
    """x -> y of the same shape."""
    return Spec(x, sizes_of(x))


def checked_count(value: int, what: str) -> int:
    """`value`; raises ValueError unless it is a whole number from 1."""
    if not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(f"{what} is {value!r}, it must be a whole number from 1")
    return value


def sizes_of(shape: Shape) -> dict[str, int]:
    """Fields n, c, h, w of a tensor. Missing axes are 1; n is the product of more than 4."""
    if len(shape) > 4:
        shape = (prod(shape[:-3]), *shape[-3:])
    return dict(zip("nchw", (*shape, 1, 1, 1)[:4], strict=True))
