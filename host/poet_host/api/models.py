"""Load a model (name, file or PyTorch module) as a training graph. Export a graph to .onnx."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput, PoetWarning
from ..graph.graph import Graph
from ..graph.models import MODELS, load as load_model
from ..graph.training_options import DEFAULTS, TrainingOptions
from ..graph.weights import Weights
from ..onnx.exporter import export as export_model
from ..onnx.importer import load as load_onnx
from ..onnx.pytorch import is_module, load_module
from ..onnx.returning import notice
from ..plan.costgraph import load_cost_graph
from ..plan.problem import CostGraph
from .inputs import as_weights, rate_of
from .torch_losses import text_of

_TORCH_FILES = (".pt", ".pth", ".ckpt", ".safetensors")
_OTHER_FILES = (".tflite", ".h5", ".keras", ".pb", ".mlmodel")


def load(
    model: Any,
    example: Any = None,
    *,
    batch: int | None = None,
    sequence_length: int | None = None,
    loss: Any = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    beta1: float | None = None,
    beta2: float | None = None,
    epsilon: float | None = None,
    train: str | None = None,
    batchnorm: str | None = None,
    proximal: float | None = None,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int | None = None,
) -> Graph | CostGraph:
    """Load the training graph of a model, or a cost graph from a file.

    `model` is a built-in model's name (see MODELS), the path of an .onnx file or of a cost graph
    (.json), or a torch.nn.Module. A module needs an `example` of its input. TrainingOptions
    describes the options; `lr` is another name for `learning_rate`. `loss` is a text, a loss of
    torch.nn such as HuberLoss(delta=0.5), or a mapping from names of several outputs to losses.

    Issues a PoetWarning if the model's PyTorch module will not be able to load all trained weights,
    or if it has tables with a row for padding, which PyTorch does not train.
    """
    if isinstance(loss, Mapping):
        loss = " ".join(f"{name}={text_of(one)}" for name, one in loss.items())
    options = TrainingOptions(
        batch=batch, sequence_length=sequence_length, loss=text_of(loss), optimizer=optimizer,
        learning_rate=rate_of(learning_rate, lr), momentum=momentum,
        weight_decay=weight_decay, beta1=beta1, beta2=beta2, epsilon=epsilon,
        train=train, batchnorm=batchnorm, proximal=proximal,
        clip_value=clip_value, clip_norm=clip_norm, accumulate=accumulate,
    )  # fmt: skip
    if not is_module(model) and not isinstance(model, str | Path):
        raise BadInput(
            f"poet.load cannot load a value of type {type(model).__name__}: pass the name of a "
            "built-in model, the path of an .onnx or .json file, or a torch.nn.Module and an "
            "example of its input"
        )
    if str(model).endswith(".json"):
        for name in options.given():
            raise BadInput(
                f"{model} is a cost graph: omit `{name}`, which only built-in models and .onnx "
                "files accept"
            )
        return load_cost_graph(model)
    graph = load_graph(model, example, options)
    _warn(notice(graph))
    return graph


def _warn(text: str) -> None:
    """Warn at the caller's line, if there is a text."""
    if text:
        warnings.warn(text, PoetWarning, stacklevel=4)


def export(graph: Graph, weights: Weights | str | Path) -> bytes:
    """Return the bytes of an .onnx file with trained weights: see onnx.exporter.export.

    Issues a PoetWarning if the PyTorch module of the model cannot load some of these weights.
    """
    _warn(notice(graph))
    return export_model(graph, as_weights(weights, graph))


def _check_name(model: str) -> None:
    suffix = Path(model).suffix.lower()
    if suffix in _TORCH_FILES:
        raise BadInput(
            f"model {model}: {suffix} files hold weights without a network, or code. In Python, "
            "load the module and pass it to poet.load(module, example), or export it to .onnx"
        )
    if suffix in _OTHER_FILES:
        raise BadInput(f"model {model}: {suffix} files cannot be read: convert the model to .onnx")
    if model not in MODELS and Path(model).is_dir():
        raise BadInput(f"model {model}: this is a folder. Name an .onnx file or a built-in model")


def load_graph(model: Any, example: Any = None, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of a model.

    Raises BadInput, which lists the built-in models, if the name is unknown.
    """
    if is_module(model):
        return load_module(model, example, options)
    if example is not None:
        raise BadInput(
            f"model {model}: only a torch.nn.Module needs an example of its input: omit `example`"
        )
    if str(model).lower().endswith(".onnx"):
        return load_onnx(model, options)
    _check_name(str(model))
    return load_model(str(model), options)
