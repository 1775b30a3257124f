"""Options that several commands share."""

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypeVar

import click

from ..device.board import load_board
from ..errors import BadInput
from ..files import is_stream
from ..graph.autodiff import BATCHNORM, OPTIMISERS
from ..onnx.importer import DEFAULT_LOSS, LOSSES
from ..profile.profile import Profile, estimate_profile
from . import completion

# Of files that this program or others know by them.
SUFFIXES = frozenset(
    f".{name}"
    for name in (
        "poet", "json", "onnx", "safetensors", "pt", "pth", "h5", "keras", "tflite", "npz", "npy",
        "csv", "img", "html", "png",
    )
)  # fmt: skip
MOST_SEED = 2**31 - 1
_TRIED_BYTES = 1 << 22  # that are written to see whether there is room

F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range of numbers; click's own takes nan, which is in no range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
model_argument = click.argument("model", shell_complete=completion.models)
board_option = click.option(
    "--board", metavar="BOARD", shell_complete=completion.boards,
    help="The costs of this board, by its board.toml (see `poet-host boards`).",
)  # fmt: skip
profile_option = click.option(
    "--profile", "profile_name", metavar="FILE",
    help="The costs that `profile` measured; or, with --board, its `estimate` (the default) or the "
    "figures of the POET `paper`.",
)  # fmt: skip
port_option = click.option(
    "--port", "-p", required=True, metavar="PORT", shell_complete=completion.ports,
    help="A device (/dev/ttyACM0), a pyserial URL (socket://host:port), `auto`, or `native` or "
    "`sim:mkr1000`, which start a board on this computer for this command "
    "(`sim:mkr1000:usb`: plugged in by USB).",
)  # fmt: skip
storage_option = click.option(
    "--storage", type=click.Path(path_type=Path), metavar="FILE",
    help="Card image of a board that runs here; without it a temporary one is used.",
)  # fmt: skip
seed_option = click.option(
    "--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True,
    help="Of starting weights, of the order of samples, and of what --test-split holds out.",
)  # fmt: skip


class _Renamed(click.Option):
    """An option whose names after the first are old ones, which work but are not in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


erase_option = click.option(
    "--erase-card", "--format", "erase_card", cls=_Renamed, is_flag=True,
    help="First erase the board's card, with all weights on it.",
)  # fmt: skip


def data_options(command: F) -> F:
    """Which samples, and how they are made ready."""
    for option in reversed(
        (
            click.option(
                "--data", required=True, metavar="DATA",
                help="An .npz file with x and y (x_test, y_test), a folder with x.npy and so on, a "
                ".csv file (last column: the label), `digits`, synthetic:SHAPE:CLASSES, or "
                "tokens:LENGTH:WORDS:CLASSES.",
            ),
            click.option(
                "--normalize", default="none", show_default=True, metavar="HOW",
                help="Samples: none, scale (to 0..1), standard (by mean and deviation of each "
                "channel), or MEAN:STD, as 0.5:0.25.",
            ),
            click.option(
                "--test-split", type=FiniteRange(0, 1, min_open=True, max_open=True),
                metavar="SHARE", help="Hold out this share of samples, as 0.2, drawn by --seed.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def model_options(command: F) -> F:
    """How a model becomes a training step."""
    for option in reversed(
        (
            click.option(
                "--batch",
                type=click.IntRange(1),
                help="Samples in a step; default: the file's, or 1; a built-in model has its own.",
            ),
            click.option(
                "--sequence-length",
                type=click.IntRange(1),
                help="Tokens of a text: of bert-*, or of an .onnx model where it is open.",
            ),
            click.option(
                "--loss",
                type=click.Choice(list(LOSSES)),
                help=f"Of an .onnx model; default: {DEFAULT_LOSS}, where its output is (batch, "
                "classes).",
            ),
            click.option(
                "--optimizer",
                type=click.Choice(OPTIMISERS),
                help="Default: sgd for an .onnx model, momentum with --momentum; a built-in "
                "model has its own.",
            ),
            click.option(
                "--learning-rate",
                "--lr",
                type=FiniteRange(0, min_open=True),
                metavar="RATE",
                help="Factor of the gradient in a step; default: 0.01, 0.001 for adam; a built-in "
                "model has its own.",
            ),
            click.option(
                "--momentum",
                type=FiniteRange(0, 1, max_open=True),
                metavar="SHARE",
                help="Share of the last update that is added to the next, 0 to less than 1; "
                "default: 0, 0.9 for the optimizer momentum; a built-in model has its own.",
            ),
            click.option(
                "--weight-decay",
                type=FiniteRange(0),
                metavar="FACTOR",
                help="Factor of the weights that is added to the gradient; default: 0.",
            ),
            click.option(
                "--train",
                metavar="PARTS",
                help="What is trained: all (the default), last:N layers, or a pattern of names.",
            ),
            click.option(
                "--batchnorm",
                type=click.Choice(BATCHNORM),
                help="Batchnorm is trained (the default), or frozen: as it stands.",
            ),
        )
    ):
        command = option(command)
    return command


def profile_of(board: str | None, profile_name: str | None) -> Profile:
    """The costs that --board and --profile choose."""
    kind: Literal["estimate", "paper"] = "paper" if profile_name == "paper" else "estimate"
    from_board = profile_name in (None, "estimate", "paper")
    if from_board and board is None:
        raise BadInput(
            "costs come from --board NAME (estimated) or --profile FILE (measured); with --board, "
            "--profile paper takes the POET paper's figures"
        )
    if from_board:
        return estimate_profile(load_board(board or ""), kind)
    if board is not None:
        raise BadInput(
            f"--profile {profile_name} was measured on one board: leave out --board, or choose "
            "--profile estimate or --profile paper"
        )
    return Profile.load(profile_name or "")


def output(
    flag: str, *names: str, suffix: str = "", is_strict: bool = True, **settings: Any
) -> Callable[[F], F]:
    """An option that names a file to write, of the format that `suffix` stands for.

    Raises BadInput for a name with another suffix; if not `is_strict`, only for one of SUFFIXES.
    Streams, as /dev/stdout, have any name.
    """

    def checked(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is None or not suffix or path.suffix == suffix or is_stream(path):
            return path
        if is_strict or path.suffix in SUFFIXES:
            raise BadInput(f"{path}: {flag} writes a {suffix} file: give a name that ends so")
        return path

    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(flag, *names, type=kind, metavar="FILE", callback=checked, **settings)


def files_of(model: str) -> list[str]:
    """What a MODEL is read from: none if it is built in; the weights of .onnx may be beside it."""
    return [model, f"{model}.data"] if Path(model).suffix else []


def writable(*paths: Path | None, read: Sequence[Path | str | None] = ()) -> None:
    """Before hours of work: can the results be saved, each to a file of its own, and to none of
    those that were `read`?
    """
    # realpath, as Path.resolve raises RuntimeError for links in a circle.
    taken = {os.path.realpath(path): "is read" for path in read if path is not None}
    for path in paths:
        if path is None:
            continue
        real = os.path.realpath(path)
        if use := taken.get(real):
            raise BadInput(f"{path} {use} by this command too: write to another file")
        taken[real] = "is written"
        if path.is_dir():
            raise BadInput(f"{path} cannot be written: it is a folder")
        if is_stream(path):
            continue
        folder = Path(real).parent
        if not folder.is_dir():
            raise BadInput(f"{path} cannot be written: there is no folder {path.parent}")
        try:
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        if path.is_symlink() and Path(real).is_symlink():
            raise BadInput(f"{path} cannot be written: its links go in a circle")


def room_for(sizes: Mapping[Path, int]) -> None:
    """Raise BadInput if files of these sizes, in bytes, cannot be written."""
    folders: dict[int, int] = {}  # by disk: what all its files take
    for path, size_bytes in sizes.items():
        if is_stream(path):
            continue
        folder = Path(os.path.realpath(path)).parent
        disk = folder.stat().st_dev
        folders[disk] = folders.get(disk, 0) + size_bytes
        try:
            if shutil.disk_usage(folder).free < folders[disk]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with TemporaryFile(dir=folder) as file:  # quotas and other limits show only so
                file.write(bytes(min(size_bytes, _TRIED_BYTES)))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadInput(
                f"{path} cannot be written: {error.strerror}. It takes {size_bytes:,} bytes; free "
                "so many, or write to another disk"
            ) from error
