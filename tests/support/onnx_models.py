"""PyTorch modules that the tests of ONNX import, and the ways to export them."""

import io
import math
import warnings
from typing import Any

import onnx
import torch
from torch import Tensor, nn

# Options of `legacy` with which batchnorm is folded into convolutions, as for inference.
FOLDED = {"training": torch.onnx.TrainingMode.EVAL, "do_constant_folding": True}


class Residual(nn.Module):
    """Convolutions with batchnorm, two residual blocks, one with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)
        self.conv3 = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(4, 8, 1, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        x = torch.relu(self.conv3(x) + self.shortcut(x))
        logits: Tensor = self.fc(self.pool(x).flatten(1))
        return logits


class Depthwise(nn.Module):
    """Separable convolutions as in MobileNet, with relu6; the last layer has no bias."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)]
        for stride, width, wider in ((1, 4, 8), (2, 8, 8)):
            layers += [
                nn.ReLU6(),
                nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU6(),
                nn.Conv2d(width, wider, 1, bias=False),
                nn.BatchNorm2d(wider),
            ]
        self.features = nn.Sequential(*layers)
        self.pool = nn.MaxPool2d(2)
        self.classifier = nn.Linear(32, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits


class Attention(nn.Module):
    """Self-attention with two heads, as people write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], 2, x.shape[2] // 2).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(-1, -2) / math.sqrt(x.shape[2] // 2)).softmax(-1)
        y: Tensor = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return y


class Transformer(nn.Module):
    """Tokens 0 to 16, 16 of them, to 10 classes: one layer, normalised before, 16 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 16)
        self.position = nn.Parameter(torch.randn(1, 16, 16) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = Attention(16)
        self.grow, self.shrink, self.gelu = nn.Linear(16, 32), nn.Linear(32, 16), nn.GELU()
        self.classifier = nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        x = x + self.attention(self.norm1(x))
        x = x + self.shrink(self.gelu(self.grow(self.norm2(x))))
        logits: Tensor = self.classifier(x.mean(1))
        return logits


class BuiltIn(nn.Module):
    """PyTorch's own encoder layer, positions from a table that is longer than the data.

    Nobody sees token 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(17, 16), nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.classifier = nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        logits: Tensor = self.classifier(self.layer(x, src_key_padding_mask=tokens == 0)[:, 0])
        return logits


def legacy(module: nn.Module, example: Tensor, **options: Any) -> bytes:
    """By TorchScript, for inference, batchnorm left as it is."""
    file = io.BytesIO()
    settings: dict[str, Any] = {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
        "do_constant_folding": False,
        "opset_version": 17,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (example,), file, **(settings | options))
    return file.getvalue()


def by_dynamo(module: nn.Module, example: Tensor, **options: Any) -> bytes:
    """By torch.export, PyTorch's way today."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (example,), dynamo=True, verbose=False, **options
        )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def one_node(
    op: str,
    x: tuple[Any, ...],
    constants: dict[str, Any] | None = None,
    opset: int = 17,
    outputs: int = 1,
    dtype: int = onnx.TensorProto.FLOAT,
    **attributes: Any,
) -> bytes:
    """A model of one operator; its inputs are `x` and then the constants, in order."""
    constants = constants or {}
    names = ["y", *(f"y{i}" for i in range(1, outputs))]
    node = onnx.helper.make_node(op, ["x", *constants], names, name="the_node", **attributes)
    return model([node], x, constants, opset, dtype)


def model(
    nodes: list[Any],
    x: tuple[Any, ...],
    constants: dict[str, Any] | None = None,
    opset: int = 17,
    dtype: int = onnx.TensorProto.FLOAT,
    output: str = "y",
) -> bytes:
    """A model of nodes from `x` to `output`; a constant that is None is an input left out."""
    initializers = [
        onnx.numpy_helper.from_array(value, name)
        for name, value in (constants or {}).items()
        if value is not None
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [onnx.helper.make_tensor_value_info("x", dtype, x)],
        [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
        initializers,
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(made.SerializeToString())
