"""Data sets: built-in ones, and samples from files: arrays, tables, images and sounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph
from ..graph.weights import Array
from ..schema import LARGEST_WHOLE
from . import builtin
from .augment import Augmentation, augmentation_of
from .classes import NO_NAMES, Classes, examples_of
from .facts import DataFacts
from .files import Arrays, read_folder, read_npz
from .media import IMAGES, SAMPLE_RATE_HZ, SOUNDS, Media, has_media, read_media
from .normalization import NONE, Normalization, normalization_of
from .parts import array_names, blank, together
from .shapes import check_arrays, learns_samples, no_labels, shape_text
from .tables import read_csv
from .values import finite

_D = TypeVar("_D", bound="Dataset")
_CONVERTED = (
    *(".h5", ".mat", ".mp3", ".parquet", ".pickle", ".arrow", ".feather", ".gz", ".json"),
    *(".jsonl", ".tar", ".xls", ".xlsx", ".pkl", ".pt", ".pth", ".tfrecord", ".zip"),
)


@dataclass(frozen=True)
class Dataset:
    """Samples `x` (N, ...) and their labels `y` (N, ...).

    `x_test` and `y_test` are the held-out samples and labels, or None. Without labels, `y` and
    `y_test` have the shape (N, 0). Labels that equal the samples, as an autoencoder has them,
    become the samples themselves, however these are changed later.
    """

    name: str
    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None
    flat: bool = False  # True: samples are rows of a table, to be reshaped for the model
    classes: Classes = NO_NAMES  # names of the classes, if the labels in the file were words
    shuffle: bool = True  # False: every epoch visits the samples in the order of `x`
    balance: bool = False  # True: each class is drawn equally often
    augment: Augmentation | None = None  # how training changes the samples of each batch
    # Return the indices of the samples of a step, from 0 on. None: its part of an epoch.
    draw: Callable[[int], Sequence[int]] | None = None
    # How the samples were normalised. None: not at all. That of trained weights is applied then.
    normalization: Normalization | None = None
    media: Media | None = None  # what was read from the files of a folder. None: arrays or a table
    sample_rate_hz: int | None = None  # to which sounds were resampled, if that is known

    def __post_init__(self) -> None:
        if not isinstance(self.classes, Classes):
            object.__setattr__(self, "classes", Classes(self.classes))
        if isinstance(self.augment, str):
            object.__setattr__(self, "augment", augmentation_of(self.augment))
        for name, it, a in (("augment", Augmentation, "an"), ("normalization", Normalization, "a")):
            if not isinstance(value := getattr(self, name), it | None):
                raise BadInput(
                    f"poet.Dataset: `{name}` must be {a} {it.__name__}, as `load_data` makes it, "
                    f"not {type(value).__name__}"
                )
        for half in ("", "_test"):
            x, y = getattr(self, f"x{half}"), getattr(self, f"y{half}")
            if y is not x and _are_equal(x, y):
                object.__setattr__(self, f"y{half}", x)

    @property
    def facts(self) -> DataFacts:
        none = NONE if self.x.dtype == np.float32 else None  # tokens have no normalisation
        return DataFacts(self.classes, self.normalization or none, self.sample_rate_hz)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.x):,} samples>"


def _are_equal(x: Any, y: Any) -> bool:
    are_numbers = all(isinstance(it, np.ndarray) and it.dtype.kind in "fiu" for it in (x, y))
    return are_numbers and np.array_equal(x, y)


def load_data(
    spec: str | Path,
    *,
    normalize: str | None = None,
    test_split: float = 0.0,
    shuffle: bool = True,
    balance: bool = False,
    augment: str | None = None,
    seed: int = 0,
    header: bool | None = None,
    sample_rate_hz: int = SAMPLE_RATE_HZ,
    graph: Graph | None = None,
    labels: bool = True,
) -> Dataset:
    """Load a data set.

    `spec`: `digits`, `synthetic:SHAPE:CLASSES` (such as synthetic:3x32x32:10),
    `tokens:LENGTH:WORDS:CLASSES` (such as tokens:64:512:10), or the path of an .npz file, a folder
    of .npy files, a .csv file, or a folder of images or sounds, which need `graph` (see
    `read_media`; sounds are resampled to `sample_rate_hz`). `normalize`: see `normalization_of`;
    weights keep its numbers. None: as the weights need it, with which the samples are used.
    `test_split`: the share of samples to hold out, which `seed` chooses. If `shuffle` is False,
    every epoch visits the samples in the order of the data. If `balance` is True, it draws each
    class equally often. `augment`: such as "flip,crop:4", see `Augmentation`. `header`: whether the
    first row of a .csv file is a header row; None: it is a header row if it contains only words.
    `graph`: the model that will use the samples. If their shapes do not fit it, BadInput is raised
    before an array of a file is read. `labels`: whether labels are used. If they are not, or if the
    model learns its samples, they may be missing, and a .npy file holds the samples.
    """
    check_seed(seed)
    found = _load(spec, header, graph, labels, sample_rate_hz)
    changes = None if augment is None else augmentation_of(augment)
    dataset = replace(found, shuffle=shuffle, balance=balance, augment=changes)
    if test_split:
        dataset = _split(dataset, test_split, seed)
    return dataset if normalize is None else normalized(dataset, normalize)


def check_seed(seed: int) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_WHOLE:
        raise BadInput(f"a seed of {seed!r}: use a whole number from 0 to {LARGEST_WHOLE}")


def _load(
    spec: str | Path, header: bool | None, graph: Graph | None, labels: bool, rate_hz: int
) -> Dataset:
    path = Path(spec)
    where, names = f"data {path.name}", array_names(graph)

    def check(arrays: Arrays) -> None:
        check_arrays(where, together(where, arrays, graph, blank), graph, labels)

    needed = labels and (graph is None or not learns_samples(graph))
    if not str(spec):
        raise BadInput("--data is empty: name a file, a folder, or built-in data such as `digits`")
    if str(spec) == "digits":
        return Dataset("digits", *builtin.digits())
    if str(spec) == "synthetic" or str(spec).startswith("synthetic:"):
        return Dataset(str(spec), *builtin.synthetic(str(spec)))
    if str(spec).startswith("tokens:"):
        return Dataset(str(spec), *builtin.tokens(str(spec)))
    if path.is_dir() and has_media(path):
        arrays, names, media = read_media(path, graph, needed, rate_hz)
        rate = None if media == "images" else rate_hz
        found = _of_file(path, arrays)
        return replace(found, classes=Classes(names), media=media, sample_rate_hz=rate)
    if path.is_dir():
        return _of_file(path, together(where, read_folder(path, check, needed, names), graph))
    if not path.exists():
        raise BadInput(
            f"data: there is no file {path}. Name an .npz file, a folder of .npy files, images or "
            "sounds, a .csv file, `digits`, synthetic:SHAPE:CLASSES or tokens:LENGTH:WORDS:CLASSES"
        )
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        values = None if needed or graph is None else prod(graph[graph.data].shape[1:])
        arrays, names = read_csv(path, header, values)
        examples = examples_of(arrays["x"], arrays["y"]) if names else None
        return replace(_of_file(path, arrays), flat=True, classes=Classes(names, examples))
    if path.suffix.lower() in IMAGES + SOUNDS:
        raise BadInput(
            f"data {path}: this is one image or sound. Put the files of each class into a folder "
            "with its name, and name the folder that contains these folders"
        )
    if path.suffix.lower() in _CONVERTED:
        raise BadInput(
            f"data {path}: poet-host cannot read {path.suffix} files. Load the samples in Python, "
            "and save them with numpy.savez('data.npz', x=samples, y=labels)"
        )
    return _of_file(path, together(where, read_npz(path, check, needed, names), graph))


def _of_file(path: Path, arrays: Arrays) -> Dataset:
    x, x_test = arrays["x"], arrays.get("x_test")
    y_test = arrays.get("y_test", None if x_test is None else no_labels(x_test))
    return Dataset(path.name, x, arrays.get("y", no_labels(x)), x_test, y_test)


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
    """Return the data set with normalised samples: see `normalization_of`.

    Statistics come from the training samples alone.
    """
    where = f"data {dataset.name}"
    if how == "none":
        return replace(dataset, normalization=NONE)
    if dataset.x.dtype.kind not in "fiub" or not dataset.x.size:
        what = "has several inputs" if dataset.x.dtype.names else "holds no numbers"
        raise BadInput(f"{where}: x {what}, so it cannot be normalised: omit --normalize")
    x, x_test = finite(where, "x", dataset.x), dataset.x_test
    if x_test is not None and x_test.shape[1:] != x.shape[1:]:
        raise BadInput(
            f"{where}: x_test has shape {shape_text(x_test.shape)}, but x has "
            f"{shape_text(x.shape)}: use samples of one shape"
        )
    return with_normalization(dataset, normalization_of(where, x, how))


def with_normalization(dataset: _D, normalization: Normalization) -> _D:
    """Return the data set with samples, which are raw numbers, normalised."""
    where, changed = f"data {dataset.name}", dict[str, Any]()
    for half in ("", "_test"):
        x, y = getattr(dataset, f"x{half}"), getattr(dataset, f"y{half}")
        if x is not None:
            changed[f"x{half}"] = normalization.apply(where, finite(where, f"x{half}", x))
            changed |= {f"y{half}": changed[f"x{half}"]} if y is x else {}
    return replace(dataset, normalization=normalization, **changed)
