"""Networks as people write them, each with one thing that importers get wrong."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Queries, keys and values from one product, taken apart in five dimensions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        y: Tensor = self.project((weights @ v).transpose(1, 2).reshape(n, length, width))
        return y


class VisionTransformer(nn.Module):
    """Patches, a class token in front of them, and a table of places longer than they are."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.places = nn.Parameter(torch.randn(1, 9, 8) * 0.1)
        self.norm, self.attention = nn.LayerNorm(8), Attention(8, 2)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.places[:, : x.shape[1]]
        logits: Tensor = self.classifier((x + self.attention(self.norm(x)))[:, 0])
        return logits


class Causal(nn.Module):
    """Split heads, and a mask that is a buffer longer than the text."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, 12, 12)))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, 2, 4).transpose(1, 2) for part in self.qkv(x).split(width, 2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(4)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width)
        return y


class Language(nn.Module):
    """The words' table is also the classifier's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(17, 8), nn.Embedding(12, 8)
        self.attention, self.norm = Causal(), nn.LayerNorm(8)
        self.classifier = nn.Linear(8, 17, bias=False)
        self.classifier.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits: Tensor = self.classifier(self.norm(x + self.attention(x)))
        return logits


class Padded(nn.Module):
    """Scores of padding become 10,000 less, as in the first BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.classifier = nn.Embedding(17, 8), nn.Linear(8, 10)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (1.0 - (tokens != 0).float()[:, None, :]) * -10000.0
        x = self.words(tokens)
        weights = (self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(8) + mask).softmax(-1)
        logits: Tensor = self.classifier((weights @ x).mean(1))
        return logits


class Normalised(nn.Module):
    """Mean and deviation of the data are buffers; a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(8, 8))
        self.register_buffer("deviation", torch.rand(8, 8) + 0.5)
        self.hidden, self.slope = nn.Linear(64, 6), nn.PReLU()
        self.unused, self.classifier = nn.Linear(3, 3), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) / self.deviation).flatten(1)
        logits: Tensor = self.classifier(1 - self.slope(self.hidden(x)) * 0.5)
        return logits


class Between(nn.Module):
    """Down and up again, channels in halves, normalised by groups, weighed by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.squeeze, self.excite = nn.Linear(8, 2), nn.Linear(2, 8)
        self.up, self.classifier = nn.Upsample(scale_factor=2), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.down(x)))
        first, second = functional.max_pool2d(x, 2).chunk(2, 1)
        small = torch.cat([first, self.depthwise(second)], 1)
        n, c, h, w = small.shape
        small = small.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        weights = torch.sigmoid(self.excite(functional.relu(self.squeeze(small.mean((2, 3))))))
        x = x + self.up(small * weights.view(n, c, 1, 1).expand_as(small))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.linear(x)))


class Repeated(nn.Module):
    """A block that is called again, between other norms that begin with the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.block, self.classifier = Block(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.norm_2(self.block(self.norm_1(x[:, 0]))))
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class Dilated(nn.Module):
    """Dilated convolutions, one of them padded in front alone, and one that is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=2, dilation=2)
        self.each = nn.Conv1d(4, 4, 2, dilation=3, groups=4, bias=False)
        self.up = nn.ConvTranspose1d(4, 2, 3, stride=2, output_padding=1)
        self.classifier = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))[..., ::2].flatten(2)[..., :17]
        x = functional.relu(self.up(self.each(functional.pad(x, (3, 0)))))
        logits: Tensor = self.classifier(x[:, :, 1:10:2].flatten(1))
        return logits
