"""Data sets: what a model learns from, and in which order.

A data set is an `.npz` file with arrays `x`, `y` and, held out, `x_test`, `y_test`; a folder with
`x.npy` and so on; a table as CSV, the last column the label; the built-in `digits`; or, random but
learnable, `synthetic:SHAPE:CLASSES` or `tokens:LENGTH:WORDS:CLASSES`. `fit` checks it against a
graph once. The batch of a step follows from (seed, step) alone: a run resumes at any step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph, Node
from ..schema import LARGEST_WHOLE
from . import builtin
from .classes import NO_NAMES, Classes, examples_of, numbers_by
from .files import Array, Arrays, read_csv, read_folder, read_npz

NORMALIZATIONS = ("none", "scale", "standard")
_CONVERTED = (
    *(".bmp", ".flac", ".gif", ".h5", ".jpeg", ".jpg", ".mat", ".mp3", ".parquet", ".pickle"),
    *(".pkl", ".png", ".pt", ".pth", ".tfrecord", ".tif", ".tiff", ".wav", ".zip"),
)


@dataclass(frozen=True)
class Dataset:
    """Samples `x` (N, ...) and labels `y` (N, ...); `*_test` are held out, or None."""

    name: str
    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None
    flat: bool = False  # samples are rows of a table, to be reshaped as the model needs
    classes: Classes = NO_NAMES  # names of the classes, where labels were words
    shuffle: bool = True  # False: every epoch has the order of the samples

    def __post_init__(self) -> None:
        if not isinstance(self.classes, Classes):
            object.__setattr__(self, "classes", Classes(self.classes))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.x):,} samples>"


@dataclass(frozen=True, repr=False)
class FittedData(Dataset):
    """A data set in the types and shapes of `graph`. `fit` makes and checks it."""

    graph: Graph = field(kw_only=True)

    @cached_property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self, self.graph.batch)


def load_data(
    spec: str | Path,
    *,
    normalize: str = "none",
    test_split: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    header: bool | None = None,
) -> Dataset:
    """`digits`, `synthetic:SHAPE:CLASSES` (as synthetic:3x32x32:10), `tokens:LENGTH:WORDS:CLASSES`
    (as tokens:64:512:10), or the path of an .npz file, a folder of .npy files or a .csv file.

    `normalize`: see `normalized`. `test_split` is the share of samples to hold out, drawn by
    `seed`. Without `shuffle` every epoch has the order of the data. `header` says whether the first
    row of a .csv file is a header row; None: it is one if it has words alone.
    """
    check_seed(seed)
    dataset = replace(_load(spec, header), shuffle=shuffle)
    if test_split:
        dataset = _split(dataset, test_split, seed)
    return normalized(dataset, normalize)


def check_seed(seed: int) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_WHOLE:
        raise BadInput(f"a seed of {seed!r}: give a whole number from 0 to {LARGEST_WHOLE}")


def _load(spec: str | Path, header: bool | None) -> Dataset:
    path = Path(spec)
    if not str(spec):
        raise BadInput("--data is empty: name a file, a folder, or built-in data such as `digits`")
    if str(spec) == "digits":
        return Dataset("digits", *builtin.digits())
    if str(spec) == "synthetic" or str(spec).startswith("synthetic:"):
        return Dataset(str(spec), *builtin.synthetic(str(spec)))
    if str(spec).startswith("tokens:"):
        return Dataset(str(spec), *builtin.tokens(str(spec)))
    if path.is_dir():
        return _of_file(path, read_folder(path))
    if not path.is_file():
        raise BadInput(
            f"data: there is no file {path}; give an .npz file, a folder of .npy files, a .csv "
            "file, `digits`, synthetic:SHAPE:CLASSES or tokens:LENGTH:WORDS:CLASSES"
        )
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        arrays, names = read_csv(path, header)
        examples = examples_of(arrays["x"], arrays["y"]) if names else None
        return replace(_of_file(path, arrays), flat=True, classes=Classes(names, examples))
    if path.suffix.lower() in _CONVERTED:
        raise BadInput(
            f"data {path}: {path.suffix} files are not read. Load the samples in Python, and save "
            "them with numpy.savez('data.npz', x=samples, y=labels)"
        )
    return _of_file(path, read_npz(path))


def _of_file(path: Path, arrays: Arrays) -> Dataset:
    x_test, y_test = arrays.get("x_test"), arrays.get("y_test")
    return Dataset(path.name, arrays["x"], arrays["y"], x_test, y_test)


def _split(dataset: Dataset, share: float, seed: int) -> Dataset:
    if dataset.x_test is not None:
        raise BadInput(f"data {dataset.name} holds samples out itself: leave out --test-split")
    if not dataset.x.ndim or not dataset.y.ndim or len(dataset.x) != len(dataset.y):
        raise BadInput(f"data {dataset.name}: x and y do not have the same number of samples")
    count = len(dataset.x)
    held = round(count * share) if 0 < share < 1 else 0
    if not 0 < held < count:
        raise BadInput(
            f"data {dataset.name}: a test split of {share} of {count} samples leaves none to "
            "train on, or none to test with"
        )
    order = np.random.default_rng(seed).permutation(count)
    test, rest = np.sort(order[:held]), np.sort(order[held:])
    x, y = dataset.x, dataset.y
    return replace(dataset, x=x[rest], y=y[rest], x_test=x[test], y_test=y[test])


def normalized(dataset: Dataset, how: str) -> Dataset:
    """Samples as `how` says, by numbers of the training samples alone.

    "scale": the smallest number becomes 0, the largest 1. "standard": each channel (index of the
    first axis of a sample) gets mean 0 and deviation 1. "MEAN:STD": these numbers, for all.
    """
    if how == "none":
        return dataset
    if dataset.x.dtype.kind not in "fiub" or not dataset.x.size:
        raise BadInput(f"data {dataset.name}: x holds no numbers that could be normalised")
    x = _finite(f"data {dataset.name}", "x", dataset.x)
    shift: Any
    scale: Any
    if how == "scale":
        shift, scale = float(x.min()), float(x.max()) - float(x.min())
    elif how == "standard":
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        shift = x.mean(axes, np.float64, keepdims=True)
        scale = x.std(axes, np.float64, keepdims=True)
    else:
        shift, scale = _mean_and_deviation(how)
    shift = np.asarray(shift, np.float64)
    scale = np.where(np.asarray(scale) > 0, scale, 1.0)  # what never changes becomes 0

    def changed(samples: Array) -> Array:
        with np.errstate(over="ignore"):
            values: Array = ((samples - shift) / scale).astype(np.float32)
        if not np.isfinite(values).all():
            raise BadInput(
                f"data {dataset.name}: normalized by {how}, samples are too large for 32-bit "
                "floats: choose another way"
            )
        return values

    test = None
    if dataset.x_test is not None:
        test = _finite(f"data {dataset.name}", "x_test", dataset.x_test)
        if test.shape[1:] != x.shape[1:]:
            raise BadInput(
                f"data {dataset.name}: x_test has shape {_shape(test.shape)}, x has "
                f"{_shape(x.shape)}: make samples alike"
            )
    return replace(dataset, x=changed(x), x_test=None if test is None else changed(test))


def _mean_and_deviation(text: str) -> tuple[float, float]:
    try:
        mean, deviation = (float(part) for part in str(text).split(":"))
        if np.isfinite(mean) and 0 < deviation < np.inf:
            return mean, deviation
    except ValueError:
        pass
    raise BadInput(
        f"normalize {text!r}: choose of {', '.join(NORMALIZATIONS)}, or write MEAN:STD, as 0.5:0.25"
    )


def fit(dataset: Dataset, graph: Graph) -> FittedData:
    """Return the data set in the graph's types. Raises BadInput for what does not fit the model.

    A data set that is fitted to this graph object already is returned as it is.
    """
    if isinstance(dataset, FittedData) and dataset.graph is graph:
        return dataset
    x, y = fit_half(dataset, "", dataset.x, dataset.y, graph)
    if len(x) < graph.batch:
        raise BadInput(
            f"data {dataset.name}: {len(x)} samples do not fill one batch of {graph.batch}; "
            "give more samples or solve with a smaller --batch"
        )
    if (dataset.x_test is None) != (dataset.y_test is None):
        raise BadInput(f"data {dataset.name}: give x_test and y_test, or neither of them")
    arrays = {"x": x, "y": y}
    if dataset.x_test is not None and dataset.y_test is not None:
        test = fit_half(dataset, "_test", dataset.x_test, dataset.y_test, graph)
        arrays |= {"x_test": test[0], "y_test": test[1]}
    return FittedData(**(vars(dataset) | arrays | {"graph": graph}))


def fit_half(dataset: Dataset, half: str, x: Array, y: Array, graph: Graph) -> tuple[Array, Array]:
    where, names = f"data {dataset.name}", (f"x{half}", f"y{half}")
    data, label = graph[graph.data], graph[graph.label]
    if dataset.flat:
        x, y = _shaped(x, data.shape[1:]), _shaped(y, label.shape[1:])
        if data.dtype == "int32" and _whole(x):  # a table's cells are read as floats
            x = x.astype(np.int64)
    wanted_shapes = data.shape[1:], label.shape[1:]
    for array, wanted, array_name in zip((x, y), wanted_shapes, names, strict=True):
        if array.ndim == 0 or array.shape[1:] != wanted:
            raise BadInput(
                f"{where}: {array_name} has shape {_shape(array.shape)}, {graph.name} needs "
                f"{_shape(('N', *wanted))}: {_made_to_fit(array_name, array, wanted, graph)}"
            )
        if array.dtype.kind not in "fiub":
            raise BadInput(
                f"{where}: {array_name} holds {array.dtype}, which are not numbers: save numbers"
            )
    if len(x) != len(y):
        raise BadInput(
            f"{where}: {names[0]} has {len(x)} samples, {names[1]} has {len(y)}: a label for each"
        )
    if len(x) == 0:
        raise BadInput(f"{where}: {names[0]} holds no samples: give some")
    if dataset.classes and label.dtype == "float32":
        raise BadInput(
            f"{where}: labels are words, {graph.name} learns numbers: write numbers, or solve it "
            "with --loss cross-entropy"
        )
    if data.dtype == "int32":
        samples = _indices(where, names[0], "token", x, tokens_of(graph), "words")
    else:
        samples = _finite(where, names[0], x)
    if label.dtype == "float32":
        return samples, _finite(where, names[1], y)
    return samples, _indices(where, names[1], "label", y, classes_of(graph), "classes")


def numbered(data: FittedData, known: Classes, *, is_trained: bool = True) -> FittedData:
    """Return the data set with its classes numbered as in weights whose classes are `known`.

    `is_trained`: the weights are trained. If they do not name their classes, the numbers follow the
    alphabet. Raises BadInput for a word that the weights do not know, and if weights without names
    have another number of classes.
    """
    graph = data.graph
    found, count, where = data.classes, classes_of(graph), f"data {data.name}"
    if not found:
        return data
    labels = np.concatenate(
        [half.reshape(-1) for half in (data.y, data.y_test) if half is not None]
    )
    if max(len(found), len(known)) > count or labels.max() >= len(found):
        raise BadInput(
            f"{where}: it names {len(found)} classes, and {graph.name} has {count}. Give a name "
            "for each label, or use a model of as many classes"
        )
    if not known:
        if is_trained and len(found) != count:
            raise BadInput(
                f"{where}: it has {len(found)} classes and {graph.name} has {count}; the weights "
                "do not say which word is which class. Write labels as numbers"
            )
        return data
    numbers = numbers_by(known, found, where)
    y_test = None if data.y_test is None else numbers[data.y_test]
    return replace(data, y=numbers[data.y], y_test=y_test, classes=known)


def classes_of(graph: Graph) -> int:
    """How many classes a label chooses from: numbers that the model gives for each label."""
    return graph[graph.logits].size_bytes // graph[graph.label].size_bytes


def tokens_of(graph: Graph) -> int:
    """How many words the table has that a model looks its tokens up in."""
    table = next(node for node in graph if node.op == "embedding" and graph.data in node.inputs)
    return graph[table.inputs[1]].shape[0]


def _made_to_fit(name: str, array: Array, wanted: tuple[int, ...], graph: Graph) -> str:
    """What to do with an array of another shape."""
    shape = array.shape[1:]
    if len(wanted) > 1 and shape == (*wanted[1:], wanted[0]):
        return f"channels come first: numpy.moveaxis({name}, -1, 1) would do"
    if array.ndim and prod(shape) == prod(wanted):
        sizes = ", ".join(map(str, (-1, *wanted)))
        return f"the numbers are as many: {name}.reshape({sizes}) would do"
    if name.startswith("y") and shape == (*wanted, classes_of(graph)):
        return (
            f"labels are numbers of classes: {name}.argmax(-1) would do. To learn the numbers "
            "themselves, solve with --loss mse"
        )
    return "make samples of that shape, or solve a model for samples of this one"


def _shaped(array: Array, wanted: tuple[int, ...]) -> Array:
    """Rows of a table as the model sees them, if they hold as many numbers."""
    fits = array.ndim in (1, 2) and array.size == len(array) * prod(wanted)
    return array.reshape(len(array), *wanted) if fits else array


def _finite(where: str, name: str, array: Array) -> Array:
    with np.errstate(over="ignore"):
        values: Array = np.ascontiguousarray(array, dtype=np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        raise BadInput(
            f"{where}: {name} holds NaN or infinity ({int(bad.sum())} numbers, the first in sample "
            f"{int(np.argwhere(bad)[0][0])}); clean the data first"
        )
    return values


def _indices(where: str, name: str, what: str, values: Array, count: int, of: str) -> Array:
    if values.dtype.kind not in "iu":
        whole = values.dtype.kind == "b" or _whole(values)
        raise BadInput(
            f"{where}: {name} holds {values.dtype}; {what}s are integers from 0"
            + (f": {name}.astype(int) would do, and 3 in place of 3.0 in a table" if whole else "")
        )
    wrong = np.argwhere((values < 0) | (values >= count))
    if len(wrong):
        raise BadInput(
            f"{where}: {what} {values[tuple(wrong[0])]} of sample {wrong[0][0]} is not in "
            f"0..{count - 1}, the {count} {of} of the model: change the data, or the model"
        )
    result: Array = np.ascontiguousarray(values, dtype=np.int32)
    return result


def _whole(values: Array) -> bool:
    """Could these numbers be integers of the model?"""
    return bool(((values == np.floor(values)) & (np.abs(values) < 2**31)).all())


def _shape(sizes: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ("," if len(sizes) == 1 else "") + ")"


def example(graph: Graph) -> tuple[Array, Array]:
    """One batch that a model of this shape may meet in training, to measure operators on."""
    data, label = graph[graph.data], graph[graph.label]
    classes = classes_of(graph)
    if data.shape[1:] == (1, 8, 8) and label.shape[1:] == () and classes >= 10:
        dataset = load_data("digits")
        repeated = np.arange(graph.batch) % len(dataset.x)
        return dataset.x[repeated], dataset.y[repeated]
    rng = np.random.default_rng(0)

    def drawn(node: Node, count: Callable[[], int]) -> Array:
        if node.dtype == "float32":
            return rng.standard_normal(node.shape, dtype=np.float32)
        return rng.integers(0, count(), node.shape, dtype=np.int32)

    return drawn(data, lambda: tokens_of(graph)), drawn(label, lambda: classes)


def steps_per_epoch(dataset: Dataset, batch: int) -> int:
    """Whole batches of an epoch; the samples of an incomplete last one wait for another shuffle."""
    return len(dataset.x) // batch


def batch_of_step(dataset: Dataset, batch: int, seed: int, step: int) -> tuple[Array, Array]:
    """Samples and labels of step `step` (from 0)."""
    chosen = samples_of_step(dataset, batch, seed, step)
    return dataset.x[chosen], dataset.y[chosen]


def samples_of_step(dataset: Dataset, batch: int, seed: int, step: int) -> Array:
    """Numbers of the samples of step `step` (from 0): every epoch has its own seeded order."""
    epoch, place = divmod(step, steps_per_epoch(dataset, batch))
    count = len(dataset.x)
    order = _shuffled(count, seed, epoch) if dataset.shuffle else np.arange(count)
    return order[place * batch : (place + 1) * batch]


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(np.arange(count))
