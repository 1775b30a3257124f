"""What an operator does, in the counts from which its time is fitted."""

from dataclasses import dataclass

from ..graph.graph import Graph, Node
from ..graph.operators import work


@dataclass(frozen=True)
class Load:
    """Multiply-accumulates, other float operations, bytes read and written, innermost loops."""

    macs: int
    other_flops: int
    bytes: int
    loops: int = 0


def load_of(node: Node, graph: Graph) -> Load:
    """The load of one node."""
    done = work(node, graph)
    moved = done.read_bytes + done.written_bytes
    return Load(done.macs, done.flops - 2 * done.macs, moved, _loops(node))


def _loops(node: Node) -> int:
    """How often an innermost loop begins: a convolution's runs along one row of the output for
    one element of the window that is not in the padding (kernels/conv2d.c), the others' make one
    sum or pass over one plane."""
    a = {name: int(node.attrs.get(name, 1)) for name in ("n", "c", "h", "w", "k")}
    if node.op.startswith("conv2d"):
        planes = a["n"] * a["k"] * (a["c"] // int(node.attrs["groups"]))
        rows = range(int(node.attrs["oh"]))
        stride, pad = int(node.attrs["stride_h"]), int(node.attrs["pad_h"])
        inside = sum(
            0 <= row * stride + element - pad < a["h"]
            for row in rows
            for element in range(int(node.attrs["kernel_h"]))
        )
        return planes * inside * int(node.attrs["kernel_w"])
    if node.op == "linear_grad_weight":
        return a["k"] * a["c"] * a["h"] * a["w"]
    return a["n"] * (a["k"] if node.op.startswith(("linear", "grad")) else a["c"])
