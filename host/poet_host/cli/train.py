"""The command `train`."""

from pathlib import Path

import click
import numpy as np

from .. import api
from ..data.fitted import classes_of, fit
from ..errors import BadInput, PoetError
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.weights import weight_nodes
from ..profile.profile import board_power
from ..run.evaluate import held_out_accuracy
from ..run.log import Log
from ..run.run import Run, weights_sha256
from ..run.session import Session
from ..run.train import COMMIT_EVERY, Diverged, StartingPoint, train as train_until
from ..run.validate import check_held_out
from ..schedule.rates import with_rates
from ..schedule.schedule import Schedule
from .console import (
    counted,
    emit,
    failure,
    progress,
    say,
    say_classes,
    say_emulated,
    show_table,
    to_json,
)
from .options import (
    FiniteRange,
    WholeRange,
    check_space,
    check_writable,
    data_options,
    duration_options,
    erase_option,
    json_option,
    output,
    port_option,
    schedule_argument,
    storage_option,
    training_seed_option,
)
from .signals import stop_requests

RUN_BYTES = 64 << 10  # approximate size of a run.json file without its steps
STEP_BYTES = 512  # upper limit for the size of one step in a run.json file


@click.command()
@schedule_argument
@port_option
@data_options
@duration_options
@click.option(
    "--learning-rate", "--lr", type=FiniteRange(0, min_open=True), metavar="RATE",
    show_default="that of the schedule",
    help="Learning rate of the optimiser.",
)  # fmt: skip
@click.option(
    "--momentum", type=FiniteRange(0, 1, max_open=True), metavar="SHARE",
    show_default="that of the schedule",
    help="Momentum: the share of each update that is added to the next update. Only for schedules "
    "that were solved with momentum.",
)  # fmt: skip
@click.option(
    "--weight-decay", type=FiniteRange(0), metavar="FACTOR", show_default="that of the schedule",
    help="Weight decay: this multiple of each weight is added to its gradient.",
)  # fmt: skip
@output(
    "--save-weights", required=True, suffix=".safetensors", is_strict=False,
    help="Write the trained weights to this .safetensors file.",
)  # fmt: skip
@click.option(
    "--save-every", type=WholeRange(1), metavar="N", show_default="only at the end",
    help="Write the weights to the --save-weights file after every N steps, not only at the end.",
)  # fmt: skip
@click.option(
    "--validate", "validated", is_flag=True,
    help="After each epoch, compute loss and accuracy of the held-out samples on this computer. "
    "Keep the weights with the lowest loss in NAME.best.safetensors if --save-weights is "
    "NAME.safetensors.",
)  # fmt: skip
@click.option(
    "--load-weights", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    show_default="the weights in the model's .onnx file, or random weights",
    help="Start with the weights in this .safetensors file.",
)  # fmt: skip
@output(
    "--run", "run_path",
    help="When the run ends, write its losses, times and trace to this JSON file.",
)  # fmt: skip
@output(
    "--log", "log_path",
    help="At the end of each step, write its loss, times and energy to this file as a JSON line.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Continue with the weights on the card, after the last step that they were trained for. "
    "With --load-weights FILE, continue with the weights in FILE instead. The state of the "
    "optimiser is restored too.",
)  # fmt: skip
@erase_option
@click.option(
    "--commit-every", type=WholeRange(1), metavar="N", show_default=f"{COMMIT_EVERY}",
    help="Without a card: commit the weights to the chip's flash after every N steps, and at the "
    "end. A power cut loses the steps since the last commit. Only for schedules that were solved "
    "with --no-storage.",
)  # fmt: skip
@click.option(
    "--strict-deadline", is_flag=True,
    help="Exit with code 1 if a step took longer than the deadline of the schedule.",
)  # fmt: skip
@storage_option
@training_seed_option
@json_option
def train(
    schedule: Path,
    port: str,
    data: str,
    normalize: str,
    test_split: float | None,
    header: bool | None,
    shuffle: bool,
    epochs: int | None,
    steps: int | None,
    learning_rate: float | None,
    momentum: float | None,
    weight_decay: float | None,
    save_weights: Path,
    save_every: int | None,
    validated: bool,
    load_weights: Path | None,
    run_path: Path | None,
    log_path: Path | None,
    resume: bool,
    erase_card: bool,
    commit_every: int | None,
    strict_deadline: bool,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> int:
    """Train the model of a schedule on a board, and save the weights."""
    if epochs is not None and steps is not None:
        raise BadInput("--epochs and --steps exclude each other: omit one")
    from_board = resume and load_weights is None
    if from_board and erase_card:
        raise BadInput("--resume needs the weights on the card: omit --erase-card")
    if from_board and storage is None and api.runs_here(port):
        raise BadInput(
            f"--resume: the board {port} has an empty temporary card. Name the card image of the "
            "previous run (--storage FILE), or its weights (--load-weights FILE)"
        )
    best = save_weights.with_suffix(".best.safetensors") if validated else None
    check_writable(save_weights, best, run_path, log_path, read=(schedule, storage, data))
    check_writable(log_path, run_path, best, read=(load_weights,))
    loaded = with_rates(
        Schedule.load(schedule),
        learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay,
    )  # fmt: skip
    if commit_every is not None and loaded.model.storage:
        raise BadInput(
            f"--commit-every: the schedule {schedule} uses a card, where every step commits. Omit "
            "the option, or solve with --no-storage"
        )
    graph = loaded.graph
    read = api.load_data(
        data, normalize=normalize, test_split=test_split or 0.0, shuffle=shuffle, seed=seed,
        header=header, graph=graph,
    )  # fmt: skip
    dataset = fit(read, graph)
    if read.x.dtype == np.uint8 and normalize == "none":
        say(f"data {read.name}: x has bytes (0 to 255). --normalize scale often trains better")
    if validated:
        check_held_out(dataset)
    first = api.step_of_weights(load_weights) if resume and load_weights else 0
    weights = api.load_weights(load_weights, graph) if load_weights else None
    start = StartingPoint(seed, weights, first, from_board)
    last = api.last_step(dataset, epochs or 1, steps)
    api.check_countable(dataset, last)
    if strict_deadline and loaded.meta["plan"].get("deadline_us") is None:
        raise BadInput(
            f"--strict-deadline: the schedule {schedule} has no deadline. Run `poet-host solve` "
            "again with --deadline"
        )
    _check_space(graph, last - first, save_weights, best, run_path)
    ram = api.arena_for(loaded, port, storage if from_board else None)
    with (
        Log(log_path, resume) as log,
        api.connect(
            port, storage=storage, arena_bytes=ram, card=loaded.model.storage
        ) as connection,
    ):
        log.check()
        say_emulated(connection)
        replaced = api.check_training(loaded, connection, dataset, start, erase_card)
        if replaced is not None:
            say(
                f"replacing the weights of step {replaced:,} on the card by those of step {first:,}"
            )
        begun = connection.device.info.committed_step if from_board else first
        power = board_power(connection.board, loaded.model.storage)
        about = {
            "model": graph.name, "board": connection.board.name, "data": dataset.name,
            "normalize": normalize, "test_split": test_split, "shuffle": shuffle,
            "seed": seed, "batch": graph.batch, "samples": len(dataset.x), "to_step": last,
            "schedule": str(schedule), "plan_crc": loaded.header.crc,
        }  # fmt: skip
        log.begin(about, begun, dataset.steps_per_epoch, power)
        backup = api.Backup(graph, save_weights, say)
        training = api.start_training(
            loaded, connection, dataset, start, erase_card, backup, commit_every or COMMIT_EVERY
        )
        say_classes(training.classes)
        if 0 < len(training.classes) < classes_of(graph):
            say(
                f"{graph.name} has {classes_of(graph):,} classes, but {dataset.name} has names for "
                f"only {len(training.classes):,}. Data for later runs cannot add names"
            )
        session = Session(training, log, save_weights, best, save_every, say)
        if best and resume and best.exists():
            session.load_best()
        _say_unused(session, last, steps)
        failed: dict[str, object] = {}
        with (
            progress(f"training {graph.name}") as report,
            stop_requests("stopping after this step; press Ctrl-C again to stop now") as stopped_by,
        ):
            session.report = report
            try:
                run = train_until(training, last, session.on_step, lambda: stopped_by() != 0)
            except Diverged as error:
                run = error.run
                failed = failure(str(error), error.exit_code)
        _save(session, run, run_path, best)
        accuracy = None if failed else held_out_accuracy(graph, run.weights, training.data)
        log.end(
            ended=run.ended, accuracy=accuracy, weights_sha256=weights_sha256(run.weights),
            **({"error": failed["error"]} if failed else {}),
        )  # fmt: skip
    code = 128 + stopped_by() if run.ended == "interrupted" else 0
    if not failed:
        failed = _failure(log, session, run, strict_deadline)
    if failed:
        code = PoetError.exit_code
        say(f"poet-host: {failed['error']}")
    if as_json:
        emit({**summary(run), **session.to_json(), "accuracy": accuracy, **failed})
    else:
        show_table(("", ">"), [*_facts(run, loaded, accuracy, session)])
    return code


def _say_unused(session: Session, last: int, steps: int | None) -> None:
    """Print how many samples each epoch omits, and whether no step is left to train."""
    data, batch = session.training.data, session.training.graph.batch
    unused = len(data.x) - session.per_epoch * batch
    if unused and steps is None:
        which = "other ones in each epoch" if data.shuffle else "always the last ones"
        say(
            f"each epoch omits {unused:,} of {len(data.x):,} samples ({which}), which do not "
            f"fill a batch of {batch:,}"
        )
    if session.begun >= last:
        say(f"nothing to train: step {session.begun:,} is done, and the last step is {last:,}")


def _save(session: Session, run: Run, run_path: Path | None, best: Path | None) -> None:
    """Save the weights and the run."""
    written = [session.save(run)]
    if run_path:
        write_whole(run_path, to_json(run.to_json()))
        written.append(run_path)
    if session.best:
        written.append(best)
    if written := [path for path in written if path]:
        say(f"wrote {' and '.join(map(str, written))}")


def _check_space(
    graph: Graph, steps: int, save_weights: Path, best: Path | None, run_path: Path | None
) -> None:
    """Raise BadInput if there is no disk space for the results, before hours of training."""
    weights_bytes = sum(node.size_bytes + 256 for node in weight_nodes(graph))
    sizes = {save_weights: weights_bytes}
    sizes |= {best: weights_bytes} if best else {}
    sizes |= {run_path: RUN_BYTES + STEP_BYTES * max(steps, 0)} if run_path else {}
    check_space(sizes)


def _failure(log: Log, session: Session, run: Run, strict_deadline: bool) -> dict[str, object]:
    """Return the JSON keys of an error if the command fails after training, otherwise {}."""
    message = ""
    if log.broken:
        message = f"{log.broken}. The weights are saved, but the log is incomplete"
    elif session.write_error:
        message = f"during training: {session.write_error}"
    elif strict_deadline and run.deadline_missed_steps and run.ended == "done":
        message = (
            f"{run.deadline_missed_steps:,} of {len(run.steps):,} steps took longer than the "
            f"deadline of {_ms(run.deadline_us)}. Solve with a longer --deadline, or profile the "
            "board first"
        )
    return failure(message, PoetError.exit_code) if message else {}


def summary(run: Run) -> dict[str, object]:
    """Return the content of run.json without its long lists."""
    return {key: value for key, value in run.to_json().items() if key not in ("steps", "trace")}


def _facts(
    run: Run, schedule: Schedule, accuracy: float | None, session: Session
) -> list[tuple[str, str]]:
    rows = [("steps", f"{session.training.committed:,}"), ("ended", run.ended.replace("_", " "))]
    planned_for = schedule.meta.get("board")
    is_predicted = planned_for == run.board and run.predicted_time_us is not None
    if planned_for not in (None, run.board):
        rows.append(("solved for another board", str(planned_for)))
    mean = f", mean of {counted(len(run.steps), 'step')}"
    if run.steps:
        rows += [
            (_losses_row(run), f"{run.loss('first'):.4f} to {run.loss('last'):.4f}"),
            ("arena's high-water mark", f"{run.peak_bytes:,} bytes"),
            (f"time of a step{mean}", _ms(run.time_us)),
            ("- for the commit and the host", _ms(run.overhead_us)),
            ("- for the schedule", _ms(run.measured_time_us)),
        ]
        if is_predicted:
            rows.append(("- for the schedule, predicted by solve", _ms(run.predicted_time_us)))
        rows.append(("share of a step in which the processor slept", f"{run.asleep_share:.1%}"))
        if run.commits:
            text = f"{run.commit_every:,}, {run.erases_per_1000_steps:,.0f} erases per 1,000 steps"
            rows.append(("steps between commits to flash", text))
        if run.storage_retries:
            rows.append(("retries of the card (check its contacts)", f"{run.storage_retries:,}"))
        if run.card_khz:
            rows.append(("clock of the card's bus", f"{run.card_khz:,} kHz"))
        if run.restarts:
            rows.append(("steps begun again after a damaged page", f"{run.restarts:,}"))
        if every := run.steps[-1].readback_every:
            rows.append(("steps between checks of the written weights", f"{every:,}"))
        if run.deadline_us is not None:
            missed = run.deadline_missed_steps
            met = "met" if not missed else f"missed in {missed:,} of {len(run.steps):,} steps"
            rows.append(("deadline of the schedule", f"{_ms(run.deadline_us)}, {met}"))
    if run.measured_energy_uj is not None:
        # As in the prediction of `solve`, this energy excludes the commit (the write that makes the
        # new weights on the card valid), and the answers to the host.
        measured = f"{run.measured_energy_uj:,.1f} uJ"
        rows.append((f"energy above the sleeping board (estimated){mean}", measured))
        if is_predicted:
            rows.append(("- predicted by solve", f"{run.predicted_energy_uj:,.1f} uJ"))
        rows.append(("- including commit and host", f"{run.energy_uj:,.1f} uJ"))
        rows.append(("- including the sleeping board", f"{run.total_energy_uj:,.1f} uJ"))
    if accuracy is not None:
        rows.append(("accuracy on held-out data", f"{accuracy:.1%}"))
    if session.best:
        rows.append(
            ("lowest validation loss", f"{session.best.loss:.4f} after step {session.best.step:,}")
        )
    return rows


def _losses_row(run: Run) -> str:
    count = max(1, len(run.steps) // 8)
    return "loss" if count == 1 else f"mean loss of the first and last {count:,} steps"


def _ms(time_us: float | None) -> str:
    return f"{(time_us or 0) / 1e3:,.3f} ms"
