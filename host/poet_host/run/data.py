"""Data sets: what a model learns from, and in which order.

A data set is an `.npz` file with arrays `x`, `y` and, held out, `x_test`, `y_test`; the built-in
`digits`; or `synthetic:SHAPE:CLASSES`, random but learnable. `fit` checks it against a graph once,
so that training never meets bad data. The batch of a step follows from (seed, step) alone, which
is what lets a run resume at any committed step.
"""

import re
import zipfile
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]

DIGITS = Path(__file__).with_name("digits.npz")
DIGITS_HELD_OUT = 360
SYNTHETIC_SAMPLES = 512
SYNTHETIC_HELD_OUT = 128


@dataclass(frozen=True)
class Dataset:
    """Samples `x` (N, ...) and labels `y` (N, ...); `*_test` are held out, or None."""

    name: str
    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None


def load_data(spec: str | Path) -> Dataset:
    """`digits`, `synthetic:SHAPE:CLASSES` (as synthetic:3x32x32:10) or the path of an .npz file."""
    if str(spec) == "digits":
        return _digits()
    if str(spec).startswith("synthetic"):
        return _synthetic(str(spec))
    return _file(Path(spec))


def _digits() -> Dataset:
    """scikit-learn's 1,797 digits, pixels / 16, (N, 1, 8, 8); the last 360 are held out."""
    with np.load(DIGITS) as arrays:
        x = arrays["images"].astype(np.float32)[:, None] / np.float32(16)
        y = arrays["labels"].astype(np.int32)
    cut = len(x) - DIGITS_HELD_OUT
    return Dataset("digits", x[:cut], y[:cut], x[cut:], y[cut:])


def _synthetic(spec: str) -> Dataset:
    """One random pattern a class, each sample its pattern plus noise; always the same numbers."""
    found = re.fullmatch(r"synthetic:(\d+(?:x\d+)*):(\d+)", spec)
    if not found or int(found[2]) == 0 or "0" in found[1].split("x"):
        raise BadInput(f"data {spec!r}: write it as synthetic:3x32x32:10, SHAPE then CLASSES")
    shape = tuple(int(size) for size in found[1].split("x"))
    count = SYNTHETIC_SAMPLES + SYNTHETIC_HELD_OUT
    if prod(shape) * count > 2**28:
        raise BadInput(f"data {spec!r}: {count} samples of this shape take more than 1 GiB")
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((int(found[2]), *shape), dtype=np.float32)
    y = rng.integers(0, len(patterns), count).astype(np.int32)
    x = patterns[y] + rng.standard_normal((count, *shape), dtype=np.float32)
    cut = SYNTHETIC_SAMPLES
    return Dataset(spec, x[:cut], y[:cut], x[cut:], y[cut:])


def _file(path: Path) -> Dataset:
    if not path.is_file():
        raise BadInput(
            f"data: there is no file {path}; give an .npz file, `digits` or synthetic:SHAPE:CLASSES"
        )
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise BadInput(f"data {path}: this is a single array; save x and y with numpy.savez")
        with opened:
            arrays = {name: opened[name] for name in opened.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise BadInput(
            f"data {path}: this is no readable .npz file of plain arrays ({error})"
        ) from error
    if not {"x", "y"} <= arrays.keys() or ("x_test" in arrays) != ("y_test" in arrays):
        raise BadInput(
            f"data {path}: it holds {', '.join(sorted(arrays)) or 'no arrays'}; it must hold "
            "x and y, and x_test with y_test if samples are held out"
        )
    return Dataset(path.name, arrays["x"], arrays["y"], arrays.get("x_test"), arrays.get("y_test"))


def fit(dataset: Dataset, graph: Graph) -> Dataset:
    """The data set in the graph's types, or BadInput saying what does not fit the model."""
    x, y = _fit_half(dataset.name, "", dataset.x, dataset.y, graph)
    if len(x) < graph.batch:
        raise BadInput(
            f"data {dataset.name}: {len(x)} samples do not fill one batch of {graph.batch}; "
            "give more samples or solve with a smaller --batch"
        )
    if dataset.x_test is None or dataset.y_test is None:
        return replace(dataset, x=x, y=y)
    x_test, y_test = _fit_half(dataset.name, "_test", dataset.x_test, dataset.y_test, graph)
    return replace(dataset, x=x, y=y, x_test=x_test, y_test=y_test)


def _fit_half(name: str, half: str, x: Array, y: Array, graph: Graph) -> tuple[Array, Array]:
    where, names = f"data {name}", (f"x{half}", f"y{half}")
    for array, wanted, array_name in (
        (x, graph[graph.data].shape[1:], names[0]),
        (y, graph[graph.label].shape[1:], names[1]),
    ):
        if array.ndim == 0 or array.shape[1:] != wanted:
            raise BadInput(
                f"{where}: {array_name} has shape {_shape(array.shape)}, "
                f"{graph.name} needs {_shape(('N', *wanted))}"
            )
        if array.dtype.kind not in "fiub":
            raise BadInput(f"{where}: {array_name} holds {array.dtype}, which are no numbers")
    if len(x) != len(y):
        raise BadInput(f"{where}: {names[0]} has {len(x)} samples, {names[1]} has {len(y)}")
    if len(x) == 0:
        raise BadInput(f"{where}: {names[0]} holds no samples")
    samples = _finite(where, names[0], x)
    if graph[graph.label].dtype == "float32":
        return samples, _finite(where, names[1], y)
    return samples, _classes(where, names[1], y, graph[graph.logits].shape[1])


def _finite(where: str, name: str, array: Array) -> Array:
    with np.errstate(over="ignore"):
        values: Array = np.ascontiguousarray(array, dtype=np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(np.argwhere(bad)[0][0])
        raise BadInput(
            f"{where}: {name} holds NaN or infinity ({int(bad.sum())} numbers, the first in sample "
            f"{first}); clean the data first"
        )
    return values


def _classes(where: str, name: str, labels: Array, classes: int) -> Array:
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{where}: {name} holds {labels.dtype}; labels are integers from 0")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise BadInput(
            f"{where}: label {labels[wrong[0]]} of sample {wrong[0]} is not in 0..{classes - 1}, "
            f"the {classes} classes of the model"
        )
    result: Array = np.ascontiguousarray(labels, dtype=np.int32)
    return result


def _shape(sizes: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ("," if len(sizes) == 1 else "") + ")"


def example(graph: Graph) -> tuple[Array, Array]:
    """One batch that a model of this shape may meet in training, to measure operators on."""
    data, label = graph[graph.data], graph[graph.label]
    if label.dtype == "float32":
        rng = np.random.default_rng(0)
        return (
            rng.standard_normal(data.shape, dtype=np.float32),
            rng.standard_normal(label.shape, dtype=np.float32),
        )
    classes = graph[graph.logits].shape[1]
    digits = data.shape[1:] == (1, 8, 8) and classes >= 10
    spec = f"synthetic:{'x'.join(str(size) for size in data.shape[1:])}:{classes}"
    dataset = load_data("digits" if digits else spec)
    repeated = np.arange(graph.batch) % len(dataset.x)
    return dataset.x[repeated], dataset.y[repeated]


def steps_per_epoch(dataset: Dataset, batch: int) -> int:
    """Whole batches of an epoch; the samples of an incomplete last one wait for another shuffle."""
    return len(dataset.x) // batch


def batch_of_step(dataset: Dataset, batch: int, seed: int, step: int) -> tuple[Array, Array]:
    """Samples and labels of step `step` (from 0): every epoch has its own seeded order."""
    epoch, place = divmod(step, steps_per_epoch(dataset, batch))
    order = np.random.default_rng([seed, epoch]).permutation(len(dataset.x))
    chosen = order[place * batch : (place + 1) * batch]
    return dataset.x[chosen], dataset.y[chosen]
