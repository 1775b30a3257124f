"""The training step in NumPy. Its results are bit-identical to those of the C kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import isa
from ..graph.graph import Graph
from . import dense, elementwise, loss, norm, recurrent, windows  # noqa: F401 - register KERNELS
from .floats import Array, f32
from .op import KERNELS as KERNELS, Op

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
    """Return the output of one operator.

    `op` and `sink` are names of rows of isa.def. `attrs` has fields of `struct poet_op`; a missing
    field is 0. `inputs` are in the order of isa.def: the kernel's inputs, then the sink's inputs.
    `shape` is the shape of the result. The default is the shape of the output in isa.def.
    Raises ValueError if an input does not have the size that `attrs` define, or has a wrong type.
    """
    kernel = isa.kernels()[op]
    own = min(len(kernel.letters), len(inputs))
    operands = []
    for i, (letter, array) in enumerate(zip(kernel.letters, inputs, strict=False)):
        wanted = np.int32 if letter in isa.INTEGERS else np.float32
        if array.dtype not in (np.int32, np.float32) and not array.dtype.names:
            raise ValueError(f"{op}: input {i} is {array.dtype}, but must be {wanted.__name__}")
        # Rows of several inputs hold integers as they are, next to floats.
        words = array if array.dtype == wanted else np.ascontiguousarray(array).view(wanted)
        operands.append(words.reshape(isa.shape(letter, attrs)))
    fields = {name: f32(v) if name in _FLOATS else int(v) for name, v in attrs.items()}
    record = Op(step, **fields)
    with np.errstate(all="ignore"):
        result = KERNELS[op](record, *operands).reshape(isa.shape(kernel.output, attrs))
        if kernel.has_sink:
            result = _into_sink(sink, record, result, inputs[own:])
    return result if shape is None else result.reshape(shape)


def run_step(
    graph: Graph, stored: Mapping[str, NDArray[Any]], step: int, factor: np.float32 | None = None
) -> dict[str, NDArray[Any]]:
    """Return the values of all nodes of a step, by name.

    `stored` has the values of the nodes that no operator computes: data, parameters and states.
    Learning rates are multiplied by `factor`, if it is given.
    """
    values: dict[str, NDArray[Any]] = {}
    for node in graph:
        if node.stored:
            values[node.name] = stored[node.name]
        else:
            inputs = [values[name] for name in node.inputs]
            attrs, sink, number = dict(node.attrs), node.sink, step
            period = int(attrs.get("period", 0))
            if period and sink == "accumulate":
                sink = "store" if step % period == 1 else sink
            elif period and node.overwrites and step % period:
                values[node.name] = values[node.overwrites]
                continue
            elif period:
                number = step // period
            if factor is not None and attrs.get("learning_rate"):
                attrs["learning_rate"] = float(f32(attrs["learning_rate"]) * factor)
            values[node.name] = run_kernel(node.op, sink, attrs, inputs, number, shape=node.shape)
    return values


def _into_sink(sink: str, op: Op, gradient: Array, extra: Sequence[Array]) -> Array:
    """Store a gradient, add it to a sum, or use it to update a parameter or its momentum.

    `sink` is the name of a SINK row of isa.def, which defines the result. The result has the shape
    of the gradient.
    """
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
    raise ValueError(
        f"`sink` is {sink}, but this kernel computes the gradient of a parameter: choose store, "
        "accumulate, sgd or momentum"
    )
