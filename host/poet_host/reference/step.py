"""The training step in NumPy, bit for bit what the C kernels of firmware/kernels compute."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import isa
from ..graph.graph import Graph
from ..isa import by_name
from .floats import Array, f32
from .kernels import KERNELS, Op

_WORDS = ("labels", "tokens", "mask?")
_FLOATS = {name for name, kind in isa.field_types("poet_op").items() if kind == "float"}


def run_kernel(
    op: str,
    sink: str,
    attrs: Mapping[str, int | float],
    inputs: Sequence[NDArray[Any]],
    step: int,
    *,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """The output of one operator; `inputs` stay as they are.

    `op` and `sink` are rows of isa.def, `attrs` are fields of `struct poet_op` (those not
    given are 0), `inputs` stand in isa.def's order, the sink's behind the kernel's own.
    `shape` is the output's, of as many elements as the kernel has; without it, the
    kernel's own. Raises ValueError if an input has another size than the attributes say,
    or is not float32 (labels, tokens, mask: int32).
    """
    operands = by_name("KERNEL")[op].inputs
    own = operands.index("+") if "+" in operands else len(inputs)
    for i, array in enumerate(inputs):
        wanted = np.int32 if i < own and operands[i] in _WORDS else np.float32
        if array.dtype != wanted:
            raise ValueError(f"{op}: input {i} is {array.dtype}, not {wanted.__name__}")
    fields = {name: f32(v) if name in _FLOATS else int(v) for name, v in attrs.items()}
    record = Op(step=step, **fields)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        result = KERNELS[op](record, *inputs[:own])
        if "+" in operands:
            result = _into_sink(sink, record, result, inputs[own:])
    return result if shape is None else result.reshape(shape)


def run_step(
    graph: Graph, stored: Mapping[str, NDArray[Any]], step: int
) -> dict[str, NDArray[Any]]:
    """Every node's value in one training step that begins with the values `stored`."""
    values: dict[str, NDArray[Any]] = {}
    for node in graph:
        if node.stored:
            values[node.name] = stored[node.name]
        else:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = run_kernel(
                node.op, node.sink, node.attrs, inputs, step, shape=node.shape
            )
    return values


def _into_sink(sink: str, op: Op, gradient: Array, extra: Sequence[Array]) -> Array:
    """What the sink makes of the complete gradient; the result has its shape."""
    old = [array.reshape(gradient.shape) for array in extra]

    def decayed(w: int) -> Array:
        return gradient + op.weight_decay * old[w] if op.weight_decay else gradient

    if sink == "store":
        return gradient
    if sink == "accumulate":
        return old[0] + gradient
    if sink == "sgd":
        return old[0] - op.learning_rate * decayed(0)
    if sink == "momentum":
        return op.momentum * old[0] + decayed(1)
    raise ValueError(f"a parameter's gradient cannot go into sink {sink}")
