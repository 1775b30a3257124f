"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from .. import api
from ..data.fitted import FittedData, fit
from ..data.media import SAMPLE_RATE_HZ
from ..errors import BadInput
from ..graph.losses import LOSSES
from ..graph.optimisers import OPTIMISERS
from ..graph.trained import BATCHNORM
from ..graph.training_options import TrainingOptions
from ..onnx.importer import DEFAULT_LOSS
from ..plan.problem import DEFAULT_OBJECTIVE, OBJECTIVES, Objective
from ..solver.settings import DEFAULT_SETTINGS
from . import completion
from .declared import FiniteRange, WholeRange, argument, option

MAX_SEED = 2**31 - 1

MODEL = argument(shell_complete=completion.models)
SCHEDULE = argument(metavar="NAME.poet")
KERNELS_OF = option(
    "--model", metavar="NAME.poet", show_default="all kernels for which the chip has room",
    help="Build a smaller firmware, which has only the kernels of this schedule's model.",
)  # fmt: skip
PROFILE = option(
    "--profile", metavar="FILE", show_default="estimate",
    help="Use the costs in this file, which `poet-host profile` wrote. With --board, FILE can "
    "also be `estimate` (costs from the description of the board) or `paper` (costs from the "
    "figures of the POET paper).",
)  # fmt: skip
PORT = option(
    "--port", "-p", metavar="PORT", shell_complete=completion.ports,
    help="Port of the board: a serial device (/dev/ttyACM0), a pyserial URL "
    "(socket://TOKEN@host:port) or `auto` (the first serial port at which a board answers). "
    "`native` (a process) and `sim:BOARD` (a simulated board) run on this computer until the "
    "command ends. `sim:BOARD:usb` is a simulated board that is connected by USB, not by UART.",
)  # fmt: skip
STORAGE = option(
    metavar="FILE", show_default="a temporary image",
    help="Use this card image for a board that runs on this computer.",
)  # fmt: skip
BOARD = option(shell_complete=completion.boards)
SEED = option(type=WholeRange(0, MAX_SEED), default=0)
ERASE_CARD = option(
    "--erase-card", help="Erase the card of the board first. All weights on it are lost."
)


def data_option(default: str = "") -> Any:
    return option(
        metavar="DATA", show_default=default,
        help="Samples and labels: an .npz file or a folder of .npy files (arrays x and y, and "
        "optionally x_test and y_test), a .csv file (labels in the last column), a folder of "
        "images or sounds in a folder for each class, `digits` (a built-in data set), or random "
        "samples (synthetic:SHAPE:CLASSES or tokens:LENGTH:WORDS:CLASSES).",
    )  # fmt: skip


def _test_split_option(more_help: str = "") -> Any:
    return option(
        type=FiniteRange(0, 1, min_open=True, max_open=True), metavar="SHARE",
        show_default="only x_test and y_test of DATA",
        help=f"Hold out this share of the samples from training, such as 0.2.{more_help}",
    )  # fmt: skip


_HEADER = option(
    type=click.Choice(("yes", "no")), callback=lambda _, __, chosen: chosen and chosen == "yes",
    show_default="yes if that row has only words",
    help="Whether the first row of a .csv file is a header row.",
)  # fmt: skip
_SAMPLE_RATE = option(
    "--sample-rate", type=WholeRange(100, 192_000), default=SAMPLE_RATE_HZ, metavar="HZ",
    show_default=True, help="Resample sounds to this rate.",
)  # fmt: skip
EPOCHS = option(
    type=WholeRange(1), metavar="N", show_default="1", help="Train for N passes over the data."
)


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The samples that a command reads, and how it reads them.

    --normalize HOW  Normalise samples: none, scale (to 0..1), standard (each channel to mean 0 and
        standard deviation 1) or MEAN:STD (subtract MEAN, divide by STD), such as 0.5:0.25. Trained
        weights keep the numbers, so later commands need no --normalize. [default: that of the
        weights, or none]
    """

    data: str = data_option()
    normalize: str | None = None
    header: bool | None = _HEADER
    sample_rate_hz: int = _SAMPLE_RATE

    def load(self, graph: api.Graph, **how: Any) -> api.Dataset:
        return api.load_data(
            self.data, normalize=self.normalize, header=self.header, graph=graph,
            sample_rate_hz=self.sample_rate_hz, **how,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DataOptions(SampleOptions):
    """The data that a command reads, and which samples it holds out."""

    test_split: float | None = _test_split_option(
        " The --seed determines which samples are held out."
    )

    def load(self, graph: api.Graph, **how: Any) -> api.Dataset:
        return super().load(graph, test_split=self.test_split or 0.0, **how)

    def fitted(self, graph: api.Graph, seed: int, **how: Any) -> FittedData:
        """Return the data set. Raises BadInput if it does not fit `graph`."""
        return fit(self.load(graph, seed=seed, **how), graph)


@dataclass(frozen=True, kw_only=True)
class DataSizeOptions:
    """The data of which only the number of samples counts."""

    data: str | None = data_option("the needs of one step")
    test_split: float | None = _test_split_option()
    header: bool | None = _HEADER
    sample_rate_hz: int = _SAMPLE_RATE

    def fitted(self, graph: api.Graph) -> FittedData:
        """Return the data set. --data must be given."""
        assert self.data is not None
        read = api.load_data(
            self.data, test_split=self.test_split or 0.0, header=self.header, graph=graph,
            sample_rate_hz=self.sample_rate_hz,
        )  # fmt: skip
        return fit(read, graph)


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a training lasts, and the order of its samples.

    --shuffle/--no-shuffle  Use a new random order of the samples in each epoch.
    --balance  Draw each class equally often: samples of rare classes are repeated.
    --steps N  Stop after step N. A resumed run continues the count of steps. [default: the end of
        --epochs]
    """

    shuffle: bool = True
    balance: bool = False
    epochs: int | None = EPOCHS
    steps: int | None = None

    @property
    def order(self) -> dict[str, bool]:
        return {"shuffle": self.shuffle, "balance": self.balance}

    def check(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise BadInput("--epochs and --steps exclude each other: omit one")


@dataclass(frozen=True, kw_only=True)
class RateOptions:
    """The rates of the optimiser that replace those of a schedule.

    --learning-rate, --lr RATE  Learning rate of the optimiser. [default: that of the schedule]
    --momentum SHARE  Momentum: the share of each update that is added to the next update. Only for
        schedules that were solved with momentum. [default: that of the schedule]
    --weight-decay FACTOR  Weight decay: this multiple of each weight is added to its gradient.
        [default: that of the schedule]
    --lr-schedule, --schedule HOW  How the learning rate changes: constant; step:EVERY[:FACTOR]
        multiplies it by FACTOR (0.1) after every EVERY steps; cosine[:STEPS[:END]] and
        linear[:STEPS[:END]] change it to END times itself (0) within STEPS steps (until the end).
        Repeat it with --resume. [default: constant]
    --warmup N  Let the learning rate grow during the first N steps, before --lr-schedule begins: in
        step s it is s / N times itself. [default: 0]
    """

    learning_rate: float | None = option(type=FiniteRange(0, min_open=True))
    momentum: float | None = option(type=FiniteRange(0, 1, max_open=True))
    weight_decay: float | None = None
    lr_schedule: str | None = None
    warmup: int | None = option(type=WholeRange(0))


@dataclass(frozen=True)
class ModelOptions(TrainingOptions):
    """The user's choices for the training step of a model.

    --batch N  Number of samples in a training step. [default: the batch of the model, or 1]
    --sequence-length N  Number of tokens in each text, for bert-* models and for .onnx models with
        a dynamic axis for the sequence length. [default: that of the model]
    --optimizer  Optimiser that updates the weights. [default: that of a built-in model; sgd for
        .onnx, or momentum with --momentum]
    --learning-rate, --lr RATE  Learning rate of the optimiser. [default: that of a built-in model;
        0.01 for .onnx, 0.001 with adam and adamw]
    --momentum SHARE  Momentum: the share of each update that is added to the next update. [default:
        that of a built-in model; 0 for .onnx, 0.9 with --optimizer momentum or nesterov]
    --weight-decay FACTOR  Weight decay: this multiple of each weight is added to its gradient.
        [default: 0; 0.01 with adamw]
    --beta1 SHARE  Share of the earlier average in the new average gradient, for adam and adamw.
        [default: 0.9]
    --beta2 SHARE  The same for the average squared gradient, for adam, adamw and rmsprop (its
        alpha). [default: 0.999; 0.99 with rmsprop]
    --epsilon NUMBER  Number in the divisor of adam, adamw and rmsprop. [default: 1e-8]
    --train PARTS  Parameters to train: `all`, `last:N` (those of the last N layers) and glob
        patterns of parameter names, joined by commas. !PATTERN leaves some out: `last:3,!*.bias`.
        lora:RANK[:ALPHA] keeps the weights and trains low-rank adapters of linear layers and
        convolutions instead, which `export` adds to the weights. [default: all]
    --batchnorm  Train batchnorm layers, or keep their parameters and statistics frozen. [default:
        train]
    --proximal MU  Pull weights to those before the training: MU times the distance is added to each
        gradient, as FedProx does. [default: 0]
    --clip-value LIMIT  Limit each element of the gradients to -LIMIT..LIMIT. [default: no limit]
    --clip-norm LIMIT  Scale all gradients so that their norm together is at most LIMIT. [default:
        no limit]
    --accumulate K  Update the weights after every K steps, with the mean gradient of their K
        batches. --lr-schedule and --warmup then count updates. [default: 1]
    """

    loss: str | None = option(
        multiple=True, callback=lambda _, __, value: " ".join(value) or None, metavar="LOSS",
        show_default=f"{DEFAULT_LOSS} for an output of (batch, classes)",
        help="Train an .onnx model with this loss function: "
        f"{', '.join(LOSSES)}. An option follows a colon: huber:delta=0.5. If the model "
        "has several outputs, give the option for each: --loss mask=cross-entropy --loss "
        "box=l1:weight=0.5. Other outputs are left out. Not for built-in models.",
    )  # fmt: skip
    optimizer: str | None = option(type=click.Choice(OPTIMISERS))
    learning_rate: float | None = option(type=FiniteRange(0, min_open=True))
    momentum: float | None = option(type=FiniteRange(0, 1, max_open=True))
    beta1: float | None = option(type=FiniteRange(0, 1, max_open=True))
    beta2: float | None = option(type=FiniteRange(0, 1, max_open=True))
    batchnorm: str | None = option(type=click.Choice(BATCHNORM))
    clip_value: float | None = option(type=FiniteRange(0, min_open=True))
    clip_norm: float | None = option(type=FiniteRange(0, min_open=True))
    accumulate: int | None = option(type=WholeRange(1))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search minimises, and when it ends.

    --objective WHAT  What the plan minimises: energy (all that the battery loses in a step),
        added-energy (the same without the power of the sleeping board) or time.
    --time-limit S  Time limit of the search for a plan, in seconds. In `solve`, it includes the
        pricing of streamed operators. Methods other than poet's count their work instead, in
        seconds of an idle computer. [default: 60]
    --work-limit N  Stop after N units of counted work, instead of --time-limit. The searches run in
        turn, and equal input gives equal plans on every computer. 1,000 units take roughly a
        second. [default: the limit of --time-limit]
    """

    objective: Objective = option(type=click.Choice(OBJECTIVES), default=DEFAULT_OBJECTIVE)
    time_limit: float | None = option(type=FiniteRange(0.1))
    work_limit: float | None = option(type=FiniteRange(1))

    def limit_s(self) -> float:
        """Return the time limit of a search without a limit of work."""
        if self.time_limit is not None and self.work_limit is not None:
            raise BadInput("--time-limit and --work-limit exclude each other: omit one")
        return DEFAULT_SETTINGS.time_limit_s if self.time_limit is None else self.time_limit


def profile_of(board: str | None, profile_name: str | None) -> api.Profile:
    kind: Literal["estimate", "paper"] = "paper" if profile_name == "paper" else "estimate"
    from_board = profile_name in (None, "estimate", "paper")
    if from_board and board is None:
        raise BadInput(
            "the costs are unknown: add --board NAME for estimated costs, or --profile FILE for "
            "measured costs"
        )
    if from_board:
        return api.estimate_profile(board or "", kind)
    if board is not None:
        raise BadInput(
            f"the profile {profile_name} already names its board: omit --board, or choose "
            "--profile estimate or --profile paper"
        )
    return api.Profile.load(profile_name or "")


def model_files(model: str) -> list[str]:
    """Return the paths of a model file and of its external weights; [] for a built-in model."""
    return [model, f"{model}.data"] if Path(model).suffix else []


def kernels_of(model: Path | None) -> frozenset[str] | None:
    """Return the kernels of the model in a .poet file, or None for all kernels."""
    return None if model is None else api.Schedule.load(model).graph.kernels
