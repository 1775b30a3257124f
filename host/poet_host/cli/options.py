"""Options that several commands share."""

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from .. import api
from ..errors import BadInput
from ..files import is_stream, target, try_to_write
from ..graph.autodiff import BATCHNORM, OPTIMISERS
from ..onnx.importer import DEFAULT_LOSS, LOSSES
from ..profile.profile import Profile
from . import completion

# Known suffixes of file formats, which poet-host or other programs use.
SUFFIXES = frozenset(
    f".{name}"
    for name in (
        "poet", "json", "onnx", "safetensors", "pt", "pth", "h5", "keras", "tflite", "npz", "npy",
        "csv", "img", "html", "png",
    )
)  # fmt: skip
MAX_SEED = 2**31 - 1
_SMALL_BYTES = 1 << 16  # size of a schedule, about
_PROBE_BYTES = 1 << 22  # maximum size of the temporary file that tests the disk

F = TypeVar("F", bound=Callable[..., Any])


class WholeRange(click.IntRange):
    """A click.IntRange whose error says what a whole number looks like."""

    name = "whole number, such as 1000"


class FiniteRange(click.FloatRange):
    """A click.FloatRange that refuses NaN and infinity."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, on stdout."
)
model_argument = click.argument("model", shell_complete=completion.models)
schedule_argument = click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
profile_option = click.option(
    "--profile", "profile_name", metavar="FILE", show_default="estimate",
    help="Use the costs in this file, which `poet-host profile` wrote. With --board, FILE can also "
    "be `estimate` (costs from the description of the board) or `paper` (costs from the figures "
    "of the POET paper).",
)  # fmt: skip
port_option = click.option(
    "--port", "-p", required=True, metavar="PORT", shell_complete=completion.ports,
    help="Port of the board: a serial device (/dev/ttyACM0), a pyserial URL "
    "(socket://TOKEN@host:port) or `auto` (the first serial port at which a board answers). "
    "`native` (a process) and `sim:BOARD` (a simulated board) run on this computer until the "
    "command ends. `sim:BOARD:usb` is a simulated board that is connected by USB, not by UART.",
)  # fmt: skip
storage_option = click.option(
    "--storage", type=click.Path(path_type=Path), metavar="FILE",
    show_default="a temporary image",
    help="Use this card image for a board that runs on this computer.",
)  # fmt: skip


def board_option(default: str) -> Callable[[F], F]:
    return click.option(
        "--board", metavar="BOARD", shell_complete=completion.boards, show_default=default,
        help="Estimate energy and time from the description of this board. `poet-host boards` "
        "lists all boards.",
    )  # fmt: skip


def seed_option(help_text: str) -> Callable[[F], F]:
    return click.option(
        "--seed", type=WholeRange(0, MAX_SEED), default=0, show_default=True, metavar="N",
        help=help_text,
    )  # fmt: skip


training_seed_option = seed_option(
    "Random seed for initial weights, sample order and --test-split."
)


erase_option = click.option(
    "--erase-card", is_flag=True,
    help="Erase the card of the board first. All weights on it are lost.",
)  # fmt: skip


def _all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds several options. --help lists them in the given order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _data_option(**settings: Any) -> Callable[[F], F]:
    return click.option(
        "--data", metavar="DATA", **settings,
        help="Samples and labels: an .npz file or a folder of .npy files (arrays x and y, and "
        "optionally x_test and y_test), a .csv file (labels in the last column), `digits` (a "
        "built-in data set), or random samples (synthetic:SHAPE:CLASSES or "
        "tokens:LENGTH:WORDS:CLASSES).",
    )  # fmt: skip


_normalize_option = click.option(
    "--normalize", default="none", show_default=True, metavar="HOW",
    help="Normalise samples: none, scale (to 0..1), standard (each channel to mean 0 and "
    "standard deviation 1) or MEAN:STD (subtract MEAN, divide by STD), such as 0.5:0.25.",
)  # fmt: skip


def _test_split_option(more_help: str = "") -> Callable[[F], F]:
    return click.option(
        "--test-split", type=FiniteRange(0, 1, min_open=True, max_open=True), metavar="SHARE",
        show_default="only x_test and y_test of DATA",
        help=f"Hold out this share of the samples from training, such as 0.2.{more_help}",
    )  # fmt: skip


_header_option = click.option(
    "--header", type=click.Choice(("yes", "no")),
    callback=lambda _, __, chosen: chosen and chosen == "yes",
    show_default="yes if that row has only words",
    help="Whether the first row of a .csv file is a header row.",
)  # fmt: skip
data_options = _all_of(
    _data_option(required=True),
    _normalize_option,
    _test_split_option(" The --seed determines which samples are held out."),
    _header_option,
)
data_size_options = _all_of(
    _data_option(show_default="the needs of one step"), _test_split_option(), _header_option
)
epochs_option = click.option(
    "--epochs", type=WholeRange(1), metavar="N", show_default="1",
    help="Train for N passes over the data.",
)  # fmt: skip
duration_options = _all_of(
    click.option(
        "--shuffle/--no-shuffle", default=True, show_default=True,
        help="Use a new random order of the samples in each epoch.",
    ),
    epochs_option,
    click.option(
        "--steps", type=WholeRange(1), metavar="N", show_default="the end of --epochs",
        help="Stop after step N. A resumed run continues the count of steps.",
    ),
)  # fmt: skip
model_options = _all_of(
    click.option(
        "--batch", type=WholeRange(1), metavar="N",
        show_default="the batch of the model, or 1", help="Number of samples in a training step.",
    ),
    click.option(
        "--sequence-length", type=WholeRange(1), metavar="N", show_default="that of the model",
        help="Number of tokens in each text, for bert-* models and for .onnx models with a dynamic "
        "axis for the sequence length.",
    ),
    click.option(
        "--loss", type=click.Choice(list(LOSSES)),
        show_default=f"{DEFAULT_LOSS} for an output of (batch, classes)",
        help="Train an .onnx model with this loss function. Not for built-in models.",
    ),
    click.option(
        "--optimizer", type=click.Choice(OPTIMISERS),
        show_default="that of a built-in model; sgd for .onnx, or momentum with --momentum",
        help="Optimiser that updates the weights.",
    ),
    click.option(
        "--learning-rate", "--lr", type=FiniteRange(0, min_open=True), metavar="RATE",
        show_default="that of a built-in model; 0.01 for .onnx, 0.001 with adam",
        help="Learning rate of the optimiser.",
    ),
    click.option(
        "--momentum", type=FiniteRange(0, 1, max_open=True), metavar="SHARE",
        show_default="that of a built-in model; 0 for .onnx, 0.9 with --optimizer momentum",
        help="Momentum: the share of each update that is added to the next update.",
    ),
    click.option(
        "--weight-decay", type=FiniteRange(0), metavar="FACTOR", show_default="0",
        help="Weight decay: this multiple of each weight is added to its gradient.",
    ),
    click.option(
        "--train", metavar="PARTS", show_default="all",
        help="Parameters to train: `all`, `last:N` (the parameters of the last N layers) or a glob "
        "pattern of parameter names.",
    ),
    click.option(
        "--batchnorm", type=click.Choice(BATCHNORM), show_default="train",
        help="Train batchnorm layers, or keep their parameters and statistics frozen.",
    ),
)  # fmt: skip


def profile_of(board: str | None, profile_name: str | None) -> Profile:
    """Return the profile that --board and --profile choose."""
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
    return Profile.load(profile_name or "")


def output(
    flag: str, *names: str, suffix: str = "", is_strict: bool = True, **settings: Any
) -> Callable[[F], F]:
    """Return a click option that names a file to write. The name must end in `suffix`.

    The option raises BadInput for any other suffix. If `is_strict` is False, it does so only for
    the suffix of another known file format (SUFFIXES). Streams such as /dev/stdout may have any
    name.
    """
    if not settings.get("required"):
        settings["show_default"] = "not written"
    settings |= _written_file(flag, suffix, is_strict)
    return click.option(flag, *names, metavar="FILE", **settings)


def output_argument(name: str, suffix: str) -> Callable[[F], F]:
    """Return a click argument that names a file to write, as `output` does; it is not strict."""
    return click.argument(name, metavar=name.upper(), **_written_file(name, suffix, False))


def _written_file(what: str, suffix: str, is_strict: bool) -> dict[str, Any]:
    def checked(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is None or not suffix or path.suffix == suffix or is_stream(path):
            return path
        if is_strict or path.suffix in SUFFIXES:
            raise BadInput(f"{path}: the name of the {what} file must end in {suffix}")
        return path

    return {"type": click.Path(dir_okay=False, path_type=Path), "callback": checked}


def model_files(model: str) -> list[str]:
    """Return the paths of a model file and of its external weights; [] for a built-in model."""
    return [model, f"{model}.data"] if Path(model).suffix else []


def check_writable(*paths: Path | None, read: Sequence[Path | str | None] = ()) -> None:
    """Raise BadInput if one of `paths` cannot be written. Call this before hours of work.

    `read`: the files that the command reads. Raises BadInput, too, if one of `paths` is such a file
    or if two of `paths` are the same file.
    """
    used = {os.path.realpath(path): "reads" for path in read if path is not None}
    for path in paths:
        if path is None:
            continue
        real = str(target(path))
        if use := used.get(real):
            raise BadInput(f"{path}: this command also {use} the file. Write to another file")
        used[real] = "writes"
        if path.is_dir():
            raise BadInput(f"{path} cannot be written, because it is a folder. Name a file")
        if is_stream(path):
            continue
        folder = Path(real).parent
        if not folder.is_dir():
            raise BadInput(f"{path} cannot be written: the folder {path.parent} does not exist")
        try:
            try_to_write(folder, _SMALL_BYTES)  # a full disk takes an empty file
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        # Use realpath, because Path.resolve raises RuntimeError if symbolic links form a loop.
        if path.is_symlink() and Path(os.path.realpath(path)).is_symlink():
            raise BadInput(f"{path} cannot be written: its symbolic links form a loop")


def check_space(sizes: Mapping[Path, int]) -> None:
    """Raise BadInput if a disk has too little space. `sizes`: the bytes of each file to write."""
    needed: dict[int, int] = {}  # by disk, in bytes
    for path, size_bytes in sizes.items():
        if is_stream(path):
            continue
        folder = target(path).parent
        disk = folder.stat().st_dev
        needed[disk] = needed.get(disk, 0) + size_bytes
        try:
            if shutil.disk_usage(folder).free < needed[disk]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try_to_write(folder, min(size_bytes, _PROBE_BYTES))  # only a write reveals a disk quota
        except OSError as error:
            raise BadInput(
                f"{path} cannot be written: {error.strerror}. The file needs {size_bytes:,} bytes: "
                "free some space, or write to another disk"
            ) from error
