"""Optimisers and their rates. autodiff.py adds the operators of the optimiser to a graph."""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from ..errors import BadInput, quoted

MAX_FLOAT32 = 3.4e38  # largest rate: boards compute with float32
MAX_BETA = 0.99999  # up to this value, the float32 error of 1 - beta is below 1 %


class _Rates:
    """Rates that are finite numbers, 0 or more. Raises BadInput for others."""

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if checked_rate(name, rate) > MAX_BETA and name.startswith("beta"):
                raise BadInput(f"{name} is {rate}: it must be at most {MAX_BETA}")


@dataclass(frozen=True)
class Sgd(_Rates):
    """SGD as in PyTorch, with the gradient g of a weight w and the state v.

    v' = momentum * v + (g + weight_decay * w); w' = w - learning_rate * v'.
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False  # w' = w - learning_rate * (g + weight_decay * w + momentum * v')

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1:
            raise BadInput(f"momentum is {self.momentum}: it must be less than 1")


@dataclass(frozen=True)
class Adam(_Rates):
    """Adam (Kingma and Ba, 2015) as in PyTorch. Weight decay is added to the gradient.

    The stored averages already include the bias correction.
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, but weight decay is added to the change of a weight (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01


@dataclass(frozen=True)
class RmsProp(_Rates):
    """RMSprop as in PyTorch, where `beta2` is `alpha`. Weight decay is added to the gradient."""

    learning_rate: float = 0.01
    beta2: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0


def checked_rate(name: str, value: Any) -> float:
    """Return the rate. Raises BadInput, with its name, if it is not a finite number, 0 or more."""
    is_number = isinstance(value, Real)
    if not is_number or not 0 <= value <= MAX_FLOAT32:
        raise BadInput(f"{name} is {quoted(value)}: it must be a finite number, 0 or more")
    return float(value)


Optimiser = Sgd | Adam | RmsProp

_USUAL: dict[str, Optimiser] = {
    "sgd": Sgd(0.01),
    "momentum": Sgd(0.01, momentum=0.9),
    "nesterov": Sgd(0.01, momentum=0.9, nesterov=True),
    "adam": Adam(),
    "adamw": AdamW(),
    "rmsprop": RmsProp(),
}
OPTIMISERS = tuple(_USUAL)


def optimiser(default: Optimiser, name: str | None, **given: float | None) -> Optimiser:
    """Return the optimiser `name` (one of OPTIMISERS), or `default` if `name` is None.

    `given` has the optimiser's rates. If a rate is None, its default is used: that of `default` if
    it is of the same kind, else that of PyTorch, with 0.9 for momentum and 0.01 for the learning
    rate of SGD. Raises BadInput for a rate that the optimiser does not have.
    """
    changed = {field: value for field, value in given.items() if value is not None}
    if name is not None and name not in OPTIMISERS:
        raise BadInput(f"`optimizer` is {name!r}: choose one of {', '.join(OPTIMISERS)}")
    if name == "sgd" and changed.get("momentum"):
        raise BadInput("sgd has no option `momentum`: choose the optimizer `momentum`")
    usual = default if name is None else _USUAL[name]
    if isinstance(usual, Sgd) and isinstance(default, Sgd):
        usual = replace(default, momentum=usual.momentum, nesterov=usual.nesterov)
    elif type(usual) is type(default):
        usual = default
    for field in changed:
        if not hasattr(usual, field):
            kind = name or type(usual).__name__.lower()
            owner = field if field == "momentum" else "adam"
            raise BadInput(
                f"{kind} has no option `{field}`: omit it, or choose the optimizer `{owner}`"
            )
    found: Optimiser = replace(usual, **changed)  # type: ignore[arg-type]
    return found
