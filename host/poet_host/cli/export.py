"""The command export: weights back into a model's file."""

from pathlib import Path

import click

from .. import api
from ..files import write_whole
from ..schedule.schedule import Schedule
from .console import emit, say
from .options import json_option, output, writable


@click.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@click.option(
    "--weights", "-w", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Trained weights, the .safetensors file that train wrote.",
)  # fmt: skip
@output(
    "--output", "-o", suffix=".onnx", required=True, help="Where to write the model, an .onnx file."
)
@json_option
def export(schedule: Path, weights: Path, output: Path, as_json: bool) -> None:
    """Write the model that a schedule was solved for, with trained weights, as .onnx."""
    writable(output)
    graph = Schedule.load(schedule).graph
    model = api.export(graph, api.load_weights(weights, graph))
    write_whole(output, model)
    say(f"wrote {output}: {graph.name} with the weights of {weights}")
    if as_json:
        emit({"file": str(output), "size_bytes": len(model), "model": graph.name})
