"""The command `train`."""

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from .. import api
from ..data.fitted import classes_of
from ..errors import BadInput
from ..graph.weights import weight_nodes
from ..run.session import Files, Session
from ..run.train import COMMIT_EVERY
from ..view.listing import counted
from .console import Answer, progress, say, say_classes, show_table
from .declared import option, takes
from .options import (
    ERASE_CARD,
    PORT,
    SCHEDULE,
    SEED,
    STORAGE,
    DataOptions,
    Duration,
    RateOptions,
)
from .signals import stop_requests
from .written import WRITTEN_FILE, check_space, check_writable, output_file

RUN_BYTES = 64 << 10  # approximate size of a run.json file without its steps
STEP_BYTES = 512  # upper limit for the size of one step in a run.json file


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of the command.

    --augment HOW  Change the samples of each batch at random, by the seed and the step: flip,
        crop:PIXELS, shift:STEPS and noise:DEVIATION, joined by commas. [default: none]
    --save-weights FILE  Write the trained weights to this .safetensors file.
    --save-every N  Write the weights to the --save-weights file after every N steps, not only at
        the end. [default: only at the end]
    --from-samples  DATA is an .npz file with the samples of a device (poet/learner.h), which `card
        read` writes, and NAME.poet is the folder of its package: draw the samples as the device
        does. Without --resume, all samples are there from step 1 on.
    --validate  After each epoch, compute loss and accuracy of the held-out samples on this
        computer. Keep the weights with the lowest loss in NAME.best.safetensors if --save-weights
        is NAME.safetensors. A new run deletes an older file of this name.
    --patience N[:accuracy]  Validate after each epoch, as --validate does, and stop after N epochs
        in a row without a lower loss of the held-out samples. With N:accuracy, compare their
        accuracy instead. [default: train until the end]
    --load-weights FILE  Start with the weights in this .safetensors file. [default: the weights in
        the model's .onnx file, or random weights]
    --run FILE  When the run ends, write its losses, times and trace to this JSON file.
    --log FILE  At the end of each step, write its loss, times and energy to this file as a JSON
        line.
    --resume  Continue with the weights on the card, after the last step that they were trained for.
        With --load-weights FILE, continue with the weights in FILE instead. The state of the
        optimiser is restored too.
    --commit-every N  Without a card: commit the weights to the chip's flash after every N steps,
        and at the end. A power cut loses the steps since the last commit. Only for schedules that
        were solved with --no-storage.
    --strict-deadline  Exit with code 1 if a step took longer than the deadline of the schedule.
    --seed N  Random seed for initial weights, sample order and --test-split.
    """

    schedule: Path = SCHEDULE
    port: str = PORT
    data: DataOptions
    duration: Duration
    rates: RateOptions
    augment: str | None = None
    save_weights: Path = output_file(suffix=".safetensors", is_strict=False)
    save_every: int | None = None
    from_samples: bool = False
    validated: bool = option("--validate")
    patience: str | None = None
    load_weights: Path | None = option(type=WRITTEN_FILE)
    run_path: Path | None = output_file("--run")
    log_path: Path | None = output_file("--log")
    resume: bool = False
    erase_card: bool = ERASE_CARD
    commit_every: int | None = option(show_default=f"{COMMIT_EVERY}")
    strict_deadline: bool = False
    storage: Path | None = STORAGE
    seed: int = SEED

    @property
    def from_board(self) -> bool:
        return self.resume and self.load_weights is None

    @property
    def best(self) -> Path | None:
        """The file of the best weights by the held-out samples."""
        if not (self.validated or self.patience is not None):
            return None
        name = self.save_weights.name.removesuffix(".safetensors")  # other dots belong to it
        return self.save_weights.with_name(f"{name}.best.safetensors")

    @property
    def files(self) -> Files:
        return Files(
            weights=self.save_weights, save_every=self.save_every, best=self.best,
            log=self.log_path, continues=self.resume,
        )  # fmt: skip

    def check(self) -> None:
        self.duration.check()
        if self.from_board and self.erase_card:
            raise BadInput("--resume needs the weights on the card: omit --erase-card")
        if self.from_board and self.storage is None and api.runs_here(self.port):
            raise BadInput(
                f"--resume: the board {self.port} has an empty temporary card. Name the card image "
                "of the previous run (--storage FILE), or its weights (--load-weights FILE)"
            )
        package = api.package_files(self.schedule) if self.from_samples else ()
        read = (self.schedule, self.storage, self.data.data, *package)
        check_writable(self.save_weights, self.best, self.run_path, self.log_path, read=read)
        check_writable(self.log_path, self.run_path, self.best, read=(self.load_weights,))


@click.command()
@takes
def train(given: TrainOptions) -> Answer:
    """Train the model of a schedule on a board, and save the weights."""
    given.check()
    task = _task(given)
    patience = api.patience_for(task.data, given.patience) if given.best else None
    schedule, graph = task.schedule, task.schedule.graph
    _check_space(graph, task.last - task.start.first_step, given)
    ram = api.arena_for(schedule, given.port, given.storage if given.from_board else None)
    error = ""
    with (
        api.connect(
            given.port, storage=given.storage, arena_bytes=ram, card=schedule.model.storage
        ) as connection,
        api.training_session(
            task, connection, given.files, _about(task, connection, given),
            erase_card=given.erase_card, commit_every=given.commit_every, say=say,
            patience=patience,
        ) as session,
    ):  # fmt: skip
        _say_classes(session)
        _say_unused(session, task.last, given.duration.steps)
        with (
            progress(f"training {graph.name}") as report,
            stop_requests("stopping after this step; press Ctrl-C again to stop now") as stopped_by,
        ):
            session.report = report
            try:
                run = api.run_training(session, connection, task.last, lambda: stopped_by() != 0)
            except api.Diverged as diverged:
                run, error = diverged.run, str(diverged)
        _save(session, run, given)
        accuracy = session.end(run, error)
    rows = _facts(run, schedule, accuracy, session)
    return Answer(
        {**summary(run), **session.to_json(), "accuracy": accuracy},
        lambda: show_table(("", ">"), rows),
        error or _error(session, run, given.strict_deadline),
        128 + stopped_by() if run.ended == "interrupted" else 0,
    )


def _task(given: TrainOptions) -> api.Task:
    made = api.load_package(given.schedule) if given.from_samples else None
    schedule = made.schedule if made else api.Schedule.load(given.schedule)
    api.commit_interval(schedule, given.commit_every)
    path = given.load_weights
    first_step = api.step_of_weights(path) if given.resume and path else 0
    data = (
        _samples(given, first_step)
        if given.from_samples
        else given.data.load(
            schedule.graph, seed=given.seed, augment=given.augment, **given.duration.order
        )
    )
    raw = given.data.normalize is None and not (given.resume or given.load_weights)
    if data.x.dtype == np.uint8 and raw:
        say(f"data {data.name}: x has bytes (0 to 255). --normalize scale often trains better")
    if given.strict_deadline and schedule.meta["plan"].get("deadline_us") is None:
        raise BadInput(
            f"--strict-deadline: the schedule {given.schedule} has no deadline. Run `poet-host "
            "solve` again with --deadline"
        )
    weights = (
        made.anchored(api.load_weights(path, schedule.graph) if path else made.weights)
        if made and not given.from_board
        else path
    )
    return api.task_of(
        schedule, data, vars(given.rates), shuffle=None,
        epochs=given.duration.epochs or 1, steps=given.duration.steps, seed=given.seed,
        weights=weights, first_step=first_step, resume=given.from_board,
    )  # fmt: skip


def _samples(given: TrainOptions, first_step: int) -> api.Dataset:
    data = given.data
    others = (data.normalize, data.test_split, given.augment)
    order = {"shuffle": True, "balance": False}
    if any(it is not None for it in others) or given.duration.order != order:
        raise BadInput(
            "--from-samples takes samples as the device does: omit --normalize, --test-split, "
            "--augment, --balance and --no-shuffle"
        )
    return api.load_samples(
        given.schedule, data.data, first_step=first_step, resume=given.from_board
    )


def _about(task: api.Task, connection: api.Connection, given: TrainOptions) -> dict[str, object]:
    graph, data = task.schedule.graph, task.data
    return {
        "model": graph.name, "board": connection.board.name, "data": data.name,
        "normalize": given.data.normalize, "test_split": given.data.test_split,
        **given.duration.order, "augment": given.augment, "seed": given.seed, "batch": graph.batch,
        "samples": len(data.x), "to_step": task.last, "schedule": str(given.schedule),
        "plan_crc": task.schedule.solved_crc,
    }  # fmt: skip


def _say_classes(session: Session) -> None:
    """Print the names of the classes, and whether some classes have no name."""
    data, classes = session.training.data, classes_of(session.training.graph)
    say_classes(data.classes)
    if 0 < len(data.classes) < classes:
        say(
            f"{session.training.graph.name} has {classes:,} classes, but {data.name} has names for "
            f"only {len(data.classes):,}. Data for later runs cannot add names"
        )


def _say_unused(session: Session, last: int, steps: int | None) -> None:
    """Print how many samples each epoch omits, and whether no step is left to train."""
    data, batch = session.training.data, session.training.graph.batch
    unused = len(data.x) - session.per_epoch * batch
    if unused > 0 and steps is None:
        which = "other ones in each epoch" if data.shuffle else "always the last ones"
        say(
            f"each epoch omits {unused:,} of {len(data.x):,} samples ({which}), which do not "
            f"fill a batch of {batch:,}"
        )
    if session.begun >= last:
        say(f"nothing to train: step {session.begun:,} is done, and the last step is {last:,}")
    elif session.is_final():
        say("nothing to train: the last epochs gave no better weights. Set a higher --patience")


def _save(session: Session, run: api.Run, given: TrainOptions) -> None:
    weights = session.save(run)
    if given.run_path:
        run.save(given.run_path)
    best = given.best if session.best else None
    if written := [path for path in (weights, given.run_path, best) if path]:
        say(f"wrote {' and '.join(map(str, written))}")


def _check_space(graph: api.Graph, steps: int, given: TrainOptions) -> None:
    """Raise BadInput if there is no disk space for the results, before hours of training."""
    weights_bytes = sum(node.size_bytes + 256 for node in weight_nodes(graph))
    sizes = {path: weights_bytes for path in (given.save_weights, given.best) if path}
    if given.run_path:
        sizes[given.run_path] = RUN_BYTES + STEP_BYTES * max(steps, 0)
    check_space(sizes)


def _error(session: Session, run: api.Run, strict_deadline: bool) -> str:
    """Return why the command fails after training; empty if it does not."""
    if session.log.broken:
        return f"{session.log.broken}. The weights are saved, but the log is incomplete"
    if session.write_error:
        return f"during training: {session.write_error}"
    has_ended = run.ended in ("done", "no_improvement")
    if strict_deadline and run.deadline_missed_steps and has_ended:
        return (
            f"{run.deadline_missed_steps:,} of {len(run.steps):,} steps took longer than the "
            f"deadline of {_ms(run.deadline_us)}. Solve with a longer --deadline, or profile the "
            "board first"
        )
    return ""


def summary(run: api.Run) -> dict[str, object]:
    return {key: value for key, value in run.to_json().items() if key not in ("steps", "trace")}


def _facts(
    run: api.Run, schedule: api.Schedule, accuracy: float | None, session: Session
) -> list[tuple[str, str]]:
    rows = [("steps", f"{session.training.committed:,}"), ("ended", run.ended.replace("_", " "))]
    planned_for = schedule.meta.get("board")
    is_predicted = planned_for == run.board and run.predicted_time_us is not None
    if planned_for not in (None, run.board):
        rows.append(("solved for another board", str(planned_for)))
    mean = f", mean of {counted(len(run.steps), 'step')}"
    checks = (step.readback_every for step in reversed(run.steps))  # 0: without a commit
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
        if every := next((it for it in checks if it), 0) * run.commit_every:
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
    if best := session.best:
        by = session.patience.by
        value = f"{best.loss:.4f}" if by == "loss" else f"{best.accuracy:.1%}"
        which = "lowest" if by == "loss" else "highest"
        rows.append((f"{which} validation {by}", f"{value} after step {best.step:,}"))
    return rows


def _losses_row(run: api.Run) -> str:
    count = max(1, len(run.steps) // 8)
    return "loss" if count == 1 else f"mean loss of the first and last {count:,} steps"


def _ms(time_us: float | None) -> str:
    return f"{(time_us or 0) / 1e3:,.3f} ms"
