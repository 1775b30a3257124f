"""Counts of the work of an operator, from which the time of the operator is estimated.

The column `work` of isa.def has the formulas. Only arithmetic that the kernel really does is
counted: padding adds nothing.
"""

from dataclasses import dataclass
from math import prod

from .. import isa
from .graph import Graph, Node


@dataclass(frozen=True)
class Work:
    """The work of one run of an operator."""

    macs: int = 0  # multiply-accumulates
    other_flops: int = 0  # float operations that are not multiply-accumulates
    bytes: int = 0  # read and written
    loops: int = 0  # number of times that an innermost loop starts


def work_of(node: Node, graph: Graph) -> Work:
    """Return the work of `node`, which is 0 for a stored node.

    `bytes` counts one read of each input (or of the part that the kernel reads) and one write of
    the output. The addition of a bias is not counted.
    """
    if node.stored:
        return Work()
    kernel = isa.kernels()[node.op]
    formulas = {"loops": "n*c", **kernel.work}

    def count(unit: str) -> int:
        return isa.formula_value(formulas.get(unit, "0"), lambda name: _value(name, node))

    sink_flops = int(isa.by_name("SINK")[node.sink].columns[2])
    sink_flops += 2 if node.attrs.get("weight_decay") else 0
    inputs = sum(graph[name].size_bytes for name in dict.fromkeys(node.inputs))
    read = 4 * count("read") if "read" in formulas else inputs
    return Work(
        macs=count("macs"),
        other_flops=count("flops") + sink_flops * prod(node.shape),
        bytes=read + node.size_bytes,
        loops=count("loops"),
    )


def _value(name: str, node: Node) -> int:
    """Return the value of a name in a formula of isa.def.

    An upper-case letter is the number of elements of an operand. `taps` is the number of pairs
    (output element, input element in the window of this output). Every other name is a field of the
    node, or 0 if the node does not have this field.
    """
    if name.isupper():
        return prod(isa.shape(name, node.attrs))
    if name == "taps":
        return _planes(node) * _inside(node, "h") * _inside(node, "w")
    return int(node.attrs.get(name, 0))


def _planes(node: Node) -> int:
    """Count the pairs (output plane, input plane from which this output is computed).

    A plane is one channel of one sample.
    """
    n, c, k, groups = (int(node.attrs.get(name, 0)) for name in ("n", "c", "k", "groups"))
    return n * k * c // groups if groups else n * c


def _inside(node: Node, axis: str) -> int:
    """Count the pairs (output position, input position in its window) along one axis.

    Positions in the padding are not counted.
    """
    fields = (axis, f"o{axis}", f"kernel_{axis}", f"stride_{axis}", f"pad_{axis}")
    size, out, window, stride, pad = (int(node.attrs.get(field, 0)) for field in fields)
    return sum(0 <= o * stride + at - pad < size for o in range(out) for at in range(window))
