"""A package: a schedule with weights, and how the samples of its learner are kept."""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from ..card.weights import SavedWeights
from ..data.normalization import NONE, Normalization
from ..data.shapes import classes_of, learns_samples
from ..errors import BadInput
from ..graph.autodiff import ANCHOR
from ..graph.losses import loss_of
from ..graph.source import source_of
from ..graph.weights import Array
from ..reference.inference import is_own_data
from ..schedule.decode import decode, initial_offsets
from ..schedule.model import INPUT
from ..schedule.nests import Streamed
from ..schedule.schedule import Schedule
from ..schedule.times import longest_slices

RAW = {"float32": "<f4", "int16": "<i2", "int8": "i1", "uint8": "u1"}
"""The types of raw values, in the order of `enum poet_raw`, with their names in NumPy."""
SLOTS = 8
SEED = 1
# The limits of learner_open.c, which keep products of sizes within 32 bits.
_MOST_PLACES, _MOST_VALUES = 1 << 15, 1 << 24
# Of all samples, in memory and on storage: so their bytes, and their blocks, have 31 bits.
_MOST_BYTES_IN_MEMORY, _MOST_BYTES_ON_STORAGE = (1 << 31) - 1, 1 << 39
# Files that NAME.h would hide, also on file systems that ignore case.
_HEADERS = {
    "aio", "alloca", "arduino", "assert", "byteswap", "complex", "cpio", "ctype", "dirent",
    "dlfcn", "elf", "endian", "err", "errno", "error", "fcntl", "features", "fenv", "float",
    "fnmatch", "ftw", "getopt", "glob", "grp", "iconv", "inttypes", "iso646", "langinfo",
    "libgen", "limits", "locale", "malloc", "math", "memory", "monetary", "netdb", "poet",
    "poll", "pthread", "pwd", "regex", "sched", "search", "semaphore", "setjmp", "signal",
    "spawn", "stdalign", "stdarg", "stdatomic", "stdbit", "stdbool", "stdckdint", "stddef",
    "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings", "syslog", "tar", "termios",
    "tgmath", "threads", "time", "trace", "uchar", "ulimit", "unistd", "utime", "values",
    "wchar", "wctype", "wordexp",
}  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """The type of a sample's values. Each stands for the float32 number (raw - offset) * scale."""

    type: str = "float32"
    scale: float = 1.0
    offset: float = 0.0

    def __str__(self) -> str:
        if self.type == "float32":
            return self.type
        return f"{self.type}:{self.scale:g}" + (f":{self.offset:g}" if self.offset else "")

    @property
    def dtype(self) -> "np.dtype[np.generic]":
        return np.dtype(RAW[self.type])

    def floats(self, raw: Array) -> Array:
        """Return the numbers that raw values stand for. Each result is rounded to float32."""
        moved: Array = raw.astype("<f4") - np.float32(self.offset)
        return moved * np.float32(self.scale)


def raw_of(text: str) -> Raw:
    """Return what `--raw` names: float32, or TYPE:SCALE[:OFFSET]. Raises BadInput otherwise."""
    kind, *numbers = text.split(":")
    try:
        if (kind == "float32" and numbers) or kind not in RAW:
            raise ValueError
        scale, offset = _raw_numbers(numbers) if kind != "float32" else (1.0, 0.0)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise BadInput(
            f"raw values {text!r}: use float32, or int16:SCALE, int8:SCALE or uint8:SCALE, such as "
            "int16:1/4096. :OFFSET may follow. SCALE must be above 0, and both finite"
        ) from None
    return Raw(kind, scale, offset)


def _raw_numbers(given: list[str]) -> tuple[float, float]:
    scale, offset = given if len(given) == 2 else (*given, "0")
    with np.errstate(over="ignore", under="ignore"):
        found = [float(np.float32(_number(text))) for text in (scale, offset)]
    if not np.isfinite(found).all() or found[0] <= 0:
        raise ValueError
    return found[0], found[1]


def _number(text: str) -> float:
    """Return a decimal number or a fraction. A Fraction of 1e999999999 would take hours."""
    return float(Fraction(text) if "/" in text else text)


def identifier(name: str) -> str:
    """Return a name as a C identifier: other characters become underscores.

    A name with a header of its own in C, POSIX or this library gets the ending _model.
    """
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    found = f"_{found}" if found[:1].isdigit() else found
    return f"{found}_model" if found.lower() in _HEADERS else found


@dataclass(frozen=True)
class Packaged:
    """What a package is made of. Raises BadInput if no learner can use the schedule.

    `weights`: the first value of each parameter and state, by the names of nodes. States of
    optimisers begin with zeros. `slots`: samples that the device keeps of each class.
    """

    name: str
    schedule: Schedule = field(repr=False)
    weights: SavedWeights = field(repr=False)
    raw: Raw = Raw()
    slots: int = SLOTS
    seed: int = SEED

    def __post_init__(self) -> None:
        _check_model(self.schedule, self.name)
        _check_order(self.schedule, self.schedule.graph.label)
        _check_forward(self.schedule)
        _check_order(self.forward, self.forward.graph.logits)
        on_storage = self.schedule.model.storage
        most_bytes = _MOST_BYTES_ON_STORAGE if on_storage else _MOST_BYTES_IN_MEMORY
        most = most_bytes // (self.classes * self.sample_bytes)
        most = min(_MOST_PLACES // self.classes - 1, 2**16 - 1, most)
        if not 1 <= self.slots <= most:
            raise BadInput(
                f"{self.slots:,} samples of a class: choose at least 1, and at most {most:,} for "
                f"{self.classes:,} {'classes' if self.classes > 1 else 'class'} with samples of "
                f"{self.sample_bytes:,} bytes"
            )
        if self.sample_values > _MOST_VALUES // self.batch:
            raise BadInput(
                f"a batch of {self.batch} samples of {self.sample_values:,} values is too large: "
                f"a learner takes {_MOST_VALUES:,} values"
            )
        if self.sample_values % len(self.normalization.scale):
            raise BadInput(
                f"the weights normalise {len(self.normalization.scale):,} channels, but a sample "
                f"has {self.sample_values:,} values: use weights of this model"
            )

    @property
    def forward(self) -> Schedule:
        return self.schedule.needed_forward()

    @cached_property
    def repeats_the_input(self) -> bool:
        """True for an autoencoder, whose label is the sample."""
        return learns_samples(self.schedule.graph)

    @property
    def classes(self) -> int:
        return 1 if self.repeats_the_input else classes_of(self.schedule.graph)

    @property
    def class_names(self) -> list[str]:
        known = [] if self.repeats_the_input else self.weights.classes[: self.classes]
        return [*known, *map(str, range(len(known), self.classes))]

    @property
    def batch(self) -> int:
        return self.schedule.graph.batch

    @property
    def sample_shape(self) -> tuple[int, ...]:
        graph = self.schedule.graph
        return graph[graph.data].shape[1:]

    @property
    def sample_values(self) -> int:
        return prod(self.sample_shape)

    @property
    def sample_bytes(self) -> int:
        return self.sample_values * self.raw.dtype.itemsize

    @property
    def outputs(self) -> int:
        graph = self.forward.graph
        return graph[graph.logits].size_bytes // 4

    @property
    def normalization(self) -> Normalization:
        return self.weights.normalization or NONE

    @cached_property
    def tensors(self) -> list[str]:
        """The names of the nodes that poet_learner_read reads, in the order of their numbers."""
        model = self.schedule.model
        stored = zip(self.schedule.names, model.tensors[: model.stored_count], strict=False)
        return [name for name, tensor in stored if tensor.place != INPUT]

    @property
    def tensor_names(self) -> list[str]:
        """The names that `tensors` have in files of weights; of several there, that of the node."""
        graph = self.schedule.graph
        named = ((name, source_of(graph, graph[name]).names) for name in self.tensors)
        return [names[0] if len(names) == 1 else name for name, names in named]

    @property
    def tensor_cuts(self) -> dict[str, dict[str, Any]]:
        """How the bytes of tensors lie that are not in row-major order, by name."""
        model = self.schedule.model
        cuts = {name: model.tensors[self.schedule.names.index(name)].cut for name in self.tensors}
        return {
            named: {it: getattr(cut, it) for it in ("size", "part", "unit_bytes")}
            for named, cut in zip(self.tensor_names, cuts.values(), strict=True)
            if cut and not cut.is_row_major
        }

    @property
    def tensor_layouts(self) -> dict[str, dict[str, Any]]:
        """How files of weights have the tensors whose elements are in another order there."""
        graph = self.schedule.graph
        sources = (source_of(graph, graph[name]) for name in self.tensors)
        return {
            name: {"shape": it.shape, "transposed": it.transposed, "rolled": it.rolled}
            for name, it in zip(self.tensor_names, sources, strict=True)
            if it.transposed or it.rolled
        }

    @property
    def kernels(self) -> frozenset[str]:
        """The names of the kernels that training and inference use."""
        return self.schedule.graph.kernels | self.forward.graph.kernels

    @cached_property
    def streams(self) -> bool:
        """True if an operator is computed part by part, also to cut it into slices."""
        both = (self.schedule, self.forward)
        return any(isinstance(it, Streamed) for schedule in both for it in decode(schedule))

    @property
    def longest_slice_us(self) -> int | None:
        """Return the longest time for which poll computes without a pause; None: not known."""
        found = longest_slices(self.schedule)
        return ceil(found[0].time_us) if found else None

    def floats(self, raw: Array) -> Array:
        """Return raw samples (N, ...) as the network gets them, in float32.

        Raises BadInput if a result is not finite.
        """
        return self.normalization.apply("samples", self.raw.floats(raw))

    def anchored(self, weights: SavedWeights) -> SavedWeights:
        """Return weights of the device with the anchors of the package, which no file has."""
        own = {name: value for name, value in self.weights.items() if name.endswith(ANCHOR)}
        return SavedWeights({**weights, **own}, weights.facts)

    def first_values(self) -> list[bytes]:
        """Return the bytes of each stored tensor, in its own order; b"" if all are 0."""
        schedule, found = self.schedule, []
        for number, name in enumerate(schedule.names[: schedule.model.stored_count]):
            value = self.weights.get(name)
            content = b"" if value is None else np.ascontiguousarray(value, "<f4").tobytes()
            content = schedule.model.tensors[number].in_order(content) if any(content) else b""
            found.append(content)
        return found


def _check_model(schedule: Schedule, name: str) -> None:
    graph = schedule.graph
    data, label = graph[graph.data], graph[graph.label]
    if graph.inputs:
        raise BadInput(
            f"{graph.name} has several inputs, but a learner gives one to its model: package a "
            "model with one input"
        )
    if data.dtype != "float32":
        raise BadInput(
            f"{graph.name} reads tokens, but a learner gives samples of numbers to its model: "
            "package a model with float32 inputs"
        )
    if not learns_samples(graph) and (label.dtype != "int32" or label.shape != (graph.batch,)):
        raise BadInput(
            f"{graph.name} learns {'other values' if label.dtype == 'float32' else 'sequences'}, "
            "but a learner teaches one class for each sample, or the sample itself: package a "
            "classifier or an autoencoder"
        )
    ignored = loss_of(graph).options.get("ignore_index")
    if ignored is not None and 0 <= ignored < classes_of(graph):
        raise BadInput(
            f"the loss of {graph.name} ignores class {ignored}, but a learner trains all classes: "
            "solve with an ignore_index outside the classes, such as 255, or without it"
        )
    if schedule.forward is None:
        model, board = schedule.meta.get("model", "MODEL"), schedule.meta.get("board", "BOARD")
        raise BadInput(
            f"{name}.poet has no forward program, so the device could not infer. Make one, for "
            f"example: poet-host solve {model} --board {board} -o {name}.poet (without "
            "--no-forward, with enough --ram)"
        )


def _check_order(schedule: Schedule, name: str) -> None:
    """Raise BadInput if a device would have to reorder data, or the labels or outputs `name`."""
    for used in (schedule.graph.data, name):
        cut = schedule.model.tensors[schedule.numbers[used]].cut
        if cut and not cut.is_row_major:
            raise BadInput(
                f"{schedule.graph.name} streams {used} in parts of rows, but a learner reads and "
                "writes whole rows: solve with a smaller --batch, more --ram, or --no-streaming"
            )


def _check_forward(schedule: Schedule) -> None:
    """Raise BadInput if the forward program cannot run on one sample, between two steps."""
    forward = schedule.needed_forward()
    graph, own = forward.graph, is_own_data(forward.graph)
    if own and graph[graph.data].size_bytes * schedule.graph.batch != (
        schedule.graph[schedule.graph.data].size_bytes
    ):
        raise BadInput(
            f"{graph.name} mixes the samples of a batch, so it has no inference of one sample: "
            "solve it with --batch 1, or package another model"
        )
    homes, before = initial_offsets(forward), initial_offsets(schedule)
    inputs = {schedule.graph.data, schedule.graph.label}
    moved = [name for name, at in before.items() if homes.get(name) != at and name not in inputs]
    if not own or graph.data not in homes or moved:
        raise BadInput(
            f"an inference of {graph.name} does not fit into the RAM budget together with the "
            "tensors that stay in RAM between steps: solve again with a larger --ram"
        )
