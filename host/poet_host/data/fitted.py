"""Convert data to the types and shapes of a graph, and select the batch of each step.

The batch of a step depends only on the seed and the step. So a run can continue after any complete
step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TypeVar

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph, Part
from ..graph.losses import loss_of, parse_loss
from ..graph.weights import Array
from .classes import Classes, numbers_by
from .datasets import Dataset, load_data, with_normalization
from .facts import DataFacts
from .media import time_axis
from .parts import fields_of
from .shapes import check_half, classes_of as classes_of, has_labels, learns_samples, record_type
from .values import check_learnt, class_labels, finite, fit_int32, indices, labels_of

_D = TypeVar("_D", bound=Dataset)
_MOST_SCALE = 4.0  # that samples from about -1 to 1 have: scaled to 0..1, they have 2


@dataclass(frozen=True, repr=False)
class FittedData(Dataset):
    """A data set in the types and shapes of `graph`. The function `fit` makes and checks it."""

    graph: Graph = field(kw_only=True)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self, self.graph.batch)


def fit(dataset: Dataset, graph: Graph) -> FittedData:
    """Return the data set in the graph's types. Raises BadInput if the data does not fit the model.

    A data set that has already been fitted to this graph object is returned unchanged.
    """
    if isinstance(dataset, FittedData) and dataset.graph is graph:
        _check_drawing(dataset, graph)
        return dataset
    x, y = fit_half(dataset, "", dataset.x, dataset.y, graph)
    if len(x) < graph.batch and not dataset.draw:
        raise BadInput(
            f"data {dataset.name}: {len(x)} samples do not fill one batch of {graph.batch}; "
            "use more samples, or solve with a smaller --batch"
        )
    if (dataset.x_test is None) != (dataset.y_test is None):
        raise BadInput(f"data {dataset.name}: provide both x_test and y_test, or neither")
    arrays = {"x": x, "y": y}
    if dataset.x_test is not None and dataset.y_test is not None:
        test = fit_half(dataset, "_test", dataset.x_test, dataset.y_test, graph)
        arrays |= {"x_test": test[0], "y_test": test[1]}
    found = FittedData(**(vars(dataset) | arrays | {"graph": graph}))
    _check_drawing(found, graph)
    return found


def _check_drawing(dataset: FittedData, graph: Graph) -> None:
    where, data, label = f"data {dataset.name}", graph[graph.data], graph[graph.label]
    if dataset.augment and graph.inputs:
        raise BadInput(
            f"{where}: samples of a model with several inputs cannot be augmented: omit --augment"
        )
    if dataset.augment:
        dataset.augment.check(where, data.shape[1:], data.dtype)
        labels = graph.targets or (Part(label.name, label.shape[1:], label.dtype),)
        moves = dataset.augment.flip or dataset.augment.crop or dataset.augment.shift
        is_own = dataset.y is dataset.x  # then the labels move, too
        if moves and not is_own and any(_at_positions(it, data.shape[1:]) for it in labels):
            raise BadInput(
                f"{where}: labels belong to positions of the samples, which flip, crop and shift "
                "would move without the labels: use --augment noise"
            )
    if dataset.balance and (label.dtype != "int32" or len(label.shape) > 1 or graph.targets):
        raise BadInput(f"{where}: the samples have no classes to balance: omit --balance")
    if dataset.balance and not dataset.shuffle:
        raise BadInput(
            f"{where}: balanced classes need a new order in each epoch: omit --no-shuffle or "
            "--balance"
        )


def _at_positions(label: Part, sample: tuple[int, ...]) -> bool:
    """Return whether a label has a class or a value for each position of a sample."""
    shape = label.shape
    has_classes = len(shape) > 1 or {*shape} - {1} & {*sample}
    is_alike = shape[-2:] == sample[-2:] or 1 < len(shape) == len(sample)
    has_times = len(sample) == 2 and shape == (sample[time_axis(sample)],)
    return bool(has_classes) if label.dtype == "int32" else is_alike or has_times


def fit_half(dataset: Dataset, half: str, x: Array, y: Array, graph: Graph) -> tuple[Array, Array]:
    where, name, label = f"data {dataset.name}", f"y{half}", graph[graph.label]
    if learns_samples(graph) and (y is x or not has_labels(y)):
        samples = fit_samples(dataset, half, x, graph)
        return samples, samples
    if not has_labels(y):
        fields = ", ".join(fields_of(graph, name))
        what = f"the arrays {fields}" if fields else f"an array {name}, or in a table a column"
        raise BadInput(
            f"{where}: the samples have no labels, but {graph.name} needs them: add {what}"
        )
    if dataset.flat:
        y = _shaped(y, label.shape[1:])
    samples = fit_samples(dataset, half, x, graph, y)
    if graph.targets:
        for field_name, part in zip(fields_of(graph, name), graph.targets, strict=True):
            if part.dtype == "int32":
                loss = parse_loss(part.criterion)
                check_learnt(loss, where, field_name, y[part.name], part.limit)
        return samples, y
    if dataset.classes and label.dtype == "float32":
        raise BadInput(
            f"{where}: labels are words, but {graph.name} learns numbers. Write labels as numbers, "
            "or solve the model with --loss cross-entropy"
        )
    if label.dtype == "float32":
        return samples, labels_of(loss_of(graph), where, name, y)
    loss, count, is_fitted = loss_of(graph), classes_of(graph), isinstance(dataset, FittedData)
    y = class_labels(loss, where, name, y, count, is_fitted)
    if not dataset.classes:  # else the weights number the classes: see _numbered
        check_learnt(loss, where, name, y, count)
    return samples, y


def fit_samples(
    dataset: Dataset, half: str, x: Array, graph: Graph, y: Array | None = None
) -> Array:
    """Return the samples `x` of a half ("" or "_test") in the type and shape of the graph's data.

    Raises BadInput if they do not fit it, or labels `y`.
    """
    where, name, data = f"data {dataset.name}", f"x{half}", graph[graph.data]
    if dataset.flat:
        x = _shaped(x, data.shape[1:])
        if data.dtype == "int32" and fit_int32(x):  # the cells of a table were read as floats
            x = x.astype(np.int64)
    check_half(where, half, x, y, graph)
    if graph.inputs:
        return x
    if data.dtype == "int32":
        return indices(where, name, "token", x, tokens_of(graph), "words")
    return finite(where, name, x)


def adapted(data: FittedData, known: DataFacts, *, is_trained: bool = True) -> FittedData:
    """Return the data set as weights need it: classes have their numbers, samples are normalised.

    `known`: what the weights keep of their data. If they have no names of classes, classes keep
    their alphabetical numbers. `is_trained`: True if the weights are trained. Raises BadInput for a
    class that is not in `known`, for another normalisation or sample rate than that of `known`, or
    if trained weights have no class names and another number of classes than the data.
    """
    data = _numbered(data, known.classes, is_trained)
    return samples_as(replace(data, classes=data.classes or known.classes), known)


def samples_as(data: _D, known: DataFacts) -> _D:
    """Return data in the types of a graph with samples as its weights need them: see `adapted`."""
    rate, wanted_rate = data.sample_rate_hz, known.sample_rate_hz
    if rate and wanted_rate and rate != wanted_rate:
        raise BadInput(
            f"data {data.name}: sounds were resampled to {rate:,} Hz, but the weights learnt "
            f"sounds of {wanted_rate:,} Hz: use --sample-rate {wanted_rate}"
        )
    data = replace(data, sample_rate_hz=rate or wanted_rate)
    given, wanted = data.normalization, known.normalization
    if wanted is None or wanted == given or data.x.dtype != np.float32:
        return data
    if given is None and data.media in ("images", "sounds") and max(wanted.scale) > _MOST_SCALE:
        raise BadInput(
            f"data {data.name}: pixels of files are from 0 to 1 and sounds from -1 to 1, but the "
            "weights take raw numbers, such as pixels from 0 to 255. Save the samples as such "
            "numbers in an .npz file"
        )
    if given is None:
        return with_normalization(data, wanted)
    raise BadInput(
        f"data {data.name}: its normalisation ({given}) differs from that of the weights "
        f"({wanted}). Omit --normalize, so that samples are normalised as in training"
    )


def _numbered(data: FittedData, known: Classes, is_trained: bool) -> FittedData:
    graph = data.graph
    found, count, where = data.classes, classes_of(graph), f"data {data.name}"
    if not found:
        return data
    loss = loss_of(graph)
    labels = np.concatenate(
        [half[half < count] for half in (data.y, data.y_test) if half is not None]
    )  # the loss ignores label `count`
    if max(len(found), len(known)) > count or labels.max(initial=0) >= len(found):
        raise BadInput(
            f"{where}: the data names {len(found)} classes, but {graph.name} has {count}. Name "
            "every class that occurs as a label, or use a model with the same number of classes"
        )
    if not known and is_trained and len(found) != count:
        raise BadInput(
            f"{where}: the data has {len(found)} classes, but {graph.name} has {count}. The "
            "weights do not name their classes, so write labels as numbers"
        )
    if not known and is_trained and data.media and list(found) != sorted(found):
        raise BadInput(
            f"{where}: the folders of the classes have numbers, and in alphabetical order 10 comes "
            "before 2. The weights do not name their classes, so their order is not known. Name "
            "the folders 01, 02 and so on, in the order in which the weights learnt them"
        )
    numbers = np.full(count + 1, count, np.int32)
    numbers[: len(found)] = numbers_by(known or found, found, where)
    ignored = loss.options.get("ignore_index", -1)
    if 0 <= ignored < len(found):
        numbers[count] = numbers[ignored]  # `fit` has ignored the class of this number in the data
    numbers[numbers == ignored] = count
    y, y_test = numbers[data.y], None if data.y_test is None else numbers[data.y_test]
    check_learnt(loss, where, "y", y, count)
    if y_test is not None:
        check_learnt(loss, where, "y_test", y_test, count)
    return replace(data, y=y, y_test=y_test, classes=known or found)


def tokens_of(graph: Graph) -> int:
    """Return the vocabulary size: the number of rows in the table that embeds the tokens."""
    table = next(node for node in graph if node.op == "embedding" and graph.data in node.inputs)
    return graph[table.inputs[1]].shape[0]


def _shaped(array: Array, wanted: tuple[int, ...]) -> Array:
    """Return rows of a table as samples of the shape `wanted`.

    If the number of elements does not fit, the rows are returned unchanged.
    """
    fits = array.ndim in (1, 2) and array.size == len(array) * prod(wanted)
    return array.reshape(len(array), *wanted) if fits else array


def example(graph: Graph) -> tuple[Array, Array]:
    """Return samples and labels of one batch, with which operators can be measured."""
    data, label = graph[graph.data], graph[graph.label]
    classes = classes_of(graph)
    if data.shape[1:] == (1, 8, 8) and label.shape[1:] == () and classes >= 10:
        dataset = load_data("digits")
        repeated = np.arange(graph.batch) % len(dataset.x)
        return dataset.x[repeated], dataset.y[repeated]
    rng = np.random.default_rng(0)

    def drawn(dtype: str, shape: tuple[int, ...], limit: int) -> Array:
        if dtype == "float32":
            return rng.standard_normal(shape, dtype=np.float32)
        return rng.integers(0, limit, shape, dtype=np.int32)

    def records(parts: tuple[Part, ...]) -> Array:
        found = np.empty(graph.batch, record_type(parts))
        for part in parts:
            found[part.name] = drawn(part.dtype, (graph.batch, *part.shape), part.limit)
        return found

    limit = tokens_of(graph) if data.dtype == "int32" else 0
    x = records(graph.inputs) if graph.inputs else drawn(data.dtype, data.shape, limit)
    y = records(graph.targets) if graph.targets else drawn(label.dtype, label.shape, classes)
    return x, y


def steps_per_epoch(dataset: Dataset, batch: int) -> int:
    """Return the number of whole batches in an epoch. Remaining samples are left out.

    It is 1 for fewer samples than a batch, which only data that are drawn may have.
    """
    return max(1, len(dataset.x) // batch)


def batch_of_step(dataset: Dataset, batch: int, seed: int, step: int) -> tuple[Array, Array]:
    """Return the samples and labels of training step number `step`. The first step is 0."""
    chosen = samples_of_step(dataset, batch, seed, step)
    x = dataset.x[chosen]
    if dataset.augment:
        x = dataset.augment.apply(x, seed, step)
    return x, x if dataset.y is dataset.x else dataset.y[chosen]


def samples_of_step(dataset: Dataset, batch: int, seed: int, step: int) -> Array:
    """Return the indices, in `dataset`, of the samples of training step number `step`.

    The first step is 0. If epochs are shuffled, `seed` and the number of the epoch determine the
    order of the samples.
    """
    if dataset.draw:
        return np.asarray(dataset.draw(step))
    epoch, place = divmod(step, steps_per_epoch(dataset, batch))
    return _order(dataset, seed, epoch)[place * batch : (place + 1) * batch]


def samples_of_steps(
    dataset: Dataset,
    batch: int,
    seed: int,
    first: int,
    steps: int,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Return the indices of `samples_of_step` for `steps` steps, from step `first` on, as uint32.

    `progress` is called after each epoch with the number of bytes so far, and of all bytes.
    """
    indices = np.empty((steps, batch), "<u4")
    per_epoch, done = steps_per_epoch(dataset, batch), 0
    while done < steps:
        epoch, place = divmod(first + done, per_epoch)
        count = min(per_epoch - place, steps - done)
        order = _order(dataset, seed, epoch)[place * batch : (place + count) * batch]
        indices[done : done + count] = order.reshape(count, batch)
        done += count
        if progress:
            progress(indices[:done].nbytes, indices.nbytes)
    return indices.reshape(-1)


def _order(dataset: Dataset, seed: int, epoch: int) -> Array:
    count = len(dataset.x)
    order = _shuffled(count, seed, epoch) if dataset.shuffle else np.arange(count)
    if dataset.balance and isinstance(dataset, FittedData):
        return _balanced(order, dataset.y, classes_of(dataset.graph))
    return order


def _balanced(order: Array, labels: Array, classes: int) -> Array:
    """Return as many samples, one of each class in turn. A rare class repeats its samples.

    Samples with the ignored label, which has no class, are left out if there are others.
    """
    known = order[labels[order] < classes]
    known = known if len(known) else order
    by_class = known[np.argsort(labels[known], kind="stable")]
    _, first, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    turn, place = np.arange(len(order)) % len(counts), np.arange(len(order)) // len(counts)
    return by_class[first[turn] + place % counts[turn]]


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(np.arange(count))
