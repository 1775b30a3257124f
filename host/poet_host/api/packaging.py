"""Write a package for a learner, and repeat or continue on the host what a device did with it."""

import io
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..card.weights import SavedWeights, facts_of_weights, step_of_weights
from ..data.datasets import Dataset
from ..device.device import Device
from ..errors import BadInput, listed
from ..files import write_whole
from ..graph.weights import Weights, check_starting_values, starting_values
from ..package.folder import load, write
from ..package.packaged import SLOTS, Packaged, identifier, raw_of
from ..package.stored import LearnerStore, lay_out
from ..package.trace import LAST_STEP, raw_samples, read_trace
from ..run.train import OnStep
from ..schedule.schedule import Schedule
from ..sim.start_board import new_storage
from .connection import Connection, arena_for, connect
from .inputs import Data, as_dataset, as_schedule, as_weights
from .training import train


@dataclass(frozen=True, repr=False)
class Package:
    """A written package. `facts`: the content of its package.json."""

    folder: Path
    facts: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        return f"<Package {self.facts['name']} in {self.folder}>"


def write_package(
    schedule: Schedule | str | Path,
    folder: str | Path,
    *,
    kind: str = "c",
    name: str | None = None,
    weights: Weights | str | Path | None = None,
    samples: int = SLOTS,
    raw: str = "float32",
) -> Package:
    """Write C sources of a device that learns by `schedule` (poet/learner.h) to a folder.

    `kind`: "c", "arduino" or "platformio". `name`: of its header; None: the name of the schedule's
    file, or of the model. The device begins with `weights`, without states of the optimiser; None:
    with those in the model's .onnx file, or random ones. It keeps `samples` samples of each class,
    whose values are `raw`: "float32", or "int16:SCALE[:OFFSET]", "int8:..." or "uint8:...", which
    stand for (raw - OFFSET) * SCALE. The normalisation of the weights is applied to these numbers.

    Raises BadInput if no learner can use the schedule, or if the folder has other files.
    """
    path = None if isinstance(schedule, Schedule) else Path(schedule)
    schedule = as_schedule(schedule)
    given = None if weights is None else as_weights(weights, schedule.graph)
    values = starting_values(schedule.graph, 0, given, is_new=True)
    packaged = Packaged(
        identifier(name or (schedule.graph.name if path is None else path.stem)), schedule,
        SavedWeights(values, facts_of_weights(given)), raw_of(raw), samples,
    )  # fmt: skip
    return Package(Path(folder), write(packaged, kind, Path(folder)))


def replay(
    folder: str | Path,
    trace: str | Path,
    *,
    steps: int,
    on_step: OnStep | None = None,
) -> SavedWeights:
    """Return the weights of a device with the package in `folder`, after its step `steps`.

    `trace`: the path of an .npz file with arrays x (the raw samples, in the order in which the
    device was taught them), y (their labels) and next_step (of the device's state right before each
    sample). The bits are those of the device, unless it has called poet_learner_adopt or
    poet_learner_forget. Raises BadInput if no device can have been taught this.
    """
    packaged = load(Path(folder))
    data = read_trace(Path(trace), packaged).data
    if not steps:
        return packaged.weights
    schedule = packaged.schedule
    arena_bytes = arena_for(schedule, "native")
    with connect("native", card=schedule.model.storage, arena_bytes=arena_bytes) as connection:
        done = train(
            schedule, connection, data, steps=steps, weights=packaged.weights,
            commit_every=None if schedule.model.storage else steps, on_step=on_step,
        )  # fmt: skip
    return SavedWeights(done.weights, packaged.weights.facts)


def load_samples(
    folder: str | Path, samples: str | Path, *, first_step: int = 0, resume: bool = False
) -> Dataset:
    """Return the samples of a device with the package in `folder`, for `train`.

    `samples`: an .npz file as that of `save_samples`. `first_step`, `resume`: those of `train`. If
    the training begins at step 0, all samples are there from its first step on. If it continues, a
    step draws what the device would draw. Raises BadInput if no sample is there for the first step.
    """
    trace = read_trace(
        Path(samples), load(Path(folder)), first_step + 1 if first_step else LAST_STEP
    )
    return (trace if first_step or resume else trace.at_once()).data


def save_samples(image: str | Path | Connection, folder: str | Path, samples: str | Path) -> int:
    """Write the samples in a device's storage to an .npz file. Return their number.

    `image`: an image of the storage, or a connection to a board with the device's card. The device
    has the package in `folder`. The arrays are x (raw samples), y (labels) and next_step (the first
    step that may draw a sample), in an order of teaching. Raises BadInput if the storage has no
    store of this package.
    """
    with _store(image, load(Path(folder))) as store:
        arrays: dict[str, Any] = store.samples()
    np.savez(raw := io.BytesIO(), **arrays)
    write_whole(Path(samples), raw.getvalue())
    return len(arrays["x"])


def read_learner(image: str | Path | Connection, folder: str | Path) -> tuple[SavedWeights, int]:
    """Return the weights in a device's storage, and the step that they come from.

    `image`: an image of the storage, or a connection to a board with the device's card. The device
    has the package in `folder`. Raises BadInput if the storage has no store of this package,
    PoetError if the weights are damaged.
    """
    with _store(image, load(Path(folder))) as store:
        return store.weights(), store.committed_step or 0


def write_learner(
    image: str | Path | Connection,
    folder: str | Path,
    data: Data | None = None,
    weights: Weights | str | Path | None = None,
    *,
    erase_card: bool = False,
) -> int:
    """Add samples to a device's storage, and return the number that it keeps then.

    `image`: an image of the storage, or a connection to a board with the device's card. The device
    has the package in `folder`. `data` has raw samples, as the device gets them (None: only weights
    are written). A new sample of a full class replaces its oldest one. If there is no image, or
    with `erase_card`, the storage becomes that of a new device, with the weights of the package.
    The device continues with `weights`, if they are given, after its last step or that of the file,
    whichever is later. Tensors that they lack are those of the package. An image stays as it was if
    this fails; a card in a board may be written in part.

    Raises BadInput if the storage has no store of the package, or if data or weights do not fit it.
    """
    packaged = load(Path(folder))
    if data is None and weights is None:
        raise BadInput(
            "nothing is to be written: name samples (--data), weights (--load-weights) or both"
        )
    given = None if weights is None else as_weights(weights, packaged.schedule.graph)
    file = None if isinstance(weights, Mapping) else weights
    step = step_of_weights(file, unknown=0) if file else 0
    facts = facts_of_weights(given)
    named = packaged.weights.classes
    taught = None
    if data is not None:
        labels = not packaged.repeats_the_input
        samples = as_dataset(data, packaged.schedule.graph, labels=labels)
        taught = raw_samples(samples, packaged, named or facts.classes)
    if facts.normalization not in (None, packaged.normalization):
        raise BadInput(
            f"the weights normalise samples by {facts.normalization}, but the package "
            f"{packaged.name} does so by {packaged.normalization}: package the schedule with these "
            "weights"
        )
    if facts.classes and named and tuple(facts.classes) != tuple(named):
        raise BadInput(
            f"the weights have the classes {listed(facts.classes)}, but the package "
            f"{packaged.name} has {listed(named)}: package the schedule with these weights"
        )
    check_starting_values(packaged.schedule.graph, given)
    make = partial(lay_out, packaged=packaged)
    path = None if isinstance(image, Connection) else Path(image)
    is_new = path is not None and not path.exists()
    with ExitStack() as stack:
        found = image
        if path is not None:
            found = stack.enter_context(new_storage(path, None, make if is_new else None))
        if erase_card and not is_new:
            make(_place(found))
        store = stack.enter_context(_store(found, packaged, writable=True, named=path))
        if given is None and store.committed_step is None:
            given = packaged.weights  # a power cut has ended the device's first start
        if given is not None:
            step = max(store.committed_step or 0, step)
            # Before the first step, there are no states of the optimiser.
            values = {it: value for it, value in given.items() if step or ":" not in it}
            content = packaged.anchored(SavedWeights({**packaged.weights, **values}, facts))
            store.put_weights(content, step)
        if taught:
            store.teach(*taught)
        return len(store.samples()["y"])


def _place(image: str | Path | Connection) -> Path | Device:
    return image.device if isinstance(image, Connection) else Path(image)


def _store(image: str | Path | Connection, packaged: Packaged, **options: Any) -> LearnerStore:
    return LearnerStore(_place(image), packaged, **options)
