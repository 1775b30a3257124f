"""Six small modules of PyTorch, each with its loss, and a batch for each."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
Example = tuple[nn.Module, tuple[Tensor, ...]]


class _WithLoss(nn.Module):
    """Returns (loss,), as AOTAutograd's export of a training step wants it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        out = self.module(x)
        return (functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)),)


class _Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def _conv(
    inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def _images(module: nn.Module, batch: int = 16, size: int = 32) -> Example:
    return _WithLoss(module), (torch.randn(batch, 3, size, size), _labels(batch))


def _labels(*shape: int) -> Tensor:
    return torch.randint(0, CLASSES, shape)


def residual_cnn() -> Example:
    blocks = [_Residual(*_conv(16, 16), *_conv(16, 16)) for _ in range(3)]
    head = (nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(0.25), nn.Linear(1024, CLASSES))
    return _images(nn.Sequential(*_conv(3, 16), *blocks, *head))


def mobilenet_v2() -> Example:
    def block(width: int) -> nn.Module:
        wide = 2 * width
        narrow = _conv(wide, width, 1)[:2]
        return _Residual(*_conv(width, wide, 1), *_conv(wide, wide, groups=wide), *narrow)

    layers = [*_conv(3, 16, stride=2), block(16), block(16), *_conv(16, 24, stride=2), block(24)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, CLASSES))
    return _images(nn.Sequential(*layers, *head))


class _Attention(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norm, self.causal = nn.LayerNorm(width), causal
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.inner(self.norm(x)).view(n, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.outer(mixed.transpose(1, 2).reshape(n, length, width))
        return x + out


def _layer(width: int, causal: bool) -> nn.Module:
    mlp = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
    return nn.Sequential(
        _Attention(width, causal), _Residual(*mlp, nn.Linear(4 * width, width), nn.Dropout(0.1))
    )


class _Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 4, stride=4)
        self.places = nn.Parameter(torch.randn(64, width) / 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x).flatten(2).transpose(1, 2) + self.places
        return out


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def vit() -> Example:
    layers = [_layer(48, causal=False) for _ in range(3)]
    return _images(nn.Sequential(_Patches(48), *layers, _Mean(), nn.Linear(48, CLASSES)))


class _Words(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(CLASSES, width), nn.Embedding(48, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.words(x) + self.places(torch.arange(48))
        return out


def gpt2() -> Example:
    layers = [_layer(48, causal=True) for _ in range(3)]
    module = nn.Sequential(_Words(48), *layers, nn.LayerNorm(48), nn.Linear(48, CLASSES))
    return _WithLoss(module), (_labels(16, 48), _labels(16, 48))


class _Gru(nn.Module):
    """A GRU, written out: AOTAutograd takes nn.GRU apart into other operators."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(inputs, 3 * width), nn.Linear(width, 3 * width)
        self.width, self.last = width, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], self.width)
        for step in x.unbind(1):
            (r, z, n), (a, b, c) = self.inner(step).chunk(3, 1), self.outer(h).chunk(3, 1)
            update = torch.sigmoid(z + b)
            new = torch.tanh(n + torch.sigmoid(r + a) * c)
            h = new + update * (h - new)
        out: Tensor = self.last(h)
        return out


def gru() -> Example:
    return _WithLoss(_Gru(12, 48)), (torch.randn(32, 16, 12), _labels(32))


class _UNet(nn.Module):
    """Convolutions around the same at half the size: the fine features are needed after it."""

    def __init__(self, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.down = nn.Sequential(*_conv(inputs, width), *_conv(width, width))
        deep = (
            _UNet(width, 2 * width, depth - 1) if depth else nn.Sequential(*_conv(width, 2 * width))
        )
        self.deep, self.up = deep, nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = nn.Sequential(*_conv(2 * width, width), *_conv(width, width))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.up(self.deep(functional.max_pool2d(fine, 2)))
        out: Tensor = self.join(torch.cat([fine, coarse], 1))
        return out


class _ByPixel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


def unet() -> Example:
    module = nn.Sequential(_UNet(3, 8, 2), nn.Conv2d(8, CLASSES, 1), _ByPixel())
    return _WithLoss(module), (torch.randn(4, 3, 32, 32), _labels(4, 32, 32))


MODULES: dict[str, Callable[[], Example]] = {
    "residual CNN": residual_cnn, "MobileNetV2": mobilenet_v2, "ViT": vit, "GPT-2": gpt2,
    "GRU": gru, "U-Net": unet,
}  # fmt: skip
