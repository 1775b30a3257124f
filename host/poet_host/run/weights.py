"""Weights in safetensors files, under the names that people know from PyTorch."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as tensors_to_bytes

from ..errors import BadInput
from ..files import read_bytes, write_whole
from ..graph.graph import Graph
from ..graph.weights import from_named, to_named
from .run import Weights


def save_weights(path: Path | str, graph: Graph, weights: Weights) -> None:
    """Write all parameters and states of `graph` to a safetensors file."""
    named = {name: np.ascontiguousarray(a) for name, a in to_named(graph, weights).items()}
    write_whole(path, tensors_to_bytes(named, metadata={"model": graph.name}))


def load_weights(path: Path | str, graph: Graph) -> Weights:
    """Weights by node name; BadInput if the file is damaged or belongs to another model."""
    data = read_bytes(path)
    try:
        named = parse_tensors(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"weights {path}: this is no safetensors file ({error})") from error
    try:
        return from_named(graph, named)
    except BadInput as error:
        raise BadInput(f"weights {path}: {error}") from error
