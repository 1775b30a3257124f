"""A forward model run by PyTorch in double precision: the outside judge of graphs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from poet_host.graph.autodiff import MOMENTUM, Sgd, training_graph
from poet_host.graph.builder import Layer, Model
from poet_host.graph.graph import Graph
from poet_host.graph.trained import trained_parameters
from poet_host.graph.weights import start_values
from poet_host.reference.step import run_kernel, run_step
from support.functions import function_of
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from bench.torch_layers import output


def torch_values(model: Model, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Parameters and running statistics by node name; parameters ask for gradients."""
    return {
        node.name: torch.tensor(values[node.name], dtype=torch.float64).requires_grad_(
            node.role == "parameter"
        )
        for node in model.parameters
    }


def frozen_layers(model: Model, train: str) -> frozenset[str]:
    """Layers none of whose parameters `train` chooses."""
    trained = trained_parameters(model, train)
    return frozenset(
        layer.name
        for layer in model.layers
        if not any(node.name in trained for node in layer.parameters.values())
    )


def dropout_masks(model: Model, step: int) -> dict[str, Tensor]:
    """What each dropout multiplies its input with in a step."""
    return {
        layer.name: torch.tensor(
            run_kernel(
                "dropout", "none", layer.fields, [np.ones(layer.shape, np.float32)], step
            ).reshape(layer.shape)
        )
        for layer in model.layers
        if layer.kind == "dropout"
    }


def torch_forward(
    model: Model,
    values: Mapping[str, Tensor],
    x: Any,
    label: Any = None,
    *,
    frozen: frozenset[str] = frozenset(),
    masks: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Every layer's output, by name, for a batch of any size.

    Batchnorm of the layers in `frozen` uses its running statistics, the others renew theirs in
    `values`. Dropout multiplies by `masks`, or does nothing. Without a label there is no loss.
    """
    if not isinstance(x, Tensor):
        tokens = model.data.dtype == "int32"
        x = torch.tensor(x, dtype=torch.int64 if tokens else torch.float64)
    found = {model.data.name: x, **values}
    batch, whole = len(x), model.data.shape[0]
    for layer in model.layers:
        inputs = [
            found[t.name].reshape(
                t.shape if batch == whole or t.name in values else (batch, *t.shape[1:])
            )
            for t in layer.inputs
            if t.name in found
        ]
        if layer.is_parameter:
            continue
        if layer.kind in ("softmax_xent", "weighted_xent") and label is not None:
            classes, f = inputs[0].flatten(0, -2), layer.fields
            weight = values[layer.parameters["weight"].name].flatten() if layer.parameters else None
            smoothing = 1 - f.get("upper_bound", 1) + f.get("lower_bound", 0)
            found[layer.name] = F.cross_entropy(
                classes, torch.tensor(label).long().flatten(), weight, label_smoothing=smoothing
            )
        elif layer.kind == "mse" and label is not None:
            found[layer.name] = F.mse_loss(inputs[0], torch.tensor(label, dtype=torch.float64))
        elif layer is not model.layers[-1]:
            found[layer.name] = _layer(layer, inputs, values, layer.name in frozen, masks)
    return found


def padded(x: Tensor, fields: Mapping[str, Any], filling: float) -> Tensor:
    """What the windows of an operator slide over, whole: x and all its padding."""
    sides: list[int] = []
    for axis in "wh":  # as PyTorch has them, the last axis first
        front, taps, step, out = (fields[f"{f}{axis}"] for f in ("pad_", "kernel_", "stride_", "o"))
        after = int((out - 1) * step + taps - fields[axis] - front)
        sides += [int(front), max(after, 0)]
    return F.pad(x, sides, value=filling)


def _layer(
    layer: Layer,
    inputs: list[Tensor],
    values: Mapping[str, Tensor],
    frozen: bool,
    masks: Mapping[str, Tensor] | None,
) -> Tensor:
    x, a = inputs[0], layer.fields
    function = function_of(layer)
    if function:
        return function(x)
    p = {slot: values[node.name] for slot, node in layer.parameters.items()}
    window: list[Any] = [(a.get(f"{w}_h"), a.get(f"{w}_w")) for w in ("kernel", "stride")]
    match layer.kind:
        case "conv2d":
            x = padded(x, a, 0)
            return F.conv2d(x, p["weight"], p.get("bias"), window[1], 0, 1, int(a["groups"]))
        case "batchnorm2d" | "batchnorm2d_frozen":
            frozen = frozen or layer.kind == "batchnorm2d_frozen"
            mean, var = p["running"][0], p["running"][1]
            return F.batch_norm(
                x, mean, var, p["weight"], p["bias"], not frozen, a["update_rate"], a["epsilon"]
            )
        case "maxpool2d":
            return F.max_pool2d(padded(x, a, -torch.inf), *window)
        case "avgpool2d":
            return F.avg_pool2d(padded(x, a, 0), *window)
        case "pad":
            return F.pad(x, (0, 0, int(a["oh"]), int(a["c"] - a["k"] - a["oh"])))
        case "sub":
            return inputs[0] - inputs[1]
        case "mul":
            return inputs[0] * inputs[1]
        case "softmax":
            return x.softmax(-1)
        case "slice":
            shapes = zip(layer.shape, x.shape, strict=True)
            axis = next(i for i, (size, whole) in enumerate(shapes) if size != whole)
            return x.narrow(axis, int(a["oh"]), int(a["k"]))
        case "dropout":
            return x if masks is None else x * masks[layer.name]
    return output(layer, inputs, p)


def random_batch(model: Model, seed: int) -> tuple[Any, Any]:
    """Data and labels of one batch."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(model.data.shape, dtype=np.float32)
    if model.data.dtype == "int32":
        words = min(layer.fields["k"] for layer in model.layers if layer.kind == "embedding")
        x = rng.integers(1, words, model.data.shape).astype(np.int32)
        x[:, -model.data.shape[1] // 4 :] = 0
    if model.label.dtype == "float32":
        return x, rng.standard_normal(model.label.shape, dtype=np.float32)
    classes = model.layers[-1].inputs[0].shape[-1]
    return x, rng.integers(0, classes, model.label.shape).astype(np.int32)


def random_values(graph: Graph, seed: int) -> dict[str, Any]:
    """Start values, with scales, shifts and running statistics off their round numbers."""
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = dict(start_values(graph, seed))
    for name in values:
        if not name.endswith(MOMENTUM):
            noise = rng.uniform(0, 0.2, values[name].shape).astype(np.float32)
            values[name] = values[name] + noise
    return values


def check_gradients(
    model: Model, train: str = "all", *, seed: int = 0, step: int = 0, tolerance: float = 2e-5
) -> None:
    """Loss, every gradient and every running statistic of one step, against PyTorch.

    With momentum that starts at zero, the new momentum is the gradient itself. `tolerance` is a
    part of the largest gradient.
    """
    graph = training_graph(model, Sgd(0.0, momentum=0.5), train)
    values, (x, label) = random_values(graph, seed), random_batch(model, seed)
    found = run_step(graph, {**values, graph.data: x, graph.label: label}, step)
    wanted = torch_values(model, values)
    frozen, masks = frozen_layers(model, train), dropout_masks(model, step)
    outputs = torch_forward(model, wanted, x, label, frozen=frozen, masks=masks)
    loss = outputs[graph.loss]
    loss.backward()
    np.testing.assert_allclose(found[graph.loss][0], loss.item(), rtol=1e-5)
    trained = trained_parameters(model, train)
    gradients = {name: wanted[name].grad for name in trained}
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        mine = found[f"{name}{MOMENTUM}:new"]
        np.testing.assert_allclose(
            mine, gradient.numpy(), rtol=2e-4, atol=tolerance * scale + 1e-9, err_msg=name
        )
    for name, value in wanted.items():
        if f"{name}:new" in found and name not in trained:
            mine = found[f"{name}:new"]
            np.testing.assert_allclose(mine, value.detach().numpy(), rtol=2e-5, atol=1e-6)
