"""The built-in models: true gradients, known sizes, and what the demo promises of its own."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from poet_host.data.datasets import Dataset, load_data
from poet_host.device.board import load_board
from poet_host.errors import BadInput
from poet_host.graph import models
from poet_host.graph.bert import transformer as one_block
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.training_options import MAX_BATCH, TrainingOptions
from poet_host.graph.weights import start_values
from poet_host.graph.work import work_of
from poet_host.plan.keepall import keep_everything
from poet_host.plan.pricing import cost_graph
from poet_host.profile.profile import estimate_profile
from poet_host.reference.inference import logits
from support import whole_runs as runs
from support.torch_model import check_gradients

DEMO = "resnet-digits"
ARENA_BYTES = 24 * 1024
TRAINABLE = {
    "resnet-digits": 4 * 9 + 2 * 4 * 4 * 9 + 16 * 4 * 9 + 2 * (4 * 3 + 16) + 10 * (16 * 16 + 1),
    "lenet-digits": 6 * 26 + 16 * 151 + 120 * 65 + 84 * 121 + 10 * 85,
    "resnet8-cifar": 78_666 - 480,  # MLPerf Tiny's count includes running statistics
    # MLPerf Tiny's counts include running statistics, too: 24,908, 221,794 and 269,992.
    "dscnn-speech": 24_908 - 1_152,
    "mobilenet-vww": 221_794 - 5_472,
    "autoencoder-toyadmos": 269_992 - 2_064,
    "resnet18-cifar": 16 * (27 + 2)
    + 4 * 16 * (144 + 2)
    + 32 * (144 + 3 * 288 + 16 + 5 * 2)
    + 64 * (288 + 3 * 576 + 32 + 5 * 2)
    + 10 * 65,
    "resnet18": 11_173_962,  # the usual ResNet-18 of CIFAR-10
    "vgg16-cifar": 33_638_218,
    "transformer": (12 * 768 + 13) * 768 + 769 * 768 + 7690,
    "bert-micro": 512 * 64 + 64 * 64 + 2 * 64 + 2 * (12 * 64 + 13) * 64 + 65 * 64 + 650,
    "bert-tiny": 30_522 * 128 + 128 * 128 + 2 * 128 + 2 * (12 * 128 + 13) * 128 + 129 * 128 + 1290,
    "bert-base": 30_522 * 768 + 512 * 768 + 2 * 768 + 12 * (12 * 768 + 13) * 768 + 769 * 768 + 7690,
    "linear": 784 * 10 + 10 * 120 + 120 * 100 + 100 * 200 + 200 * 10 + 10 * 10 + 450,
}


def count(graph: Graph, role: str) -> int:
    return sum(prod(node.shape) for node in graph if node.role == role)


SMALL = [name for name in models.MODELS if name not in ("bert-base", "transformer")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    model = models.MODELS[name].forward(2 if name.endswith(("digits", "toyadmos")) else 1)
    check_gradients(model, tolerance=1e-4 if name == "bert-tiny" else 2e-5)


def test_gradients_of_one_block_are_those_of_pytorch() -> None:
    check_gradients(one_block(Builder("narrow", (2, 5, 12)), heads=3, classes=4))


@pytest.mark.parametrize("train", ["last:1", "last:5", "block.*"])
def test_gradients_of_a_part_are_those_of_pytorch(train: str) -> None:
    check_gradients(models.MODELS[DEMO].forward(3), train)


@pytest.mark.parametrize("name", models.MODELS)
def test_parameter_counts(name: str) -> None:
    assert count(models.load(name, TrainingOptions(momentum=0.0)), "parameter") == TRAINABLE[name]


def test_state_is_running_statistics_and_momentum() -> None:
    graph = models.load("resnet8-cifar", TrainingOptions(momentum=0.0))
    assert count(graph, "state") == 480
    with_momentum = models.load("resnet8-cifar", TrainingOptions(momentum=0.9))
    assert count(with_momentum, "state") == 480 + TRAINABLE["resnet8-cifar"]


def test_linear_has_the_sizes_of_the_paper() -> None:
    graph = models.load("linear")
    sizes = [node.size_bytes for node in graph if node.phase == "forward"][:-1]
    assert graph[graph.data].size_bytes == 3136
    assert sizes == [40, 40, 480, 480, 400, 400, 800, 800, 40, 40, 40, 40]


def test_the_resnet_of_the_paper_has_true_shortcuts_and_operators_in_place() -> None:
    graph = models.load("resnet18-cifar")
    adds = [node for node in graph if node.op == "add" and node.phase == "forward"]
    assert [node.inputs[1] for node in adds] == [
        "relu1",
        "layer1.1.relu2",
        "layer2.1.shortcut.bn",
        "layer2.1.relu2",
        "layer3.1.shortcut.bn",
        "layer3.1.relu2",
    ]
    assert graph["layer2.1.shortcut.conv.weight"].shape == (32, 16, 1, 1)
    assert graph.batch == 1
    assert max(working_set(graph).values()) == 180_224  # a 3x3 convolution of 64 to 64 channels


def test_resnet8_needs_the_ram_of_one_convolution() -> None:
    assert max(working_set(models.load("resnet8-cifar")).values()) == 180_480


def test_bert_micro_fits_boards_of_256_kb() -> None:
    graph = models.load("bert-micro")
    assert max(working_set(graph).values()) <= 200 * 1024
    table = graph["word.weight"].size_bytes
    assert table == 128 * 1024
    assert graph[graph.data].dtype == "int32"


@pytest.mark.slow
def test_bert_micro_learns_topics() -> None:
    """By Adam, in a few steps. Keys' biases change no softmax, so they may not move."""
    graph = models.load(
        "bert-micro", TrainingOptions(sequence_length=16, batch=8, optimizer="adam")
    )
    data = load_data("tokens:16:512:2")
    before = start_values(graph, 0)
    after = runs.trained_by_reference(graph, before, data, 24)
    moved = [node for node in graph.trainable if (after[node.name] != before[node.name]).any()]
    others = [node for node in graph.trainable if not node.name.endswith("key.bias")]
    assert set(map(str, others)) <= set(map(str, moved))
    assert data.x_test is not None
    assert _accuracy(graph, after, data) > 0.8


def test_bert_base_is_planned_without_its_weights() -> None:
    """12 blocks of 128 tokens: its costs alone, as planners are given them."""
    graph = models.load("bert-base", TrainingOptions(sequence_length=128))
    costs = cost_graph(graph, estimate_profile(load_board("jetson_tx2")))
    assert len(costs.nodes) == len(graph.nodes) == 825
    assert sum(node.stored for node in costs.nodes) == 202
    assert graph["block1.weights"].shape == (1, 12, 128, 128)
    assert graph["block12.wide"].shape == (1, 128, 3072)
    keep = keep_everything(costs)
    assert keep.peak_bytes is not None
    assert keep.peak_bytes > sum(node.bytes for node in costs.nodes if node.stored)


def test_only_models_of_texts_have_a_length() -> None:
    with pytest.raises(BadInput, match=r"resnet-digits .*sequence length"):
        models.load(DEMO, TrainingOptions(sequence_length=8))
    with pytest.raises(BadInput, match="0 tokens"):
        models.load("bert-tiny", TrainingOptions(sequence_length=0))


def working_set(graph: Graph) -> dict[str, int]:
    """Bytes of each operator's inputs and output together."""
    return {
        node.name: sum(
            graph[name].size_bytes for name in {*node.inputs, node.name} - {node.overwrites}
        )
        for node in graph
        if not node.stored
    }


def test_demo_is_small_in_arithmetic_and_large_in_activations() -> None:
    graph = models.load(DEMO)
    macs = sum(work_of(node, graph).macs for node in graph)
    assert macs == graph.batch * 77_216
    with_padding = sum(_macs_with_padding(graph, node.name) for node in graph)
    assert with_padding <= graph.batch * 100_000
    assert max(working_set(graph).values()) <= ARENA_BYTES - 8 * 1024
    costs = cost_graph(graph, estimate_profile(load_board("native")))
    assert (keep_everything(costs).peak_bytes or 0) >= 2 * ARENA_BYTES
    ops = {node.op for node in graph}
    assert {"conv2d", "batchnorm", "relu", "maxpool2d", "add", "linear", "softmax_xent"} <= ops


def _macs_with_padding(graph: Graph, name: str) -> int:
    """Multiply-accumulates as people count them: the window's padding included."""
    a, op = graph[name].attrs, graph[name].op
    if op.startswith("linear"):
        return int(a["n"] * a["c"] * a["k"])
    if not op.startswith("conv2d"):
        return 0
    return int(
        a["n"] * a["k"] * a["oh"] * a["ow"] * a["c"] / a["groups"] * a["kernel_h"] * a["kernel_w"]
    )


@pytest.mark.slow
def test_demo_learns_all_ten_digits_from_512_samples() -> None:
    """Pre-training on the digits 0 to 6, then one pass over 512 samples of all ten."""
    digits = load_data("digits")
    order = np.random.default_rng(0).permutation(len(digits.x))
    mine, rest = order[:512], order[512:]
    rest = rest[digits.y[rest] < 7]
    graph = models.load(DEMO)
    known = replace(digits, x=digits.x[rest], y=digits.y[rest])
    ten = replace(digits, x=digits.x[mine], y=digits.y[mine])
    pretraining = models.load(DEMO, TrainingOptions(learning_rate=0.1))
    before = runs.trained_by_reference(
        pretraining, start_values(graph, 0), known, 3 * len(rest) // graph.batch
    )
    after = runs.trained_by_reference(graph, before, ten, 512 // graph.batch)
    assert _accuracy(graph, after, ten) - _accuracy(graph, before, ten) >= 0.2
    assert all((after[node.name] != before[node.name]).any() for node in graph.trainable)


def _accuracy(graph: Graph, values: dict[str, np.ndarray], data: Dataset) -> float:
    assert data.x_test is not None
    return float(np.mean(logits(graph, values, data.x_test).argmax(1) == data.y_test))


def test_options_change_the_graph() -> None:
    graph = models.load(DEMO, TrainingOptions(batch=3, learning_rate=0.5, weight_decay=0.25))
    assert graph.batch == 3
    update = graph["fc.weight:new"]
    assert update.sink == "sgd"
    assert update.attrs["learning_rate"] == 0.5
    assert update.attrs["weight_decay"] == 0.25
    assert models.load(DEMO, TrainingOptions(momentum=0.5))["fc.weight:new"].op == "momentum_step"
    assert [node.name for node in models.load(DEMO, TrainingOptions(train="last:1")).trainable] == [
        "fc.weight",
        "fc.bias",
    ]


def test_unknown_names_and_batches_are_refused() -> None:
    with pytest.raises(BadInput, match="'resnet-digit': did you mean resnet-digits\\?"):
        models.load("resnet-digit")
    with pytest.raises(BadInput, match=r"'x': .*resnet-digits, lenet-digits"):
        models.load("x")
    for batch in (0, -1, MAX_BATCH + 1):
        with pytest.raises(BadInput, match=f"batch .*{MAX_BATCH} samples, not {batch}"):
            models.load(DEMO, TrainingOptions(batch=batch))
