"""Built-in models: each is a function batch -> Model with the optimiser it learns well with."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ..errors import BadInput
from .autodiff import Sgd, training_graph
from .build import Builder, Model
from .graph import Graph


def resnet_digits(batch: int) -> Model:
    """8x8 digits; one residual block."""
    b = Builder("resnet-digits", data=(batch, 1, 8, 8))
    x = b.conv2d(b.data, 8, 3, padding=1, bias=False, name="conv1")
    x = pooled = b.maxpool2d(b.relu(b.batchnorm2d(x, name="bn1"), name="relu1"), 2, name="pool1")
    x = b.conv2d(x, 8, 3, padding=1, bias=False, name="conv2")
    x = b.add(b.batchnorm2d(x, name="bn2"), pooled, name="add")
    x = b.flatten(b.relu(x, name="relu2"))
    return b.model(b.softmax_xent(b.linear(x, 10, name="fc"), name="loss"))


MAX_BATCH = 65536


@dataclass(frozen=True)
class BuiltIn:
    description: str
    forward: Callable[[int], Model]
    batch: int
    optimiser: Sgd


MODELS = {
    "resnet-digits": BuiltIn("8x8 digits, one residual block", resnet_digits, 8, Sgd(0.05)),
}


def load(
    name: str,
    *,
    batch: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    train: str = "all",
) -> Graph:
    """The training graph of a built-in model; what is not given is as the model learns well.

    `train`: see autodiff.training_graph. Raises BadInput for an unknown name or wrong number.
    """
    if name not in MODELS:
        close = get_close_matches(name, MODELS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(MODELS)}"
        raise BadInput(f"there is no built-in model {name!r}: {hint}")
    if batch is not None and not 1 <= batch <= MAX_BATCH:
        raise BadInput(f"model {name}: a batch of {batch} samples must be 1 to {MAX_BATCH}")
    built_in = MODELS[name]
    given = {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
    changed = {field: value for field, value in given.items() if value is not None}
    optimiser = replace(built_in.optimiser, **changed)
    return training_graph(built_in.forward(batch or built_in.batch), optimiser, train)
