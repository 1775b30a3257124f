"""Read the bytes of an .onnx file, which an imported graph stores in its field `origin`.

The package `onnx` is imported on first use, so that only users of .onnx models need it.
"""

import sys
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from ..errors import BadInput, reason

Array = NDArray[Any]


def onnx_package() -> ModuleType:
    """Return the package `onnx`. Raises BadInput if it is not installed."""
    try:
        import onnx
        import onnx.inliner
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError as error:
        raise BadInput(
            f"cannot import the package onnx, which .onnx models need ({error}): run pip install "
            "'poet-host[onnx]'"
        ) from error
    return onnx


def initial_values(data: bytes) -> dict[str, Array]:
    """Return the initialisers of an .onnx file by name. `data` is the content of the file.

    Raises BadInput if the initialisers cannot be read.
    """
    onnx, where = onnx_package(), "the model in the schedule"
    graph = parse(data, where).graph
    try:
        return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except onnx_errors(onnx) as error:
        raise BadInput(
            f"the weights of {where} cannot be read ({reason(error)}): solve again"
        ) from error


def parse(data: bytes, where: str) -> Any:
    onnx = onnx_package()
    try:
        return onnx.load_model_from_string(data)
    except onnx_errors(onnx) as error:
        raise BadInput(
            f"{where} is not a readable .onnx file ({reason(error)}): export it again"
        ) from error


def onnx_errors(onnx: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions that onnx, protobuf and NumPy raise for a damaged model."""
    decoding = sys.modules["google.protobuf.message"].DecodeError
    theirs = (decoding, onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
    return (*theirs, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, OSError)
