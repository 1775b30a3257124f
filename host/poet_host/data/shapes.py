"""Check types and shapes of samples and labels, before their values are read or used."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph, Part
from ..graph.weights import Array


def parts_of(graph: Graph | None, name: str) -> tuple[Part, ...]:
    """Return the parts of the samples or labels in an array such as x_test. There may be none."""
    return () if graph is None else graph.inputs if name.startswith("x") else graph.targets


def parts_word(name: str) -> str:
    """Return what the parts of an array such as x_test are."""
    return "inputs" if name.startswith("x") else "outputs"


def record_type(parts: tuple[Part, ...]) -> np.dtype[Any]:
    """Return the type of samples that have parts: records, with a field for each part."""
    kinds = {"float32": "<f4", "int32": "<i4"}
    return np.dtype([(part.name, kinds[part.dtype], part.shape) for part in parts])


def learns_samples(graph: Graph) -> bool:
    """Return True if labels may be the samples themselves, as an autoencoder has it."""
    data, label = graph[graph.data], graph[graph.label]
    return (
        not (graph.inputs or graph.targets)
        and (data.shape, data.dtype) == (label.shape, label.dtype)
        and label.dtype == "float32"
    )


def no_labels(x: Array) -> Array:
    """Return what stands for the labels of samples without labels: (N, 0), of no values."""
    return np.empty((*x.shape[:1], 0), np.float32)


def has_labels(y: Array) -> bool:
    return y.ndim != 2 or y.shape[1] > 0


def check_half(where: str, half: str, x: Array, y: Array | None, graph: Graph | None) -> None:
    """Raise BadInput if the samples `x` and their labels `y` do not fit together or fit `graph`.

    Values are not read. `where` names the data, `half` is "" or "_test". `y`: None if labels are
    not used. `graph`: None if the model is not known.
    """
    names = f"x{half}", f"y{half}"
    if graph is not None:
        _check_fit(where, names[0], x, graph, graph.data)
        if y is not None:
            _check_fit(where, names[1], y, graph, graph.label)
    if y is not None and (not x.ndim or not y.ndim or len(x) != len(y)):
        sizes = [f"{len(array):,}" if array.ndim else "no" for array in (x, y)]
        raise BadInput(
            f"{where}: {names[0]} has {sizes[0]} samples, but {names[1]} has {sizes[1]}: each "
            "sample needs a label"
        )
    if not x.ndim or len(x) == 0:
        raise BadInput(f"{where}: {names[0]} holds no samples: add samples")


def check_arrays(
    where: str, arrays: Mapping[str, Array], graph: Graph | None, labels: bool = True
) -> None:
    """Raise BadInput as `check_half` does, for the arrays x, x_test, y and y_test.

    If `labels` is False, labels are not used. Labels that are missing are not checked.
    """
    for half in ("", "_test"):
        if f"x{half}" in arrays:
            y = arrays.get(f"y{half}") if labels else None
            check_half(where, half, arrays[f"x{half}"], y, graph)


def classes_of(graph: Graph) -> int:
    """Return the number of classes: how many numbers the model outputs for each label."""
    return graph[graph.logits].size_bytes // graph[graph.label].size_bytes


def _check_fit(where: str, name: str, array: Array, graph: Graph, tensor: str) -> None:
    if parts := parts_of(graph, name):
        if array.dtype != record_type(parts):
            names = ", ".join(part.name for part in parts)
            raise BadInput(
                f"{where}: {graph.name} has several {parts_word(name)}: give an array for each of "
                f"them, with the names {names}, in a mapping, an .npz file or a folder of .npy "
                "files"
            )
        return
    wanted = graph[tensor].shape[1:]
    check_array(where, name, array, wanted, graph)


def check_array(where: str, name: str, array: Array, wanted: tuple[int, ...], graph: Graph) -> None:
    """Raise BadInput if the array (N, ...) has no numbers, or samples of another shape."""
    if array.ndim == 0 or array.shape[1:] != wanted:
        raise BadInput(
            f"{where}: {name} has shape {shape_text(array.shape)}, but {graph.name} needs "
            f"{shape_text(('N', *wanted))}: {_made_to_fit(name, array, wanted, graph)}"
        )
    if array.dtype.kind not in "fiub":
        raise BadInput(
            f"{where}: {name} holds {array.dtype}, which is not a numeric type. Convert the array "
            "to numbers"
        )


def _made_to_fit(name: str, array: Array, wanted: tuple[int, ...], graph: Graph) -> str:
    """Return advice for an array that does not have the shape that the model needs."""
    shape = array.shape[1:]
    if len(wanted) > 1 and shape == (*wanted[1:], wanted[0]):
        return f"channels must come first: use numpy.moveaxis({name}, -1, 1)"
    if array.ndim and prod(shape) == prod(wanted):
        sizes = ", ".join(map(str, (-1, *wanted)))
        return f"the number of elements fits: use {name}.reshape({sizes})"
    if name.startswith("y") and shape == (*wanted, classes_of(graph)):
        return (
            f"a label must be the number of a class: use {name}.argmax(-1). To learn these values "
            "themselves, solve with --loss mse"
        )
    if name.startswith("x") or graph.inputs or graph.targets:
        return "make samples of that shape, or solve a model for samples of this one"
    if name.startswith("y") and shape and shape == graph[graph.logits].shape[2:]:
        return "if axis 1 of the output are the classes, solve with --loss cross-entropy:axis=1"
    if graph[graph.label].dtype == "float32":
        return (
            "the loss compares labels with the output of the model. Make labels of that shape, or "
            "solve with --loss cross-entropy to learn classes"
        )
    return (
        "with the loss cross-entropy, a label is the number of a class. Make labels of that shape, "
        "or solve with --loss mse to learn other values"
    )


def shape_text(sizes: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ("," if len(sizes) == 1 else "") + ")"
