"""Operators on whole tensors and of transformers: values and gradients of PyTorch, mistakes."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Adam, Sgd, training_graph
from poet_host.graph.builder import Builder, Tensor
from poet_host.graph.optimisers import Optimiser, optimiser
from poet_host.graph.weights import start_values
from poet_host.reference.step import run_step
from support.functions import FUNCTIONS
from support.random_models import parameters_of
from torch.nn import functional as F  # noqa: N812

Shape = tuple[int, ...]
Ours = Callable[..., Tensor]
Theirs = Callable[..., torch.Tensor]


def judge(ours: Ours, theirs: Theirs, *shapes: Shape, tokens: np.ndarray | None = None) -> None:
    """An operator of parameters, then of layers: its output and every gradient.

    With momentum that starts at zero, a new momentum is the gradient. `ours` takes the builder
    and the operands (and the tokens, if there are any), `theirs` the same without the builder.
    """
    for after_layers in (False, True):
        b = Builder("m", (1, 1)) if tokens is None else Builder("m", tokens.shape, "int32")
        stored = [b.parameter(s, start="normal:1", name=f"p{i}") for i, s in enumerate(shapes)]
        operands = [b.scale(x, 0.5) for x in stored] if after_layers else stored
        y = ours(b, *operands) if tokens is None else ours(b, b.data, *operands)
        flat = b.reshape(y, (1, prod(y.shape)))
        model = b.model(b.mse(flat if tokens is not None else b.add(flat, b.data)))
        graph = training_graph(model, Sgd(0.0, momentum=0.5))
        values: dict[str, Any] = dict(start_values(graph, 3))
        label = np.random.default_rng(0).standard_normal((1, prod(y.shape))).astype(np.float32)
        data = np.full((1, 1), 0.25, np.float32) if tokens is None else tokens
        found = run_step(graph, {**values, "data": data, "label": label}, 1)

        leaves = [
            torch.tensor(values[x.name], dtype=torch.float64, requires_grad=True) for x in stored
        ]
        inputs = [leaf * 0.5 if after_layers else leaf for leaf in leaves]
        words = [] if tokens is None else [torch.tensor(tokens).long()]
        wanted = theirs(*words, *inputs)
        assert tuple(wanted.shape) == y.shape
        np.testing.assert_allclose(
            found[y.name].reshape(y.shape), wanted.detach().numpy(), rtol=2e-5, atol=2e-6
        )
        shifted = wanted.reshape(1, -1) + (0.25 if tokens is None else 0.0)
        F.mse_loss(shifted, torch.tensor(label, dtype=torch.float64)).backward()
        for x, leaf in zip(stored, leaves, strict=True):
            assert leaf.grad is not None
            scale = float(leaf.grad.abs().max())
            np.testing.assert_allclose(
                found[f"{x.name}:momentum:new"],
                leaf.grad.numpy(),
                rtol=1e-4,
                atol=1e-5 * scale + 1e-9,
                err_msg=x.name,
            )


ARITHMETIC: dict[str, Theirs] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes that go together, each with some axes of 1, the shorter perhaps without some."""
    whole = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    shapes = []
    for _ in range(2):
        full = [draw(st.sampled_from((size, 1))) for size in whole]
        shapes.append(tuple(full[draw(st.integers(0, len(full) - 1)) :]))
    return shapes[0], shapes[1]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(broadcasts(), st.sampled_from(sorted(ARITHMETIC)))
def test_arithmetic_broadcasts_as_pytorch(shapes: tuple[Shape, Shape], name: str) -> None:
    judge(lambda b, x, y: b.layer(name, (x, y)), ARITHMETIC[name], *shapes)


def test_many_axes_go_together_where_they_may() -> None:
    judge(lambda b, x, y: b.mul(x, y), torch.mul, (2, 1, 3, 2, 2, 3), (4, 3, 2, 1, 1))
    judge(lambda b, x: b.mean(x, (1, 2)), lambda x: x.mean((1, 2)), (2, 3, 2, 2, 2))
    judge(lambda b, x, y: b.add(x, y), torch.add, (2, 2, 3, 2, 2), (2, 2, 3, 2, 2))


def test_an_operand_may_be_both() -> None:
    judge(lambda b, x: b.mul(x, x), torch.square, (3, 4))
    judge(lambda b, x: b.add(x, x), lambda x: 2 * x, (3, 4))
    judge(lambda b, x: b.sub(b.add(x, x), b.mul(x, x)), lambda x: 2 * x - x * x, (2, 3))
    judge(lambda b, x: b.matmul(x, x, transpose_b=True), lambda x: x @ x.T, (3, 4))


def test_a_gradient_that_others_read_takes_no_sum() -> None:
    """What an addition passes on is p's gradient, and that of the product that p is in too."""
    judge(
        lambda b, x, p, q: b.matmul(b.add(b.matmul(x, p), p), q),
        lambda x, p, q: (x @ p + p) @ q,
        *[(3, 3)] * 3,
    )
    judge(
        lambda b, x, p: b.add(b.matmul(b.add(b.matmul(x, p), p), p), p),
        lambda x, p: (x @ p + p) @ p + p,
        *[(3, 3)] * 2,
    )


ONE_OPERAND: list[tuple[str, Ours, Theirs, Shape]] = [
    ("scale", lambda b, x: b.scale(x, -1.5), lambda x: x * -1.5, (5,)),
    ("mean", lambda b, x: b.mean(x, -1), lambda x: x.mean(-1), (3, 4, 2)),
    ("mean kept", lambda b, x: b.mean(x, (0, 2), keepdims=True),
     lambda x: x.mean((0, 2), keepdim=True), (3, 4, 2)),
    ("sum", lambda b, x: b.sum(x, (1, 3)), lambda x: x.sum((1, 3)), (2, 3, 2, 3)),
    ("mean of all", lambda b, x: b.mean(x, (0, 1)), lambda x: x.mean((0, 1)).reshape(1), (3, 4)),
    ("transpose", lambda b, x: b.transpose(x, (2, 0, 3, 1)), lambda x: x.permute(2, 0, 3, 1),
     (2, 3, 4, 2)),
    ("transpose of five", lambda b, x: b.transpose(x, (3, 4, 0, 2, 1)),
     lambda x: x.permute(3, 4, 0, 2, 1), (2, 3, 2, 2, 3)),
    ("transpose of ones", lambda b, x: b.transpose(x, (1, 0, 2)), lambda x: x.permute(1, 0, 2),
     (1, 1, 4)),
    ("reshape", lambda b, x: b.relu(b.reshape(x, (-1, 2))), lambda x: x.reshape(-1, 2).relu(),
     (3, 4)),
    ("slice", lambda b, x: b.slice(x, 1, 1, 3), lambda x: x[:, 1:3], (2, 4, 3)),
    ("softmax", lambda b, x: b.softmax(x), lambda x: x.softmax(-1), (3, 4)),
    ("softmax of five", lambda b, x: b.softmax(x), lambda x: x.softmax(-1), (2, 1, 3, 2, 3)),
    ("causal", lambda b, x: b.softmax(x, causal=True),
     lambda x: x.masked_fill(torch.ones(4, 4).triu(1) == 1, -torch.inf).softmax(-1), (2, 4, 4)),
    ("layernorm", lambda b, x: b.layernorm(x), lambda x: F.layer_norm(x, (4,)), (2, 3, 4)),
    ("layernorm of two", lambda b, x: b.layernorm(x, axes=2, epsilon=1e-3),
     lambda x: F.layer_norm(x, (3, 4), eps=1e-3), (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"), [row[1:] for row in ONE_OPERAND], ids=[r[0] for r in ONE_OPERAND]
)
def test_operators_of_one_tensor(ours: Ours, theirs: Theirs, shape: Shape) -> None:
    judge(ours, theirs, shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_tensor(name: str) -> None:
    kind, options, theirs = FUNCTIONS[name]
    judge(lambda b, x: b.layer(kind, (x,), **options), theirs, (3, 4, 2))


def test_a_tensor_is_repeated_along_any_axes() -> None:
    for shape in ((4,), (3, 1), (2, 1, 1), (1, 3, 4), (2, 3, 4)):
        judge(lambda b, x: b.expand(x, (2, 3, 4)), lambda x: x.expand(2, 3, 4), shape)
    with pytest.raises(BadInput, match=r"broadcast .*\(4, 4\)"):
        judge(lambda b, x: b.expand(x, (4, 4)), lambda x: x, (4, 3))


def test_zeros_stand_around_any_axis() -> None:
    for axis, sides in enumerate(((0, 0, 0, 0, 2, 1), (0, 0, 0, 3), (1, 0))):
        judge(
            lambda b, x, axis=axis, sides=sides: b.pad(x, axis, *sides[-2:]),
            lambda x, sides=sides: F.pad(x, sides),
            (2, 3, 4),
        )
    with pytest.raises(BadInput, match=r"`before` \(-1\)"):
        judge(lambda b, x: b.pad(x, 0, -1, 0), lambda x: x, (4, 3))


def test_concat_along_any_axis() -> None:
    for axis, shapes in (
        (0, ((2, 3), (4, 3))),
        (1, ((2, 3, 2), (2, 1, 2))),
        (-1, ((2, 3), (2, 2))),
    ):
        judge(
            lambda b, x, y, axis=axis: b.concat(x, y, axis),
            lambda x, y, axis=axis: torch.cat((x, y), axis),
            *shapes,
        )


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 2)])
def test_matmul(turned_a: bool, turned_b: bool, lead: Shape) -> None:
    judge(
        lambda b, x, y: b.matmul(x, y, transpose_a=turned_a, transpose_b=turned_b, factor=0.5),
        lambda x, y: 0.5 * (x.mT if turned_a else x) @ (y.mT if turned_b else y),
        (*lead, *((4, 3) if turned_a else (3, 4))),
        (*lead, *((2, 4) if turned_b else (4, 2))),
    )


@pytest.mark.parametrize("turned", [False, True])
def test_one_matrix_for_all(turned: bool) -> None:
    judge(
        lambda b, x, y: b.matmul(x, y, transpose_b=turned),
        lambda x, y: x @ (y.mT if turned else y),
        (2, 3, 4),
        (5, 4) if turned else (4, 5),
    )


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_attention(heads: int) -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.scaled_dot_product_attention(split(q), split(k), split(v))
        return y.transpose(1, 2).flatten(2)

    judge(
        lambda b, q, k, v: b.attention_context(b.softmax(b.attention_scores(q, k, heads)), v),
        theirs,
        (2, 3, 6),
        (2, 5, 6),
        (2, 5, 6),
    )


few = st.integers(1, 4)
shapes = st.lists(few, min_size=2, max_size=5).map(tuple)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.data(), shapes, st.sampled_from(["mean", "sum", "transpose", "slice", "concat", "norm"]))
def test_random_shapes_and_axes(data: st.DataObject, shape: Shape, kind: str) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    match kind:
        case "mean" | "sum":
            axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
            assume(len(axes) < len(shape) < 5)
            keep = data.draw(st.booleans())
            judge(
                lambda b, x: b.layer(kind, (x,), axes, keepdims=keep),
                lambda x: getattr(x, kind)(axes, keepdim=keep),
                shape,
            )
        case "transpose":
            order = tuple(data.draw(st.permutations(range(len(shape)))))
            assume(len(shape) < 5)
            judge(lambda b, x: b.transpose(x, order), lambda x: x.permute(order), shape)
        case "slice":
            begin = data.draw(st.integers(0, shape[axis] - 1))
            end = data.draw(st.integers(begin + 1, shape[axis]))
            judge(
                lambda b, x: b.slice(x, axis, begin, end),
                lambda x: x.narrow(axis, begin, end - begin),
                shape,
            )
        case "concat":
            other = (*shape[:axis], data.draw(few), *shape[axis + 1 :])
            judge(
                lambda b, x, y: b.concat(x, y, axis),
                lambda x, y: torch.cat((x, y), axis),
                shape,
                other,
            )
        case "norm":
            axes_count = data.draw(st.integers(1, len(shape)))
            judge(
                lambda b, x: b.layernorm(x, axes=axes_count, epsilon=0.1),
                lambda x: F.layer_norm(x, shape[len(shape) - axes_count :], eps=0.1),
                shape,
            )


@settings(max_examples=40, derandomize=True, deadline=None)
@given(few, few, few, few, few, st.booleans(), st.booleans(), st.booleans())
def test_random_products(
    n: int, m: int, k: int, w: int, heads: int, turn_a: bool, turn_b: bool, attention: bool
) -> None:
    if attention:
        judge(
            lambda b, q, v: b.attention_context(b.attention_scores(q, v, heads), v),
            lambda q, v: _mixed(q, v, heads),
            (n, m, heads * w),
            (n, k, heads * w),
        )
    else:
        judge(
            lambda b, x, y: b.matmul(x, y, transpose_a=turn_a, transpose_b=turn_b),
            lambda x, y: (x.mT if turn_a else x) @ (y.mT if turn_b else y),
            (n, heads, *((k, m) if turn_a else (m, k))),
            (n, heads, *((w, k) if turn_b else (k, w))),
        )


def _mixed(q: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    queries, values = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, v))
    scores = queries @ values.mT / queries.shape[3] ** 0.5
    return (scores @ values).transpose(1, 2).flatten(2)


TOKENS = np.array([[4, 1, 4, 0], [2, 0, 0, 0]], np.int32)


def test_gather() -> None:
    judge(
        lambda b, words, table: b.matmul(
            b.gather(words, table, padding=4), table, transpose_b=True
        ),
        lambda words, table: F.embedding(words, table, 4) @ table.T,  # used twice
        (6, 3),
        tokens=TOKENS,
    )


def test_embedding() -> None:
    b = Builder("m", (2, 4), "int32")
    x = b.embedding(b.reshape(b.data, (8,)), 6, 3, name="word")
    x = b.reshape(x, (2, 4, 3))
    graph = training_graph(b.model(b.mse(x)), Sgd(0.0, momentum=0.5))
    values: dict[str, Any] = dict(start_values(graph, 1))
    label = np.zeros((2, 4, 3), np.float32)
    found = run_step(graph, {**values, "data": TOKENS, "label": label}, 1)
    table = torch.tensor(values["word.weight"], requires_grad=True)
    F.mse_loss(F.embedding(torch.tensor(TOKENS).long(), table), torch.tensor(label)).backward()
    assert table.grad is not None
    np.testing.assert_allclose(found["word.weight:momentum:new"], table.grad.numpy(), rtol=1e-5)


def test_masked_attention() -> None:
    judge(
        lambda b, words, x: b.masked_softmax(x, words, causal=True),
        lambda words, x: torch.nan_to_num(
            x.masked_fill(
                (words[:, None, :] == 0) | (torch.ones(4, 4).triu(1) == 1), -torch.inf
            ).softmax(-1)
        ),
        (2, 4, 4),
        tokens=TOKENS,
    )


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("beta2", [0.999, 0.9])
def test_adam_is_that_of_pytorch(decay: float, beta2: float) -> None:
    by = Adam(0.01, beta2=beta2, weight_decay=decay)
    b = Builder("m", (4, 5))
    x = b.tanh(b.linear(b.data, 6, name="one"))
    x = b.tanh(b.linear(x, 6, name="two"))
    x = b.linear(x, 6, name="three", parameters=parameters_of(b, "two"))
    graph = training_graph(b.model(b.softmax_xent(x)), by)
    values: dict[str, Any] = dict(start_values(graph, 1))
    names = ("one.weight", "one.bias", "two.weight", "two.bias")
    theirs = {name: torch.tensor(values[name], requires_grad=True) for name in names}
    adam = torch.optim.Adam(
        list(theirs.values()), by.learning_rate, (by.beta1, by.beta2), by.epsilon, by.weight_decay
    )
    rng = np.random.default_rng(2)
    for step in range(1, 21):
        data = rng.standard_normal((4, 5)).astype(np.float32)
        label = rng.integers(0, 6, 4).astype(np.int32)
        found = run_step(graph, {**values, "data": data, "label": label}, step)
        values |= {node.updates: found[node.name] for node in graph if node.updates}
        adam.zero_grad()
        y = torch.tanh(F.linear(torch.tensor(data), theirs["one.weight"], theirs["one.bias"]))
        y = torch.tanh(F.linear(y, theirs["two.weight"], theirs["two.bias"]))
        y = F.linear(y, theirs["two.weight"], theirs["two.bias"])
        loss = F.cross_entropy(y, torch.tensor(label).long())
        loss.backward()
        adam.step()
        np.testing.assert_allclose(found[graph.loss][0], loss.item(), rtol=2e-5)
    for name, value in theirs.items():
        np.testing.assert_allclose(values[name], value.detach().numpy(), rtol=1e-4, atol=2e-6)
        state = adam.state[value]["exp_avg"].numpy() / (1 - by.beta1**20)
        np.testing.assert_allclose(values[f"{name}:exp_avg"], state, rtol=2e-3, atol=1e-6)


def test_adam_is_three_nodes_that_are_each_computed_once() -> None:
    b = Builder("m", (2, 3))
    graph = training_graph(b.model(b.mse(b.linear(b.data, 4, name="fc"))), Adam(weight_decay=0.1))
    rows = [(node.op, node.inputs, node.overwrites) for node in graph if "weight:" in node.name]
    assert rows[2:] == [
        ("linear_grad_weight", ("data", "fc:grad"), None),
        ("average", ("fc.weight:grad", "fc.weight:exp_avg", "fc.weight"), "fc.weight:exp_avg"),
        ("average_square", ("fc.weight:grad", "fc.weight:exp_avg_sq", "fc.weight"),
         "fc.weight:exp_avg_sq"),
        ("adam_step", ("fc.weight", "fc.weight:exp_avg:new", "fc.weight:exp_avg_sq:new"),
         "fc.weight"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("default", "name", "given", "wanted"),
    [
        (Sgd(0.1), None, {"momentum": 0.5}, Sgd(0.1, 0.5)),
        (Sgd(0.1, 0.9), "sgd", {}, Sgd(0.1)),
        (Sgd(0.1), "momentum", {"learning_rate": 0.2}, Sgd(0.2, 0.9)),
        (Sgd(0.1), "adam", {"weight_decay": 0.5}, Adam(weight_decay=0.5)),
        (Adam(0.3), None, {"learning_rate": 0.2}, Adam(0.2)),
        (Adam(0.3), "adam", {}, Adam(0.3)),
        (Adam(0.3), "momentum", {}, Sgd(0.01, 0.9)),
    ],
)
def test_optimisers_by_name(
    default: Optimiser, name: str | None, given: dict[str, float], wanted: Optimiser
) -> None:
    assert optimiser(default, name, **given) == wanted


def test_optimisers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match=r"adam .*momentum"):
        optimiser(Sgd(0.1), "adam", momentum=0.5)
    with pytest.raises(BadInput, match="beta2 is 1"):
        Adam(beta2=1.0)
    with pytest.raises(BadInput, match="choose one of sgd, momentum, nesterov, adam"):
        optimiser(Sgd(0.1), "lion")


def test_what_does_not_learn_keeps_its_values_and_gets_no_gradient() -> None:
    b = Builder("m", (2, 3))
    fixed = b.parameter((3,), start="ones", trainable=False, name="fixed")
    x = b.mul(b.linear(b.data, 3, name="fc"), fixed)
    graph = training_graph(b.model(b.mse(x)), Sgd(0.1))
    assert [node.name for node in graph.trainable] == ["fc.weight", "fc.bias"]
    assert graph["fixed.weight"].role == "state"
    assert not any("fixed" in node.name for node in graph if not node.stored)


def mistakes(b: Builder, words: Builder) -> list[tuple[Callable[[], Any], str]]:
    x = b.data  # (2, 4, 6)
    return [
        (lambda: b.add(x, b.slice(x, 2, 0, 5)), "along each axis"),
        (lambda: b.transpose(x, (0, 1, 1)), "3 axes"),
        (lambda: b.transpose(x, (0, 1, 3)), "axis 3 does not exist"),
        (lambda: b.concat(x, b.slice(x, 2, 0, 5), 1), "the same shape, except along axis 1"),
        (lambda: b.slice(x, 1, 2, 5), "`begin` (2) and `end` (5)"),
        (lambda: b.reshape(x, (-1, -1)), "(-1, -1)"),
        (lambda: b.reshape(x, (5, -1)), "48 elements, so it cannot have the shape (5, -1)"),
        (lambda: b.mean(x, ()), "`axes`"),
        (lambda: b.clip(x, 1.0, 0.0), "`low` (1.0)"),
        (lambda: b.gelu(x, approximate="erf"), "`approximate` ('erf')"),
        (lambda: b.scale(x, float("nan")), "`factor` (nan)"),
        (lambda: b.matmul(x, x), "6 columns"),
        (lambda: b.attention_scores(x, x, 4), "width (6)"),
        (lambda: b.attention_context(x, x), "weights must have"),
        (lambda: b.layernorm(x, axes=4), "`axes` (4)"),
        (lambda: b.parameter((2, 0)), "a size is 0"),
        (lambda: b.embedding(x, 5, 3), "input `x` must be tokens"),
        (lambda: words.relu(words.data), "input `x` must be float32"),
        (lambda: words.embedding(words.data, 0, 3), "vocabulary is 0"),
        (lambda: words.embedding(words.data, 5, 3, padding=5), "must be a row of the table"),
    ]  # fmt: skip


def test_mistakes_say_what_is_wrong() -> None:
    for mistake, says in mistakes(Builder("m", (2, 4, 6)), Builder("w", (2, 4), "int32")):
        with pytest.raises(BadInput, match=r"layer \w+.*: .*") as caught:
            mistake()
        assert says in str(caught.value)
