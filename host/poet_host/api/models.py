"""Load a model (name, file or PyTorch module) as a training graph, and export it to .onnx."""

import warnings
from pathlib import Path
from typing import Any

from ..errors import BadInput, PoetWarning
from ..graph.graph import Graph
from ..graph.models import MODELS, load as load_model
from ..graph.training_options import DEFAULTS, TrainingOptions
from ..onnx.exporter import export as export_model
from ..onnx.importer import load as load_onnx, training as train_onnx
from ..onnx.pytorch import export_module, is_module
from ..onnx.returning import notice
from ..plan.costgraph import load_cost_graph
from ..plan.problem import CostGraph
from ..run.run import Weights
from .inputs import as_weights


def load(
    model: Any,
    example: Any = None,
    *,
    batch: int | None = None,
    sequence_length: int | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    train: str | None = None,
    batchnorm: str | None = None,
) -> Graph | CostGraph:
    """Load a model as a training graph, or the file of a cost graph.

    `model` is a built-in model's name (see MODELS), the path of an .onnx file or of a cost graph
    (.json), or a torch.nn.Module. A module needs an `example` of its input. For the options see
    TrainingOptions; `lr` is another name of `learning_rate`.

    Issues a PoetWarning if the PyTorch module cannot load some of the trained weights.
    """
    if lr is not None and learning_rate is not None:
        raise BadInput("`lr` is another name of `learning_rate`: pass only one of them")
    options = TrainingOptions(
        batch=batch, sequence_length=sequence_length, loss=loss, optimizer=optimizer,
        learning_rate=learning_rate if lr is None else lr, momentum=momentum,
        weight_decay=weight_decay, train=train, batchnorm=batchnorm,
    )  # fmt: skip
    if not is_module(model) and not isinstance(model, str | Path):
        raise BadInput(
            "poet.load takes the name of a built-in model, the path of an .onnx or .json file, or "
            f"a torch.nn.Module with an example, but not a value of type {type(model).__name__}"
        )
    if str(model).endswith(".json"):
        for name in options.given():
            raise BadInput(
                f"{model} is a cost graph: omit `{name}`, an option for built-in models and .onnx "
                "files"
            )
        return load_cost_graph(model)
    graph = load_graph(model, example, options)
    _warn(graph)
    return graph


def _warn(graph: Graph) -> None:
    """Warn about weights that the PyTorch module cannot load, at the line that calls the API."""
    if text := notice(graph):
        warnings.warn(text, PoetWarning, stacklevel=4)


def export(graph: Graph, weights: Weights | str | Path) -> bytes:
    """Return the bytes of an .onnx file with trained weights: see onnx.exporter.export.

    Issues a PoetWarning if the PyTorch module cannot load some of these weights.
    """
    _warn(graph)
    return export_model(graph, as_weights(weights, graph))


def load_graph(model: Any, example: Any = None, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of a model.

    For an unknown name, raises BadInput that lists the built-in models.
    """
    if is_module(model):
        return train_onnx(export_module(model, example), type(model).__name__, options)
    if example is not None:
        raise BadInput(
            f"model {model}: an example of the input is needed only for a torch.nn.Module: omit it"
        )
    if str(model).lower().endswith(".onnx"):
        return load_onnx(model, options)
    if model not in MODELS:
        raise BadInput(
            f"there is no model {str(model)!r}. The built-in models are {', '.join(MODELS)}. The "
            "name of a file must end in .onnx for your own model, and in .json for a cost graph"
        )
    return load_model(str(model), options)
