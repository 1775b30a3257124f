"""The command `export`."""

from pathlib import Path

import click

from .. import api
from ..files import write_whole
from ..schedule.schedule import Schedule
from .console import emit, say
from .options import check_writable, json_option, output, schedule_argument


@click.command()
@schedule_argument
@click.option(
    "--weights", "-w", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Use the trained weights in this .safetensors file, which `poet-host train` wrote.",
)  # fmt: skip
@output("--output", "-o", suffix=".onnx", required=True, help="Write the model to this .onnx file.")
@json_option
def export(schedule: Path, weights: Path, output: Path, as_json: bool) -> None:
    """Write the trained model of a schedule to an .onnx file."""
    check_writable(output)
    graph = Schedule.load(schedule).graph
    model = api.export(graph, api.load_weights(weights, graph))
    write_whole(output, model)
    say(f"wrote {output}: {graph.name} with the weights of {weights}")
    if as_json:
        emit({"file": str(output), "size_bytes": len(model), "model": graph.name})
