"""The command train."""

from pathlib import Path

import click
import numpy as np

from .. import api
from ..data.datasets import classes_of, fit, load_data, steps_per_epoch
from ..errors import BadInput, PoetError
from ..graph.graph import Graph
from ..graph.weights import weight_nodes
from ..profile.profile import board_power
from ..run.evaluate import held_out_accuracy
from ..run.log import Log
from ..run.run import Run, weights_sha256
from ..run.train import Diverged
from ..run.train import train as train_until
from ..run.validate import check_held_out
from ..schedule.rates import with_rates
from ..schedule.schedule import Schedule
from .console import emit, failure, progress, say, say_classes, say_emulated, show_table
from .options import (
    FiniteRange,
    data_options,
    erase_option,
    json_option,
    output,
    port_option,
    room_for,
    seed_option,
    storage_option,
    writable,
)
from .session import Session
from .signals import interrupts

RUN_BYTES = 64 << 10  # of a run.json without its steps, about
STEP_BYTES = 512  # of each step in it, at most


@click.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@port_option
@data_options
@click.option("--shuffle/--no-shuffle", default=True, help="Each epoch in another order.")
@click.option("--epochs", type=click.IntRange(1), help="Times through the data; default: 1.")
@click.option(
    "--steps", type=click.IntRange(1),
    help="The last step, counted from the first training on; in place of --epochs.",
)  # fmt: skip
@click.option(
    "--learning-rate", "--lr", type=FiniteRange(0, min_open=True),
    help="Train with this learning rate; default: that of the schedule.",
)  # fmt: skip
@click.option(
    "--momentum", type=FiniteRange(0, 1, max_open=True),
    help="Train with this momentum; default: that of the schedule, if it was solved with some.",
)  # fmt: skip
@click.option(
    "--weight-decay", type=FiniteRange(0),
    help="Train with this weight decay; default: that of the schedule.",
)  # fmt: skip
@output(
    "--save-weights", required=True, suffix=".safetensors", is_strict=False,
    help="Trained weights, a safetensors file.",
)  # fmt: skip
@click.option(
    "--save-every", type=click.IntRange(1), metavar="N",
    help="Save the weights after every N steps too, into the same file.",
)  # fmt: skip
@click.option(
    "--validate", "validated", is_flag=True,
    help="Compute loss and accuracy on the held-out samples after each epoch, on this computer; "
    "keep the best weights in NAME.best.safetensors.",
)  # fmt: skip
@output("--load-weights", help="Starting weights in place of random ones.")
@output("--run", "run_path", help="Losses, times and the trace as JSON, when the run has ended.")
@output("--log", "log_path", help="Loss, times and energy of each step as it ends: JSON lines.")
@click.option(
    "--resume", is_flag=True,
    help="Go on from the last step that the board committed, or, with --load-weights, from the "
    "step that the file was saved after: its optimiser's state is in it.",
)  # fmt: skip
@erase_option
@click.option(
    "--strict-deadline", is_flag=True,
    help="Exit with 1 if a step took longer than the schedule's deadline.",
)  # fmt: skip
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
    strict_deadline: bool,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> int:
    """Train on a board using a schedule, and save the weights."""
    if epochs is not None and steps is not None:
        raise BadInput("give --epochs or --steps, not both")
    from_board = resume and load_weights is None
    if from_board and erase_card:
        raise BadInput("--resume goes on from the board's weights: leave out --erase-card")
    if from_board and storage is None and (port == "native" or port.startswith("sim:")):
        raise BadInput(
            f"--resume on `{port}` needs the --storage file of the run before, or the weights that "
            "it saved (--load-weights)"
        )
    best = save_weights.with_suffix(".best.safetensors") if validated else None
    writable(save_weights, best, run_path, log_path, read=(schedule, storage, data))
    writable(log_path, run_path, best, read=(load_weights,))
    loaded = with_rates(
        Schedule.load(schedule),
        learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay,
    )  # fmt: skip
    graph = loaded.graph
    read = load_data(
        data, normalize=normalize, test_split=test_split or 0.0, shuffle=shuffle, seed=seed
    )
    dataset = fit(read, graph)
    if read.x.dtype == np.uint8 and normalize == "none":
        say(f"data {read.name}: x holds bytes (0 to 255); --normalize scale often trains better")
    if validated:
        check_held_out(dataset)
    first = api.step_of_weights(load_weights) if resume and load_weights else 0
    weights = api.load_weights(load_weights, graph) if load_weights else None
    last = api.last_step(dataset, loaded, epochs or 1, steps)
    if strict_deadline and loaded.meta["plan"].get("deadline_us") is None:
        raise BadInput(
            f"{schedule} has no deadline for --strict-deadline: solve it with --deadline"
        )
    _check_room(graph, last - first, save_weights, best, run_path)
    ram = api.arena_for(loaded, port, storage if from_board else None)
    with (
        Log(log_path, resume) as log,
        api.connect(port, storage=storage, arena_bytes=ram) as connection,
    ):
        log.check()
        say_emulated(connection)
        replaced = api.check_training(
            loaded, connection, dataset,
            seed=seed, weights=weights, first_step=first, resume=from_board, erase_card=erase_card,
        )  # fmt: skip
        if replaced is not None:
            say(f"the card's weights of step {replaced} are replaced by those of step {first}")
        per_epoch = steps_per_epoch(dataset, graph.batch)
        begun = connection.device.info.committed_step if from_board else first
        about = {
            "model": graph.name, "board": connection.board.name, "data": dataset.name,
            "normalize": normalize, "test_split": test_split, "shuffle": shuffle,
            "seed": seed, "batch": graph.batch, "samples": len(dataset.x), "to_step": last,
            "schedule": str(schedule), "plan_crc": loaded.header.crc,
        }  # fmt: skip
        log.begin(about, begun, per_epoch, board_power(connection.board))
        training = api.start_training(
            loaded, connection, dataset,
            seed=seed, weights=weights, first_step=first, resume=from_board, erase_card=erase_card,
            before_moving=api.Rescue(graph, save_weights, say),
        )  # fmt: skip
        say_classes(training.classes)
        if 0 < len(training.classes) < classes_of(graph):
            say(
                f"{graph.name} has {classes_of(graph)} classes, and {dataset.name} names only "
                f"{len(training.classes)}; later data cannot name others"
            )
        session = Session(training, log, save_weights, best, save_every)
        if best and resume and best.exists():
            session.begin_with_best()
        session.say_what_is_left(last, steps)
        failed: dict[str, object] = {}
        with (
            progress(f"training {graph.name}") as report,
            interrupts("stopping after this step; Ctrl-C again stops at once") as asked,
        ):
            session.report = report
            try:
                run = train_until(training, last, session.on_step, lambda: asked() != 0)
            except Diverged as error:
                run = error.run
                failed = failure(str(error), error.exit_code)
        session.save(run, run_path)
        accuracy = None if failed else held_out_accuracy(graph, run.weights, training.data)
        log.end(
            ended=run.ended, accuracy=accuracy, weights_sha256=weights_sha256(run.weights),
            **({"error": failed["error"]} if failed else {}),
        )  # fmt: skip
    code = 128 + asked() if run.ended == "interrupted" else 0
    if not failed:
        failed = _failure(log, session, run, strict_deadline)
    if failed:
        code = PoetError.exit_code
        say(f"poet-host: {failed['error']}")
    if as_json:
        emit({**summary(run), **session.facts(), "accuracy": accuracy, **failed})
    else:
        show_table(("", ">"), [*_facts(run, loaded, accuracy, session)])
    return code


def _check_room(
    graph: Graph, steps: int, save_weights: Path, best: Path | None, run_path: Path | None
) -> None:
    """Before hours of training: is there room for the results?"""
    weights_bytes = sum(node.size_bytes + 256 for node in weight_nodes(graph))
    sizes = {save_weights: weights_bytes}
    sizes |= {best: weights_bytes} if best else {}
    sizes |= {run_path: RUN_BYTES + STEP_BYTES * max(steps, 0)} if run_path else {}
    room_for(sizes)


def _failure(log: Log, session: Session, run: Run, strict_deadline: bool) -> dict[str, object]:
    """What makes the command fail although it trained, as keys of its JSON object."""
    message = ""
    if log.broken:
        message = f"{log.broken}; the weights are saved, but the log is not whole"
    elif session.unsaved:
        message = f"during training: {session.unsaved}"
    elif strict_deadline and run.deadline_missed_steps and run.ended == "done":
        message = f"{_missed(run)} Solve with a later --deadline, or profile the board first"
    return failure(message, PoetError.exit_code) if message else {}


def _missed(run: Run) -> str:
    return (
        f"{run.deadline_missed_steps} of {len(run.steps)} steps took longer than the deadline of "
        f"{(run.deadline_us or 0) / 1e3:,.3f} ms."
    )


def summary(run: Run) -> dict[str, object]:
    """run.json without its long lists."""
    return {key: value for key, value in run.to_json().items() if key not in ("steps", "trace")}


def _facts(
    run: Run, schedule: Schedule, accuracy: float | None, session: Session
) -> list[tuple[str, str]]:
    rows = [("steps", str(session.training.committed)), ("ended", run.ended.replace("_", " "))]
    planned_for = schedule.meta.get("board")
    is_predicted = planned_for == run.board and run.predicted_time_us is not None
    if planned_for not in (None, run.board):
        rows.append(("solved for another board", str(planned_for)))
    if run.steps:
        rows += [
            (_losses_row(run), f"{run.loss('first'):.4f} to {run.loss('last'):.4f}"),
            ("arena's high-water mark", f"{run.peak_bytes:,} bytes"),
            ("time of a step", _ms(run.time_us)),
            ("- of which commit and answers to the host", _ms(run.overhead_us)),
            ("- without these, as planned", _ms(run.measured_time_us)),
        ]
        if is_predicted:
            rows.append(("- predicted by solve", _ms(run.predicted_time_us)))
        if run.deadline_us is not None:
            missed = run.deadline_missed_steps
            met = "met" if not missed else f"missed in {missed} of {len(run.steps)} steps"
            rows.append(("deadline, as planned", f"{_ms(run.deadline_us)}, {met}"))
    if run.measured_energy_uj is not None:
        # Above the sleeping board, without commit and host: what `solve` calls energy of a step.
        rows.append(("energy of a step (estimated)", f"{run.measured_energy_uj:,.1f} uJ"))
        if is_predicted:
            rows.append(("- predicted by solve", f"{run.predicted_energy_uj:,.1f} uJ"))
        rows.append(("- with commit and host", f"{run.energy_uj:,.1f} uJ"))
        rows.append(("- with the sleeping board too", f"{run.total_energy_uj:,.1f} uJ"))
    if accuracy is not None:
        rows.append(("accuracy on held-out data", f"{accuracy:.1%}"))
    if session.best:
        rows.append(
            ("lowest validation loss", f"{session.best.loss:.4f} after step {session.best.step}")
        )
    return rows


def _losses_row(run: Run) -> str:
    count = max(1, len(run.steps) // 8)
    return "loss" if count == 1 else f"mean loss of the first and last {count} steps"


def _ms(time_us: float | None) -> str:
    return f"{(time_us or 0) / 1e3:,.3f} ms"
