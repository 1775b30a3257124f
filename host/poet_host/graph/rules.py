"""What a row of the operators' table is made of; operators.py has the rows.

A row names kernels by rules: `Rule("x", "conv2d_grad_input", "dy weight")` says that the
gradient with respect to `x` is that kernel's output. Operands are the row's inputs (`x`,
`a`, `b`, `label`), its parameters, `y` and `dy` (the output and its gradient) and what other
rules of the row make; an operand with ? is left out where the layer has none. Everything is
computed only if somebody needs it. What a kernel reads and costs is a row in kernels.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

Shape = tuple[int, ...]
Fields = Mapping[str, int | float]
Pair = int | tuple[int, int]
Padding = Pair | tuple[tuple[int, int], tuple[int, int]]
"""Of height and width alike, of each, or before and after each."""


@dataclass(frozen=True)
class Parameter:
    """A stored tensor of a layer. State is renewed by a rule of its own, not by a gradient."""

    shape: Shape
    start: str
    role: Literal["parameter", "state"] = "parameter"


@dataclass(frozen=True)
class Spec:
    """One use of an operator: its output's shape, fields of poet_op, and parameters."""

    shape: Shape
    fields: Fields
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    label: tuple[Shape, Literal["float32", "int32"]] | None = None


@dataclass(frozen=True)
class Rule:
    """`makes` is the output of `kernel` on `operands`; kernel "" passes the operand on.

    Forward, a rule that makes `y`, a statistic, or the next value of a state; backward, the
    gradient of an input or a parameter, or a tensor that those need (of `shape`).
    `fields` are the kernel's, from those of the layer where they differ; the rule holds only
    where `when` does.
    """

    makes: str
    kernel: str
    operands: str
    shape: Callable[[Fields], Shape] | None = None
    fields: Callable[[Fields], Fields] | None = None
    when: Callable[[Fields], bool] | None = None


@dataclass(frozen=True)
class Operator:
    """`spec` takes the inputs' shapes and the user's options; it raises ValueError with the
    reason if they do not go together. No forward rule: the output is the input, in a new shape.

    `frozen` is the row that takes over where none of the layer's parameters is trained. A layer
    that is not `shareable` keeps its parameters to itself. `words` are inputs of int32: labels
    apart, only the data can be that.
    """

    spec: Callable[..., Spec]
    forward: tuple[Rule, ...]
    backward: tuple[Rule, ...] = ()
    inputs: tuple[str, ...] = ("x",)
    frozen: str | None = None
    shareable: bool = True
    words: tuple[str, ...] = ()
    onnx: str = ""  # the ONNX operator of one input that is the same; its attributes are options

    @property
    def is_loss(self) -> bool:
        return "label" in self.inputs


def count_of(value: int, what: str) -> int:
    if not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(f"{what} is {value!r}, it must be a whole number from 1")
    return value


def sizes_of(shape: Shape) -> dict[str, int]:
    """Fields n, c, h, w of a tensor; those that it lacks are 1, the first of more go together."""
    if len(shape) > 4:
        shape = (prod(shape[:-3]), *shape[-3:])
    return dict(zip("nchw", (*shape, 1, 1, 1)[:4], strict=True))


def operand_names(rule: Rule) -> Sequence[str]:
    return [name.removesuffix("?") for name in rule.operands.split()]
