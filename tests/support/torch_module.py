"""A forward model as a PyTorch module, so that PyTorch's exporter writes it as an .onnx file."""

from collections.abc import Mapping
from typing import Any

import torch
from poet_host.graph.builder import Model
from poet_host.graph.graph import Graph
from poet_host.graph.source import source_of
from support.torch_model import torch_forward
from torch import Tensor, nn


class AsModule(nn.Module):
    """The model of a training graph, for inference. Its tensors have their names in files."""

    def __init__(self, model: Model, graph: Graph, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.forward_model = model
        self.names: dict[str, list[str]] = {}
        for node in model.parameters:
            source = source_of(graph, node)
            self.names[node.name] = list(source.names)
            for name, value in source.theirs(values[node.name]).items():
                self._place(name, torch.tensor(value), node.role == "parameter")

    def _place(self, name: str, value: Tensor, trained: bool) -> None:
        module: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        if trained:
            module.register_parameter(last, nn.Parameter(value))
        else:
            module.register_buffer(last, value)

    def forward(self, x: Tensor) -> Tensor:
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values: dict[str, Any] = {}
        for name, names in self.names.items():
            tensors = [state[item] for item in names]
            values[name] = tensors[0] if len(tensors) == 1 else tensors
        frozen = frozenset(layer.name for layer in self.forward_model.layers)
        outputs = torch_forward(self.forward_model, values, x, frozen=frozen)
        return outputs[self.forward_model.layers[-1].inputs[0].name]
