"""The command `evaluate`."""

from pathlib import Path

import click

from .. import api
from ..data.fitted import fit
from ..errors import BadInput
from ..run.evaluate import Evaluation, Half, half_of
from ..schedule.schedule import Schedule
from .console import emit, progress, say_classes, say_emulated, show_table
from .options import (
    WholeRange,
    data_options,
    json_option,
    port_option,
    schedule_argument,
    seed_option,
    storage_option,
)


@click.command()
@schedule_argument
@port_option
@data_options
@click.option(
    "--weights", "-w", type=click.Path(path_type=Path), metavar="FILE",
    show_default="the weights on the card of the board",
    help="Use the weights in this .safetensors file, which `poet-host train` wrote.",
)  # fmt: skip
@click.option(
    "--half", type=click.Choice(["held-out", "training"]),
    show_default="held-out, or training if no samples are held out",
    help="Evaluate on the samples that are held out from training, or on the training samples.",
)  # fmt: skip
@click.option(
    "--samples", type=WholeRange(1), metavar="N", show_default="all",
    help="Use only the first N samples.",
)  # fmt: skip
@storage_option
@seed_option("The --seed of the training run, so that --test-split holds out the same samples.")
@json_option
def evaluate(
    schedule: Path,
    port: str,
    data: str,
    normalize: str,
    test_split: float | None,
    header: bool | None,
    weights: Path | None,
    half: Half | None,
    samples: int | None,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compute the loss and accuracy of a model on a board.

    Runs the forward pass only. If it does not fit the RAM of the board, this computer runs it, to
    the same bits. The card of the board does not change.
    """
    if weights is None and storage is None and api.runs_here(port):
        raise BadInput(
            f"the board {port} has an empty temporary card. Name a card image with weights "
            "(--storage FILE), or a file of weights (--weights FILE)"
        )
    loaded = Schedule.load(schedule)
    graph = loaded.graph
    read = api.load_data(
        data, normalize=normalize, test_split=test_split or 0.0, seed=seed, header=header,
        graph=graph,
    )  # fmt: skip
    dataset = fit(read, graph)
    half = half_of(dataset, half)
    loaded_weights = api.load_weights(weights, graph) if weights else None
    ram = api.arena_for(loaded, port, storage if weights is None else None)
    with api.connect(
        port, storage=storage, arena_bytes=ram, card=loaded.model.storage
    ) as connection:
        say_emulated(connection)
        with progress(f"evaluating {graph.name}") as report:
            result = api.evaluate(
                loaded, connection, dataset, weights=loaded_weights, half=half, samples=samples,
                progress=lambda done, total: report(done, total, "samples"),
            )  # fmt: skip
    say_classes(result.classes)
    if as_json:
        emit(result.to_json())
    else:
        show_table(("", ">"), _facts(result))


def _facts(result: Evaluation) -> list[tuple[str, str]]:
    rows = [(f"{result.half} samples", f"{result.samples:,}"), ("loss", f"{result.loss:.4f}")]
    if result.accuracy is not None:
        rows.append(("accuracy", f"{result.accuracy:.1%}"))
    if result.time_us is not None:
        sample_us = result.time_us / result.samples
        rows.append(("time of all operators for a sample", f"{sample_us / 1e3:,.3f} ms"))
    return rows
