"""Loss objects of PyTorch, as the text of a loss. This does not import torch."""

from typing import Any

from ..errors import BadInput
from ..graph.losses import LOSSES, Loss

_NAMES = {
    "CrossEntropyLoss": "cross-entropy", "MSELoss": "mse", "L1Loss": "l1", "HuberLoss": "huber",
    "SmoothL1Loss": "smooth-l1", "BCEWithLogitsLoss": "bce",
}  # fmt: skip
# Values that change nothing. PyTorch's default of `ignore_index` looks like a given one.
_DEFAULTS = {"label_smoothing": 0, "ignore_index": -100}


def text_of(loss: Any) -> str | None:
    """Return the text of a loss of torch.nn. Return a text or None as it is.

    As in PyTorch, the classes of CrossEntropyLoss are axis 1. Raises BadInput for another object.
    """
    if loss is None or isinstance(loss, str):
        return loss
    kind = type(loss)
    name = _NAMES.get(kind.__name__, "") if kind.__module__.startswith("torch.nn.") else ""
    if not name or loss.reduction != "mean" or (name == "bce" and loss.weight is not None):
        raise BadInput(
            f"the loss {loss!r} of type {kind.__name__} cannot be trained: pass a text such as "
            "'huber:delta=0.5', or an object of torch.nn with reduction='mean' (BCEWithLogitsLoss "
            f"without `weight`): {', '.join(_NAMES)}"
        )
    options: dict[str, Any] = {}
    for option in LOSSES[name][1]:
        # The module lacks only `axis`: its classes are axis 1.
        value: Any = getattr(loss, option.replace("class_weights", "weight"), 1)
        if hasattr(value, "tolist"):
            if value.numel() not in (1, *value.shape[-1:]):
                raise BadInput(f"the loss {loss!r}: pass `{option}` as one number or a vector")
            value = tuple(value.flatten().tolist())
        if value is not None and value != _DEFAULTS.get(option):
            options[option] = value
    return str(Loss(name, options))
