"""The kernels in NumPy, bit for bit what the C kernels of firmware/kernels compute.

Everything is float32. Sums run over their terms in the order that
firmware/include/poet/kernel.h defines, vectorised over the elements of the output only,
never with np.sum, which adds in another order.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .graph import Graph

Array = NDArray[np.float32]


def run_kernel(
    op: str,
    sink: str,
    attrs: Mapping[str, int | float],
    inputs: Sequence[NDArray[np.generic]],
    step: int,
    *,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """The output of one operator; `inputs` stay as they are.

    `op` and `sink` are rows of isa.def, `attrs` are fields of `struct poet_op` (those not
    given are 0), `inputs` stand in isa.def's order, the sink's behind the kernel's own.
    `shape` is the output's, of as many elements as the kernel has; without it, the
    kernel's own. Raises ValueError if an input has another size than the attributes say.
    """
    raise NotImplementedError


def run_step(
    graph: Graph, stored: Mapping[str, NDArray[np.generic]], step: int
) -> dict[str, NDArray[np.generic]]:
    """Every node's value in one training step that begins with the values `stored`."""
    values: dict[str, NDArray[np.generic]] = {}
    for node in graph:
        values[node.name] = (
            stored[node.name]
            if node.stored
            else run_kernel(
                node.op,
                node.sink,
                node.attrs,
                [values[name] for name in node.inputs],
                step,
                shape=node.shape,
            )
        )
    return values
