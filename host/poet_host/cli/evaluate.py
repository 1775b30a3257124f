"""The command `evaluate`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from .console import Answer, progress, say_classes, show_table
from .declared import WholeRange, option, takes
from .options import PORT, SCHEDULE, SEED, STORAGE, DataOptions

MOST_SHOWN = 12  # classes of a confusion matrix that fits a terminal

WEIGHTS = option(
    "--weights", "-w", metavar="FILE", show_default="the weights on the card of the board",
    help="Use the weights in this .safetensors file, which `poet-host train` wrote.",
)  # fmt: skip
HALF = option(
    type=click.Choice(["held-out", "training"]),
    show_default="held-out, or training if no samples are held out",
    help="Use the samples that are held out from training, or the training samples.",
)
SAMPLES = option(
    type=WholeRange(1), metavar="N", show_default="all", help="Use only the first N samples."
)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of the command.

    --seed N  The --seed of the training run, so that --test-split holds out the same samples.
    """

    schedule: Path = SCHEDULE
    port: str = PORT
    data: DataOptions
    weights: Path | None = WEIGHTS
    half: api.Half | None = HALF
    samples: int | None = SAMPLES
    storage: Path | None = STORAGE
    seed: int = SEED


def check_weights(port: str | None, storage: Path | None, weights: Path | None) -> None:
    if weights is None and storage is None and port is not None and api.runs_here(port):
        raise BadInput(
            f"the board {port} has an empty temporary card. Name a card image with weights "
            "(--storage FILE), or a file of weights (--weights FILE)"
        )


def board_of(
    schedule: api.Schedule, port: str, storage: Path | None, *, has_weights: bool
) -> AbstractContextManager[api.Connection]:
    """Connect to a board that runs the forward program, with the weights on its card or others."""
    ram = api.arena_for(schedule, port, None if has_weights else storage)
    return api.connect(port, storage=storage, arena_bytes=ram, card=schedule.model.storage)


@click.command()
@takes
def evaluate(given: EvaluateOptions) -> Answer:
    """Compute the loss, accuracy and errors of a model on a board.

    Runs the forward program of the schedule, in the RAM in which the model trains. The trained
    weights on the board do not change. Weights in a file are written to a card that has no weights
    of another model.
    """
    port, storage = given.port, given.storage
    check_weights(port, storage, given.weights)
    schedule = api.Schedule.load(given.schedule)
    graph = schedule.graph
    dataset = given.data.fitted(graph, given.seed)
    half = api.half_of(dataset, given.half)
    weights = api.load_weights(given.weights, graph) if given.weights else None
    with (
        board_of(schedule, port, storage, has_weights=weights is not None) as connection,
        progress(f"evaluating {graph.name}", "samples") as report,
    ):
        result = api.evaluate(
            schedule, connection, dataset, weights=weights, half=half, samples=given.samples,
            progress=report,
        )  # fmt: skip
    say_classes(result.classes)
    return Answer(result.to_json(), lambda: _show(result))


def _show(result: api.Evaluation) -> None:
    show_table(("", ">"), _facts(result))
    if result.confusion and len(result.confusion) <= MOST_SHOWN:
        show_table(*_confusion(result, result.confusion))


def _facts(result: api.Evaluation) -> list[tuple[str, str]]:
    rows = [(f"{result.half} samples", f"{result.samples:,}"), *_rows(result)]
    for name, one in result.by_output.items():
        rows += [(f"{name}: {what}", value) for what, value in _rows(one)]
    sample_us = (result.time_us or 0.0) / result.samples
    return [*rows, ("time of a sample", f"{sample_us / 1e3:,.3f} ms")]


def _rows(found: api.Metrics) -> list[tuple[str, str]]:
    rows = [("loss", f"{found.loss:.4f}")]
    if found.accuracy is not None:
        rows.append(("accuracy", f"{found.accuracy:.1%}"))
    if found.auc is not None:
        rows.append(("area under the ROC curve", f"{found.auc:.4f}"))
    if found.mae is not None:
        rows += [
            ("mean absolute error", f"{found.mae:.4f}"),
            ("root of the mean squared error", f"{found.rmse:.4f}"),
        ]
    return rows


def _confusion(
    result: api.Evaluation, counts: Sequence[Sequence[int]]
) -> tuple[list[str], list[list[str]], str]:
    """Return columns, rows and title of the table with what each class was taken for."""
    names = [*result.classes, *map(str, range(len(result.classes), len(counts)))]
    assert result.class_accuracy is not None
    rows = [
        [name, "-" if share is None else f"{share:.1%}", *(f"{count:,}" for count in row)]
        for name, share, row in zip(names, result.class_accuracy, counts, strict=True)
    ]
    columns = ["label", ">accuracy", *(f">{name}" for name in names)]
    return columns, rows, "labels by predicted class"
