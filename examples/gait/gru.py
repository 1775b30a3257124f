"""Write gait.onnx: a GRU for windows of an accelerometer, with random weights.

    python gru.py gait.onnx

A window has 32 samples of 3 axes. To change the model, change the sizes below, or write an .onnx
file with any other tool.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLES, AXES, UNITS, PEOPLE = 32, 3, 10, 3
SEED = 1


def main(path: Path) -> None:
    rng = np.random.default_rng(SEED)
    bound = UNITS**-0.5
    weights = {
        name: rng.uniform(-bound, bound, shape).astype(np.float32)
        for name, shape in {
            "gru.weight_ih": (1, 3 * UNITS, AXES),
            "gru.weight_hh": (1, 3 * UNITS, UNITS),
            "gru.bias": (1, 6 * UNITS),
            "out.weight": (PEOPLE, UNITS),
            "out.bias": (PEOPLE,),
        }.items()
    }
    nodes = [
        helper.make_node("Transpose", ["window"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["steps", "gru.weight_ih", "gru.weight_hh", "gru.bias"],
                         ["", "last"], "gru", hidden_size=UNITS, linear_before_reset=1),
        helper.make_node("Squeeze", ["last", "axes"], ["state"]),
        helper.make_node("Gemm", ["state", "out.weight", "out.bias"], ["person"], transB=1),
    ]  # fmt: skip
    constants = {**weights, "axes": np.array([0])}
    graph = helper.make_graph(
        nodes, "gait",
        [helper.make_tensor_value_info("window", TensorProto.FLOAT, [1, SAMPLES, AXES])],
        [helper.make_tensor_value_info("person", TensorProto.FLOAT, [1, PEOPLE])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
