"""Predictions: what a trained model answers for samples, and the files that hold the answers."""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset
from ..data.facts import DataFacts
from ..data.fitted import fit_samples, samples_as
from ..data.shapes import has_labels, no_labels
from ..device.device import Device, Progress
from ..errors import BadInput
from ..files import is_stream, write_whole
from ..graph.graph import Graph
from ..graph.losses import loss_of
from ..graph.weights import Array, Weights
from ..schedule.schedule import Schedule
from .evaluate import Answers, Half, answers, check_samples, half_of, not_finite
from .metrics import probabilities

SUFFIXES = (".csv", ".npz")


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction(Answers):
    """The outputs of a model for samples: logits (samples, ..., classes), or values.

    Several outputs are records, with a field for each.

    `labels` are the words or numbers in the data, one for each sample, or None if it has none.
    """

    model: str
    data: str
    half: Half
    has_classes: bool  # False: the model learns values
    is_bce: bool = False  # True: the values are the logits of labels that are true or false
    classes: Classes = NO_NAMES  # names of the first classes; the others are numbers
    labels: Sequence[Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<Prediction of {self.model}: {len(self.outputs):,} samples>"

    @property
    def _only(self) -> Array:
        """Return the outputs. Raises BadInput if they are several."""
        if names := self.outputs.dtype.names:
            raise BadInput(
                f"{self.model} has the outputs {', '.join(names)}: use `outputs[{names[0]!r}]` "
                "and so on"
            )
        return self.outputs

    @property
    def predicted(self) -> Array:
        """Return the number of the class with the largest output, (samples, ...)."""
        found: Array = self._only.argmax(axis=-1)
        return found

    @property
    def probabilities(self) -> Array:
        """Return the probability of each class, or of each label of bce, in float32.

        The shape is that of `outputs`.
        """
        if self.is_bce:  # the softmax of two classes, of which the first has the logit 0
            logits = np.stack([np.zeros_like(self._only), self.outputs], axis=-1)
            return probabilities(logits)[..., 1]
        return probabilities(self._only)

    @property
    def names(self) -> list[str]:
        return [*self.classes, *map(str, range(len(self.classes), self._only.shape[-1]))]

    def save(self, path: Path | str) -> None:
        path = Path(path)
        several = self.outputs.dtype.names or ()
        _check_format(path, (self.has_classes and self.outputs.ndim > 2) or bool(several))
        text = io.StringIO()
        if path.suffix != ".npz":
            csv.writer(text, lineterminator="\n").writerows(self._table())
            return write_whole(path, text.getvalue())
        arrays: dict[str, Any] = {name: self.outputs[name] for name in several} or {
            "outputs": self.outputs
        }
        if self.has_classes:
            arrays |= {"predicted": self.predicted, "probabilities": self.probabilities}
            arrays |= {"classes": np.array(self.names)}
        if self.is_bce:
            arrays["probabilities"] = self.probabilities
        if self.labels is not None:
            arrays["labels"] = np.array(self.labels)
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w") as file:  # a name may be that of a parameter of savez
            for name, array in arrays.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)
        return write_whole(path, raw.getvalue())

    def _table(self) -> Iterator[list[Any]]:
        """Yield the header row and a row for each sample. Numbers are float32, to the last bit."""
        shares = self.has_classes or self.is_bce
        names, rows = self.names, self.probabilities if shares else self.outputs
        rows = rows.reshape(len(rows), -1)
        head = ["class", "index", *(f"p({name})" for name in names)]
        if not self.has_classes:
            what = "probability" if self.is_bce else "value"
            head = [what] if rows.shape[1] == 1 else [f"{what} {i}" for i in range(rows.shape[1])]
        labels = None if self.labels is None else iter(self.labels)
        yield ["label", *head] if labels else head
        chosen = self.predicted.tolist()
        for i, row in enumerate(rows):
            answer = [names[chosen[i]], chosen[i]] if self.has_classes else []
            yield [*([next(labels)] if labels else []), *answer, *map(str, row)]

    def to_json(self) -> dict[str, Any]:
        named = ("model", "data", "half", "time_us")
        facts = {name: getattr(self, name) for name in named} | {"samples": len(self.outputs)}
        if self.has_classes:
            counts = np.bincount(self.predicted.reshape(-1), minlength=self.outputs.shape[-1])
            facts |= {"classes": self.names, "counts": counts.tolist()}
        return facts


def predict(
    device: Device | None,
    schedule: Schedule,
    weights: Weights | None,
    facts: DataFacts,
    data: Dataset,
    half: Half | None,
    samples: int | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Return the outputs of a model for a half of `data`, whose labels are not used: see answers.

    `half`, `samples`: see run.evaluate.evaluate. Samples are normalised as the weights need it, of
    which `facts` are known.
    Raises BadInput if the samples do not fit the model, and PoetError if an output is not finite.
    """
    graph, half = schedule.graph, half_of(data, half)
    suffix = "_test" if half == "held-out" else ""
    part = slice(check_samples(samples))
    x, y = np.atleast_1d(getattr(data, f"x{suffix}"))[part], getattr(data, f"y{suffix}")
    y = no_labels(x) if y is None else np.atleast_1d(y)[part]
    fitted = replace(data, x=fit_samples(data, suffix, x, graph), y=y, x_test=None, y_test=None)
    x = samples_as(fitted, facts).x
    found = answers(device, schedule, weights, x, progress)
    if not np.isfinite(found.outputs.view(np.float32)).all():
        raise not_finite(graph, data.name)
    learnt, outputs = graph[graph.label], found.outputs
    if has_classes := learnt.dtype == "int32":
        outputs = outputs.reshape(len(x), *learnt.shape[1:], -1)
    labels = None
    if has_labels(y) and y.size == len(x) and not graph.targets:
        names = dict(enumerate(data.classes))  # ignored labels have none
        labels = [names.get(label, label) for label in y.reshape(-1).tolist()]
    return Prediction(
        outputs=outputs, time_us=found.time_us, model=graph.name, data=data.name,
        half=half, has_classes=has_classes, is_bce=loss_of(graph).name == "bce",
        classes=facts.classes, labels=labels,
    )  # fmt: skip


def check_prediction_file(path: Path, graph: Graph) -> None:
    """Raise BadInput if no prediction of the model can be saved in a file of this name."""
    label = graph[graph.label]
    has_positions = label.dtype == "int32" and len(label.shape) > 1
    _check_format(path, has_positions or bool(graph.targets))


def _check_format(path: Path, has_positions: bool) -> None:
    """`has_positions`: whether samples have a class at each of several positions."""
    if path.suffix not in SUFFIXES and not is_stream(path):
        raise BadInput(f"{path}: the name of a file of predictions must end in .csv or .npz")
    if has_positions and path.suffix != ".npz":
        raise BadInput(
            f"{path}: a row of a table has one class, but the model has a class at each position "
            "of a sample, or several outputs: name a file that ends in .npz"
        )
