"""The command `package`."""

from pathlib import Path
from typing import Any

import click

from .. import api
from .console import emit, say, show_table
from .declared import option, takes
from .options import JSON, SCHEDULE, WholeRange


@click.command()
@takes
def package(
    schedule: Path = SCHEDULE,
    kind: str = option(
        "--for", type=click.Choice(api.KINDS),
        help="Who builds the package: a C compiler, the Arduino IDE, or PlatformIO.",
    ),
    weights: Path | None = option(
        "--weights", "-w", metavar="FILE",
        show_default="the weights in the model's .onnx file, or random weights",
        help="Begin with the weights in this .safetensors file. Their normalisation is applied to "
        "samples.",
    ),
    samples: int = option(
        type=WholeRange(1), metavar="N", default=api.SLOTS, show_default=True,
        help="Number of samples of each class that the device keeps.",
    ),
    raw: str = option(
        metavar="TYPE", default="float32", show_default=True,
        help="Type of the values of samples: float32, or int16:SCALE[:OFFSET], int8:... or "
        "uint8:..., which stand for (raw - OFFSET) * SCALE.",
    ),
    output: Path = option(
        "--output", "-o", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
        help="Write the package to this folder.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Write C sources of a device that learns by itself.

    The device calls the functions of poet/learner.h. DIR/src/NAME.h has the sizes that an
    application needs, where NAME is the name of the schedule's file. A C compiler needs no other
    option than `-I DIR/src`. DIR/package.json states RAM, time and energy on the planned board.
    """
    made = api.write_package(schedule, output, kind=kind, weights=weights, samples=samples, raw=raw)
    facts = made.facts
    say(f"wrote {output}: a package of {facts['name']} for {kind}")
    if as_json:
        return emit({"folder": str(output), **facts})
    return show_table(("", ""), _rows(facts))


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    def time(name: str) -> str:
        return "not known" if facts[name] is None else f"{facts[name] / 1e3:,.3f} ms"

    def energy(name: str) -> str:
        return "not known" if facts[name] is None else f"{facts[name]:,.1f} uJ"

    without = (
        "" if facts["needs_storage"] else f", {facts['memory_bytes_without_storage']:,} without"
    )
    return [
        ("board", str(facts["board"] or "not known")),
        ("RAM with storage", f"{facts['memory_bytes']:,}{without} bytes"),
        ("RAM of struct poet_learner", f"{facts['learner_bytes']:,} bytes"),
        ("storage", f"{facts['storage_blocks']:,} blocks of 512 bytes"),
        ("flash of schedules and weights", f"{facts['data_bytes']:,} bytes"),
        ("time, energy of a step", f"{time('step_time_us')}, {energy('step_energy_uj')}"),
        (
            "time, energy of an inference",
            f"{time('inference_time_us')}, {energy('inference_energy_uj')}",
        ),
        ("longest slice of poll", time("longest_slice_us")),
        ("infer, if a step runs, takes", time("infer_waits_us")),
    ]
