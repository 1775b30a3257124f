"""Counts of the work of an operator, from which the time of the operator is estimated.

The column `work` of isa.def has the formulas. Only arithmetic that the kernel really does is
counted: padding adds nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

from .. import isa
from .graph import Graph, Node
from .operands import operator_of

Fields = Mapping[str, int | float]  # of struct poet_op

# Float operations for an element of elementary and elementary_grad, by `variant`.
ELEMENTARY_FLOPS = {
    "function": (8, 96, 27, 39, 12, 34, 12),
    "slope": (11, 56, 27, 40, 16, 14, 20),
}


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
    inputs = [graph[name].size_bytes for name in dict.fromkeys(node.inputs)]
    return _work(node, sum(inputs), node.size_bytes, 1.0)


def work_of_part(part: Node, ends: float = 1.0) -> Work:
    """Return the work of an operator that has the sizes of a part in its fields.

    `ends`: the share of the results whose sums the part ends. Only these go to the sink.
    """
    operator = operator_of(part)
    sizes = [
        4 * prod(axis.size for axis in operator.operand(i)) for i in range(operator.input_count + 1)
    ]
    inputs = dict(zip(part.inputs, sizes, strict=False))
    return _work(part, sum(inputs.values()), sizes[-1], ends)


def in_tiles(node: Node, tile: int) -> float:
    """Return the products of a convolution in tiles, as a multiple of those that it needs.

    A tile computes `tile` channels of `tile` neighbours, also where there are fewer. Neighbours
    along a row have the same taps. Those that are left of all rows make tiles together.
    """
    if tile == 1 or not node.op.startswith("conv2d") or node.attrs["groups"] != 1:
        return 1.0
    a = {name: int(value) for name, value in node.attrs.items()}
    made = _whole(a["c"], tile) / a["c"], _whole(a["k"], tile) / a["k"]
    if node.op == "conv2d_grad_weight":
        return prod(made)
    is_back = node.op == "conv2d_grad_input"
    needed = computed = 0
    for (rows, up), (columns, across) in product(_spans(a, "h", is_back), _spans(a, "w", is_back)):
        rows *= a["n"]
        full = columns - columns % tile
        needed += up * across * rows * columns
        computed += up * across * (rows * full + _whole(rows * (columns - full), tile))
    return made[not is_back] * computed / max(needed, 1)


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile


def _spans(fields: Mapping[str, int], axis: str, is_back: bool) -> list[tuple[int, int]]:
    """Return the numbers of neighbours with the same taps of the window, and of these taps."""
    size, out = fields[axis], fields[f"o{axis}"]
    kernel, stride, pad = (fields[f"{name}_{axis}"] for name in ("kernel", "stride", "pad"))
    spans = []
    for phase in range(stride if is_back else 1):
        reached = [
            tuple(
                tap
                for tap in range(kernel)
                if (
                    (at + pad - tap) % stride == 0 and 0 <= (at + pad - tap) // stride < out
                    if is_back
                    else 0 <= at * stride - pad + tap < size
                )
            )
            for at in (range(phase, size, stride) if is_back else range(out))
        ]
        spans += [(len([*same]), len(taps)) for taps, same in groupby(reached)]
    return spans


def _work(node: Node, inputs_bytes: int, output_bytes: int, ends: float) -> Work:
    sink_flops = int(isa.by_name("SINK")[node.sink].columns[2])
    sink_flops += 2 if node.attrs.get("weight_decay") else 0
    read = 4 * count(node.op, node.attrs, "read")
    if "read" not in isa.kernels()[node.op].work:
        read = inputs_bytes
    return Work(
        macs=count(node.op, node.attrs, "macs"),
        other_flops=count(node.op, node.attrs, "flops")
        + round(ends * sink_flops * output_bytes / 4),
        bytes=read + output_bytes,
        loops=count(node.op, node.attrs, "loops"),
    )


def count(op: str, fields: Fields, unit: str) -> int:
    """Return how many of a unit of work, such as `macs`, a kernel does with these fields."""
    formula = isa.kernels()[op].work.get(unit, "0")
    return isa.formula_value(formula, lambda name: _value(name, fields))


def _value(name: str, fields: Fields) -> int:
    """Return the value of a name in a formula of isa.def.

    An upper-case letter is the number of elements of an operand. `taps` is the number of pairs
    (output element, input element in the window of this output). Every other name is a field of the
    operator, or 0 if the operator does not have this field.
    """
    if name.isupper():
        return prod(isa.shape(name, fields))
    if name in ELEMENTARY_FLOPS:
        return ELEMENTARY_FLOPS[name][int(fields.get("variant", 0))]
    if name == "rows":
        is_one = int(fields.get("variant", 0)) in (0, 0xF0)  # nothing repeated, or one number
        return 1 if is_one else prod(int(fields[axis]) for axis in "nch")
    if name == "taps":
        return _planes(fields) * _inside(fields, "h") * _inside(fields, "w")
    return int(fields.get(name, 0))


def _planes(fields: Fields) -> int:
    """Count the pairs (output plane, input plane from which this output is computed).

    A plane is one channel of one sample.
    """
    n, c, k, groups = (int(fields.get(name, 0)) for name in ("n", "c", "k", "groups"))
    return n * k * c // groups if groups else n * c


def _inside(fields: Fields, axis: str) -> int:
    """Count the pairs (output position, input position in its window) along one axis.

    Positions in the padding are not counted.
    """
    names = (axis, f"o{axis}", f"kernel_{axis}", f"stride_{axis}", f"pad_{axis}")
    size, out, window, stride, pad = (int(fields.get(name, 0)) for name in names)
    return sum(0 <= o * stride + at - pad < size for o in range(out) for at in range(window))
