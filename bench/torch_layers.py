"""The layers of a forward model in PyTorch, for benchmarks and tests."""

from collections.abc import Mapping, Sequence

import torch
from poet_host.graph.builder import Layer, Model
from torch import Tensor
from torch.nn import functional


def outputs(
    model: Model, values: Mapping[str, Tensor], x: Tensor, label: Tensor
) -> dict[str, Tensor]:
    """Compute a batch. Return parameters, and the output of every layer, by name.

    `values`: parameters by node. Batchnorm renews its running statistics if they are among them.
    Raises ValueError for a kind of layer that no benchmark needs.
    """
    found = {**values, model.data.name: x, model.label.name: label}
    for layer in model.layers:
        p = {slot: values[it.name] for slot, it in layer.parameters.items() if it.name in values}
        if not layer.is_parameter:
            inputs = [(found[t.name], t.shape) for t in layer.inputs]
            shaped = [it if it.shape == shape else it.reshape(shape) for it, shape in inputs]
            found[layer.name] = output(layer, shaped, p)
    return found


def output(layer: Layer, inputs: Sequence[Tensor], p: Mapping[str, Tensor]) -> Tensor:
    """Compute one layer. `p`: its parameters by their names in the layer."""
    x, a = inputs[0], layer.fields
    match layer.kind:
        case "conv2d":
            stride, padding = int(a["stride_h"]), int(a["pad_h"])
            return functional.conv2d(x, p["weight"], p.get("bias"), stride, padding)
        case "batchnorm2d":
            mean, variance = p.get("running", (None, None))
            rate, epsilon = float(a["update_rate"]), float(a["epsilon"])
            return functional.batch_norm(
                x, mean, variance, p["weight"], p["bias"], True, rate, epsilon
            )
        case "maxpool2d":
            return functional.max_pool2d(x, int(a["kernel_h"]), int(a["stride_h"]))
        case "relu":
            return functional.relu(x)
        case "gelu":
            return functional.gelu(x)
        case "tanh":
            return torch.tanh(x)
        case "add":
            return inputs[0] + inputs[1]
        case "global_avgpool":
            return x.mean((2, 3))
        case "slice":
            return x[:, int(a["oh"]) : int(a["oh"] + a["k"])]
        case "linear":
            return functional.linear(x, p["weight"], p.get("bias"))
        case "embedding":
            row = int(a["padding"]) - 1 if a["padding"] else None
            return functional.embedding(x, p["weight"], row)
        case "layernorm":
            epsilon = float(a["epsilon"])
            return functional.layer_norm(x, p["weight"].shape, p["weight"], p["bias"], epsilon)
        case "attention_scores":
            q, k = (_heads(t, int(a["groups"])) for t in inputs)
            return q @ k.transpose(2, 3) * float(a["factor"])
        case "masked_softmax":
            seen = (inputs[1] != 0).reshape(x.shape[0], *(1 for _ in x.shape[2:]), x.shape[-1])
            return torch.where(seen, x, -torch.inf).softmax(-1)
        case "attention_context":
            return (x @ _heads(inputs[1], int(a["groups"]))).transpose(1, 2).flatten(2)
        case "softmax_xent":
            return functional.cross_entropy(x, inputs[1])
    raise ValueError(f"no benchmark has a layer of kind {layer.kind}")


def _heads(x: Tensor, heads: int) -> Tensor:
    """(N, L, D) as (N, heads, L, D / heads)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
