"""Write machine.onnx: an autoencoder for spectra of vibration, with random weights.

python autoencoder.py machine.onnx
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BANDS = 32
SIZES = (BANDS, 16, 6, 16, BANDS)  # values between layers
SEED = 1


def main(path: Path) -> None:
    rng = np.random.default_rng(SEED)
    nodes, weights, here = [], [], "spectrum"
    for i, (before, after) in enumerate(pairwise(SIZES)):
        bound = np.sqrt(3 / before)
        weight = rng.uniform(-bound, bound, (after, before)).astype("f4")
        weights += [
            numpy_helper.from_array(weight, f"{i}.w"),
            numpy_helper.from_array(np.zeros(after, "f4"), f"{i}.b"),
        ]
        last = i == len(SIZES) - 2
        there = "same" if last else f"{i}.sum"
        nodes.append(helper.make_node("Gemm", [here, f"{i}.w", f"{i}.b"], [there], transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [there], [f"{i}.out"]))
        here = f"{i}.out"
    shape = [1, BANDS]
    graph = helper.make_graph(
        nodes, "machine",
        [helper.make_tensor_value_info("spectrum", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
