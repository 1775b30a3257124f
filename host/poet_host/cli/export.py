"""The command `export`."""

from pathlib import Path

import click

from .. import api
from ..files import write_whole
from .console import Answer, say
from .declared import option, takes
from .options import SCHEDULE
from .written import check_writable, output_file


@click.command()
@takes
def export(
    schedule: Path = SCHEDULE,
    weights: Path = option(),
    output: Path = output_file(suffix=".onnx or .safetensors"),
) -> Answer:
    """Write the trained model of a schedule to an .onnx file.

    Or write its weights to a .safetensors file. Adapters (--train lora:RANK) are merged into the
    weights. The .onnx file takes normalised samples: the normalisation of the weights is not part
    of it.

    --weights, -w FILE  Use the trained weights in this .safetensors file, which `poet-host train`
        wrote.
    --output, -o FILE  Write the model to this .onnx file. If the name ends in .safetensors, write
        the weights alone, which is possible for built-in models, too.
    """
    check_writable(output, read=(schedule, weights))
    graph = api.Schedule.load(schedule).graph
    values = api.load_weights(weights, graph)
    if output.suffix == ".safetensors":
        api.save_weights(output, graph, values, merge=True)
        say(f"wrote {output}: the weights of {graph.name} in {weights}")
        return Answer({"file": str(output), "model": graph.name})
    model = api.export(graph, values)
    write_whole(output, model)
    if (normalization := str(values.normalization or "none")) != "none":
        say(f"the model takes samples after their normalisation ({normalization})")
    say(f"wrote {output}: {graph.name} with the weights of {weights}")
    return Answer({"file": str(output), "size_bytes": len(model), "model": graph.name})
