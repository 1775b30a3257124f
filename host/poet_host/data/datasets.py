"""Data sets: built-in ones, and samples from .npz files, folders of .npy files and CSV tables."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph
from ..graph.weights import Array
from ..schema import LARGEST_WHOLE
from . import builtin
from .classes import NO_NAMES, Classes, examples_of
from .files import Arrays, read_folder, read_npz
from .shapes import check_arrays, shape_text
from .tables import read_csv

NORMALIZATIONS = ("none", "scale", "standard")
_CONVERTED = (
    *(".bmp", ".flac", ".gif", ".h5", ".jpeg", ".jpg", ".mat", ".mp3", ".parquet", ".pickle"),
    *(".arrow", ".feather", ".gz", ".json", ".jsonl", ".ogg", ".tar", ".xls", ".xlsx"),
    *(".pkl", ".png", ".pt", ".pth", ".tfrecord", ".tif", ".tiff", ".wav", ".zip"),
)


@dataclass(frozen=True)
class Dataset:
    """Samples `x` (N, ...) and their labels `y` (N, ...).

    `x_test` and `y_test` are the held-out samples and labels, or None.
    """

    name: str
    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None
    flat: bool = False  # True: samples are rows of a table, to be reshaped for the model
    classes: Classes = NO_NAMES  # names of the classes, if the labels in the file were words
    shuffle: bool = True  # False: every epoch visits the samples in the order of `x`

    def __post_init__(self) -> None:
        if not isinstance(self.classes, Classes):
            object.__setattr__(self, "classes", Classes(self.classes))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.x):,} samples>"


def load_data(
    spec: str | Path,
    *,
    normalize: str = "none",
    test_split: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    header: bool | None = None,
    graph: Graph | None = None,
) -> Dataset:
    """Load a data set.

    `spec`: `digits`, `synthetic:SHAPE:CLASSES` (such as synthetic:3x32x32:10),
    `tokens:LENGTH:WORDS:CLASSES` (such as tokens:64:512:10), or the path of an .npz file, a folder
    of .npy files or a .csv file. `normalize`: see `normalized`. `test_split`: the share of samples
    to hold out, which `seed` chooses. If `shuffle` is False, every epoch visits the samples in the
    order of the data. `header`: whether the first row of a .csv file is a header row; None: it is a
    header row if it contains only words. `graph`: the model that will use the samples. If their
    shapes do not fit it, BadInput is raised before an array of a file is read.
    """
    check_seed(seed)
    dataset = replace(_load(spec, header, graph), shuffle=shuffle)
    if test_split:
        dataset = _split(dataset, test_split, seed)
    return normalized(dataset, normalize)


def check_seed(seed: int) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_WHOLE:
        raise BadInput(f"a seed of {seed!r}: use a whole number from 0 to {LARGEST_WHOLE}")


def _load(spec: str | Path, header: bool | None, graph: Graph | None) -> Dataset:
    path = Path(spec)
    check = partial(check_arrays, f"data {path.name}", graph=graph)
    if not str(spec):
        raise BadInput("--data is empty: name a file, a folder, or built-in data such as `digits`")
    if str(spec) == "digits":
        return Dataset("digits", *builtin.digits())
    if str(spec) == "synthetic" or str(spec).startswith("synthetic:"):
        return Dataset(str(spec), *builtin.synthetic(str(spec)))
    if str(spec).startswith("tokens:"):
        return Dataset(str(spec), *builtin.tokens(str(spec)))
    if path.is_dir():
        return _of_file(path, read_folder(path, check))
    if not path.exists():
        raise BadInput(
            f"data: there is no file {path}. Name an .npz file, a folder of .npy files, a .csv "
            "file, `digits`, synthetic:SHAPE:CLASSES or tokens:LENGTH:WORDS:CLASSES"
        )
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        arrays, names = read_csv(path, header)
        examples = examples_of(arrays["x"], arrays["y"]) if names else None
        return replace(_of_file(path, arrays), flat=True, classes=Classes(names, examples))
    if path.suffix.lower() in _CONVERTED:
        raise BadInput(
            f"data {path}: poet-host cannot read {path.suffix} files. Load the samples in Python, "
            "and save them with numpy.savez('data.npz', x=samples, y=labels)"
        )
    return _of_file(path, read_npz(path, check))


def _of_file(path: Path, arrays: Arrays) -> Dataset:
    x_test, y_test = arrays.get("x_test"), arrays.get("y_test")
    return Dataset(path.name, arrays["x"], arrays["y"], x_test, y_test)


def _split(dataset: Dataset, share: float, seed: int) -> Dataset:
    if dataset.x_test is not None:
        raise BadInput(f"data {dataset.name} has held-out samples already: omit --test-split")
    if not dataset.x.ndim or not dataset.y.ndim or len(dataset.x) != len(dataset.y):
        raise BadInput(
            f"data {dataset.name}: x and y must have the same length: one label for each sample"
        )
    count = len(dataset.x)
    held = round(count * share) if 0 < share < 1 else 0
    if not 0 < held < count:
        raise BadInput(
            f"data {dataset.name}: a test split of {share} of {count} samples leaves none to "
            "train on, or none to test with. Choose another share"
        )
    order = np.random.default_rng(seed).permutation(count)
    test, rest = np.sort(order[:held]), np.sort(order[held:])
    x, y = dataset.x, dataset.y
    return replace(dataset, x=x[rest], y=y[rest], x_test=x[test], y_test=y[test])


def normalized(dataset: Dataset, how: str) -> Dataset:
    """Return the data set with normalised samples. Statistics come from training samples alone.

    `how` is "none", "scale" (the smallest number becomes 0, the largest becomes 1), "standard"
    (each channel gets mean 0 and standard deviation 1; channels are the first axis of a sample), or
    "MEAN:STD" (subtract MEAN from all numbers, then divide them by STD).
    """
    if how == "none":
        return dataset
    if dataset.x.dtype.kind not in "fiub" or not dataset.x.size:
        raise BadInput(f"data {dataset.name}: x holds no numbers, so it cannot be normalised")
    x = finite(f"data {dataset.name}", "x", dataset.x)
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
    scale = np.where(np.asarray(scale) > 0, scale, 1.0)  # a constant channel becomes 0

    def changed(samples: Array) -> Array:
        with np.errstate(over="ignore"):
            values: Array = ((samples - shift) / scale).astype(np.float32)
        if not np.isfinite(values).all():
            raise BadInput(
                f"data {dataset.name}: after normalisation with {how}, samples are too large for "
                "32-bit floats. Choose another --normalize"
            )
        return values

    test = None
    if dataset.x_test is not None:
        test = finite(f"data {dataset.name}", "x_test", dataset.x_test)
        if test.shape[1:] != x.shape[1:]:
            raise BadInput(
                f"data {dataset.name}: x_test has shape {shape_text(test.shape)}, but x has "
                f"{shape_text(x.shape)}: use samples of one shape"
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
        f"normalize {text!r}: choose {', '.join(NORMALIZATIONS)}, or MEAN:STD, such as 0.5:0.25. "
        "MEAN must be finite, and STD finite and above 0"
    )


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
