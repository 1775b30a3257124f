"""Check the values of samples and labels, and convert them to the types of a board."""

import numpy as np

from ..errors import BadInput
from ..graph.losses import Loss
from ..graph.weights import Array


def finite(where: str, name: str, array: Array) -> Array:
    with np.errstate(over="ignore"):
        values: Array = np.ascontiguousarray(array, dtype=np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        raise BadInput(
            f"{where}: {name} holds NaN or infinity: {int(bad.sum())} numbers, the first in sample "
            f"{int(np.argwhere(bad)[0][0])}. Correct or remove these samples"
        )
    return values


def labels_of(loss: Loss, where: str, name: str, array: Array) -> Array:
    """Return labels that are values, as float32. Raises BadInput if the loss refuses them."""
    y = finite(where, name, array)
    if loss.name == "bce" and len(wrong := np.argwhere((y < 0) | (y > 1))):
        raise BadInput(
            f"{where}: label {y[tuple(wrong[0])]:g} of sample {wrong[0][0]} in {name} is not "
            "from 0 to 1, as the loss bce needs it: change the labels, or solve with --loss mse"
        )
    return y


def class_labels(
    loss: Loss, where: str, name: str, y: Array, count: int, is_fitted: bool = False
) -> Array:
    """Return labels of `count` classes, as int32. Those that the loss ignores become `count`.

    If `is_fitted` is True, they are `count` already. Raises BadInput as `indices` does.
    """
    ignored = loss.options.get("ignore_index")
    if ignored is None or y.dtype.kind not in "iu":
        return indices(where, name, "label", y, count, "classes")
    is_ignored = y == (count if is_fitted else ignored)
    known = indices(where, name, "label", np.where(is_ignored, 0, y), count, "classes")
    return np.where(is_ignored, np.int32(count), known)


def check_learnt(loss: Loss, where: str, name: str, y: Array, count: int) -> None:
    """Raise BadInput if the loss ignores all labels, which class_labels returned."""
    if (y == count).all():
        raise BadInput(
            f"{where}: the loss ignores all labels in {name} (ignore_index="
            f"{loss.options.get('ignore_index')}): add labels of other classes"
        )


def indices(where: str, name: str, what: str, values: Array, count: int, of: str) -> Array:
    if values.dtype.kind not in "iu":
        whole = values.dtype.kind == "b" or fit_int32(values)
        raise BadInput(
            f"{where}: {name} holds {values.dtype}, but {what}s must be integers, 0 or more"
            + (f": use {name}.astype(int), or in a table write 3, not 3.0" if whole else "")
        )
    wrong = np.argwhere((values < 0) | (values >= count))
    if len(wrong):
        raise BadInput(
            f"{where}: {what} {values[tuple(wrong[0])]} of sample {wrong[0][0]} is not in "
            f"0..{count - 1}, because the model has {count} {of}. Change the data or the model"
        )
    result: Array = np.ascontiguousarray(values, dtype=np.int32)
    return result


def fit_int32(values: Array) -> bool:
    return bool(((values == np.floor(values)) & (np.abs(values) < 2**31)).all())
