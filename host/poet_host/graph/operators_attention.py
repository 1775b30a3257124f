"""Rows of the table of operators for transformers: matrix products, attention, layer
normalisation and embeddings."""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite, prod, sqrt

from .rules import Fields, Operator, Parameter, Rule, Shape, Spec, checked_count

# Bits of the field `variant` of matmul, for its operands a and b and its output y.
# TRANSPOSED: the operand is stored with its last two axes exchanged.
# SPLIT: the tensor is stored with all heads in each row.
_A_TRANSPOSED, _B_TRANSPOSED, _A_SPLIT, _B_SPLIT, _Y_SPLIT = 1, 2, 4, 8, 16


def _product(
    y: Shape, n: int, heads: int, sizes: tuple[int, int, int], factor: float, variant: int
) -> Spec:
    """Describe a matrix product with the shape `y`.

    `sizes` has the number of its rows, the number of its columns, and the number of terms that are
    summed for each of its elements.
    """
    h, w, k = sizes
    if not isfinite(factor):
        raise ValueError(f"`factor` ({factor}) must be finite")
    if heads > 65535:
        raise ValueError(f"{heads} heads are too many: use at most 65,535")
    fields = {"n": n, "groups": heads, "h": h, "w": w, "k": k}
    return Spec(y, fields | {"variant": variant, "factor": factor})


def _matmul(
    a: Shape,
    b: Shape,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    factor: float = 1.0,
) -> Spec:
    """Compute factor * a b of shape (..., M, N) from a (..., M, K) and b (..., K, N) or (K, N).

    If `transpose_a`, the shape of a is (..., K, M). If `transpose_b`, that of b is (..., N, K).
    """
    if len(a) < 2 or len(b) < 2:
        raise ValueError("both inputs must have at least 2 dimensions")
    m, k = a[:-3:-1] if transpose_a else a[-2:]
    inner, n = b[:-3:-1] if transpose_b else b[-2:]
    if k != inner:
        raise ValueError(
            f"the first input has {k} columns, but the second input has {inner} rows: both numbers "
            "must be equal"
        )
    variant = _A_TRANSPOSED * transpose_a | _B_TRANSPOSED * transpose_b
    count = prod(a[:-2])
    if a[:-2] != b[:-2] and prod(b[:-2]) != 1:
        raise ValueError(
            "the last two dimensions are rows and columns. All dimensions before these must be the "
            "same in both inputs, or must be 1 in the second input"
        )
    if count != prod(b[:-2]):
        if transpose_a:
            raise ValueError(
                "with `transpose_a`, both inputs must have the same number of matrices"
            )
        count, m = 1, count * m
    return _product(
        (*a[:-2], a[-1 if transpose_a else -2], n), count, 1, (m, n, k), factor, variant
    )


def _scores(q: Shape, k: Shape, heads: int, *, factor: float | None = None) -> Spec:
    """Compute factor * q k^T for each head, from queries q (N, L, D) and keys k (N, S, D).

    The result has the shape (N, heads, L, S). The default factor is 1 / sqrt(D / heads).
    """
    if len(q) != 3 or len(k) != 3 or q[0] != k[0] or q[2] != k[2]:
        raise ValueError(
            "queries and keys must have the shape (batch, length, width), with the same batch and "
            "the same width"
        )
    width = _head_width(q[2], heads)
    factor = 1 / sqrt(width) if factor is None else factor
    variant = _B_TRANSPOSED | _A_SPLIT | _B_SPLIT
    sizes = (q[1], k[1], width)
    return _product((q[0], heads, q[1], k[1]), q[0], heads, sizes, factor, variant)


def _context(p: Shape, v: Shape) -> Spec:
    """Compute p v for each head, from weights p (N, heads, L, S) and values v (N, S, D).

    The result has the shape (N, L, D).
    """
    if len(p) != 4 or len(v) != 3 or p[0] != v[0] or p[3] != v[1]:
        raise ValueError(
            "the attention weights must have the shape (batch, heads, L, S), and the values must "
            "have the shape (batch, S, width)"
        )
    width = _head_width(v[2], p[1])
    sizes = (p[2], width, p[3])
    return _product((p[0], p[2], v[2]), p[0], p[1], sizes, 1.0, _B_SPLIT | _Y_SPLIT)


def _head_width(width: int, heads: int) -> int:
    if width % checked_count(heads, "heads"):
        raise ValueError(f"the number of heads ({heads}) must divide the input width ({width})")
    return width // heads


# operand of the forward product -> names of the fields for its row count and its column count
_SIZES = {"a": ("h", "k"), "b": ("k", "w"), "dy": ("h", "w")}
# For each operand, its bits in the field `variant` of the forward product.
_TRANSPOSED = {"a": _A_TRANSPOSED, "b": _B_TRANSPOSED, "dy": 0}
_SPLIT = {"a": _A_SPLIT, "b": _B_SPLIT, "dy": _Y_SPLIT}


def _gradient(makes: str, left: str, right: str, flip: str, *, stored_transposed: bool) -> Rule:
    """Return the rule that computes the gradient of `makes` as the product of `left` and `right`.

    `flip` names the factor (`left` or `right`) of which the product uses the transpose. If
    `stored_transposed` is True, the rule applies only to an operand `makes` that is stored
    transposed. If it is False, the rule applies only to an operand that is not.
    """

    def fields(f: Fields) -> Fields:
        variant = int(f["variant"])

        def is_transposed(name: str) -> bool:
            return bool(variant & _TRANSPOSED[name]) != (name == flip)

        rows, inner = _SIZES[left][::-1] if left == flip else _SIZES[left]
        columns = _SIZES[right][0 if right == flip else 1]
        made = _A_TRANSPOSED * is_transposed(left) | _B_TRANSPOSED * is_transposed(right)
        made |= _A_SPLIT * bool(variant & _SPLIT[left]) | _B_SPLIT * bool(variant & _SPLIT[right])
        made |= _Y_SPLIT * bool(variant & _SPLIT[makes])
        return {**f, "h": f[rows], "w": f[columns], "k": f[inner], "variant": made}

    def when(f: Fields) -> bool:
        return stored_transposed == bool(int(f["variant"]) & _TRANSPOSED[makes])

    return Rule(makes, "matmul", f"{left} {right}", fields=fields, when=when)


_PRODUCT_GRADIENTS = (
    _gradient("a", "dy", "b", "b", stored_transposed=False),  # da = dy b^T
    _gradient("a", "b", "dy", "dy", stored_transposed=True),  # da^T = b dy^T
    _gradient("b", "a", "dy", "a", stored_transposed=False),  # db = a^T dy
    _gradient("b", "dy", "a", "dy", stored_transposed=True),  # db^T = dy^T a
)


def _softmax(x: Shape, *, causal: bool = False) -> Spec:
    """Apply softmax along the last axis. If `causal`, row i uses columns 0 to i only."""
    if len(x) < 2 or (causal and len(x) < 3):
        raise ValueError(
            "the input must have at least 2 dimensions, or at least 3 for a causal softmax"
        )
    lead = x[:-2] if len(x) > 2 else x[:1]
    sizes = {"n": lead[0], "c": prod(lead[1:]), "h": x[-2] if len(x) > 2 else 1, "w": x[-1]}
    return Spec(x, sizes | {"variant": int(causal)})


def _masked_softmax(x: Shape, mask: Shape, *, causal: bool = False) -> Spec:
    """Apply softmax along the last axis of x (N, ..., L), but not where the mask (N, L) is 0."""
    if mask != (x[0], x[-1]):
        raise ValueError(f"the mask must have the shape {(x[0], x[-1])}")
    if len(x) < 3:
        raise ValueError("the input must have at least 3 dimensions")
    return _softmax(x, causal=causal)


def _layernorm(x: Shape, *, axes: int = 1, epsilon: float = 1e-5) -> Spec:
    """Normalise x over its last `axes` axes, then scale and shift it."""
    if not 0 < axes <= len(x):
        raise ValueError(f"`axes` ({axes}) must be from 1 to {len(x)}")
    if not 0 < epsilon < 1:
        raise ValueError(f"`epsilon` ({epsilon}) must be above 0 and below 1")
    lead, shape = x[: len(x) - axes], x[len(x) - axes :]
    parameters = {"weight": Parameter(shape, "ones"), "bias": Parameter(shape, "zeros")}
    fields = {"n": prod(lead), "c": prod(shape), "epsilon": epsilon}
    return Spec(x, fields, parameters)


def _embedding(
    x: Shape, vocabulary: int, features: int, *, deviation: float = 1.0, padding: int | None = None
) -> Spec:
    """Look up the row of each int32 token x (...) in a table. The result is (..., features).

    The first values of the table are normally distributed with the standard deviation `deviation`.
    The row of the token `padding` gets no gradient from this layer, as in PyTorch.
    """
    shape = (checked_count(vocabulary, "vocabulary"), checked_count(features, "features"))
    if not 0 <= deviation < float("inf"):
        raise ValueError(f"`deviation` ({deviation}) must be 0 or more, and finite")
    found = _gather(x, shape, padding=padding)
    return replace(found, parameters={"weight": Parameter(shape, f"normal:{deviation}")})


def _gather(x: Shape, weight: Shape, *, padding: int | None = None) -> Spec:
    """Look up the row of each int32 token x (...) in a table (V, D). The result is (..., D).

    The row of the token `padding` gets no gradient from this layer, as in PyTorch.
    """
    if len(weight) != 2:
        raise ValueError("the table must have 2 dimensions (rows, features)")
    if padding is not None and not 0 <= padding < weight[0]:
        raise ValueError(f"`padding` ({padding}) must be a row of the table, 0 to {weight[0] - 1}")
    row = 0 if padding is None else padding + 1
    fields = {"n": prod(x), "c": weight[1], "k": weight[0], "padding": row}
    return Spec((*x, weight[1]), fields)


def _normed_rows(f: Fields) -> Fields:
    return {"n": f["n"], "k": f["c"], "oh": 1, "ow": 1}


def _matrix_product(spec: Callable[..., Spec]) -> Operator:
    return Operator(
        spec,
        forward=(Rule("y", "matmul", "a b"),),
        backward=_PRODUCT_GRADIENTS,
        inputs=("a", "b"),
    )


_TABLE = (Rule("weight", "embedding_grad", "x dy"),)
_SOFTMAX = (Rule("y", "softmax", "x mask?"),)
_SOFTMAX_GRADIENT = (Rule("x", "softmax_grad", "y dy"),)

ATTENTION_OPERATORS = {
    "matmul": _matrix_product(_matmul),
    "attention_scores": _matrix_product(_scores),
    "attention_context": _matrix_product(_context),
    "softmax": Operator(_softmax, _SOFTMAX, _SOFTMAX_GRADIENT),
    "masked_softmax": Operator(
        _masked_softmax, _SOFTMAX, _SOFTMAX_GRADIENT, inputs=("x", "mask"), tokens=("mask",)
    ),
    "layernorm": Operator(
        _layernorm,
        forward=(
            Rule("stats", "layernorm_stats", "x", shape=lambda f: (2, int(f["n"]))),
            Rule("y", "layernorm", "x stats weight bias"),
        ),
        backward=(
            Rule("x", "layernorm_grad_input", "x stats weight dy"),
            Rule("weight", "layernorm_grad_weight", "x stats dy"),
            Rule("bias", "grad_bias", "dy", fields=_normed_rows),
        ),
    ),
    "embedding": Operator(
        _embedding, forward=(Rule("y", "embedding", "x weight"),), backward=_TABLE, tokens=("x",)
    ),
    "gather": Operator(
        _gather,
        forward=(Rule("y", "embedding", "x weight"),),
        backward=_TABLE,
        inputs=("x", "weight"),
        tokens=("x",),
    ),
}
