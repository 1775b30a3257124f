"""Weights in safetensors files, under the names that people know from PyTorch."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as tensors_to_bytes

from ..errors import BadInput
from ..files import read_bytes, write_whole
from ..graph.graph import Graph
from ..graph.weights import from_named, to_named
from .run import Weights

_ABOUT = "poet-host"


def save_weights(path: Path | str, graph: Graph, weights: Weights, step: int | None = None) -> None:
    """Write all parameters and states of `graph`, but its constants, to a safetensors file.

    `step` is after how many steps of training they are so: what lets a run go on from the file.
    """
    named = to_named(graph, weights, constants=False)
    about = {"model": graph.name} | ({} if step is None else {"step": step})
    # As one text: several would stand in the file in any order.
    write_whole(path, tensors_to_bytes(named, metadata={_ABOUT: json.dumps(about)}))


def step_of_weights(path: Path | str) -> int:
    """After how many steps the weights in a file were saved; BadInput if it does not say so."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"weights {path}: this is no safetensors file ({error})") from error
    step = about.get("step") if isinstance(about, dict) else None
    if not isinstance(step, int) or not 0 <= step < 2**32 - 1:
        raise BadInput(
            f"weights {path}: it does not say after how many steps they were saved, so training "
            "cannot resume from it: leave out --resume, to begin with these weights"
        )
    return step


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
        reason = str(error).removeprefix("weights: ")
        raise BadInput(
            f"weights {path}: {reason}: give a file that `train` wrote for this model"
        ) from error
