"""Commands that use a board: simulate, profile, train."""

import time
from collections.abc import Callable
from pathlib import Path

import click

from .. import api
from ..errors import BadInput, PoetError
from ..files import write_whole
from ..profile.profile import board_power
from ..run.calibrate import Validation
from ..run.data import fit, load_data, steps_per_epoch
from ..run.evaluate import held_out_accuracy
from ..run.limits import size_bytes
from ..run.log import Log
from ..run.run import Run, Step, weights_sha256
from ..run.train import NotFinite, OnStep
from ..schedule.recover import graph_of
from ..schedule.schedule import Schedule
from ..sim.board import POWER_CUT
from ..sim.machine import FAULT_KINDS, CardFault
from .console import Report, emit, of_steps, progress, say, show_table, show_text, to_json
from .notices import say_classes, say_emulated, say_replaced
from .options import (
    FiniteRange,
    data_options,
    files_of,
    json_option,
    model_options,
    output,
    port_option,
    seed_option,
    storage_option,
    writable,
)
from .signals import interrupts

SUPPLY_MV = 3300.0  # of the boards that have a firmware image
PROFILING_BYTES = 64 << 20  # of a native board: what does not fit would be fitted, not measured


@click.command()
@click.argument("board")
@click.option(
    "--arena", metavar="SIZE",
    help="RAM for tensors, as 24KiB; of native and of boards that run Linux.",
)  # fmt: skip
@click.option(
    "--listen", metavar="[ADDRESS:]PORT",
    help="Speak at a socket, for hosts on other computers, in place of a serial port; without an "
    "ADDRESS only to this computer. Whoever reaches it can use the board. Of native and of boards "
    "that run Linux.",
)  # fmt: skip
@click.option(
    "--card-fault", "faults", multiple=True, metavar="KIND:FIRST[:TIMES[:ARGUMENT]]",
    help=f"From its FIRST block on the card misbehaves for TIMES blocks: {', '.join(FAULT_KINDS)}; "
    "ARGUMENT: microseconds of a slow block, bytes that a torn write keeps, 1 if a power cut takes "
    "the erase group along. Reads and writes count from 1 since the start, each on their own.",
)  # fmt: skip
@click.option("--usb", is_flag=True, help="The port is that of the chip's USB, not of its UART.")
@storage_option
@json_option
def simulate(
    board: str,
    arena: str | None,
    listen: str | None,
    faults: tuple[str, ...],
    usb: bool,
    storage: Path | None,
    as_json: bool,
) -> int:
    """Start a board on this computer, print its port, run until interrupted.

    BOARD: native, a board that runs Linux (rpi4b; QEMU executes its program), or one whose chip is
    simulated (mkr1000).
    """
    size = None if arena is None else size_bytes(arena, "--arena")
    wanted = [CardFault.parse(text) for text in faults]
    with (
        interrupts("stopping the board") as asked,
        api.start_board(board, storage, size, wanted, listen, alone=True, usb=usb) as running,
    ):
        if as_json:
            emit({"port": running.port})
        else:
            show_text(running.port)
        say("the board runs until Ctrl-C")
        while not asked() and running.process.poll() is None:
            time.sleep(0.1)
        if asked():
            return 0
        reason = running.ended
    what = f"the board {board} ended by itself: {reason}"
    if reason == POWER_CUT:
        what = f"the power of {board} was cut, as asked: what it had committed is on the card" + (
            f" {storage}" if storage else ", which is gone too: keep one with --storage"
        )
    say(f"poet-host: {what}")  # as errors are, but stdout has its one object: the port
    return PoetError.exit_code


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
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
    storage: Path | None,
    as_json: bool,
    **options: object,
) -> None:
    """Measure on a board what operators of MODELs (resnet-digits) and its storage cost."""
    writable(output, read=(*(of for model in models for of in files_of(model)), storage))
    graphs = [api.load_graph(model, **options) for model in models or ("resnet-digits",)]
    if supply_mv is not None and power_log is None:
        raise BadInput("--supply-mv is for a meter's log: give --power-log too")
    if power_log and power_log.exists():
        raise BadInput(
            f"{power_log} exists: name the file that the recording of this run will be exported to"
        )
    arena = PROFILING_BYTES if port == "native" else None
    with api.connect(port, storage=storage, arena_bytes=arena) as connection:
        say_emulated(connection)
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


@click.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@port_option
@data_options
@click.option("--shuffle/--no-shuffle", default=True, help="Each epoch in another order.")
@click.option("--epochs", type=click.IntRange(1), help="Times through the data; default: 1.")
@click.option("--steps", type=click.IntRange(1), help="Steps in place of epochs.")
@output("--save-weights", required=True, help="Trained weights, a safetensors file.")
@output("--load-weights", help="Starting weights in place of random ones.")
@output("--run", "run_path", help="Losses, times and the trace as JSON, when the run has ended.")
@output("--log", "log_path", help="Loss, times and energy of each step as it ends: JSON lines.")
@click.option(
    "--tensorboard", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="The same curves in a folder that TensorBoard reads.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Go on from the last step that the board committed, or, with --load-weights, from the "
    "step that the file was saved after: its optimiser's state is in it.",
)  # fmt: skip
@click.option("--format", "erase", is_flag=True, help="First erase what the board's card holds.")
@storage_option
@seed_option
@json_option
def train(
    schedule: Path,
    port: str,
    data: str,
    normalize: str,
    test_split: float | None,
    shuffle: bool,
    epochs: int | None,
    steps: int | None,
    save_weights: Path,
    load_weights: Path | None,
    run_path: Path | None,
    log_path: Path | None,
    tensorboard: Path | None,
    resume: bool,
    erase: bool,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> int:
    """Train on a board by a schedule, and save the weights."""
    if epochs is not None and steps is not None:
        raise BadInput("give --epochs or --steps, not both")
    from_board = resume and load_weights is None
    if from_board and erase:
        raise BadInput("--resume goes on from the board's weights: leave out --format")
    if from_board and storage is None and (port == "native" or port.startswith("sim:")):
        raise BadInput(
            f"--resume on `{port}` needs the --storage file of the run before, or the weights that "
            "it saved (--load-weights)"
        )
    writable(save_weights, run_path, log_path, read=(schedule, storage, data))
    writable(log_path, run_path, read=(load_weights,))
    loaded = Schedule.load(schedule)
    graph = graph_of(loaded)
    read = load_data(
        data, normalize=normalize, test_split=test_split or 0.0, shuffle=shuffle, seed=seed
    )
    say_classes(read)
    dataset = fit(read, graph)
    first = api.step_of_weights(load_weights) if resume and load_weights else 0
    start = api.load_weights(load_weights, graph) if load_weights else None
    ram = loaded.meta["plan"]["ram_bytes"] if port == "native" else None
    per_epoch = steps_per_epoch(dataset, graph.batch)
    last = steps or (epochs or 1) * per_epoch
    left = len(dataset.x) - per_epoch * graph.batch
    if left and steps is None:
        say(
            f"{left} of {len(dataset.x)} samples fill no batch of {graph.batch}: "
            + ("every epoch leaves out others" if shuffle else "they are left out")
        )

    def save(run: Run) -> None:
        api.save_weights(save_weights, graph, run.weights, run.last_step or begun)
        if run_path:
            write_whole(run_path, to_json(run.to_json()))
        say(f"wrote {save_weights}" + (f" and {run_path}" if run_path else ""))

    with (
        Log(log_path, tensorboard, resume) as log,
        api.connect(port, storage=storage, arena_bytes=ram) as connection,
    ):
        held = connection.device.info
        begun = held.committed_step if from_board else first
        say_emulated(connection)
        if not from_board:
            say_replaced(held, loaded)
        about = {
            "model": graph.name, "board": connection.board.name, "data": dataset.name,
            "normalize": normalize, "test_split": test_split, "shuffle": shuffle,
            "seed": seed, "batch": graph.batch, "samples": len(dataset.x), "to_step": last,
            "schedule": str(schedule), "plan_crc": loaded.header.crc,
        }  # fmt: skip
        log.begin(about, begun, per_epoch, board_power(connection.board))
        if erase:
            connection.device.format()
        try:
            with (
                progress(f"training {graph.name}") as report,
                interrupts("stopping after this step; Ctrl-C again stops at once") as asked,
            ):
                run = api.train(
                    loaded,
                    connection,
                    dataset,
                    steps=last,
                    seed=seed,
                    weights=start,
                    first_step=first,
                    resume=from_board,
                    on_step=_both(log.step, _on_step(report)),
                    stopped=lambda: asked() != 0,
                )
        except NotFinite as error:
            try:
                save(error.run)
            except BadInput as unsaved:
                say(f"nothing is saved: {unsaved}")
            log.end(ended=error.run.ended, error=str(error))
            raise
        save(run)
        accuracy = held_out_accuracy(graph, run.weights, dataset)
        log.end(ended=run.ended, accuracy=accuracy, weights_sha256=weights_sha256(run.weights))
    done = run.last_step or begun
    code = 128 + asked() if run.ended == "interrupted" else 0
    failed: dict[str, object] = {}
    if log.broken:
        code = PoetError.exit_code
        message = f"{log.broken}; the weights are saved, but the log is not whole"
        failed = {"error": message, "exit_code": code}
        say(f"poet-host: {message}")
    if as_json:
        emit({**summary(run), "steps": done, "accuracy": accuracy, **failed})
    else:
        show_table(("", ">"), [("steps", str(done)), *_facts(run, accuracy)])
    return code


def _both(log: Callable[[Step], None], tell: OnStep) -> OnStep:
    """First on record, then on the screen."""

    def told(step: Step, total: int) -> None:
        log(step)
        tell(step, total)

    return told


def _on_step(report: Report) -> OnStep:
    return lambda step, total: report(step.step, total, f"loss {step.loss:.4f}")


def summary(run: Run) -> dict[str, object]:
    """run.json without its long lists."""
    return {key: value for key, value in run.to_json().items() if key not in ("steps", "trace")}


def _facts(run: Run, accuracy: float | None) -> list[tuple[str, str]]:
    rows = [("ended", run.ended.replace("_", " "))]
    if run.steps:
        rows += [
            ("loss", f"{run.loss('first'):.4f} to {run.loss('last'):.4f}"),
            ("arena's high-water mark", f"{run.peak_bytes:,} bytes"),
            ("time of a step", f"{(run.time_us or 0) / 1e3:,.3f} ms"),
        ]
    if run.energy_uj is not None:
        rows.append(("energy of a step (estimated)", f"{run.energy_uj:,.1f} uJ"))
    if accuracy is not None:
        rows.append(("accuracy on held-out data", f"{accuracy:.1%}"))
    return rows
