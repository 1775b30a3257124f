"""Weights in safetensors files, under the names that PyTorch uses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as parse_tensors, save as tensors_to_bytes

from ..data.classes import NO_NAMES, Classes
from ..data.facts import NO_FACTS, DataFacts
from ..data.normalization import Normalization
from ..errors import BadInput, reason
from ..files import MOST_BYTES, check_readable, parse_json, read_bytes, write_whole
from ..graph.graph import Graph
from ..graph.lora import added, merged
from ..graph.weights import Array, Weights, from_named, to_named, weight_nodes

_ABOUT = "poet-host"
_NO_FILE = (SafetensorError, OSError, ValueError, TypeError, KeyError)


class SavedWeights(dict[str, Array]):
    """Weights by node name. `facts`: what they keep of the data that they were trained with."""

    def __init__(self, values: Mapping[str, Array], facts: DataFacts) -> None:
        super().__init__(values)
        self.facts = facts

    def __repr__(self) -> str:
        numbers = sum(array.size for array in self.values())
        return f"<SavedWeights: {len(self):,} tensors, {numbers:,} numbers>"

    @property
    def classes(self) -> Classes:
        return self.facts.classes

    @property
    def normalization(self) -> Normalization | None:
        return self.facts.normalization


def save_weights(
    path: Path | str,
    graph: Graph,
    weights: Weights,
    step: int | None = None,
    classes: tuple[str, ...] = NO_NAMES,
    *,
    mode: int | None = None,
    merge: bool = False,
) -> None:
    """Write all parameters and states of `graph`, except its constants, to a safetensors file.

    If `merge` is True, adapters are merged into the weights, and optimiser states are left out.

    `step` is the number of steps trained so far, which --resume needs. `classes` are saved too, so
    that later data gets the same class numbers. Weights that a training or `load_weights` returned
    bring their own classes and their normalisation, which are saved. `mode`: permissions of the
    file (None: those of the replaced file, or of a new file). Raises PoetError if the file cannot
    be written.
    """
    facts = facts_of_weights(weights)
    if classes:
        facts = replace(
            facts, classes=classes if isinstance(classes, Classes) else Classes(classes)
        )
    tensors = to_named(graph, weights, constants=False)
    if merge:
        whole, left_out = to_named(graph, merged(graph, weights), constants=False), added(graph)
        tensors = {name: whole[name] for name in whole if ":" not in name and name not in left_out}
    write_tensors(path, graph.name, tensors, step, facts, mode)


def write_tensors(
    path: Path | str,
    model: str,
    tensors: Mapping[str, Array],
    step: int | None = None,
    facts: DataFacts = NO_FACTS,
    mode: int | None = None,
) -> None:
    """Write the tensors of a file of weights, as `save_weights` does. `model`: the model's name."""
    about: dict[str, Any] = {"model": model}
    about |= {} if step is None else {"step": step}
    about |= {name: fact for name, fact in facts.to_json().items() if fact is not None}
    # Write one metadata entry, because safetensors writes several entries in no fixed order.
    data = tensors_to_bytes(dict(tensors), metadata={_ABOUT: json.dumps(about)})
    write_whole(path, data, mode)


def step_of_weights(path: Path | str, unknown: int | None = None) -> int:
    """Return the number of steps that trained the weights in a file.

    If the file does not state it, return `unknown`, or raise BadInput if that is None.
    """
    step = _about(path).get("step", unknown)
    if not isinstance(step, int) or not 0 <= step < 2**32 - 1:
        raise BadInput(
            f"weights {path}: training cannot resume from this file, because it does not state how "
            "many steps its weights were trained for. To start a new run with these weights, "
            "omit --resume"
        )
    return step


def load_weights(path: Path | str, graph: Graph) -> SavedWeights:
    """Return the weights in a file, by node name.

    Raises BadInput if the file is damaged or belongs to another model.
    """
    # Weights with states of Adam, in 64-bit floats, have up to six times the bytes of the model's.
    most_bytes = MOST_BYTES + 6 * sum(node.size_bytes for node in weight_nodes(graph))
    data = read_bytes(path, most_bytes)
    try:
        named = parse_tensors(data)
    except _NO_FILE as error:
        raise BadInput(
            f"weights {path}: this is not a safetensors file ({reason(error)}): use a file that "
            "`train` wrote"
        ) from error
    try:
        return SavedWeights(from_named(graph, named), _facts(path))
    except BadInput as error:
        problem = str(error).removeprefix("weights: ")
        raise BadInput(
            f"weights {path}: {problem}: use a file that `train` wrote for this model"
        ) from error


def facts_of_weights(weights: Weights | None) -> DataFacts:
    """Return what weights keep of the data that they were trained with, if it is known."""
    return weights.facts if isinstance(weights, SavedWeights) else NO_FACTS


def _facts(path: Path | str) -> DataFacts:
    try:
        return DataFacts.from_json(_about(path))
    except (BadInput, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"the names of the classes or the normalisation are damaged ({reason(error)})"
        ) from error


def _about(path: Path | str) -> dict[str, Any]:
    """Read the description of the weights in a file, but not the values of the weights."""
    check_readable(path)
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_ABOUT, "{}")
    except _NO_FILE as error:
        raise BadInput(
            f"weights {path}: this is not a safetensors file ({reason(error)}): use a file that "
            "`train` wrote"
        ) from error
    about = parse_json(text, f"weights {path}")
    return about if isinstance(about, dict) else {}
