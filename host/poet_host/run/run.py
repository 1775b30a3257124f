"""Run: the results of one training run on a board, as the board itself measured them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ..data.classes import NO_NAMES
from ..errors import BadInput
from ..files import read_json, write_json
from ..graph.weights import Weights
from ..schema import convert, of_format

FORMAT, VERSION = "poet-run", 1
Ended = Literal["done", "interrupted", "no_improvement", "not_finite"]

NO_WEIGHTS: Weights = MappingProxyType({})
# Properties of a Run that its file has, too.
_DERIVED = (
    "peak_bytes", "asleep_share", "storage_retries", "erases_per_1000_steps", "restarts", "time_us",
    "measured_time_us", "overhead_us", "deadline_missed_steps",
)  # fmt: skip
_AGAIN = "use a file that `train --run` wrote, or train again"


@dataclass(frozen=True)
class Step:
    """One training step, with times by the board's clock.

    The overhead of a step is the part that no plan contains: the commit, and the board's answers to
    its host.
    """

    step: int
    loss: float
    time_us: float  # time of the whole step, overhead included
    compute_us: float
    transfer_us: float
    commit_us: float
    asleep_us: float  # time in which the processor slept
    reading_us: float  # time in which storage was read
    writing_us: float  # time in which storage was written
    serving_us: float  # time in which the board answered its host and received the next batch
    peak_bytes: int
    overhead_asleep_us: float = 0.0  # the part of `asleep_us` that is overhead
    overhead_reading_us: float = 0.0
    overhead_writing_us: float = 0.0
    storage_retries: int = 0  # number of accesses that were repeated after a card error
    restarts: int = 0  # how often the step began again because a page on the card was damaged
    readback_every: int = 0  # number of commits from one check of the written slots to the next

    @property
    def overhead_us(self) -> float:
        return self.commit_us + self.serving_us


def timed(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with known times. After a reset, a board knows only the loss of its step."""
    return [step for step in steps if step.time_us]


@dataclass(frozen=True)
class Traced:
    """One statement of the plan as the board executed it.

    `activation` is True if `node` is the output of a forward operator: not a parameter, a gradient
    or the data.
    `time_us` is the mean (`Run.statistic`) over the steps that traced the statement. `begin_us` and
    `end_us` count from the start of the latest of these steps. `statement` is the index in the
    plan.
    """

    op: str
    node: str
    again: bool
    activation: bool
    time_us: float
    statement: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Commit:
    """A commit of a board without a card: it copies the weights from RAM to the chip's flash."""

    step: int
    time_us: float
    erases: int  # number of erased units of flash


@dataclass(frozen=True)
class Run:
    """The results of a training run: losses, times, energy, arena use, and weights at the end.

    Measured times and energies of a step are means over the steps, or None if no step was run.
    Commits to a chip's flash are included. Energies are the time that the board measured in each
    power state, times the power in board.toml.
    """

    model: str
    board: str
    data: str
    seed: int
    batch: int
    plan_crc: int
    schedule_bytes: int
    ended: Ended
    steps: tuple[Step, ...]
    trace: tuple[Traced, ...]
    energy_uj: float | None  # energy of a whole step, excluding the sleeping board
    total_energy_uj: float | None  # energy of a whole step, including the sleeping board
    weights: Weights = field(repr=False)
    deadline_us: float | None = None  # the deadline of the schedule
    predicted_time_us: float | None = None  # step time that the plan predicts, without overhead
    predicted_energy_uj: float | None = None  # step energy that the plan predicts, without overhead
    measured_energy_uj: float | None = None  # energy of a step without its overhead
    classes: tuple[str, ...] = NO_NAMES  # names of the classes of the weights
    commits: tuple[Commit, ...] = ()  # without storage; otherwise steps commit
    card_khz: int = 0  # clock of the card's bus at the end; 0: no card, or not known
    commit_every: int = 1  # number of steps from one commit to the next
    # What the costs of a step are over the steps; median: of a file of version 0.2.
    statistic: Literal["mean", "median"] = "mean"

    def __repr__(self) -> str:
        first, last = self.loss("first"), self.loss("last")
        losses = "" if first is None or last is None else f", loss {first:.4f} to {last:.4f}"
        return f"<Run {self.model} on {self.board}: {len(self.steps)} steps{losses}, {self.ended}>"

    @property
    def erases_per_1000_steps(self) -> float:
        """Return how many units of the chip's flash 1,000 steps erase. A card counts as 0."""
        erases = sum(commit.erases for commit in self.commits)
        return 1000 * erases / len(self.steps) if self.steps else 0.0

    @property
    def storage_retries(self) -> int:
        return sum(step.storage_retries for step in self.steps)

    @property
    def restarts(self) -> int:
        return sum(step.restarts for step in self.steps)

    @property
    def asleep_share(self) -> float:
        time_us = sum(step.time_us for step in self.steps)
        return sum(step.asleep_us for step in self.steps) / time_us if time_us else 0.0

    @property
    def peak_bytes(self) -> int:
        """Return the high-water mark of the arena in bytes, the highest of all steps."""
        return max((step.peak_bytes for step in self.steps), default=0)

    @property
    def last_step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    @property
    def time_us(self) -> float | None:
        """Return the time of a whole step, overhead included."""
        return self._of_step(lambda step: step.time_us, self._flash_us)

    @property
    def measured_time_us(self) -> float | None:
        """Return the time of a step without its overhead, which the plan predicts."""
        return self._of_step(lambda step: step.time_us - step.overhead_us)

    @property
    def overhead_us(self) -> float | None:
        """Return the overhead of a step: its commit, and the board's answers to its host."""
        return self._of_step(lambda step: step.overhead_us, self._flash_us)

    @property
    def _flash_us(self) -> float:
        """Return the time of the commits to the chip's flash, for each step."""
        is_counted = self.steps and self.statistic == "mean"
        return sum(it.time_us for it in self.commits) / len(self.steps) if is_counted else 0.0

    def _of_step(self, time_us: Callable[[Step], float], more_us: float = 0.0) -> float | None:
        average, steps = fmean if self.statistic == "mean" else median, timed(self.steps)
        return average(map(time_us, steps)) + more_us if steps else None

    @property
    def deadline_missed_steps(self) -> int:
        """Return the number of steps whose time without overhead exceeded the deadline.

        The deadline applies to the plan, which contains no overhead either.
        """
        if self.deadline_us is None:
            return 0
        return sum(step.time_us - step.overhead_us > self.deadline_us for step in self.steps)

    def loss(self, end: Literal["first", "last"]) -> float | None:
        """Return the mean loss of the first or last eighth of the steps.

        The loss of a single batch is not used, because the losses of batches differ a lot.
        """
        if end not in ("first", "last"):
            raise BadInput(f"`end` must be 'first' or 'last', not {end!r}")
        if not self.steps:
            return None
        count = max(1, len(self.steps) // 8)
        some = self.steps[:count] if end == "first" else self.steps[-count:]
        return fmean(step.loss for step in some)

    def counts(self) -> dict[str, int]:
        """Return the number of traced statements of each kind in a step."""

        def of(op: str, *, again: bool = False, activation: bool = False) -> int:
            return sum(
                it.op == op and it.again >= again and it.activation >= activation
                for it in self.trace
            )

        return {
            "computes": of("compute"),
            "recomputes": of("compute", again=True),
            "page_ins": of("page_in"),
            "page_outs": of("page_out"),
            "activation_recomputes": of("compute", again=True, activation=True),
            "activation_page_ins": of("page_in", activation=True),
            "activation_page_outs": of("page_out", activation=True),
        }

    @classmethod
    def load(cls, path: Path | str, weights: Weights = NO_WEIGHTS) -> "Run":
        """Load a run from run.json, and add `weights`. Raises BadInput if the file is damaged."""
        value = of_format(read_json(path), FORMAT, (VERSION,), str(path), _AGAIN)
        run = convert({"statistic": "median", **value, "weights": {}}, cls, str(path), extra=True)
        return replace(run, weights=weights)

    def save(self, path: Path | str) -> None:
        """Write the run, without its weights, to a JSON file. Raises PoetError if that fails."""
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json: all fields but the weights, which have their own file."""
        about = asdict(replace(self, weights={}))
        del about["weights"]
        return {
            "format": FORMAT,
            "version": VERSION,
            **about,
            **{name: getattr(self, name) for name in _DERIVED},
            "deadline_missed": self.deadline_missed_steps > 0,
            "classes": list(self.classes),
            "loss_first": self.loss("first"),
            "loss_last": self.loss("last"),
            "weights_sha256": weights_sha256(self.weights) if self.weights else None,
            "counts": self.counts(),
        }


def weights_sha256(weights: Weights) -> str:
    """Return the SHA-256 of the name, shape and values of all tensors, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
