"""Functions that have no kernel of their own, compared with ONNX Runtime."""

import numpy as np
import pytest
from onnx import helper
from support.onnx_judge import IMAGE, random, same_as_runtime, with_gain
from support.onnx_models import model


def test_roots_quotients_and_rms_normalisation() -> None:
    nodes = [
        helper.make_node("Mish", ["x"], ["mish"]),
        helper.make_node("Exp", ["mish"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["root"]),
        helper.make_node("Log", ["root"], ["log"]),
        helper.make_node("Div", ["log", "e"], ["quotient"]),
        helper.make_node("RMSNormalization", ["quotient", "g"], ["normed"], axis=2, epsilon=1e-3),
        helper.make_node("Div", ["two", "e"], ["inverse"]),
        helper.make_node("Add", ["normed", "inverse"], ["y"]),
    ]
    constants = {"g": random(8, 8), "two": np.float32(2)}
    graph = same_as_runtime(model(nodes, IMAGE, constants, opset=23))
    assert {node.name for node in graph.trainable} == {"g"}


@pytest.mark.parametrize("how", ["half_pixel", "align_corners", "asymmetric"])
def test_resizing_by_linear_interpolation(how: str) -> None:
    constants = {"r": None, "f": None, "sizes": np.array([2, 4, 11, 16])}
    attributes = {"mode": "linear", "coordinate_transformation_mode": how}
    same_as_runtime(with_gain("Resize", IMAGE, constants, **attributes))
