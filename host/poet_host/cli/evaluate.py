"""The command evaluate: how good weights are, computed on a board."""

from pathlib import Path

import click

from .. import api
from ..data.datasets import fit, load_data
from ..errors import BadInput
from ..run.evaluate import Evaluation, Half, half_of
from ..schedule.schedule import Schedule
from .console import emit, progress, say_classes, say_emulated, show_table
from .options import MOST_SEED, data_options, json_option, port_option, storage_option


@click.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@port_option
@data_options
@click.option(
    "--weights", "-w", type=click.Path(path_type=Path), metavar="FILE",
    help="A .safetensors file that train wrote; without it, the weights on the board's card.",
)  # fmt: skip
@click.option(
    "--half", type=click.Choice(["held-out", "training"]),
    help="Which samples; default: those held out, if there are any.",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Only the first N of them.")
@storage_option
@click.option(
    "--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True,
    help="That of the training, from which follows what --test-split holds out.",
)  # fmt: skip
@json_option
def evaluate(
    schedule: Path,
    port: str,
    data: str,
    normalize: str,
    test_split: float | None,
    weights: Path | None,
    half: Half | None,
    samples: int | None,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run a model forward on a board: loss and accuracy. Nothing on its card changes."""
    if weights is None and storage is None and (port == "native" or port.startswith("sim:")):
        raise BadInput(
            f"a board that {port} starts has no weights: name the --storage file of a run, or the "
            "weights that it saved (--weights)"
        )
    loaded = Schedule.load(schedule)
    graph = loaded.graph
    read = load_data(data, normalize=normalize, test_split=test_split or 0.0, seed=seed)
    dataset = fit(read, graph)
    half = half_of(dataset, half)
    given = api.load_weights(weights, graph) if weights else None
    ram = api.arena_for(loaded, port, storage if weights is None else None)
    with api.connect(port, storage=storage, arena_bytes=ram) as connection:
        say_emulated(connection)
        with progress(f"evaluating {graph.name} on {connection.board.name}") as report:
            found = api.evaluate(
                loaded, connection, dataset, weights=given, half=half, samples=samples,
                progress=lambda done, total: report(done, total, "samples"),
            )  # fmt: skip
    say_classes(found.classes)
    if as_json:
        emit(found.to_json())
    else:
        show_table(("", ">"), _facts(found))


def _facts(found: Evaluation) -> list[tuple[str, str]]:
    rows = [(f"{found.half} samples", f"{found.samples:,}"), ("loss", f"{found.loss:.4f}")]
    if found.accuracy is not None:
        rows.append(("accuracy", f"{found.accuracy:.1%}"))
    each_us = found.time_us / found.samples
    return [*rows, ("operators' time for a sample", f"{each_us / 1e3:,.3f} ms")]
