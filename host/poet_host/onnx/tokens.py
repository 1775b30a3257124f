"""What a model computes of its tokens: masks, mostly, which are known by what they do.

Exporters spell masks out in a dozen ways. So what follows from tokens alone is computed for a few
sample texts, and where a softmax's scores meet it, it is compared with the masks that are built:
padding, which is token 0 (data/datasets.py), and the future.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..graph.operators import Shape
from .fold import Constant, evaluate
from .model import OnnxModel, OnnxNode

Array = NDArray[Any]
Hidden = frozenset[Literal["future", "padding"]]
"""What the queries of an attention do not see."""

LOW = -1e3  # a score of this or less weighs nothing: exp of it is 0
NOTHING: Hidden = frozenset()
FUTURE: Hidden = frozenset({"future"})
PADDING: Hidden = frozenset({"padding"})
_SAMPLES = 3

# Operators of whole numbers and masks; what only changes a shape, where it is not of the data.
_OPERATORS = frozenset(
    (
        *("Add", "And", "Cast", "Ceil", "Clip", "Concat", "CumSum", "Div", "Equal", "Expand"),
        *("Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pad", "ReduceSum", "Sign"),
        *("Slice", "Split", "Sub", "Tile", "Transpose", "Trilu"),
        *("Where", "Xor"),
    )
)
_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True)
class OfTokens:
    """A tensor that follows from the tokens: what it is for each of the sample texts."""

    values: tuple[Array, ...]

    @property
    def shape(self) -> Shape:
        return self.values[0].shape


def sample_texts(shape: Shape) -> tuple[Array, ...]:
    """Texts of a few words, none beginning with padding."""
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 4, (_SAMPLES, *shape))
    texts[..., 0] = 1
    return tuple(texts)


def follows(node: OnnxNode, of_data_alone: bool) -> bool:
    """May a node be one of these? `of_data_alone`: it reads tokens as they are."""
    if of_data_alone and node.op == "Cast":  # to whole numbers they stay what they are
        return node.attributes["to"] not in (6, 7)
    return node.op in _OPERATORS or (node.op in _VIEWS and not of_data_alone)


def computed_of(
    model: OnnxModel, node: OnnxNode, inputs: Sequence[OfTokens | Constant | None]
) -> list[OfTokens]:
    """The outputs of a node of tokens; raises an error of any class if it cannot be computed."""
    found = []
    for i in range(_SAMPLES):
        given = [one.values[i] if isinstance(one, OfTokens) else one for one in inputs]
        known = [one.value if isinstance(one, Constant) else one for one in given]
        found.append(evaluate(model, node, known))
    return [OfTokens(tuple(values)) for values in zip(*found, strict=True)]


def is_data(given: OfTokens, texts: Sequence[Array]) -> bool:
    """Is it the tokens themselves, whatever was done to those that no text has?"""
    return all(
        value.dtype.kind in "iu"
        and value.size == text.size
        and (value.reshape(-1) == text.reshape(-1)).all()
        for value, text in zip(given.values, texts, strict=True)
    )


def hidden_by(hidden: Sequence[Array], texts: Sequence[Array], scores: Shape) -> Hidden | None:
    """What masks hide that are true where nothing is seen; None if that is not built."""
    of_batch = len(scores) > 2 and all(
        text.ndim == 2 and text.shape[1] == scores[-1] and not scores[0] % len(text)
        for text in texts
    )
    some: list[Array | None] = [*texts] or [None]
    candidates = (FUTURE, PADDING, PADDING | FUTURE) if texts and of_batch else (FUTURE,)
    for candidate in candidates:
        if all(_is(mask, candidate, text, scores) for mask, text in zip(hidden, some, strict=True)):
            return candidate
    return None


def _is(mask: Array, hidden: Hidden, text: Array | None, scores: Shape) -> bool:
    expected = np.zeros(scores[-2:], bool)
    if "future" in hidden:
        expected |= np.triu(np.ones(scores[-2:], bool), 1)
    if "padding" in hidden:
        assert text is not None
        padding = np.repeat(text == 0, scores[0] // len(text), axis=0)  # for the heads of each text
        expected = expected | padding.reshape(scores[0], *[1] * (len(scores) - 2), -1)
    try:
        both = np.broadcast_to(mask, scores), np.broadcast_to(expected, scores)
    except ValueError:
        return False
    return bool((both[0] == both[1]).all())
