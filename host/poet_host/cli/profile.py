"""The command `profile`."""

from dataclasses import dataclass
from pathlib import Path

import click

from .. import api
from ..errors import BadInput, BoardError
from ..files import is_stream
from ..run.calibrate import Validation, averaged
from . import completion
from .console import Answer, progress, say
from .declared import FiniteRange, argument, option, takes
from .options import ERASE_CARD, PORT, STORAGE, ModelOptions, model_files
from .written import WRITTEN_FILE, check_writable, output_file

SUPPLY_MV = 3300.0  # supply voltage of the boards that have a firmware image
PROFILING_BYTES = 64 << 20  # arena of a native board; larger operators are not measured


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The options of the command.

    --output, -o FILE  Write the profile to this file.
    --validate/--no-validate  After the measurement, run two schedules of each MODEL. The first run
        calibrates the profile, by the mean if there are several models. The second run is compared
        with the prediction of that profile. The card must not hold weights.
    --power-log FILE  Take the power of each board state from the log of a power meter. Start
        recording before this command, and export the recording to FILE when the command asks for
        it. [default: powers in board.toml]
    --supply-mv MV  Supply voltage of the board at the power meter, in millivolts.
    --no-storage  Measure a board without a card. `solve` then makes schedules without storage from
        the profile. `--validate` trains a few steps in the chip's flash, which must not hold
        weights.
    """

    models: tuple[str, ...] = argument(
        nargs=-1, metavar="[MODEL]...", shell_complete=completion.models
    )
    port: str = PORT
    output: Path = output_file()
    validated: bool = option("--validate", default=True)
    power_log: Path | None = option(type=WRITTEN_FILE)
    supply_mv: float | None = option(type=FiniteRange(500, 30_000), show_default=f"{SUPPLY_MV:.0f}")
    no_storage: bool = False
    erase_card: bool = ERASE_CARD
    storage: Path | None = STORAGE
    model: ModelOptions

    def check_power_log(self) -> None:
        if self.supply_mv is not None and self.power_log is None:
            raise BadInput("--supply-mv needs the log of a power meter: name it with --power-log")
        if self.power_log and self.power_log.exists():
            raise BadInput(
                f"--power-log: {self.power_log} already exists. Name a new file, to which you will "
                "export the recording"
            )
        if self.power_log and self.no_storage:
            raise BadInput(
                "--power-log needs a card, since the meter records its power too: omit --no-storage"
            )


@click.command()
@takes
def profile(given: ProfileOptions) -> Answer:
    """Measure the costs of operators and storage on a board.

    Measures the operators of each MODEL: a built-in model or an .onnx file (default:
    resnet-digits).
    """
    check_writable(
        given.output,
        read=(
            *(file for model in given.models for file in model_files(model)),
            given.storage,
            given.power_log,
        ),
    )
    models = given.models or ("resnet-digits",)
    graphs = [api.load_graph(model, options=given.model) for model in models]
    given.check_power_log()
    arena = PROFILING_BYTES if given.port == "native" else None
    with api.connect(
        given.port, storage=given.storage, arena_bytes=arena, card=not given.no_storage
    ) as connection:
        if given.erase_card:
            connection.device.format()
        measured = _measured(connection, graphs, given)
        if given.power_log:
            _keep(measured, given.output)
            measured = _metered(connection, measured, given.power_log, given.supply_mv)
        if given.validated:
            _keep(measured, given.output)
        validations, profiles = [], []
        for graph in graphs if given.validated else ():
            with progress(f"running schedules of {graph.name}", "steps") as report:
                try:
                    better, validation = connection.validate(graph, measured, report)
                except (BadInput, BoardError) as error:
                    say(f"not validated: {error}")
                else:
                    validations.append(validation)
                    profiles.append(better)
                    _say_validation(validation, measured.metered)
    measured = averaged(profiles) if profiles else measured
    measured.save(given.output)
    say(f"wrote {given.output}")
    return Answer(
        {
            "file": str(given.output),
            "board": connection.board.name,
            "operators": len(measured.operators),
            "metered": measured.metered,
            "validation": [validation.to_json() for validation in validations],
        }
    )


def _measured(
    connection: api.Connection, graphs: list[api.Graph], given: ProfileOptions
) -> api.Profile:
    measured = None
    for graph in graphs:
        with progress(f"profiling {graph.name} on {connection.board.name}") as report:
            measured = connection.profile(
                graph, measured, progress=report, storage=not given.no_storage
            )
    assert measured is not None
    return measured


def _keep(measured: api.Profile, output: Path) -> None:
    """Save what is measured so far, because what follows may fail."""
    if not is_stream(output):
        measured.save(output)
        say(f"saved the measured costs to {output}")


def _metered(
    connection: api.Connection, measured: api.Profile, log: Path, supply_mv: float | None
) -> api.Profile:
    request = f"now stop the recording, and export it with timestamps to {log}"
    with progress("holding the power states for the meter"):
        return connection.meter(measured, log, supply_mv or SUPPLY_MV, lambda: say(request))


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
