"""The command `profile`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..graph.training_options import TrainingOptions
from ..run.calibrate import Validation
from . import completion
from .console import emit, of_steps, progress, say, say_emulated
from .options import (
    FiniteRange,
    erase_option,
    files_of,
    json_option,
    model_options,
    output,
    port_option,
    storage_option,
    writable,
)

SUPPLY_MV = 3300.0  # of the boards that have a firmware image
PROFILING_BYTES = 64 << 20  # of a native board: what does not fit would be fitted, not measured


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=completion.models)
@port_option
@output("--output", "-o", required=True, help="Where to write the profile.")
@click.option(
    "--validate/--no-validate", "validated", default=True,
    help="Also run schedules of the models on the board, and compare them with what is predicted.",
)  # fmt: skip
@output(
    "--power-log",
    help="A meter's log, from which powers are taken in place of the estimated ones: start "
    "recording before the command, and export the recording when it asks for it.",
)
@click.option(
    "--supply-mv", type=FiniteRange(500, 30_000), metavar="MV",
    help="Millivolts at which the meter supplies the board; default: 3300.",
)  # fmt: skip
@erase_option
@storage_option
@model_options
@json_option
def profile(
    models: tuple[str, ...],
    port: str,
    output: Path,
    validated: bool,
    power_log: Path | None,
    supply_mv: float | None,
    erase_card: bool,
    storage: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure on a board what operators of MODELs (resnet-digits) and its storage cost."""
    writable(output, read=(*(of for model in models for of in files_of(model)), storage))
    chosen = TrainingOptions(**options)
    graphs = [api.load_graph(model, options=chosen) for model in models or ("resnet-digits",)]
    if supply_mv is not None and power_log is None:
        raise BadInput("--supply-mv is for a meter's log: give --power-log too")
    if power_log and power_log.exists():
        raise BadInput(
            f"{power_log} exists: name the file that the recording of this run will be exported to"
        )
    arena = PROFILING_BYTES if port == "native" else None
    with api.connect(port, storage=storage, arena_bytes=arena) as connection:
        say_emulated(connection)
        if erase_card:
            connection.device.format()
        measured = None
        for graph in graphs:
            with progress(f"profiling {graph.name} on {connection.board.name}") as report:
                measured = connection.profile(graph, measured, progress=report)
        assert measured is not None
        if power_log:
            with progress("computing, writing and reading for the meter"):
                ask = _asker(power_log)
                measured = connection.meter(measured, power_log, supply_mv or SUPPLY_MV, ask)
        found, alone = [], measured
        for graph in graphs if validated else ():
            with progress(f"running schedules of {graph.name}") as report:
                try:
                    measured, validation = connection.validate(graph, alone, of_steps(report))
                except BadInput as error:
                    say(f"not validated: {error}")
                else:
                    found.append(validation)
                    _say_validation(validation, measured.metered)
    measured.save(output)
    say(f"wrote {output}")
    if as_json:
        emit(
            {
                "file": str(output),
                "board": connection.board.name,
                "operators": len(measured.operators),
                "metered": measured.metered,
                "validation": [one.to_json() for one in found],
            }
        )


def _asker(power_log: Path) -> Callable[[], None]:
    return lambda: say(f"now stop the recording, and export it with timestamps as {power_log}")


def _say_validation(found: Validation, metered: bool) -> None:
    powers = "by the meter's powers" if metered else "estimated"
    say(
        f"a step of {found.model} within {found.ram_bytes:,} bytes: predicted "
        f"{found.predicted_us / 1e3:,.3f} ms, took {found.time_us / 1e3:,.3f} ms (error "
        f"{found.time_error:+.1%}); predicted {found.predicted_uj:,.0f} uJ, took "
        f"{found.energy_uj:,.0f} uJ, {powers} (error {found.energy_error:+.1%})"
    )
