"""The parts of a row of the table of operators; operators.py has the table.

Each rule of a row names one kernel. `Rule("x", "conv2d_grad_input", "dy weight")` means that the
kernel conv2d_grad_input computes the gradient of `x` from `dy` and `weight`. Operands are the
inputs of the row (`x`, `a`, `b`, `label`), its parameters, its output `y`, the gradient `dy` of
`y`, and tensors that other rules of the row compute. An operand with `?` is optional: the rule
leaves it out if the layer does not have it. A rule is not used if nothing needs its result. isa.def
defines the inputs and the work of each kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

Shape = tuple[int, ...]
Fields = Mapping[str, int | float]
Pair = int | tuple[int, int]
Padding = Pair | tuple[tuple[int, int], tuple[int, int]]
"""One number for all sides, one number for each axis, or a pair (before, after) for each axis."""


@dataclass(frozen=True)
class Parameter:
    """A stored tensor of a layer. Only a tensor with the role "parameter" can be trained."""

    shape: Shape
    start: str
    role: Literal["parameter", "state"] = "parameter"


@dataclass(frozen=True)
class Spec:
    """The output shape, kernel fields, parameters and label of one layer.

    `Operator.spec` computes them from the shapes of the layer's inputs and the options.
    """

    shape: Shape  # of the output
    fields: Fields  # of poet_op
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    label: tuple[Shape, Literal["float32", "int32"]] | None = None  # of a loss
    criterion: str = ""  # losses.Loss as text; "" if the kernel names the loss


@dataclass(frozen=True)
class Rule:
    """A kernel and its operands.

    The kernel computes the output `y`, a gradient, the next value of a state, or a tensor that
    other kernels of the row read.
    """

    makes: str
    kernel: str  # "" if no kernel runs, because the result is the operand itself
    operands: str
    # Shape of the result. It is needed only if other rules of the row read the result.
    shape: Callable[[Fields], Shape] | None = None
    # Converts the fields of the layer to the fields of the kernel. None: both are the same.
    fields: Callable[[Fields], Fields] | None = None
    when: Callable[[Fields], bool] | None = None  # the rule applies only if this returns True
    # If this returns True, the gradient of a parameter is a tensor, and another kernel updates it.
    apart: Callable[[Fields], bool] | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the operands, without `?`."""
        return [name.removesuffix("?") for name in self.operands.split()]


@dataclass(frozen=True)
class Operator:
    """A row of the table of operators.

    If `forward` is empty, no kernel runs: the output is the input in another shape, or a parameter.
    """

    spec: Callable[..., Spec]  # takes input shapes and options; raises ValueError with the reason
    forward: tuple[Rule, ...]
    backward: tuple[Rule, ...] = ()
    inputs: tuple[str, ...] = ("x",)
    frozen: str | None = None  # name of the row for a layer without a trained parameter
    tokens: tuple[str, ...] = ()  # inputs of type int32; only the model's data has this type
    onnx: str = ""  # equivalent ONNX operator with one input; its attributes become the options

    @property
    def is_loss(self) -> bool:
        return "label" in self.inputs

    def read_for(self, rule: Rule) -> set[str]:
        """Return the operands of a backward rule, and those of the rules that make them."""
        sources = (r for r in self.backward if r.shape and r.makes in rule.names)
        return {*rule.names}.union(*map(self.read_for, sources))


def of_one_kernel(
    kernel: str, spec: Callable[..., Spec], gradient_reads: str, onnx: str = ""
) -> Operator:
    """Return an `Operator` with the input `x` and the forward kernel `kernel`.

    The kernel with the name `kernel` + "_grad" computes the gradient of `x`.
    """
    backward = (Rule("x", f"{kernel}_grad", gradient_reads),)
    return Operator(spec, (Rule("y", kernel, "x"),), backward, onnx=onnx)


def elementwise(x: Shape) -> Spec:
    """Describe an operator whose output has the same shape as its input."""
    return Spec(x, sizes_of(x))


def checked_count(value: int, what: str) -> int:
    """Return `value`. Raises ValueError unless it is a whole number, 1 or more."""
    if not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(f"{what} is {value!r}: it must be a whole number, 1 or more")
    return value


def sizes_of(shape: Shape) -> dict[str, int]:
    """Return the fields n, c, h, w of a tensor. The sizes of missing axes are 1.

    If the tensor has more than 4 axes, n is the product of all axes except the last 3.
    """
    if len(shape) > 4:
        shape = (prod(shape[:-3]), *shape[-3:])
    return dict(zip("nchw", (*shape, 1, 1, 1)[:4], strict=True))
