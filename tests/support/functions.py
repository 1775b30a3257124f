"""Elementwise functions of one tensor: our operator with options, and PyTorch's function.

A row is the test case of an operator: the tests of gradients, random models, whole steps and the
import of ONNX read it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from poet_host.graph.builder import Layer
from poet_host.graph.operators import OPERATORS
from torch import Tensor, abs as magnitude, cos, sigmoid, sin, tanh
from torch.nn import functional as F  # noqa: N812

Function = Callable[[Tensor], Tensor]

FUNCTIONS: dict[str, tuple[str, Mapping[str, Any], Function]] = {
    "relu": ("relu", {}, F.relu),
    "relu6": ("relu6", {}, F.relu6),
    "sigmoid": ("sigmoid", {}, sigmoid),
    "tanh": ("tanh", {}, tanh),
    "gelu": ("gelu", {}, F.gelu),
    "gelu tanh": ("gelu", {"approximate": "tanh"}, partial(F.gelu, approximate="tanh")),
    "abs": ("abs", {}, magnitude),
    "softplus": ("softplus", {}, F.softplus),
    "elu": ("elu", {"alpha": 0.7}, partial(F.elu, alpha=0.7)),
    "sin": ("sin", {}, sin),
    "cos": ("cos", {}, cos),
    "clip": ("clip", {"low": -0.4, "high": 0.75}, lambda x: x.clamp(-0.4, 0.75)),
    "clip above": ("clip", {"low": -np.inf, "high": 0.5}, lambda x: x.clamp(max=0.5)),
}


def function_of(layer: Layer) -> Function | None:
    """PyTorch's function for a layer with the options of a row."""
    same = (row for row in FUNCTIONS.values() if row[0] == layer.kind)
    for kind, options, function in same:
        if OPERATORS[kind].spec(layer.shape, **options).fields == layer.fields:
            return function
    return None
