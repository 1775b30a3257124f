"""The command `replay`."""

from pathlib import Path

import click

from .. import api
from .console import Answer, progress, say
from .declared import WholeRange, argument, option, takes
from .written import check_writable, output_file


@click.command()
@takes
def replay(
    package: Path = argument(metavar="DIR"),
    trace: Path = option(),
    steps: int = option(type=WholeRange(0)),
    save_weights: Path = output_file(suffix=".safetensors"),
) -> Answer:
    """Compute the weights of a device from what it was taught.

    DIR is the package of the device. In FILE, x has the raw samples in the order in which the
    device was taught them, y their labels, and next_step that of poet_learner_state right before
    each of them. The weights are those of the device, bit for bit.

    --trace FILE  Teach the samples in this .npz file: arrays x, y and next_step.
    --steps N  Stop after step N of the device.
    --save-weights FILE  Write the weights to this .safetensors file.
    """
    check_writable(save_weights, read=(trace, *api.package_files(package)))
    with progress(f"repeating the steps of {package}", "steps") as report:
        weights = api.replay(
            package, trace, steps=steps, on_step=lambda step, last: report(step.step, last)
        )
    graph = api.load_package(package).schedule.graph
    api.save_weights(save_weights, graph, weights, steps)
    say(f"wrote {save_weights}: the weights after step {steps:,}")
    return Answer({"file": str(save_weights), "step": steps, "sha256": api.weights_sha256(weights)})
