"""Import rules of the operators that apply attention masks; operators.py explains the rules."""

from dataclasses import replace
from math import prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.weights import Array
from .conditions import selected
from .context import Deferred, Unsupported
from .fold import Constant
from .node import ImportedNode, Rule
from .tokens import FUTURE, LOW, SAMPLES, UNMASKED, TokenValues, mask_of


def sample_values(node: ImportedNode, number: int) -> list[Array] | None:
    """Return the value of an input for each random test text (tokens.sample_texts).

    Return None if the value depends on more than tokens and constants.
    """
    value = node.known(number)
    if isinstance(value, TokenValues):
        return list(value.values)
    count = SAMPLES if node.context.texts else 1
    return [value.value] * count if isinstance(value, Constant) else None


def added_mask(node: ImportedNode, number: int) -> list[Array] | None:
    """Return which attention scores are hidden if the node adds the input to the scores.

    The result has an array for each sample text, with True for a hidden score. It is None if
    the input is not a mask.
    """
    values = sample_values(node, number)
    hidden = [value <= LOW for value in values or []]
    if not values or not any(map(np.any, hidden)):
        return None
    plain = all((v[~h] == 0).all() for v, h in zip(values, hidden, strict=True))
    return hidden if plain else None


def masked(node: ImportedNode, number: int, hidden: list[Array]) -> Deferred:
    """Add a mask to an input, which holds attention scores, and return the result.

    `hidden` has an array for each sample text, with True where a softmax ignores the score.
    """
    scores = node.deferred(number)
    found = mask_of(hidden, node.context.texts, scores.shape)
    if found is None:
        raise Unsupported(
            "this attention mask is not supported: use a mask that hides padding (token 0), "
            "later tokens, or both, directly before a softmax"
        )
    return replace(scores, mask=scores.mask | found)


def _is_masked(node: ImportedNode, number: int, hidden: list[Array]) -> bool:
    """Return True if the input comes from a softmax that masked all scores in `hidden`."""
    weights = node.deferred(number)
    found = mask_of(hidden, node.context.texts, weights.shape)
    if weights.is_transposed:
        return False
    mask = node.context.masks.get(weights.tensor.name, UNMASKED)
    return found is not None and found <= mask


def _where(node: ImportedNode) -> Tensor | Deferred:
    """Apply an attention mask, or select numbers by any other condition.

    A mask sets hidden scores to minus infinity, or hidden outputs of a softmax to zero.
    """
    condition = sample_values(node, 0)
    for x, other, allowed in ((1, 2, True), (2, 1, False)):
        fill = sample_values(node, other)
        if not condition or sample_values(node, x) is not None:
            continue
        shapes = (condition[0].shape, fill[0].shape if fill else node.deferred(other).shape)
        if np.broadcast_shapes(node.deferred(x).shape, *shapes) != node.deferred(x).shape:
            continue
        hidden = [value.astype(bool) != allowed for value in condition]
        if not any(map(np.any, hidden)):
            return node.deferred(x)
        if fill and all((value <= LOW).all() for value in fill):
            is_mask = mask_of(hidden, node.context.texts, node.deferred(x).shape) is not None
            if is_mask or not all(np.isfinite(value).all() for value in fill):
                return masked(node, x, hidden)
        if fill and not any(map(np.any, fill)) and _is_masked(node, x, hidden):
            return node.deferred(x)
    if isinstance(node.value(0), TokenValues):
        raise Unsupported(
            "the condition depends on tokens: with them, `Where` is supported only as an attention "
            "mask before a softmax, which must hide padding (token 0) or later tokens"
        )
    return selected(node)


def _softmax(node: ImportedNode) -> Tensor | Deferred:
    x = node.deferred(0)
    newer, rank = node.context.model.opsets[""] >= 13, len(x.shape)
    axis = node.axis(rank, -1 if newer else 1)
    rest = prod(x.shape[axis + 1 :])
    # Before opset 13, a softmax is over the axis and all later axes.
    if (axis != rank - 1 or rank == 1) and (rest == 1 or not newer):
        whole = node.tensor(0)
        rows = Tensor(whole.name, (prod(x.shape[:axis]), x.shape[axis] * rest))
        return Tensor(node.layer("softmax", (rows,)).name, x.shape)
    if axis != rank - 1:
        order = [*range(rank)]
        order[axis], order[-1] = order[-1], order[axis]
        last = node.helper("moved", "transpose", (node.tensor(0),), tuple(order))
        return Deferred(node.layer("softmax", (last,)), tuple(order))
    causal = "future" in x.mask
    scores = node.materialise(replace(x, mask=UNMASKED))
    padding = [*(x.mask - FUTURE)]
    if len(padding) > 1:
        raise Unsupported(
            "the scores have masks of two inputs: join both masks in one input of the model"
        )
    if padding:
        sizes, batch = scores.shape, node.context.builder.data.shape[0]
        texts = Tensor(padding[0], (batch, sizes[-1]))
        by_text = Tensor(scores.name, (batch, sizes[0] // batch, *sizes[1:]))
        y = node.layer("masked_softmax", (by_text, texts), causal=causal)
        y = Tensor(y.name, sizes)
    else:
        y = node.layer("softmax", (scores,), causal=causal)
    node.context.masks[y.name] = x.mask
    return y


def _log_softmax(node: ImportedNode) -> Tensor:
    raise Unsupported(
        "the operator `LogSoftmax` is supported only at the end of the model, over the axis of the "
        "classes: the loss then replaces it. Move it to the end, or use Softmax"
    )


MASK_RULES: dict[str, Rule] = {
    "LogSoftmax": _log_softmax,
    "Softmax": _softmax,
    "Where": _where,
}
