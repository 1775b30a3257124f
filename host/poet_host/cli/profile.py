"""The command `profile`."""

from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..graph.training_options import TrainingOptions
from ..run.calibrate import Validation, averaged
from . import completion
from .console import count_steps, emit, progress, say, say_emulated
from .options import (
    FiniteRange,
    check_writable,
    erase_option,
    json_option,
    model_files,
    model_options,
    output,
    port_option,
    storage_option,
)

SUPPLY_MV = 3300.0  # supply voltage of the boards that have a firmware image
PROFILING_BYTES = 64 << 20  # arena of a native board; larger operators are not measured


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=completion.models)
@port_option
@output("--output", "-o", required=True, help="Write the profile to this file.")
@click.option(
    "--validate/--no-validate", "validated", default=True, show_default=True,
    help="After the measurement, run two schedules of each MODEL. The first run calibrates the "
    "profile, by the mean if there are several models. The second run is compared with the "
    "prediction of that profile. The card must not "
    "hold weights.",
)  # fmt: skip
@click.option(
    "--power-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    show_default="powers in board.toml",
    help="Take the power of each board state from the log of a power meter. Start recording before "
    "this command, and export the recording to FILE when the command asks for it.",
)  # fmt: skip
@click.option(
    "--supply-mv", type=FiniteRange(500, 30_000), metavar="MV", show_default=f"{SUPPLY_MV:.0f}",
    help="Supply voltage of the board at the power meter, in millivolts.",
)  # fmt: skip
@click.option(
    "--no-storage", is_flag=True,
    help="Measure a board without a card. `solve` then makes schedules without storage from the "
    "profile. `--validate` trains a few steps in the chip's flash, which must not hold weights.",
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
    no_storage: bool,
    erase_card: bool,
    storage: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure the costs of operators and storage on a board.

    Measures the operators of each MODEL: a built-in model or an .onnx file (default:
    resnet-digits).
    """
    check_writable(
        output, read=(*(file for model in models for file in model_files(model)), storage)
    )
    chosen = TrainingOptions(**options)
    graphs = [api.load_graph(model, options=chosen) for model in models or ("resnet-digits",)]
    if supply_mv is not None and power_log is None:
        raise BadInput("--supply-mv needs the log of a power meter: name it with --power-log")
    if power_log and power_log.exists():
        raise BadInput(
            f"--power-log: {power_log} already exists. Name a new file, to which you will "
            "export the recording"
        )
    if power_log and no_storage:
        raise BadInput(
            "--power-log needs a card, since the meter records its power too: omit --no-storage"
        )
    arena = PROFILING_BYTES if port == "native" else None
    with api.connect(port, storage=storage, arena_bytes=arena, card=not no_storage) as connection:
        say_emulated(connection)
        if erase_card:
            connection.device.format()
        measured = None
        for graph in graphs:
            with progress(f"profiling {graph.name} on {connection.board.name}") as report:
                measured = connection.profile(
                    graph, measured, progress=report, storage=not no_storage
                )
        assert measured is not None
        if power_log:
            request = f"now stop the recording, and export it with timestamps to {power_log}"
            with progress("holding the power states for the meter"):
                measured = connection.meter(
                    measured, power_log, supply_mv or SUPPLY_MV, lambda: say(request)
                )
        validations, profiles = [], []
        for graph in graphs if validated else ():
            with progress(f"running schedules of {graph.name}") as report:
                try:
                    better, validation = connection.validate(graph, measured, count_steps(report))
                except BadInput as error:
                    say(f"not validated: {error}")
                else:
                    validations.append(validation)
                    profiles.append(better)
                    _say_validation(validation, measured.metered)
    measured = averaged(profiles) if profiles else measured
    measured.save(output)
    say(f"wrote {output}")
    if as_json:
        emit(
            {
                "file": str(output),
                "board": connection.board.name,
                "operators": len(measured.operators),
                "metered": measured.metered,
                "validation": [validation.to_json() for validation in validations],
            }
        )


def _say_validation(found: Validation, metered: bool) -> None:
    powers = "with the powers of the meter" if metered else "estimated"
    say(
        f"a step of {found.model} within {found.ram_bytes:,} bytes: predicted "
        f"{found.predicted_us / 1e3:,.3f} ms, took {found.time_us / 1e3:,.3f} ms (error "
        f"{found.time_error:+.1%}); predicted {found.predicted_uj:,.0f} uJ, took "
        f"{found.energy_uj:,.0f} uJ, {powers} (error {found.energy_error:+.1%})"
    )
    clock = f"; the card's bus ran at {found.card_khz:,} kHz" if found.card_khz else ""
    say(f"the processor slept during {found.asleep_share:.1%} of the step{clock}")
