"""PyTorch modules: their modes, both exporters, and what a module may do while it is exported."""

import logging
import os
import sys
import warnings
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.inference import logits
from support.onnx_architectures import Between, Language, Normalised, Repeated, VisionTransformer
from support.onnx_judge import imported
from support.onnx_models import BuiltIn, Depthwise, Residual, legacy
from torch import Tensor, nn
from torch.nn import functional

X = torch.linspace(-1, 1, 12).reshape(2, 6)


def loaded(module: nn.Module, x: Tensor = X, **options: Any) -> Graph:
    graph = poet.load(module, x, **options)
    assert isinstance(graph, Graph)
    return graph


def answers(graph: Graph, x: Tensor = X) -> Any:
    fed = x.numpy() if x.is_floating_point() else x.numpy().astype(np.int32)
    return logits(graph, start_values(graph, 0), fed)


# Modes.


class Asking(nn.Module):
    """Another function in each mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (7.0 if self.training else 2.0)


class Stochastic(nn.Module):
    """Leaves out its branch for some samples in training, as StochasticDepth."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        if self.training:
            y = y * (torch.rand(x.shape[0], 1) > 0.5).float()
        return x + y


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.3, self.training)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_each_submodule_is_loaded_in_its_mode(first: bool, second: bool, whole: bool) -> None:
    module = nn.Sequential(Asking(), nn.Linear(6, 6), Asking(), nn.Linear(6, 3))
    module.train(whole)
    module[0].train(first)
    module[2].train(second)
    assert np.allclose(answers(loaded(module)), module(X).detach(), atol=1e-5)


@pytest.mark.parametrize("dropout", [Functional, lambda: nn.Dropout(0.3)])
@pytest.mark.parametrize("trained", [True, False])
def test_dropout_is_active_in_training_mode_alone(dropout: Any, trained: bool) -> None:
    module = nn.Sequential(dropout(), nn.Linear(6, 6), dropout(), nn.Linear(6, 3))
    module.train(not trained)
    module[2].train(trained)
    where = 2 if trained else 0
    ops = [node.op for node in loaded(module) if node.phase == "forward"]
    expected = ["linear", "linear", "softmax_xent"]
    assert ops == [*expected[: where // 2], "dropout", *expected[where // 2 :]]


def test_random_operators_of_training_are_absent_in_eval_mode() -> None:
    module = nn.Sequential(Stochastic(), nn.Linear(6, 3))
    with pytest.raises(poet.BadInput, match="Random"):
        loaded(module.train())
    assert np.allclose(answers(loaded(module.eval())), module(X).detach(), atol=1e-5)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("option", [None, "train", "frozen"])
def test_an_option_says_what_batchnorm_does(mode: bool, option: str | None) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    module[1].train(mode)
    ops = {node.op for node in loaded(module, batchnorm=option)}
    assert ("batchnorm_stats" in ops) == (option != "frozen")


@pytest.mark.parametrize("gradients", [True, False])
def test_a_frozen_transformer_in_eval_mode_is_loaded(gradients: bool) -> None:
    """PyTorch has fused kernels for it, which no exporter knows."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).requires_grad_(False)
    module, x = nn.Sequential(layer, nn.Linear(6, 3)).eval(), torch.randn(2, 4, 6)
    with torch.set_grad_enabled(gradients):
        graph = loaded(module, x, loss="cross-entropy")
    assert {node.name for node in graph.trainable} == {"1.weight", "1.bias"}
    assert np.allclose(answers(graph, x), module(x).detach(), atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


class Watched(nn.Module):
    """Changes its state, its input and the random numbers in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.drop.eval()
        self.fc.register_forward_hook(lambda module, inputs, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.norm.train(not self.norm.training)
        x.mul_(2)
        y: Tensor = self.fc(functional.dropout(self.norm(x), 0.1))
        return y


def test_loading_changes_nothing_of_the_module() -> None:
    module, x = Watched(), X.clone()
    random = torch.random.get_rng_state()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    hooks = dict(module.fc._forward_hooks)
    loaded(module, x)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert dict(module.fc._forward_hooks) == hooks
    assert torch.equal(x, X)
    assert torch.equal(random, torch.random.get_rng_state())


# The file of the same module.


def images() -> Tensor:
    return torch.randn(2, 1, 8, 8)


def texts() -> Tensor:
    return torch.randint(1, 17, (2, 10))


def of_file(module: nn.Module, x: Tensor, **options: Any) -> Graph:
    axes = {"input_names": ["in"], "dynamic_axes": {"in": {0: "n"}}}
    return imported(legacy(module, x, **axes), loss="cross-entropy", batch=2, **options)


@pytest.mark.parametrize(
    ("module_of", "x"),
    [
        (Residual, images()),
        (Depthwise, images()),
        (Between, images()),
        (Repeated, images()),
        (VisionTransformer, images()),
        (Normalised, images()),
        (Language, texts()),
        (BuiltIn, texts()),
        (lambda: nn.Sequential(Stochastic(), Functional(), nn.Linear(6, 3)), X),
    ],
)
def test_a_module_in_eval_mode_gives_the_graph_of_its_file(module_of: Any, x: Tensor) -> None:
    torch.manual_seed(0)
    module = module_of().eval()
    trained = "*.weight"  # a file does not know which tensors are buffers
    graph = loaded(module, x, batch=2, loss="cross-entropy", train=trained)
    assert graph.nodes == of_file(module, x, train=trained).nodes


def torchvision(name: str) -> tuple[nn.Module, Tensor]:
    models = pytest.importorskip("torchvision").models
    return getattr(models, name)(num_classes=10), torch.randn(2, 3, 64, 64)


def timm(name: str, **options: Any) -> tuple[nn.Module, Tensor]:
    made = pytest.importorskip("timm").create_model(name, num_classes=10, **options)
    return made, torch.randn(2, 3, 64, 64)


class Answers(nn.Module):
    """The logits of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x).logits
        return y


def transformers(name: str, config: str, x: Tensor, **options: Any) -> tuple[nn.Module, Tensor]:
    package = pytest.importorskip("transformers")
    settings = getattr(package, config)(num_labels=3, **options)
    settings._attn_implementation = "eager"
    return Answers(getattr(package, name)(settings)), x


WORDS = {"vocab_size": 17, "max_position_embeddings": 16}
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SOUND = {
    **SMALL, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "classifier_proj_size": 8,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
IN_LIBRARIES: dict[str, Any] = {
    **{
        name: lambda name=name: torchvision(name)
        for name in ("efficientnet_b0", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5")
    },
    **{name: lambda name=name: timm(name) for name in ("lcnet_050", "ghostnet_050", "tinynet_e")},
    "vit_tiny": lambda: timm("vit_tiny_patch16_224", img_size=64, depth=2, drop_path_rate=0.1),
    "bert": lambda: transformers(
        "BertForSequenceClassification", "BertConfig", texts(), **SMALL, **WORDS
    ),
    "electra": lambda: transformers(
        "ElectraForSequenceClassification", "ElectraConfig", texts(), **SMALL, **WORDS
    ),
    "vit": lambda: transformers(
        "ViTForImageClassification", "ViTConfig", torch.randn(2, 3, 32, 32),
        image_size=32, patch_size=8, **SMALL,
    ),
    "wav2vec2": lambda: transformers(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", torch.randn(2, 400), **SOUND
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::poet_host.errors.PoetWarning")
@pytest.mark.parametrize("name", IN_LIBRARIES)
def test_a_module_of_a_library_gives_the_graph_of_its_file(name: str) -> None:
    """The test is skipped for a library that is not installed."""
    module, x = IN_LIBRARIES[name]()
    module.eval()
    graph = loaded(module, x, batch=2, loss="cross-entropy")
    assert graph.nodes == of_file(module, x).nodes


# Two exporters.


class Differences(nn.Module):
    """The older exporter has no diff, and prints its whole graph."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.fc, self.activation = nn.Linear(5, 3), activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.fc(torch.diff(x)))
        return y


def test_the_exporter_that_works_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    module = Differences(nn.Tanh()).eval()
    graph = loaded(module)
    assert capfd.readouterr() == ("", "")
    assert np.allclose(answers(graph, X), module(X).detach(), atol=1e-5)


class Fixed(nn.Module):
    """Has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.fixed = nn.Linear(5, 3), torch.linspace(0.5, 1, 25).reshape(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(torch.diff(x) @ self.fixed.T + self.fixed[0])
        return y


def test_the_newer_exporter_trains_parameters_alone() -> None:
    assert {node.name for node in loaded(Fixed()).trainable} == {"fc.weight", "fc.bias"}


class Tangent(nn.Module):
    """Has an operator that cannot be trained."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tan(x)


@pytest.mark.parametrize(
    ("module", "node"),
    [
        (nn.Sequential(nn.Linear(6, 3), Tangent()), "/1/Tan"),  # the older exporter's name
        (Differences(Tangent()), ""),
    ],
)
def test_the_exporter_with_the_fewest_problems_is_reported(module: nn.Module, node: str) -> None:
    first = rf"^model {type(module).__name__}: 1 of \d+ nodes .*\n  {node}.*\(Tan\)"
    with pytest.raises(poet.BadInput, match=first):
        loaded(module)


def test_a_batchnorm_without_a_running_mean_is_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(poet.BadInput, match="track_running_stats=True"):
        loaded(module)


@pytest.mark.parametrize(
    ("option", "exports"), [({"loss": "hinge"}, 0), ({"batch": 0}, 0), ({"train": "none.*"}, 1)]
)
def test_a_wrong_option_is_refused_without_another_export(
    option: dict[str, Any], exports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, export = [], torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *a, **k: (calls.append(1), export(*a, **k)))
    with pytest.raises(poet.BadInput):
        loaded(nn.Linear(6, 3), **option)
    assert len(calls) == exports


class Named(nn.Module):
    """Has parameters with the names of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.scale = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x * self.data * (self.scale if scale is None else self.scale * scale)


@pytest.mark.parametrize("count", [1, 2])
def test_parameters_with_names_of_inputs_keep_them(count: int) -> None:
    graph = poet.load(Named(), (X,) * count, loss="mse")
    assert isinstance(graph, Graph)
    assert set(to_named(graph, start_values(graph, 0), constants=False)) == {"data", "scale"}
    assert not graph.made_up


class Counting(nn.Module):
    """Computes with the number of samples, which the older exporter writes as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.fc(x.reshape(-1, 3)).view(len(x), -1, 3)
        rows = rows - rows.mean(1, keepdim=True) + torch.ones(len(x), 1, 1) / len(x)
        return rows.reshape(-1, 3).view(-1, 6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_samples_is_that_of_the_batch(count: int) -> None:
    module, x = Counting(), torch.randn(4, 6)
    graph = loaded(module, x[:count], batch=4, loss="mse")
    assert np.allclose(answers(graph, x).reshape(4, 6), module(x).detach(), atol=1e-5)


# What a module does while it is exported.


class Loud(nn.Module):
    """Prints in every way, and then fails or not."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.fc, self.error = nn.Linear(6, 3), error

    def forward(self, x: Tensor) -> Tensor:
        print("loud")
        print("loud", file=sys.stderr)
        print("loud", file=sys.__stdout__)
        for descriptor in (1, 2):
            os.write(descriptor, b"loud")
        warnings.warn("loud", stacklevel=1)
        logging.getLogger("loud").critical("loud")
        logging.log(1000, "loud")
        if self.error is not None:
            raise self.error
        y: Tensor = self.fc(x)
        return y


@pytest.mark.parametrize(
    "error",
    [None, ValueError("two\nlines"), RuntimeError(), KeyboardInterrupt(), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)
def test_nothing_is_printed(
    error: BaseException | None,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    print("before")
    if error is None:
        loaded(Loud())
    elif isinstance(error, Exception):
        with pytest.raises(poet.BadInput, match=r"^model Loud: module\(example\) .*$") as refused:
            loaded(Loud(error))
        assert (str(error).split("\n")[0] or type(error).__name__) in str(refused.value)
    else:
        with pytest.raises(type(error)):
            loaded(Loud(error))
    print("after")
    assert capfd.readouterr() == ("before\nafter\n", "")
    assert not caplog.records
    assert not list(recwarn)
    logging.getLogger("loud").critical("again")
    assert [record.message for record in caplog.records] == ["again"]


@pytest.mark.parametrize(
    ("module", "x", "named"),
    [
        (nn.LazyLinear(3), X, "weight .*call module"),
        (nn.Sequential(nn.Linear(6, 6), nn.LazyBatchNorm1d()), X, "1.weight .*call module"),
        (nn.Linear(5, 3), X, r"module\(example\).*2x6 and 5x3"),
        (nn.Linear(6, 3, device="meta"), X, "deepcopy"),
        (nn.Linear(6, 3), X.to("meta"), r"module\(example\)"),
        (nn.Linear(6, 3), torch.tensor(1.0), "example"),
        (nn.Linear(6, 3).bfloat16(), X.bfloat16(), "BFloat16"),
        (nn.Module(), X, "forward"),
    ],
)
def test_modules_that_cannot_run_are_refused_in_a_sentence(
    module: nn.Module, x: Tensor, named: str
) -> None:
    with pytest.raises(poet.BadInput, match=f"^model {type(module).__name__}: .*{named}.*$"):
        loaded(module, x)


class AnyInputs(nn.Module):
    """Takes any number of inputs, and computes what only the newer exporter knows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, *inputs: Tensor) -> Tensor:
        y: Tensor = self.head(torch.diff(torch.stack(inputs).sum(0), dim=1))
        return y


def test_any_number_of_inputs_by_the_newer_exporter() -> None:
    graph = poet.load(AnyInputs(), (X, X + 1), batch=2)
    assert isinstance(graph, Graph)
    assert {node.name for node in graph.trainable} == {"head.weight", "head.bias"}
