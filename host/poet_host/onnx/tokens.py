"""Recognise the attention masks that a model computes from its tokens, by their effect.

Exporters write masks in many ways. So nodes that depend on the tokens alone are evaluated for a few
sample texts. If the result of a node masks the scores of a softmax, this result is compared with
the supported masks, which hide padding (token 0, see data/fitted.py), later tokens, or both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..graph.rules import Shape
from ..graph.weights import Array
from .fold import Constant, evaluate
from .model import OnnxModel, OnnxNode

Mask = frozenset[Literal["future", "padding"]]
"""The kinds of tokens that an attention mask hides."""

LOW = -1e3  # a score of at most LOW has no weight after a softmax
UNMASKED: Mask = frozenset()
FUTURE: Mask = frozenset({"future"})
PADDING: Mask = frozenset({"padding"})
_SAMPLES = 3

# Operators that exporters use to compute masks from tokens.
_OPERATORS = frozenset(
    (
        *("Add", "And", "Cast", "Ceil", "Clip", "Concat", "CumSum", "Div", "Equal", "Expand"),
        *("Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pad", "ReduceSum", "Sign"),
        *("Slice", "Split", "Sub", "Tile", "Transpose", "Trilu"),
        *("Where", "Xor"),
    )
)
# Operators that only change a shape. They are not evaluated if they read the tokens directly.
_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True)
class TokenValues:
    """For each sample text, the value of a tensor that depends only on tokens and constants."""

    values: tuple[Array, ...]

    @property
    def shape(self) -> Shape:
        return self.values[0].shape


def sample_texts(shape: Shape) -> tuple[Array, ...]:
    """Return a few texts of random tokens. No text starts with padding."""
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 4, (_SAMPLES, *shape))
    texts[..., 0] = 1
    return tuple(texts)


def is_evaluable(node: OnnxNode, is_data_alone: bool) -> bool:
    """Return True if a node can be evaluated for the sample texts.

    `is_data_alone`: True if the node reads the tokens directly, not values computed from tokens.
    """
    if is_data_alone and node.op == "Cast":  # a cast to int32 or int64 keeps the tokens
        return node.attributes["to"] not in (6, 7)
    return node.op in _OPERATORS or (node.op in _VIEWS and not is_data_alone)


def evaluate_for_texts(
    model: OnnxModel, node: OnnxNode, inputs: Sequence[TokenValues | Constant | None]
) -> list[TokenValues]:
    """Return the outputs of a node for each sample text. `inputs` are token values and constants.

    May raise any exception if the node cannot be evaluated.
    """
    found = []
    for i in range(_SAMPLES):
        given = [value.values[i] if isinstance(value, TokenValues) else value for value in inputs]
        known = [value.value if isinstance(value, Constant) else value for value in given]
        found.append(evaluate(model, node, known))
    return [TokenValues(tuple(values)) for values in zip(*found, strict=True)]


def is_data(given: TokenValues, texts: Sequence[Array]) -> bool:
    """Return True if the values equal the tokens of all sample texts."""
    return all(
        value.dtype.kind in "iu"
        and value.size == text.size
        and (value.reshape(-1) == text.reshape(-1)).all()
        for value, text in zip(given.values, texts, strict=True)
    )


def mask_of(hidden: Sequence[Array], texts: Sequence[Array], scores: Shape) -> Mask | None:
    """Return the supported mask that hides exactly the scores in `hidden`, or None without one."""
    of_batch = len(scores) > 2 and all(
        text.ndim == 2 and text.shape[1] == scores[-1] and not scores[0] % len(text)
        for text in texts
    )
    some: list[Array | None] = [*texts] or [None]
    candidates = (FUTURE, PADDING, PADDING | FUTURE) if texts and of_batch else (FUTURE,)
    for candidate in candidates:
        if all(
            _is(value, candidate, text, scores) for value, text in zip(hidden, some, strict=True)
        ):
            return candidate
    return None


def _is(hidden: Array, mask: Mask, text: Array | None, scores: Shape) -> bool:
    """Return True if `mask` hides exactly the scores in `hidden` for one text."""
    expected = np.zeros(scores[-2:], bool)
    if "future" in mask:
        expected |= np.triu(np.ones(scores[-2:], bool), 1)
    if "padding" in mask:
        assert text is not None
        padding = np.repeat(text == 0, scores[0] // len(text), axis=0)  # the heads of a text
        expected = expected | padding.reshape(scores[0], *[1] * (len(scores) - 2), -1)
    try:
        both = np.broadcast_to(hidden, scores), np.broadcast_to(expected, scores)
    except ValueError:
        return False
    return bool((both[0] == both[1]).all())
