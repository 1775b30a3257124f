"""The trace of a device: what it was taught, from which replay repeats its steps."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..data.classes import Classes, numbers_by
from ..data.datasets import Dataset
from ..data.files import Arrays, read_npz
from ..data.fitted import fit_half, fit_samples
from ..data.taught import Taught, drawn
from ..errors import BadInput
from ..graph.weights import Array
from .packaged import Packaged

LAST_STEP = 2**32 - 2


@dataclass(frozen=True)
class Trace:
    """Raw samples `x` (N, ...) in the order in which they were taught, and facts about each."""

    packaged: Packaged
    x: Array
    taught: tuple[Taught, ...]

    @cached_property
    def data(self) -> Dataset:
        """The data of training: a step draws the samples that the device has drawn."""
        made = self.packaged
        x = made.floats(self.x)
        labels = np.array([it.label for it in self.taught], np.int32)

        def draw(step: int) -> list[int]:
            found = drawn(self.taught, made.seed, step + 1, made.batch, made.slots)
            if found is None:
                raise no_sample(step + 1)
            return found

        return Dataset(
            "trace", x, x if made.repeats_the_input else labels, draw=draw,
            normalization=made.normalization,
        )  # fmt: skip

    def at_once(self) -> "Trace":
        """The trace of a device that was taught the same samples before its first step."""
        return replace(self, taught=tuple(it._replace(next_step=1) for it in self.taught))


def read_trace(path: Path, packaged: Packaged, first_step: int = 1) -> Trace:
    """Read the arrays x, y and next_step of an .npz file.

    Raises BadInput if they are wrong, or if no sample is there for step `first_step`.
    """
    arrays = read_npz(path, lambda found: _check(path, found, packaged), more=("next_step",))
    x = arrays["x"].reshape(-1, *packaged.sample_shape).astype(packaged.raw.dtype)
    label, next_step = (arrays[name] for name in ("y", "next_step"))
    _check_range(path, "y", label, 0, packaged.classes - 1)
    _check_range(path, "next_step", next_step, 1, LAST_STEP)
    taught = tuple(map(Taught, label.tolist(), next_step.tolist()))
    if drawn(taught, packaged.seed, first_step, packaged.batch, packaged.slots) is None:
        raise no_sample(first_step, f" {path}")
    return Trace(packaged, x, taught)


def raw_samples(data: Dataset, packaged: Packaged, known: Classes) -> tuple[Array, Array]:
    """Return samples and labels of a data set as a device gets them.

    `known`: the classes of the device's weights, by which labels that are words get their numbers.
    Raises BadInput if the samples are not raw, or do not fit the package.
    """
    where, dtype, graph = f"data {data.name}", packaged.raw.dtype, packaged.schedule.graph
    if packaged.repeats_the_input:
        x = fit_samples(data, "", data.x, graph)
        labels = np.zeros(len(x), np.int32)
    else:
        x, labels = fit_half(data, "", data.x, data.y, graph)
    raw = x.astype(dtype)
    if data.normalization or not np.array_equal(raw, x):
        raise BadInput(
            f"{where}: x holds {data.x.dtype} values that are not raw ones of {dtype}: save "
            "samples as the device gets them, and omit --normalize"
        )
    if (labels == packaged.classes).any():
        raise BadInput(
            f"{where}: the loss ignores some of the labels, and a device learns no such sample: "
            "leave these samples out"
        )
    packaged.floats(raw)  # raises BadInput for a number that overflows
    if data.classes and not known and len(data.classes) != packaged.classes:
        raise BadInput(
            f"{where}: the data has {len(data.classes)} classes, but the package has "
            f"{packaged.classes}, and does not name them: write labels as numbers"
        )
    if data.classes and known:
        labels = numbers_by(known, data.classes, where)[labels]
    return raw, labels


def no_sample(step: int, file: str = "") -> BadInput:
    return BadInput(
        f"trace{file}: no sample is there for step {step:,}, since each next_step is above it. Add "
        "the first samples of the device, or resume with weights of a later step"
    )


def _check(path: Path, found: Arrays, packaged: Packaged) -> None:
    """Raise BadInput if types or shapes are wrong."""
    if "next_step" not in found:
        raise BadInput(
            f"trace {path}: the array next_step is missing. Save that of poet_learner_state before "
            "each poet_learner_teach"
        )
    x, kind = found["x"], packaged.raw.dtype
    count = len(x) if x.ndim else 0
    if not count or x.size != count * packaged.sample_values or x.dtype != kind:
        raise BadInput(
            f"trace {path}: x holds {x.dtype} of shape {x.shape}, but the package takes raw "
            f"samples of {kind} with {packaged.sample_values:,} values each: save them as the "
            "device gets them"
        )
    for name in ("y", "next_step"):
        array = found[name]
        if array.shape != (count,) or array.dtype.kind not in "iu":
            raise BadInput(
                f"trace {path}: {name} holds {array.dtype} of shape {array.shape}, but must have a "
                f"whole number for each of the {count:,} samples"
            )


def _check_range(path: Path, name: str, array: Array, low: int, high: int) -> None:
    wrong = np.flatnonzero((array < low) | (array > high))
    if len(wrong):
        raise BadInput(
            f"trace {path}: {name} of sample {wrong[0]} is {array[wrong[0]]}, but must be "
            f"{low} to {high:,}"
        )
