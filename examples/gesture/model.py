"""Write gesture.onnx: a network for windows of an accelerometer, with random weights.

    python model.py gesture.onnx

A window has 3 axes of 128 samples. To change the model, change `layers` below, or write an .onnx
file with any other tool.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

AXES, SAMPLES, GESTURES = 3, 128, 3
FILTERS = (8, 24)
SEED = 1


def layers(rng: np.random.Generator) -> onnx.GraphProto:
    """Two convolutions along time, the mean of each filter, and a linear layer."""
    first, second = FILTERS
    weights = {
        "first.weight": _random(rng, (first, AXES, 1, 9)),
        "second.weight": _random(rng, (second, first, 1, 5)),
        "out.weight": _random(rng, (GESTURES, second)),
        "first.bias": np.zeros(first, np.float32),
        "second.bias": np.zeros(second, np.float32),
        "out.bias": np.zeros(GESTURES, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["window", "first.weight", "first.bias"], ["a"],
                         pads=[0, 4, 0, 4], strides=[1, 4]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[1, 2], strides=[1, 2]),
        helper.make_node("Conv", ["c", "second.weight", "second.bias"], ["d"],
                         pads=[0, 2, 0, 2], strides=[1, 2]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "out.weight", "out.bias"], ["gesture"], transB=1),
    ]  # fmt: skip
    return helper.make_graph(
        nodes, "gesture",
        [helper.make_tensor_value_info("window", TensorProto.FLOAT, [1, AXES, 1, SAMPLES])],
        [helper.make_tensor_value_info("gesture", TensorProto.FLOAT, [1, GESTURES])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    bound = np.sqrt(3 / np.prod(shape[1:]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def main(path: Path) -> None:
    model = helper.make_model(
        layers(np.random.default_rng(SEED)), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
