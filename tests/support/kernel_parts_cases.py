"""A random call of a kernel."""

from itertools import permutations

import numpy as np
from poet_host import isa
from support.kernel_cases import SINKS, Case, make

KERNELS = isa.kernels()
ORDERS = [sum(axis << 2 * i for i, axis in enumerate(order)) for order in permutations(range(4))]
VARIANTS = {"add": 256, "sub": 256, "mul": 256, "scale": 16, "reduce": 16, "reduce_product": 256}
VARIANTS |= {"matmul": 32}


def random_case(op: str, rng: np.random.Generator) -> Case:
    """A call of a kernel with random sizes, window, variant, sink and operands."""
    row = KERNELS[op]
    a = {axis: int(rng.integers(1, 7)) for axis in ("n", "c", "h", "w", "k", "groups")}
    if "CONV" in row.rules:
        a["groups"] = int(rng.choice([1, 1, 2, 3]))
        a |= {name: a["groups"] * int(rng.integers(1, 10)) for name in "ck"}
    for axis in "hw":
        kernel, stride = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        pad = int(rng.integers(0, (kernel // 2 if "POOL" in row.rules else kernel) + 1))
        if {"CONV", "POOL"} & {*row.rules}:
            a[axis] = int(rng.integers(max(1, kernel - 2 * pad), 9))
        a[f"o{axis}"] = max(1, (a[axis] + 2 * pad - kernel) // stride + 1)
        a |= {f"kernel_{axis}": kernel, f"stride_{axis}": stride, f"pad_{axis}": pad}
    a |= {"epsilon": 0.1, "probability": 0.3, "factor": 0.7, "lower_bound": -0.5}
    a |= {"upper_bound": 0.6, "beta": 0.9, "update_rate": 0.8, "seed": 5, "key": 3}
    a |= {"padding": int(rng.integers(a["k"] + 1))} if op == "embedding_grad" else {}
    a["variant"] = int(rng.integers(VARIANTS.get(op, 2)))
    if op == "transpose":
        a["variant"] = int(rng.choice(ORDERS))
    if op in ("slice", "slice_grad"):
        a |= {"k": int(rng.integers(1, a["c"] + 1))}
        a["oh"] = int(rng.integers(a["c"] - a["k"] + 1))
    sink, decay = SINKS[int(rng.integers(len(SINKS)))] if row.has_sink else ("none", 0.0)
    seed, bias = int(rng.integers(2**32)), bool(rng.integers(2))
    case = make(op, a, seed, sink=sink, decay=decay, bias=bias)
    if op == "embedding" and rng.integers(2):
        case.inputs[0][-1] = a["k"]
    return case
