"""Functions that have no kernel of their own, compared with ONNX Runtime."""

import numpy as np
from onnx import helper
from support.onnx_judge import IMAGE, random, same_as_runtime
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
