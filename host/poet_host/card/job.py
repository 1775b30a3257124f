"""A job: the data on a card with which a board trains without a host.

The job lies after the tensors. Its record (poet_job of records.h) comes first. Then come the sample
numbers of each step, the samples, and space for the board's name and the losses. Values of a sample
have the order that they have in the batch. Before each step, the board reads a batch from the job.
A host sends the same batch over serial, so both ways give the same weights, bit for bit. The record
is written last: if the power fails earlier, the card has no job.
"""

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from .. import isa
from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset
from ..data.fitted import samples_of_steps, steps_per_epoch
from ..device.device import JOB, NOTHING_COMMITTED, Progress
from ..device.progress import shifted
from ..errors import BadInput
from ..graph.weights import Array
from ..schedule.schedule import Schedule
from ..schedule.slots import whole_units
from .card_device import AnyCard

_C = isa.constants()
_BLOCK, _MAGIC = _C["POET_BLOCK"], _C["POET_JOB_MAGIC"]
_LOG_BYTES = isa.record_size("poet_job_log")  # before the losses
_SCRATCH_BYTES = 256 * _BLOCK  # the card's last bytes, for measurements (firmware/src/probe.c)


@dataclass(frozen=True)
class JobSize:
    """The places of the parts of a job, and the number of bytes that the job takes on a card."""

    sample_block: int
    loss_block: int
    size_bytes: int


@dataclass(frozen=True)
class Job:
    """The content of a job that trains `steps` steps after the committed step `first`."""

    first: int
    steps: int
    record: bytes
    order: bytes
    samples: bytes
    sample_block: int
    loss_block: int


@dataclass(frozen=True)
class JobState:
    """The progress of a job. `losses`: loss of each step after `first`, or NaN if unknown."""

    first: int
    steps: int
    committed: int
    losses: Array
    board: str = ""  # name of the last board that ran this job; "" if no board did
    classes: Classes = NO_NAMES

    def __repr__(self) -> str:
        return f"<JobState: step {self.committed} of {self.last}>"

    @property
    def last(self) -> int:
        return self.first + self.steps

    def noted(self) -> list[tuple[int, float | None]]:
        """Return (step, loss) for each step.

        The loss is None if the power failed before the loss was recorded.
        """
        known = (loss if isfinite(loss) else None for loss in self.losses.tolist())
        return list(enumerate(known, self.first + 1))


def job_size(dataset: Dataset, batch: int, steps: int) -> JobSize:
    """Return the size of a job that trains `steps` steps on `dataset`."""
    sample_block = 1 + _blocks(4 * batch * steps)
    sample_bytes = dataset.x[0].nbytes + dataset.y[0].nbytes + 4
    # The blocks that the board writes (its name, the losses) lie in separate allocation units.
    loss_block = whole_units(sample_block + _blocks(sample_bytes * len(dataset.x)))
    size_bytes = (loss_block + _blocks(_LOG_BYTES + 4 * steps)) * _BLOCK + _SCRATCH_BYTES
    return JobSize(sample_block, loss_block, size_bytes)


def make_job(
    schedule: Schedule,
    dataset: Dataset,
    seed: int,
    first: int,
    steps: int,
    progress: Progress | None = None,
) -> Job:
    """Make a job that trains the steps `first` + 1 to `first` + `steps` on `dataset`.

    Raises BadInput if the schedule does not use storage, or if the samples of a step are augmented,
    or drawn by a function.
    """
    if not schedule.model.storage:
        raise BadInput(
            f"the schedule of {schedule.graph.name} does not use the card, so a board cannot train "
            "alone by it: solve without --no-storage"
        )
    if dataset.augment or dataset.draw:
        raise BadInput(
            f"data {dataset.name}: a board without a host cannot augment or draw samples: omit "
            "`augment` and `draw`, or train with a host"
        )
    graph = schedule.graph
    size = job_size(dataset, graph.batch, steps)
    orders = sample_orders(schedule)
    samples = b"".join(_sample(dataset, i, orders) for i in range(len(dataset.x)))
    order = samples_of_steps(dataset, graph.batch, seed, first, steps, progress).tobytes()
    values = {
        "magic": _MAGIC,
        "first": first,
        "steps": steps,
        "model_bytes": len(schedule.model_part),
        "plan_bytes": len(schedule.plan_part),
        "data_bytes": dataset.x[0].nbytes,
        "label_bytes": dataset.y[0].nbytes,
        "data": schedule.names.index(graph.data),
        "label": schedule.names.index(graph.label),
        "batch": graph.batch,
        "sample_block": size.sample_block,
        "loss_block": size.loss_block,
        "order_crc": zlib.crc32(order),
    }
    crc = zlib.crc32(isa.pack("poet_job", **values)[:-4])
    record = isa.pack("poet_job", **values, crc=crc)
    return Job(first, steps, record, order, samples, size.sample_block, size.loss_block)


def sample_orders(schedule: Schedule) -> list[Array]:
    """Return the order in which a batch has the values of a sample: one for data, one for labels.

    Raises BadInput if the values of one sample lie between those of another.
    """
    graph, found = schedule.graph, []
    for name in (graph.data, graph.label):
        tensor = schedule.model.tensors[schedule.numbers[name]]
        numbers = np.arange(tensor.size_bytes // 4, dtype="<u4").reshape(graph.batch, -1)
        places = np.frombuffer(tensor.in_order(numbers.tobytes()), "<u4").reshape(numbers.shape)
        if (places - places[0] != numbers[:, :1]).any():
            raise BadInput(
                f"a board alone cannot put samples into {name}, which streams in parts of rows of "
                "several samples: solve with a smaller --batch, more --ram, or --no-streaming"
            )
        found.append(places[0])
    return found


def _sample(dataset: Dataset, number: int, orders: Sequence[Array]) -> bytes:
    both = zip((dataset.x, dataset.y), orders, strict=True)
    raw = ((np.frombuffer(rows[number].tobytes(), "<u4"), order) for rows, order in both)
    values = b"".join(numbers[order].tobytes() for numbers, order in raw)
    return values + zlib.crc32(values, number).to_bytes(4, "little")


def check_room(dataset: Dataset, batch: int, steps: int, room_bytes: int) -> None:
    """Raise BadInput if a job that trains `steps` steps does not fit in `room_bytes`."""

    def size_bytes(count: int) -> int:
        return job_size(dataset, batch, count).size_bytes

    if size_bytes(steps) <= room_bytes:
        return
    # No room takes more steps than boards can count.
    most = bisect_right(range(min(steps, NOTHING_COMMITTED)), room_bytes, key=size_bytes) - 1
    advice = "use a larger card or fewer samples"
    if most > 0:
        epochs = most // steps_per_epoch(dataset, batch)
        advice += f", or train for at most {most:,} steps ({epochs:,} epochs)"
    raise BadInput(
        f"a job of {steps:,} steps needs {size_bytes(steps):,} bytes for its samples and their "
        f"order, but the card has only {room_bytes:,} bytes for a job: {advice}"
    )


def write_job(device: AnyCard, job: Job, progress: Progress | None = None) -> None:
    """Write a job to the card. The board must have committed step `job.first`."""
    parts = [
        (0, bytes(_BLOCK)),  # delete the old record: it must not describe the new parts
        (job.loss_block, bytes(_LOG_BYTES) + np.full(job.steps, np.nan, dtype="<f4").tobytes()),
        (job.sample_block, job.samples),
        (1, job.order),
        (0, job.record),
    ]
    total, done = sum(len(data) for _, data in parts), 0
    for block, data in parts:
        device.write(JOB, 0, data, shifted(progress, done, total), start=block * _BLOCK)
        done += len(data)


def read_job(device: AnyCard) -> JobState | None:
    """Return the state of the card's job, or None without one. Its schedule must be loaded."""
    size = isa.record_size("poet_job")
    if (room := device.job_room()) < size:
        return None
    raw = device.read(JOB, 0, size)
    record = isa.unpack("poet_job", raw)
    committed = int(device.hello().committed_step)
    whole = record["magic"] == _MAGIC and record["crc"] == zlib.crc32(raw[:-4])
    if not whole or committed < record["first"]:
        return None
    done = min(committed - record["first"], record["steps"])
    log = record["loss_block"] * _BLOCK
    if log + _LOG_BYTES + 4 * record["steps"] > room:
        return None
    noted = device.read(JOB, 0, _LOG_BYTES + 4 * done, start=log)
    board = noted[:_LOG_BYTES].rstrip(b"\0").decode("ascii", "replace")
    losses = np.frombuffer(bytearray(noted[_LOG_BYTES:]), "<f4")
    if 0 < done == committed - record["first"]:  # the loss of the last step may be missing
        losses[-1] = device.committed_loss()
    return JobState(record["first"], record["steps"], committed, losses, board)


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK)
