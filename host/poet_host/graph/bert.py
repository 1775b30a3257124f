"""BERT of any size that classifies texts: Devlin et al., 2019, arXiv 1810.04805.

Each block applies layer normalisation after each residual sum. Its feed-forward part uses gelu and
is four times as wide as the block. The pooler reads the first token only. Token types are left out,
because a text has one segment. Dropout is left out, because models for boards are small. Token 0 is
padding, which attention ignores. `transformer` is a model of one block without an embedding.
"""

from .builder import Builder, Model, Tensor

EPSILON = 1e-12  # added to the variance in BERT's layer normalisation
DEVIATION = 0.02  # standard deviation of BERT's embeddings before training


def bert(b: Builder, *, words: int, width: int, blocks: int, heads: int, classes: int) -> Model:
    """Return a text classifier. Its data are int32 tokens (batch, length) from 0 to words - 1."""
    x = b.embedding(b.data, words, width, deviation=DEVIATION, name="word")
    length = b.data.shape[1]
    position = b.parameter((length, width), start=f"normal:{DEVIATION}", name="position")
    x = b.add(x, position, name="embedding")
    x = b.layernorm(x, epsilon=EPSILON, name="embedding.norm")
    for i in range(1, blocks + 1):
        x = _block(b, x, heads, f"block{i}", b.data)
    return _classify(b, x, classes)


def transformer(b: Builder, *, heads: int, classes: int) -> Model:
    """Return a classifier of one block. Its data are embedded tokens (batch, length, width).

    Attention reads all tokens: padding is not masked.
    """
    return _classify(b, _block(b, b.data, heads, "block1"), classes)


def _classify(b: Builder, x: Tensor, classes: int) -> Model:
    batch, _, width = x.shape
    first = b.reshape(b.slice(x, 1, 0, 1, name="first"), (batch, width))
    pooled = b.tanh(b.linear(first, width, name="pooler"), name="pooled")
    return b.model(b.softmax_xent(b.linear(pooled, classes, name="classifier"), name="loss"))


def _block(b: Builder, x: Tensor, heads: int, name: str, mask: Tensor | None = None) -> Tensor:
    """Add one transformer block.

    `mask` has the tokens of the text: attention ignores each position where the token is 0. If
    `mask` is None, attention reads all positions.
    """
    width = x.shape[2]
    q, k, v = (b.linear(x, width, name=f"{name}.{part}") for part in ("query", "key", "value"))
    scores = b.attention_scores(q, k, heads, name=f"{name}.scores")
    tag = f"{name}.weights"
    seen = b.softmax(scores, name=tag) if mask is None else b.masked_softmax(scores, mask, name=tag)
    y = b.attention_context(seen, v, name=f"{name}.context")
    y = b.linear(y, width, name=f"{name}.output")
    x = b.layernorm(b.add(x, y, name=f"{name}.sum1"), epsilon=EPSILON, name=f"{name}.norm1")
    y = b.gelu(b.linear(x, 4 * width, name=f"{name}.wide"), name=f"{name}.gelu")
    y = b.linear(y, width, name=f"{name}.narrow")
    return b.layernorm(b.add(x, y, name=f"{name}.sum2"), epsilon=EPSILON, name=f"{name}.norm2")
