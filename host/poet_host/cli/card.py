"""The command `card`."""

from contextlib import nullcontext
from math import isfinite
from pathlib import Path

import click

from .. import api
from ..card.job import JobState
from ..data.fitted import fit
from ..errors import BadInput, PoetError
from ..graph.graph import Graph
from ..profile.profile import board_power
from ..run.log import Log
from ..schedule.schedule import Schedule
from . import completion
from .card_table import card_rows
from .console import emit, failure, progress, say, say_classes, show_table
from .options import (
    check_writable,
    data_options,
    duration_options,
    erase_option,
    json_option,
    output,
    output_argument,
    schedule_argument,
    storage_option,
    training_seed_option,
)
from .storage import check_image

_port_option = click.option(
    "--port", "-p", metavar="PORT", shell_complete=completion.ports, show_default="none",
    help="Port of the board that contains the card. `poet-host train --help` lists the kinds of "
    "PORT.",
)  # fmt: skip
_card_argument = click.argument(
    "card_path", metavar="CARD", type=click.Path(dir_okay=False, path_type=Path)
)


@click.group()
def card() -> None:
    """Write the SD card of a board, or read its weights."""


@card.command()
@schedule_argument
@data_options
@click.option(
    "--output", "-o", "image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    show_default="the card in the board at --port",
    help="Write to this card image, which is created if it does not exist. If the command fails, "
    "an existing image stays as it was. Copy the image to an SD card with dd.",
)  # fmt: skip
@_port_option
@duration_options
@click.option(
    "--load-weights", type=click.Path(path_type=Path), metavar="FILE",
    show_default="the weights in the model's .onnx file, or random weights",
    help="Start with the weights in this .safetensors file.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Continue with the weights on the card, after the last step that they were trained for. "
    "With --load-weights FILE, continue with the weights in FILE instead.",
)  # fmt: skip
@erase_option
@storage_option
@training_seed_option
@json_option
def write(
    schedule: Path,
    data: str,
    normalize: str,
    test_split: float | None,
    header: bool | None,
    image: Path | None,
    port: str | None,
    shuffle: bool,
    epochs: int | None,
    steps: int | None,
    load_weights: Path | None,
    resume: bool,
    erase_card: bool,
    storage: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Write schedule, initial weights and data to an SD card.

    A board with this card trains without a host. Training starts when the board is switched on and
    no host sends requests. After a power cut, training continues.
    """
    if (image is None) == (port is None):
        raise BadInput("name one card: either an image with -o FILE, or a board with --port PORT")
    if epochs is not None and steps is not None:
        raise BadInput("--epochs and --steps exclude each other: omit one")
    if image and storage:
        raise BadInput(f"-o {image} already names the card image: omit --storage")
    _check_card_is_kept(port, storage)
    if image:
        check_image(image)
        check_writable(image, read=(schedule, data, load_weights))
    loaded = Schedule.load(schedule)
    graph = loaded.graph
    read = api.load_data(
        data, normalize=normalize, test_split=test_split or 0.0, shuffle=shuffle, seed=seed,
        header=header, graph=graph,
    )  # fmt: skip
    dataset = fit(read, graph)
    last = api.last_step(dataset, epochs or 1, steps)
    first = api.step_of_weights(load_weights) if resume and load_weights else 0
    initial = api.load_weights(load_weights, graph) if load_weights else None
    from_card = resume and load_weights is None
    if from_card and erase_card:
        raise BadInput("--resume needs the weights on the card: omit --erase-card")
    is_new = image is not None and not image.exists()
    if is_new and from_card:
        raise BadInput(
            f"--resume needs the weights on the card, but the image {image} does not exist: name "
            "the image of the previous run, or omit --resume"
        )
    if first >= last:
        raise BadInput(
            f"nothing is left to train: step {first:,} is already done, and training ends after "
            f"step {last:,}. Allow more --steps or --epochs"
        )
    size_bytes = None
    if is_new:
        size_bytes = api.card_image_bytes(loaded, dataset, last - first)
    with (
        api.new_storage(image, size_bytes) if image else nullcontext(storage) as file,
        _connected(loaded, port, file, writable=True) as connection,
        progress(f"writing {graph.name} and {dataset.name}") as report,
    ):
        state = api.write_card(
            loaded, connection, dataset, steps=last, seed=seed, weights=initial, first_step=first,
            resume=from_card, erase_card=erase_card,
            progress=lambda done, total: report(done, total, "bytes"),
        )  # fmt: skip
    where = str(image) if image else f"the card of the board at {port}"
    say_classes(state.classes)
    say(f"wrote {where}: steps {state.first + 1:,} to {state.last:,} of {graph.name}")
    if as_json:
        emit({**_facts(graph, state), "file": str(image) if image else None})


@card.command()
@schedule_argument
@_port_option
@storage_option
@output(
    "--save-weights", suffix=".safetensors", is_strict=False,
    help="Write the weights on the card, which are those after the last complete step, to this "
    ".safetensors file.",
)  # fmt: skip
@output("--log", "log_path", help="Write the loss of each step to this file, as JSON lines.")
@json_option
def read(
    schedule: Path,
    port: str | None,
    storage: Path | None,
    save_weights: Path | None,
    log_path: Path | None,
    as_json: bool,
) -> None:
    """Show how far a board has trained without a host.

    Reads the card of the board at --port, or the card image --storage. This command stops the
    training of the board at --port. Switch the board off and on to continue the training.
    """
    if port is None and storage is None:
        raise BadInput("name the card: an image with --storage FILE, or a board with --port PORT")
    _check_card_is_kept(port, storage)
    check_writable(save_weights, log_path, read=(schedule, storage))
    loaded = Schedule.load(schedule)
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
        with Log(log_path, at_end=True) as log:
            about = {"model": graph.name, "board": trainer, "to_step": committed}
            begun = state.first if state else committed
            log.begin(about, begun, None, board_power(connection.board))
            for step, loss in state.noted() if state else ():
                log.loss(step, loss)
            log.end(ended="read")
        say(f"wrote {log_path}")
    if as_json:
        emit({**_facts(graph, state), "committed": committed, "board": trainer})
    else:
        show_table(("", ">"), _table(committed, state))


@card.command("export")
@_card_argument
@output_argument("weights", ".safetensors")
@click.option(
    "--prior", is_flag=True,
    help="Take the weights of the step before the last complete step.",
)  # fmt: skip
@click.option(
    "--schedule", type=click.Path(path_type=Path), metavar="NAME.poet",
    show_default="the names in the card's note",
    help="Take the names of the weights from this schedule of the model.",
)  # fmt: skip
@json_option
def export_(
    card_path: Path, weights: Path, prior: bool, schedule: Path | None, as_json: bool
) -> None:
    """Write the weights on a card to a file, without a board.

    CARD is a card image, or the device of a card. WEIGHTS is a .safetensors file, which is not
    written if the weights are damaged.
    """
    check_writable(weights, read=(card_path, schedule))
    with progress(f"reading {card_path}"):
        found = api.export_card(card_path, weights, schedule=schedule, prior=prior)
    say(f"wrote {weights}: the weights of step {found.step:,} of {found.model}")
    if as_json:
        emit({"file": str(weights), "model": found.model, "step": found.step, "prior": prior})


@card.command()
@_card_argument
@click.option(
    "--schedule", type=click.Path(path_type=Path), metavar="NAME.poet",
    show_default="the model part on the card",
    help="Find the weights with this schedule, which trained them, if the model part on the card "
    "is damaged.",
)  # fmt: skip
@json_option
def check(card_path: Path, schedule: Path | None, as_json: bool) -> int:
    """Check a card, and show which of its weights are whole.

    CARD is a card image, or the device of a card. Reads every slot of every tensor, the records,
    the notes and the job, and writes nothing. The exit code is 1 if something is damaged. Records
    and slots that a power cut may leave incomplete do not count as damaged.
    """
    with progress(f"reading {card_path}") as report:
        found = api.check_card(
            card_path, schedule=schedule,
            progress=lambda done, total: report(done, total, "bytes"),
        )  # fmt: skip
    problem = f"{card_path} is damaged: {'; '.join(found.problems)}; {found.conclusion}"
    failed = failure(problem, PoetError.exit_code) if found.problems else {}
    if as_json:
        emit({**found.to_json(), **failed})
    else:
        show_table(("", ""), card_rows(found))
    if failed:
        say(f"poet-host: {problem}")
    return PoetError.exit_code if failed else 0


def _connected(
    schedule: Schedule, port: str | None, storage: Path | None, *, writable: bool = False
) -> api.Connection | api.Card:
    if port is None:
        assert storage is not None
        return api.open_card(storage, writable=writable)
    arena_bytes = api.arena_for(schedule, port, None if writable else storage)
    return api.connect(port, storage=storage, arena_bytes=arena_bytes)


def _check_card_is_kept(port: str | None, storage: Path | None) -> None:
    """Raise BadInput if the board's card would be deleted at the end of this command."""
    if port and storage is None and api.runs_here(port):
        raise BadInput(
            f"the board {port} has a temporary card, which is deleted when the command ends: name "
            "a card image with --storage"
        )


def _facts(graph: Graph, state: JobState | None) -> dict[str, object]:
    facts: dict[str, object] = {"model": graph.name, "job": None}
    if state:
        losses = [loss if isfinite(loss) else None for loss in state.losses.tolist()]
        job = {"first_step": state.first, "last_step": state.last, "losses": losses}
        facts |= {"job": job, "committed": state.committed}
    return facts


def _table(committed: int, state: JobState | None) -> list[tuple[str, str]]:
    if state is None:
        return [("steps", f"{committed:,}"), ("steps without a host", "none: the card has no data")]
    rows = [("steps", f"{committed:,} of {max(committed, state.last):,}")]
    if state.board:
        rows.append(("trained by", state.board))
    known = [(step, loss) for step, loss in state.noted() if loss is not None]
    for step, loss in dict([*known[:1], *known[-1:]]).items():
        rows.append((f"loss of step {step:,}", f"{loss:.4f}"))
    return rows
