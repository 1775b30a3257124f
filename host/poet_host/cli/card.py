"""The command `card`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from ..run.log import log_job
from ..view.card_table import card_rows
from ..view.listing import counted
from . import completion
from .console import Answer, progress, say, say_classes, show_table
from .declared import argument, option, takes
from .options import (
    ERASE_CARD,
    SCHEDULE,
    SEED,
    STORAGE,
    DataOptions,
    Duration,
    RateOptions,
    data_option,
)
from .storage import check_image
from .written import WRITTEN_FILE, check_writable, output_argument, output_file

_PORT = option(
    "--port", "-p", metavar="PORT", shell_complete=completion.ports, show_default="none",
    help="Port of the board that contains the card. `poet-host train --help` lists the kinds of "
    "PORT.",
)  # fmt: skip
_CARD = argument(metavar="CARD", type=WRITTEN_FILE)


@click.group()
def card() -> None:
    """Write the SD card of a board, or read its weights."""


@dataclass(frozen=True, kw_only=True)
class CardDataOptions(DataOptions):
    data: str | None = data_option("none, for a package with --load-weights")  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of the command.

    --output, -o FILE  Write to this card image, which is created if it does not exist. If the
        command fails, an existing image stays as it was. Copy the image to an SD card with dd.
        [default: the card in the board at --port]
    --load-weights FILE  Start with the weights in this .safetensors file. [default: the weights in
        the model's .onnx file, or random weights]
    --resume  Continue with the weights on the card, after the last step that they were trained for.
        With --load-weights FILE, continue with the weights in FILE instead.
    --seed N  Random seed for initial weights, sample order and --test-split.
    """

    schedule: Path = SCHEDULE
    data: CardDataOptions
    image: Path | None = option("--output", type=WRITTEN_FILE)
    port: str | None = _PORT
    duration: Duration
    rates: RateOptions
    load_weights: Path | None = None
    resume: bool = False
    erase_card: bool = ERASE_CARD
    storage: Path | None = STORAGE
    seed: int = SEED

    @property
    def from_card(self) -> bool:
        return self.resume and self.load_weights is None

    @property
    def is_new(self) -> bool:
        return self.image is not None and not self.image.exists()

    @property
    def first_step(self) -> int:
        """The step of the weights in --load-weights, if training continues with them."""
        return api.step_of_weights(self.load_weights) if self.resume and self.load_weights else 0

    def check(self) -> None:
        image = self.image
        if (image is None) == (self.port is None):
            raise BadInput(
                "name one card: either an image with -o FILE, or a board with --port PORT"
            )
        self.duration.check()
        if self.data.data is None and not self.schedule.is_dir():
            raise BadInput("--data is missing: name the samples to train with")
        if image and self.storage:
            raise BadInput(f"-o {image} already names the card image: omit --storage")
        _check_card_is_kept(self.port, self.storage)
        if image:
            check_image(image)
            read = (self.schedule, self.data.data, self.load_weights)
            check_writable(image, read=(*read, *api.package_files(self.schedule)))

    def check_resume(self) -> None:
        if self.is_new and self.from_card:
            raise BadInput(
                f"--resume needs the weights on the card, but the image {self.image} does not "
                "exist: name the image of the previous run, or omit --resume"
            )


@card.command()
@takes
def write(given: WriteOptions) -> Answer:
    """Write schedule, initial weights and data to an SD card.

    A board with this card trains without a host. Training starts when the board is switched on and
    no host sends requests. After a power cut, training continues.

    If NAME.poet is the folder of a package, the card is that of the device, or -o names an image of
    all blocks that the device lends to its learner. It gets the samples of --data, raw as the
    device takes them, the weights of --load-weights, or both.
    """
    given.check()
    if given.schedule.is_dir():
        return _write_learner(given)
    schedule, image = api.Schedule.load(given.schedule), given.image
    graph = schedule.graph
    dataset = given.data.fitted(graph, given.seed, **given.duration.order)
    last = api.last_step(dataset, given.duration.epochs or 1, given.duration.steps)
    first = given.first_step
    weights = api.load_weights(given.load_weights, graph) if given.load_weights else None
    given.check_resume()
    size_bytes = api.card_image_bytes(schedule, dataset, last - first) if given.is_new else None
    with (
        api.new_storage(image, size_bytes) if image else nullcontext(given.storage) as file,
        _connected(schedule, given.port, file, image, writable=True) as connection,
        progress(f"writing {graph.name} and {dataset.name}", "bytes") as report,
    ):
        state = api.write_card(
            schedule, connection, dataset, steps=last, seed=given.seed, weights=weights,
            first_step=first, resume=given.from_card, erase_card=given.erase_card,
            progress=report, **vars(given.rates),
        )  # fmt: skip
    where = str(image) if image else f"the card of the board at {given.port}"
    say_classes(state.classes)
    say(f"wrote {where}: steps {state.first + 1:,} to {state.last:,} of {graph.name}")
    return Answer({**_facts(graph, state), "file": str(image) if image else None})


@card.command()
@takes
def read(
    schedule: Path = SCHEDULE,
    port: str | None = _PORT,
    storage: Path | None = STORAGE,
    save_weights: Path | None = output_file(suffix=".safetensors", is_strict=False),
    log_path: Path | None = output_file("--log"),
    samples: Path | None = output_file(suffix=".npz"),
) -> Answer:
    """Show how far a board has trained without a host.

    Reads the card of the board at --port, or the card image --storage. This command stops the
    training of the board at --port. Switch the board off and on to continue the training.

    If NAME.poet is the folder of a package, the card is that of the device, or --storage is an
    image of all blocks that the device lends to its learner.

    --save-weights FILE  Write the weights on the card, which are those after the last complete
        step, to this .safetensors file.
    --log FILE  Write the loss of each step to this file, as JSON lines.
    --samples FILE  Write the samples that a learner keeps on the card to this .npz file. NAME.poet
        is then the folder of the learner's package.
    """
    if port is None and storage is None:
        raise BadInput("name the card: an image with --storage FILE, or a board with --port PORT")
    _check_card_is_kept(port, storage)
    given = (schedule, storage, *api.package_files(schedule))
    check_writable(save_weights, log_path, samples, read=given)
    if samples or schedule.is_dir():
        if log_path:
            raise BadInput("--log: a learner keeps no losses on its card: omit it")
        return _read_learner(schedule, port, storage, save_weights, samples)
    loaded = api.Schedule.load(schedule)
    graph = loaded.graph
    with _connected(loaded, port, storage) as connection:
        state, weights = api.read_card(loaded, connection)
        committed = int(connection.device.info.committed_step)
        # The card does not name the board if every step was trained with a host.
        trainer = (state and state.board) or connection.board.name
    if save_weights:
        api.save_weights(save_weights, graph, weights, committed)
        say(f"wrote {save_weights}")
    if log_path:
        about = {"model": graph.name, "board": trainer, "to_step": committed}
        log_job(log_path, about, state, committed)
        say(f"wrote {log_path}")
    facts = {**_facts(graph, state), "committed": committed, "board": trainer}
    return Answer(facts, lambda: show_table(("", ">"), _table(committed, state)))


def _read_learner(
    package: Path,
    port: str | None,
    storage: Path | None,
    save_weights: Path | None,
    samples: Path | None,
) -> Answer:
    with _learner(port, storage) as place, progress(f"reading {storage or port}"):
        weights, step = api.read_learner(place, package)
        count = None if samples is None else api.save_samples(place, package, samples)
    if save_weights:
        api.save_weights(save_weights, api.load_package(package).schedule.graph, weights, step)
        say(f"wrote {save_weights}")
    if samples:
        say(f"wrote {samples}: {counted(count or 0, 'sample')}")
    facts = {"committed": step, "samples": count}
    return Answer(facts, lambda: show_table(("", ">"), [("steps", f"{step:,}")]))


def _write_learner(given: WriteOptions) -> Answer:
    others = {
        **vars(given), **vars(given.duration), **vars(given.rates),
        "shuffle": not given.duration.shuffle, "test_split": given.data.test_split,
    }  # fmt: skip
    for name in (
        "schedule", "data", "image", "port", "storage", "duration", "rates", "load_weights",
        "erase_card",
    ):  # fmt: skip
        del others[name]
    if any(others.values()):
        raise BadInput(
            "with the folder of a package, `card write` takes no other options than --data, -o or "
            "--port, --storage, --load-weights and --erase-card: omit the others"
        )
    made = api.load_package(given.schedule)
    data = given.data.data and given.data.load(
        made.schedule.graph, labels=not made.repeats_the_input
    )
    where = str(given.image or f"the card of the board at {given.port}")
    with _learner(given.port, given.image or given.storage) as place, progress(f"writing {where}"):
        count = api.write_learner(
            place, given.schedule, data, given.load_weights, erase_card=given.erase_card
        )
    say(f"wrote {where}: it keeps {counted(count, 'sample')}")
    return Answer({"file": given.image and str(given.image), "samples": count})


def _learner(
    port: str | None, storage: Path | None
) -> AbstractContextManager[api.Connection | Path]:
    """Return the image of a learner's storage, or a connection to the board with its card."""
    if port:
        return api.connect(port, storage=storage)
    assert storage is not None
    return nullcontext(storage)


@card.command("export")
@takes
def export_(
    card_path: Path = _CARD,
    weights: Path = output_argument("WEIGHTS", ".safetensors"),
    prior: bool = False,
    schedule: Path | None = None,
) -> Answer:
    """Write the weights on a card to a file, without a board.

    CARD is a card image, or the device of a card. WEIGHTS is a .safetensors file, which is not
    written if the weights are damaged.

    --prior  Take the weights of the step before the last complete step.
    --schedule NAME.poet  Take the names of the weights from this schedule of the model. [default:
        the names in the card's note]
    """
    check_writable(weights, read=(card_path, schedule))
    with progress(f"reading {card_path}"):
        found = api.export_card(card_path, weights, schedule=schedule, prior=prior)
    say(f"wrote {weights}: the weights of step {found.step:,} of {found.model}")
    return Answer({"file": str(weights), "model": found.model, "step": found.step, "prior": prior})


@card.command()
@takes
def check(
    card_path: Path = _CARD,
    schedule: Path | None = None,
) -> Answer:
    """Check a card, and show which of its weights are whole.

    CARD is a card image, or the device of a card. Reads every slot of every tensor, the records,
    the notes and the job, and writes nothing. The exit code is 1 if something is damaged. Records
    and slots that a power cut may leave incomplete do not count as damaged.

    --schedule NAME.poet  Find the weights with this schedule, which trained them, if the model part
        on the card is damaged. [default: the model part on the card]
    """
    with progress(f"reading {card_path}", "bytes") as report:
        found = api.check_card(card_path, schedule=schedule, progress=report)
    problem = f"{card_path} is damaged: {'; '.join(found.problems)}; {found.conclusion}"
    error = problem if found.problems else ""
    return Answer(found.to_json(), lambda: show_table(("", ""), card_rows(found)), error)


def _connected(
    schedule: api.Schedule,
    port: str | None,
    storage: Path | None,
    named: Path | None = None,
    *,
    writable: bool = False,
) -> api.Connection | api.Card:
    if port is None:
        assert storage is not None
        return api.open_card(storage, writable=writable, named=named)
    arena_bytes = api.arena_for(schedule, port, None if writable else storage)
    return api.connect(port, storage=storage, arena_bytes=arena_bytes, card=schedule.model.storage)


def _check_card_is_kept(port: str | None, storage: Path | None) -> None:
    """Raise BadInput if the board's card would be deleted at the end of this command."""
    if port and storage is None and api.runs_here(port):
        raise BadInput(
            f"the board {port} has a temporary card, which is deleted when the command ends: name "
            "a card image with --storage"
        )


def _facts(graph: api.Graph, state: api.JobState | None) -> dict[str, object]:
    facts: dict[str, object] = {"model": graph.name, "job": None}
    if state:
        losses = [loss if isfinite(loss) else None for loss in state.losses.tolist()]
        job = {"first_step": state.first, "last_step": state.last, "losses": losses}
        facts |= {"job": job, "committed": state.committed}
    return facts


def _table(committed: int, state: api.JobState | None) -> list[tuple[str, str]]:
    if state is None:
        return [("steps", f"{committed:,}"), ("steps without a host", "none: the card has no data")]
    rows = [("steps", f"{committed:,} of {max(committed, state.last):,}")]
    if state.board:
        rows.append(("trained by", state.board))
    known = [(step, loss) for step, loss in state.noted() if loss is not None]
    for step, loss in dict([*known[:1], *known[-1:]]).items():
        rows.append((f"loss of step {step:,}", f"{loss:.4f}"))
    return rows
