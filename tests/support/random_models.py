"""Small random forward models of all operators: branches, shared tensors and parameters."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from poet_host.graph.builder import Builder, Model, Tensor
from poet_host.graph.graph import Node
from support.functions import FUNCTIONS


def parameters_of(b: Builder, layer: str) -> Mapping[str, Node]:
    """The parameters of a layer, which another layer may use too."""
    return next(it.parameters for it in b._layers if it.name == layer)


@st.composite
def random_models(draw: st.DrawFn) -> Model:
    """Up to eight layers on small images, every output used, then a loss."""
    shape = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from((1, 2, 4))),
        draw(st.integers(3, 6)),
        draw(st.integers(3, 6)),
    )
    made = _Drawing(draw, shape)
    for _ in range(draw(st.integers(1, 8))):
        made.add_layer()
    return made.finish()


class _Drawing:
    def __init__(self, draw: st.DrawFn, shape: tuple[int, int, int, int]) -> None:
        self.draw = draw
        self.b = Builder("random", data=shape)
        self.tensors = [self.b.data]
        self.used: set[str] = set()
        self.convolutions: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}

    def add_layer(self) -> None:
        x = self.draw(st.sampled_from(self.tensors))
        self.used.add(x.name)
        n, _, h, w = x.shape
        kinds = ["conv2d", "dropout", "add", "sub", "mul", "parameter", "pad"]
        kinds += ["softmax", "layernorm", *FUNCTIONS]
        kinds += ["batchnorm2d", "batchnorm2d_frozen"] if n * h * w >= 8 else []
        kinds += ["maxpool2d", "avgpool2d"] if min(h, w) >= 2 else []
        self.tensors.append(self.layer(self.draw(st.sampled_from(kinds)), x))

    def layer(self, kind: str, x: Tensor) -> Tensor:
        draw, b = self.draw, self.b
        if kind in FUNCTIONS:
            operator, options, _ = FUNCTIONS[kind]
            return b.layer(operator, (x,), **options)
        match kind:
            case "conv2d":
                return self.convolution(x)
            case "add" | "sub" | "mul":
                other = draw(st.sampled_from([t for t in self.tensors if t.shape == x.shape]))
                self.used.add(other.name)
                return b.layer(kind, (x, other))
            case "parameter":  # repeated along the axes of which it has none, or 1
                sizes = [1, *(draw(st.sampled_from((size, 1))) for size in x.shape[1:])]
                shape = tuple(sizes[draw(st.integers(0, 3)) :])
                other = b.parameter(shape, start="ones")
                both = draw(st.permutations((x, other)))
                return b.layer(draw(st.sampled_from(("add", "sub", "mul"))), tuple(both))
            case "layernorm":  # of few numbers that may be the same, so not too sharp
                return b.layernorm(x, axes=draw(st.integers(2, 3)), epsilon=0.1)
            case "dropout":
                return b.dropout(x, draw(st.sampled_from((0.0, 0.25, 0.5))), seed=7)
            case "maxpool2d" | "avgpool2d":
                kernel = self.kernel(x)
                padding = tuple(
                    (draw(st.integers(0, k // 2)), draw(st.integers(0, k - 1))) for k in kernel
                )
                stride = draw(st.sampled_from((None, 1, (2, 1))))
                return b.layer(kind, (x,), kernel, stride=stride, padding=padding)
            case "pad":
                return b.pad(x, 2, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        return b.layer(kind, (x,))

    def kernel(self, x: Tensor) -> tuple[int, ...]:
        return tuple(self.draw(st.integers(1, min(size, 3))) for size in x.shape[2:])

    def convolution(self, x: Tensor) -> Tensor:
        draw = self.draw
        twins = [name for name, (of, _) in self.convolutions.items() if of == x.shape]
        if twins and draw(st.booleans()):
            name = draw(st.sampled_from(twins))
            return self.b.conv2d(
                x, **self.convolutions[name][1], parameters=parameters_of(self.b, name)
            )
        groups = draw(st.sampled_from([g for g in (1, 2, 4) if x.shape[1] % g == 0]))
        kernel = self.kernel(x)
        front = [draw(st.integers(0, 1)) for _ in kernel]
        after = [
            draw(st.sampled_from((f, min(1, k - 1)))) for f, k in zip(front, kernel, strict=True)
        ]
        options = {
            "channels": groups * draw(st.integers(1, 2)),
            "kernel": kernel,
            "stride": draw(st.sampled_from((1, 2, (1, 2)))),
            "padding": tuple(zip(front, after, strict=True)),
            "groups": groups,
            "bias": draw(st.booleans()),
        }
        made = self.b.conv2d(x, **options)
        self.convolutions[made.name] = (x.shape, options)
        return made

    def finish(self) -> Model:
        """Sum everything that nobody uses yet, each through a linear layer, perhaps shared."""
        draw, b = self.draw, self.b
        heads: dict[tuple[int, ...], tuple[str, bool]] = {}
        total: Tensor | None = None
        for x in [t for t in self.tensors if t.name not in self.used]:
            flat = b.global_avgpool(x) if draw(st.booleans()) else b.flatten(x)
            if flat.shape in heads and draw(st.booleans()):
                name, bias = heads[flat.shape]
                end = b.linear(flat, 5, bias=bias, parameters=parameters_of(b, name))
            else:
                bias = draw(st.booleans())
                end = b.linear(flat, 5, bias=bias)
                heads[flat.shape] = (end.name, bias)
            total = end if total is None else b.add(total, end)
        assert total is not None
        return b.model(b.mse(total) if draw(st.booleans()) else b.softmax_xent(total))
