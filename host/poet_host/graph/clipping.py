"""Clipping of gradients, by value and by their norm, as clip_grad_value_ and clip_grad_norm_ do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import BadInput
from .graph import Graph, Node, Phase
from .optimisers import checked_rate
from .rules import Fields, Shape, sizes_of

CLIPPED = ":clipped"  # suffix of the nodes of clipped gradients
LIMIT = "gradients:limit"  # the largest norm, divided by the norm
_ALL_AXES = 15  # one bit for each axis of (n, c, h, w)


class Add(Protocol):
    """A function that adds a node to the step, and returns its name."""

    def __call__(
        self, name: str, kernel: str, inputs: tuple[str, ...], fields: Fields, phase: Phase,
        shape: Shape, *, sink: str = "none",
    ) -> str: ...  # fmt: skip


@dataclass(frozen=True)
class Clipping:
    """The limit of gradients; 0: no limit. Raises BadInput if there are two, or a wrong one."""

    value: float = 0.0  # largest absolute value of each element
    norm: float = 0.0  # largest norm of all gradients together

    def __post_init__(self) -> None:
        checked_rate("clip_value", self.value)
        checked_rate("clip_norm", self.norm)
        if self.value and self.norm:
            raise BadInput("`clip_value` and `clip_norm` exclude each other: omit one")


def clipped_by_value(add: Add, w: Node, gradient: str, most: float) -> str:
    """Limit each element of the gradient of `w`, and return the new node."""
    fields = sizes_of(w.shape) | {"lower_bound": -most, "upper_bound": most}
    return add(f"{w.name}{CLIPPED}", "clip", (gradient,), fields, "backward", w.shape)


def clipped_by_norm(add: Add, gradients: Sequence[tuple[Node, str]], most: float) -> list[str]:
    """Limit the norm of all gradients together, and return the new nodes.

    `gradients`: parameters with the nodes of their gradients. The sums of squares have the order of
    `gradients`. If the norm is 0, `limit` is infinite, and the factor 1.
    """

    def scalar(name: str, kernel: str, inputs: tuple[str, ...], **fields: float) -> str:
        return add(name, kernel, inputs, sizes_of((1,)) | fields, "backward", (1,))

    total = ""
    for w, gradient in gradients:
        fields = sizes_of(w.shape) | {"variant": _ALL_AXES, "factor": 1.0}
        square = add(
            f"{w.name}:square", "reduce_product", (gradient, gradient), fields, "backward", (1,),
            sink="store",
        )  # fmt: skip
        more = (total, square)
        total = scalar(f"{w.name}:squares", "add", more, variant=0) if total else square
    norm = scalar("gradients:norm", "elementary", (total,), variant=6, factor=1.0)
    inverse = scalar("gradients:inverse", "elementary", (norm,), variant=4, factor=1.0)
    limit = scalar(LIMIT, "scale", (inverse,), variant=0, factor=most)
    factor = scalar("gradients:factor", "clip", (limit,), lower_bound=0.0, upper_bound=1.0)
    return [
        add(
            f"{w.name}{CLIPPED}", "mul", (gradient, factor),
            sizes_of(w.shape) | {"variant": _ALL_AXES << 4}, "backward", w.shape,
        )
        for w, gradient in gradients
    ]  # fmt: skip


def clipping_of(graph: Graph) -> tuple[Clipping, int]:
    """Return the limit of a graph's gradients, and the bytes of the gradients that wait for it.

    By norm, all gradients wait until the norm is known; by value, one waits at a time.
    """
    clipped = [node for node in graph if node.name.endswith(CLIPPED)]
    sizes_bytes = [node.size_bytes for node in clipped]
    if LIMIT in graph.by_name:
        return Clipping(norm=graph[LIMIT].attrs["factor"]), sum(sizes_bytes)
    if clipped:
        return Clipping(value=clipped[0].attrs["upper_bound"]), max(sizes_bytes)
    return Clipping(), 0
