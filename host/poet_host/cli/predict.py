"""The command `predict`."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from .console import Answer, progress, say
from .declared import option, takes
from .evaluate import HALF, SAMPLES, WEIGHTS, board_of, check_weights
from .options import PORT, SCHEDULE, STORAGE, SampleOptions
from .written import WRITTEN_FILE, check_writable


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The options of the command.

    --output, -o FILE  Write the predictions to this file: a table (.csv) or arrays (.npz).
    """

    schedule: Path = SCHEDULE
    port: str | None = replace(PORT, settings={**PORT.settings, "show_default": "this computer"})
    data: SampleOptions
    weights: Path | None = WEIGHTS
    output: Path = option(type=WRITTEN_FILE)
    half: api.Half | None = HALF
    samples: int | None = SAMPLES
    storage: Path | None = STORAGE


@click.command()
@takes
def predict(given: PredictOptions) -> Answer:
    """Write what a trained model answers for samples to a file.

    Without --port, this computer runs the model, to the same bits as every board. DATA needs no
    labels: an array x, a .npy file, or a table with the columns of the samples alone. A .csv file
    gets a row for each sample: class, its number and the probabilities of all classes, or values.
    In an .npz file, `outputs` are the numbers before the softmax.
    """
    port, output = given.port, given.output
    schedule = api.Schedule.load(given.schedule)
    graph = schedule.graph
    if port is None and (given.weights is None or given.storage):
        raise BadInput("name a file of weights (--weights), or a board with a card (--port)")
    check_weights(port, given.storage, given.weights)
    api.check_prediction_file(output, graph)
    read = (given.schedule, given.weights, given.data.data, given.storage)
    check_writable(output, read=read)
    data = given.data.load(graph, labels=False)
    half = api.half_of(data, given.half)
    weights = api.load_weights(given.weights, graph) if given.weights else None
    with (
        nullcontext()
        if port is None
        else board_of(schedule, port, given.storage, has_weights=weights is not None) as connection,
        progress(f"predicting by {graph.name}", "samples") as report,
    ):
        result = api.predict(
            schedule, data, connection=connection, weights=weights, half=half,
            samples=given.samples, progress=report,
        )  # fmt: skip
    result.save(output)
    which = "samples" if data.x_test is None else f"{half} samples"
    say(f"wrote {output}: {len(result.outputs):,} {which} of {data.name}")
    return Answer({"file": str(output), **result.to_json()})
