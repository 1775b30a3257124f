"""Masks of attention as people and exporters write them, compared with ONNX Runtime."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
from support.onnx_judge import by_runtime, imported, random, same_as_runtime
from support.onnx_models import by_dynamo, legacy, model
from torch import Tensor, nn
from torch.nn import functional

TEXTS = np.array([[5, 3, 9, 1, 2, 0, 0, 0], [4, 0, 7, 7, 2, 6, 1, 0], [1, 2, 3, 4, 5, 6, 7, 8]])
LENGTH = TEXTS.shape[1]


def shut(tokens: Tensor) -> Tensor:
    return (tokens == 0)[:, None, None, :]


def future() -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def filled(scores: Tensor, tokens: Tensor) -> Tensor:
    return scores.masked_fill(shut(tokens), -math.inf).softmax(-1)


def as_bert(scores: Tensor, tokens: Tensor) -> Tensor:
    """What is seen as numbers, turned round, times the least of all."""
    seen = (tokens != 0).float().unsqueeze(1).unsqueeze(2)
    return (scores + (1 - seen) * torch.finfo(torch.float32).min).softmax(-1)


def as_gpt(scores: Tensor, tokens: Tensor) -> Tensor:
    seen = ~shut(tokens) & ~future()
    return scores.masked_fill(seen == 0, -1e9).softmax(-1)


def twice(scores: Tensor, tokens: Tensor) -> Tensor:
    scores = scores + torch.zeros(LENGTH, LENGTH).masked_fill(future(), -math.inf)
    return scores.masked_fill(shut(tokens), -1e9).softmax(-1)


def selected(scores: Tensor, tokens: Tensor) -> Tensor:
    return torch.where(tokens.gt(0)[:, None, None], scores, torch.tensor(-1e9)).softmax(-1)


def indexed(scores: Tensor, tokens: Tensor) -> Tensor:
    """As Hugging Face's models look into a mask."""
    texts, words = torch.arange(len(tokens)), torch.arange(tokens.shape[1])
    seen = (tokens != 0)[texts[:, None, None, None], words[None, None, None, :]]
    return torch.where(seen, scores, torch.tensor(-1e9)).softmax(-1)


def guarded(scores: Tensor, tokens: Tensor) -> Tensor:
    """Weights of what is not seen are zeros once more."""
    weights = filled(scores, tokens)
    return torch.where(weights.isnan(), 0.0, weights).masked_fill(shut(tokens), 0.0)


class Masked(nn.Module):
    """Attention with two heads over words, weighed by `weights`."""

    def __init__(self, weights: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.many, self.last = (
            nn.Embedding(10, 8),
            nn.Linear(8, 24),
            nn.Linear(8, 3),
        )
        self.weights = weights

    def heads(self, tokens: Tensor) -> list[Tensor]:
        many = self.many(self.embedding(tokens)).chunk(3, -1)
        return [part.view(*tokens.shape, 2, 4).transpose(1, 2) for part in many]

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.heads(tokens)
        weights = self.weights(q @ k.transpose(-1, -2) / 2, tokens)
        y: Tensor = self.last((weights @ v).transpose(1, 2).reshape(*tokens.shape, 8)[:, 1])
        return y


class Scaled(Masked):
    """The same by PyTorch's function."""

    def forward(self, tokens: Tensor) -> Tensor:
        y = functional.scaled_dot_product_attention(
            *self.heads(tokens), attn_mask=self.weights(torch.zeros(1), tokens)
        )
        out: Tensor = self.last(y.transpose(1, 2).reshape(*tokens.shape, 8)[:, 1])
        return out


class Multihead(Masked):
    """The same by PyTorch's module, which makes one axis of samples and heads."""

    def __init__(self) -> None:
        super().__init__(filled)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        y: Tensor = self.last(self.attention(x, x, x, key_padding_mask=tokens == 0)[0][:, 1])
        return y


MODULES: dict[str, Callable[[], nn.Module]] = {
    "filled": lambda: Masked(filled),
    "as bert": lambda: Masked(as_bert),
    "as gpt": lambda: Masked(as_gpt),
    "twice": lambda: Masked(twice),
    "selected": lambda: Masked(selected),
    "indexed": lambda: Masked(indexed),
    "guarded": lambda: Masked(guarded),
    "scaled": lambda: Scaled(lambda _, tokens: ~shut(tokens)),
    "scaled, numbers": lambda: Scaled(
        lambda _, tokens: torch.zeros(1).masked_fill(shut(tokens) | future(), -1e9)
    ),
    "multihead": Multihead,
}


@pytest.mark.slow
@pytest.mark.parametrize("exporter", [legacy, by_dynamo])
@pytest.mark.parametrize("case", MODULES)
def test_masks_are_recognised_by_their_effect(case: str, exporter: Callable[..., bytes]) -> None:
    torch.manual_seed(0)
    data = exporter(MODULES[case](), torch.tensor(TEXTS))
    graph = imported(data)
    found = logits(graph, start_values(graph, 0), TEXTS.astype(np.int32))
    assert np.allclose(found, by_runtime(data, TEXTS), atol=1e-5)
    softmax = next(node for node in graph if node.op == "softmax")
    assert softmax.inputs[1:] == (graph.data,)
    assert softmax.attrs["variant"] == (case in ("as gpt", "twice", "scaled, numbers"))
    assert all(node.op != "mul" for node in graph if node.phase == "forward")


def scored(mask: list[Any], constants: dict[str, Any]) -> bytes:
    """Scores of words with words, (texts, length, length), what `mask` computes, and a softmax."""
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["words"]),
        helper.make_node("MatMul", ["words", "w"], ["scores"]),
        *mask,
        helper.make_node("Add", ["mask", "scores"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    constants = {"table": random(10, 6), "w": random(6, LENGTH), **constants}
    return model(nodes, TEXTS.shape, constants, dtype=TensorProto.INT64)


def hiding(word: int) -> bytes:
    mask = [
        helper.make_node("Equal", ["x", "word"], ["is"]),
        helper.make_node("Where", ["is", "low", "zero"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["mask"]),
    ]
    numbers = {"low": np.float32(-1e9), "zero": np.float32(0), "one": np.array([1])}
    return scored(mask, {"word": np.array(word), **numbers})


def test_only_token_0_is_padding() -> None:
    assert any(node.op == "softmax" and len(node.inputs) == 2 for node in imported(hiding(0)))
    with pytest.raises(BadInput, match=r"mask \(Add\): .*token 0"):
        imported(hiding(1))


@pytest.mark.parametrize("word", [5, 600])
def test_no_token_but_0_is_padding(word: int) -> None:
    numbers = {"low": np.float32(-1e9), "zero": np.float32(0), "one": np.array([1])}
    cast = helper.make_node("Cast", ["x"], ["number"], to=TensorProto.FLOAT)
    for dtype, tokens, before in ((np.int64, "x", []), (np.float32, "number", [cast])):
        mask = [
            *before,
            helper.make_node("Equal", [tokens, "word"], ["is"]),
            helper.make_node("Where", ["is", "low", "zero"], ["flat"]),
            helper.make_node("Unsqueeze", ["flat", "one"], ["mask"]),
        ]
        with pytest.raises(BadInput, match=r"mask \(Add\): .*token 0"):
            imported(scored(mask, {"word": np.array(word, dtype), **numbers}))


def test_scores_that_are_also_biased_are_not_a_causal_mask() -> None:
    past = np.where(np.triu(np.ones((LENGTH, LENGTH)), 1), -1e9, 0).astype(np.float32)
    distance = past + np.where(past < 0, 0, np.arange(LENGTH)).astype(np.float32)
    causal, biased = (imported(scored([], {"mask": mask})) for mask in (past, distance))
    assert [node.attrs["variant"] for node in causal if node.op == "softmax"] == [1]
    assert [node.attrs["variant"] for node in biased if node.op == "softmax"] == [0]
    assert "mask" in {node.name for node in biased}  # added, as it stands


def test_only_masks_read_values_that_follow_from_tokens() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["words"]),
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "two"], ["weights"]),
        helper.make_node("Mul", ["words", "weights"], ["y"], "weigh"),
    ]
    constants = {"table": random(10, 6), "two": np.array([2])}
    with pytest.raises(BadInput, match=r"weigh \(Mul\): .*tokens"):
        imported(model(nodes, TEXTS.shape, constants, dtype=TensorProto.INT64))


def test_tokens_that_are_compared_stay_tokens() -> None:
    """Keras adds the size of the table to negative tokens."""
    nodes = [
        helper.make_node("Less", ["x", "zero"], ["negative"]),
        helper.make_node("Add", ["x", "size"], ["wrapped"]),
        helper.make_node("Where", ["negative", "wrapped", "x"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["y"]),
    ]
    constants = {"table": random(10, 6), "zero": np.array(0), "size": np.array(10)}
    data = model(nodes, TEXTS.shape, constants, dtype=TensorProto.INT64)
    graph = imported(data)
    found = logits(graph, start_values(graph, 0), TEXTS.astype(np.int32))
    assert np.allclose(found, by_runtime(data, TEXTS))


@pytest.mark.parametrize("shape", [TEXTS.shape, (1, 1)])
@pytest.mark.parametrize("op", ["Clip", "Where"])
def test_tokens_that_change_before_an_embedding_are_refused(
    op: str, shape: tuple[int, int]
) -> None:
    nodes = [
        helper.make_node("Equal", ["x", "seven"], ["is"]),
        helper.make_node(op, ["x", "zero", "seven"] if op == "Clip" else ["is", "zero", "x"],
                         ["places"]),
        helper.make_node("Gather", ["table", "places"], ["y"], "look"),
    ]  # fmt: skip
    constants = {"table": random(10, 6), "zero": np.array(0), "seven": np.array(7)}
    with pytest.raises(BadInput, match=r"look \(Gather\): .*tokens"):
        imported(model(nodes, shape, constants, dtype=TensorProto.INT64))


@pytest.mark.parametrize(
    ("op", "attributes"), [("Tanh", {}), ("Transpose", {"perm": [0, 2, 1]}), ("Neg", {})]
)
def test_masked_scores_need_a_softmax(op: str, attributes: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node(op, ["m"], ["n"], "then", **attributes),
        helper.make_node("Softmax", ["n"], ["y"], axis=-1),
    ]
    mask = np.triu(np.full((6, 6), -1e9, np.float32), 1)
    with pytest.raises(BadInput, match=rf"then \({op}\): .*mask"):
        imported(model(nodes, (2, 6, 6), {"w": random(6, 6), "mask": mask}))


@pytest.mark.parametrize("side", ["left", "right"])
def test_masked_scores_in_a_product_are_refused(side: str) -> None:
    """Turned, as the product could read them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Transpose", ["s"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Add", ["turned", "mask"], ["m"]),
        helper.make_node("MatMul", ["m", "x"] if side == "left" else ["x", "m"], ["y"], "then"),
    ]
    mask = np.triu(np.full((6, 6), -1e9, np.float32), 1)
    with pytest.raises(BadInput, match=r"then \(MatMul\): .*mask"):
        imported(model(nodes, (2, 6, 6), {"w": random(6, 6), "mask": mask}))


def test_a_mask_that_hides_nothing_may_add_axes() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Where", ["seen", "s", "low"], ["y"], "mask"),
    ]
    constants = {"w": random(6, 6), "low": np.float32(-1e9)}
    flat = model(nodes, (2, 6, 6), {**constants, "seen": np.ones((6, 6), bool)})
    assert [node.op for node in imported(flat) if node.phase == "forward"] == ["linear", "mse"]
    same_as_runtime(model(nodes, (2, 6, 6), {**constants, "seen": np.ones((2, 1, 6, 6), bool)}))


def test_masked_scores_keep_the_axes_of_the_mask() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Squeeze", ["m", "axis"], ["n"], "then"),
        helper.make_node("Softmax", ["n"], ["y"], axis=-1),
    ]
    mask = np.where(np.arange(6) > 0, -1e9, 0).astype(np.float32)[None]  # of one query, the future
    constants = {"w": random(6, 6), "mask": mask}
    with pytest.raises(BadInput, match=r"then \(Squeeze\): .*mask"):
        imported(model(nodes, (2, 3, 1, 6), {**constants, "axis": np.array([2])}))
    graph = imported(model(nodes, (3, 1, 1, 6), {**constants, "axis": np.array([1])}))
    assert [node.attrs["variant"] for node in graph if node.op == "softmax"] == [1]


def test_transposed_weights_do_not_keep_the_mask() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["weights"], axis=-1),
        helper.make_node("Transpose", ["weights"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Where", ["future", "zero", "turned"], ["y"], "then"),
    ]
    future = np.triu(np.ones((6, 6), bool), 1)
    constants = {"future": future, "mask": np.where(future, -1e9, 0).astype(np.float32)}
    constants |= {"w": random(6, 6), "zero": np.float32(0)}
    graph = same_as_runtime(model(nodes, (2, 6, 6), constants))
    assert "clip_grad" in {node.op for node in graph if node.phase == "forward"}
