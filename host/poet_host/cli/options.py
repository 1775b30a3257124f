"""Options that several commands share."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import click

from ..errors import BadInput
from ..files import is_stream
from ..graph.autodiff import BATCHNORM, OPTIMISERS
from ..graph.onnx_import import DEFAULT_LOSS, LOSSES

MOST_SEED = 2**31 - 1
_CHUNK_BYTES = 1 << 16

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
port_option = click.option(
    "--port", "-p", required=True, metavar="PORT",
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
            click.option("--batch", type=click.IntRange(1), help="Samples in a step."),
            click.option(
                "--sequence-length",
                type=click.IntRange(1),
                help="Tokens of a text: of bert-*, or of an .onnx model where it is open.",
            ),
            click.option(
                "--loss",
                type=click.Choice(list(LOSSES)),
                help=f"Of an .onnx model; default: {DEFAULT_LOSS}.",
            ),
            click.option("--optimizer", type=click.Choice(OPTIMISERS)),
            click.option("--learning-rate", "--lr", type=FiniteRange(0, min_open=True)),
            click.option("--momentum", type=FiniteRange(0, 1, max_open=True)),
            click.option("--weight-decay", type=FiniteRange(0)),
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


def output(flag: str, *names: str, **settings: Any) -> Callable[[F], F]:
    """An option that names a file to write."""
    return click.option(
        flag, *names, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", **settings
    )


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


def room_for(path: Path, size_bytes: int) -> None:
    """Raise BadInput if a file of this size cannot be written where `path` is."""
    if is_stream(path):
        return
    try:
        with TemporaryFile(dir=Path(os.path.realpath(path)).parent) as file:
            for _ in range(0, size_bytes, _CHUNK_BYTES):
                file.write(bytes(_CHUNK_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror}. It takes {size_bytes:,} bytes; free so "
            "many, or write to another disk"
        ) from error
