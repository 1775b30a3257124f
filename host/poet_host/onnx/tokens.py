"""Recognise the attention masks that a model computes from its tokens, by their effect.

Exporters write masks in many ways. So nodes that depend on the tokens alone are evaluated for a few
sample texts. If the result of a node masks the scores of a softmax, this result is compared with
the supported masks, which hide padding (token 0, see data/fitted.py), later tokens, or both. If the
model has an input for the mask, padding is where this input is 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.rules import Shape
from ..graph.weights import Array
from .fold import Constant, evaluate
from .model import OnnxModel, OnnxNode

Mask = frozenset[str]
"""What an attention mask hides: "future" (later tokens), and padding: where this tensor is 0."""

INTEGERS = "iub"  # kinds of types

_MOST_NUMBERS = 4  # different numbers of a constant with which nodes compare tokens
_MOST_TOKENS = 2**31  # boards store tokens as int32
LOW = -1e3  # a score of at most LOW has no weight after a softmax
UNMASKED: Mask = frozenset()
FUTURE: Mask = frozenset({"future"})
SAMPLES = 8

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
# Those of them that compare or compute with numbers.
_COMPARING = frozenset(
    (
        *("Add", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("Max", "Min", "Mul", "Sub", "Where"),
    )
)
# Operators that only change a shape. They are not evaluated if they read the tokens directly.
VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True)
class TokenValues:
    """For each sample text, the value of a tensor that depends only on tokens and constants."""

    values: tuple[Array, ...]

    @property
    def shape(self) -> Shape:
        return self.values[0].shape


def sample_texts(shape: Shape, seed: int, near: Array, *, binary: bool) -> tuple[Array, ...]:
    """Return a few texts of random tokens, or of 0 and 1 only. No text starts with padding.

    Every other text has tokens from `near` alone, if it is not empty.
    """
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, 2 if binary else 4, (SAMPLES, *shape))
    if len(near) and not binary:
        texts[::2] = rng.permutation(np.resize(near, texts[::2].size)).reshape(texts[::2].shape)
    texts[..., 0] = np.maximum(texts[..., 0], 1)
    return tuple(texts)


def tokens_near(
    nodes: Iterable[OnnxNode], inputs: Iterable[str], constants: Mapping[str, Array]
) -> Array:
    """Return the numbers with which nodes compare tokens, and those next to them.

    `inputs`: the inputs of the model that hold tokens.
    """
    reached, found = {*inputs}, set[int]()
    for node in nodes:
        is_embedding = node.op == "Gather" and node.inputs[0] in constants
        if reached.isdisjoint(node.inputs) or is_embedding or node.op not in _OPERATORS | VIEWS:
            continue
        reached |= {*node.outputs}
        for name in node.inputs if node.op in _COMPARING else ():
            numbers = np.unique(constants.get(name, np.empty(0)))
            if len(numbers) > _MOST_NUMBERS:
                numbers = numbers[np.linspace(0, len(numbers) - 1, _MOST_NUMBERS, dtype=int)]
            found |= {int(number) for number in numbers if abs(number) < _MOST_TOKENS}
    near = [number + step for step in (1, 0, -1) for number in sorted(found)]
    return np.array([*dict.fromkeys(n for n in near if 0 <= n < _MOST_TOKENS)], np.int64)


def is_evaluable(node: OnnxNode, is_data_alone: bool) -> bool:
    """Return True if a node can be evaluated for the sample texts.

    `is_data_alone`: True if the node reads the tokens directly, not values computed from tokens.
    """
    if is_data_alone and node.op == "Cast":  # a cast to int32 or int64 keeps the tokens
        return node.attributes["to"] not in (6, 7)
    return node.op in _OPERATORS or (node.op in VIEWS and not is_data_alone)


def evaluate_for_texts(
    model: OnnxModel, node: OnnxNode, inputs: Sequence[TokenValues | Constant | None]
) -> list[TokenValues]:
    """Return the outputs of a node for each sample text. `inputs` are token values and constants.

    May raise any exception if the node cannot be evaluated.
    """
    found = []
    for i in range(SAMPLES):
        given = [value.values[i] if isinstance(value, TokenValues) else value for value in inputs]
        known = [value.value if isinstance(value, Constant) else value for value in given]
        found.append(evaluate(model, node, known))
    return [TokenValues(tuple(values)) for values in zip(*found, strict=True)]


def is_uniform(values: Array) -> bool:
    """Return True for integers that are all equal."""
    return values.dtype.kind in INTEGERS and bool((values == values.reshape(-1)[:1]).all())


def data_of(given: TokenValues, texts: Mapping[str, Sequence[Array]]) -> str | None:
    """Return the input whose tokens the values equal in all sample texts, or None without one."""
    for name, values in texts.items():
        if all(
            value.dtype.kind in INTEGERS
            and value.size == text.size
            and (value.reshape(-1) == text.reshape(-1)).all()
            for value, text in zip(given.values, values, strict=True)
        ):
            return name
    return None


def mask_of(
    hidden: Sequence[Array], texts: Mapping[str, Sequence[Array]], scores: Shape
) -> Mask | None:
    """Return the supported mask that hides exactly the scores in `hidden`, or None without one.

    `texts`: the sample texts of each input of tokens.
    """
    if all(_is(value, FUTURE, None, scores) for value in hidden):
        return FUTURE
    for name, values in texts.items():
        of_batch = len(scores) > 2 and all(
            text.ndim == 2 and text.shape[1] == scores[-1] and not scores[0] % len(text)
            for text in values
        )
        for candidate in (frozenset({name}), FUTURE | {name}) if of_batch else ():
            if all(
                _is(value, candidate, text, scores)
                for value, text in zip(hidden, values, strict=True)
            ):
                return candidate
    return None


def _is(hidden: Array, mask: Mask, text: Array | None, scores: Shape) -> bool:
    """Return True if `mask` hides exactly the scores in `hidden` for one text."""
    expected = np.zeros(scores[-2:], bool)
    if "future" in mask:
        expected |= np.triu(np.ones(scores[-2:], bool), 1)
    if mask - FUTURE:
        assert text is not None
        padding = np.repeat(text == 0, scores[0] // len(text), axis=0)  # the heads of a text
        expected = expected | padding.reshape(scores[0], *[1] * (len(scores) - 2), -1)
    try:
        both = np.broadcast_to(hidden, scores), np.broadcast_to(expected, scores)
    except ValueError:
        return False
    return bool((both[0] == both[1]).all())
