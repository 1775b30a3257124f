"""The command `package`."""

from pathlib import Path

import click

from .. import api
from .console import Answer, say, show_table
from .declared import option, takes
from .options import SCHEDULE


@click.command()
@takes
def package(
    schedule: Path = SCHEDULE,
    kind: str = option("--for", type=click.Choice(api.KINDS)),
    weights: Path | None = None,
    samples: int = api.SLOTS,
    raw: str = "float32",
    output: Path = option(type=click.Path(file_okay=False, path_type=Path)),
) -> Answer:
    """Write C sources of a device that learns by itself.

    The device calls the functions of poet/learner.h. DIR/src/NAME.h has the sizes that an
    application needs, where NAME is the name of the schedule's file. A C compiler needs no other
    option than `-I DIR/src`. DIR/package.json states RAM, time and energy on the planned board.

    --for  Who builds the package: a C compiler, the Arduino IDE, or PlatformIO.
    --weights, -w FILE  Begin with the weights in this .safetensors file. Their normalisation is
        applied to samples. [default: the weights in the model's .onnx file, or random weights]
    --samples N  Number of samples of each class that the device keeps.
    --raw TYPE  Type of the values of samples: float32, or int16:SCALE[:OFFSET], int8:... or
        uint8:..., which stand for (raw - OFFSET) * SCALE.
    --output, -o DIR  Write the package to this folder.
    """
    made = api.write_package(schedule, output, kind=kind, weights=weights, samples=samples, raw=raw)
    facts = made.facts
    say(f"wrote {output}: a package of {facts['name']} for {kind}")
    rows = [("board", str(facts["board"] or "not known")), *api.fact_rows(facts)]
    return Answer({"folder": str(output), **facts}, lambda: show_table(("", ""), rows))
