"""The command `card`."""

from math import isfinite
from pathlib import Path

import click

from .. import api
from ..data.datasets import Dataset, fit, load_data
from ..errors import BadInput, PoetError
from ..graph.graph import Graph
from ..profile.profile import board_power
from ..run.job import JobState, make_job
from ..run.log import Log
from ..schedule.schedule import Schedule
from . import completion
from .console import emit, progress, say, say_classes, show_table
from .options import (
    data_options,
    erase_option,
    json_option,
    output,
    seed_option,
    storage_option,
    writable,
)
from .storage import only_files

IMAGE_BYTES = 64 << 20  # of a new image, at least; it fills up as it is used
_MIB = 1 << 20
_BESIDES_BYTES = 4 * _MIB  # of a card: what comes before the tensors, and some room

_port_option = click.option(
    "--port", "-p", metavar="PORT", shell_complete=completion.ports,
    help="A board that has the card in it: as of train.",
)  # fmt: skip


@click.group()
def card() -> None:
    """Cards by which a board trains alone."""


@card.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@data_options
@click.option(
    "--output", "-o", "image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="A card image, made if there is none; copy it to a card with dd.",
)  # fmt: skip
@_port_option
@click.option("--shuffle/--no-shuffle", default=True, help="Each epoch in another order.")
@click.option("--epochs", type=click.IntRange(1), help="Times through the data; default: 1.")
@click.option("--steps", type=click.IntRange(1), help="The last step, in place of epochs.")
@click.option(
    "--load-weights", type=click.Path(path_type=Path), metavar="FILE",
    help="Starting weights in place of random ones.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Go on from the weights that the card holds, or, with --load-weights, from the step that "
    "the file was saved after.",
)  # fmt: skip
@erase_option
@storage_option
@seed_option
@json_option
def write(
    schedule: Path,
    data: str,
    normalize: str,
    test_split: float | None,
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
    """Put schedule, starting weights and data on a card, so that a board trains alone.

    The board begins when it is switched on and no host speaks to it, and goes on after a power cut.
    """
    if (image is None) == (port is None):
        raise BadInput("say where the card is: as an image (-o FILE), or in a board (--port PORT)")
    if epochs is not None and steps is not None:
        raise BadInput("give --epochs or --steps, not both")
    if image and storage:
        raise BadInput(f"-o {image} is the card's image: leave out --storage")
    _kept(port, storage)
    if image:
        only_files(image)
        writable(image, read=(schedule, data, load_weights))
    loaded = Schedule.load(schedule)
    graph = loaded.graph
    read = load_data(
        data, normalize=normalize, test_split=test_split or 0.0, shuffle=shuffle, seed=seed
    )
    dataset = fit(read, graph)
    last = api.last_step(dataset, loaded, epochs or 1, steps)
    first = api.step_of_weights(load_weights) if resume and load_weights else 0
    start = api.load_weights(load_weights, graph) if load_weights else None
    from_card = resume and load_weights is None
    if from_card and erase_card:
        raise BadInput("--resume goes on from the card's weights: leave out --erase-card")
    made = image is not None and not image.exists()
    if made and from_card:
        raise BadInput(f"--resume goes on from a card's weights, and there is no {image}")
    if first >= last:
        raise BadInput(f"nothing is left to train: step {first} is done, {last} is the last one")
    if made and image:
        api.prepare_storage(image, _image_bytes(loaded, dataset, seed, first, last))
    try:
        with (
            api.connect(
                port or "native",
                storage=image or storage,
                arena_bytes=api.arena_for(loaded, port, None),
            ) as connection,
            progress(f"writing {graph.name} and {dataset.name}") as report,
        ):
            state = api.write_card(
                loaded, connection, dataset, steps=last, seed=seed, weights=start,
                first_step=first, resume=from_card, erase_card=erase_card,
                progress=lambda done, total: report(done, total, "bytes"),
            )  # fmt: skip
    except BaseException:
        if made and image:
            image.unlink(missing_ok=True)
        raise
    where = str(image) if image else f"the card of the board at {port}"
    say_classes(state.classes)
    say(f"wrote {where}: steps {state.first + 1} to {state.last} of {graph.name}")
    if as_json:
        emit({**_facts(graph, state), "file": str(image) if image else None})


@card.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@_port_option
@storage_option
@output(
    "--save-weights", suffix=".safetensors", is_strict=False,
    help="The weights of the last committed step, a safetensors file.",
)  # fmt: skip
@output("--log", "log_path", help="The loss of each step, as JSON lines.")
@json_option
def read(
    schedule: Path,
    port: str | None,
    storage: Path | None,
    save_weights: Path | None,
    log_path: Path | None,
    as_json: bool,
) -> None:
    """How far a board has trained alone, with its losses and weights.

    The card is in a board (--port PORT), which stops for it, or a copy of it is an image (--storage
    FILE). A board that was stopped goes on when it is switched on again.
    """
    if port is None and storage is None:
        raise BadInput("say where the card is: an image (--storage FILE), or in a board (--port)")
    _kept(port, storage)
    writable(save_weights, log_path, read=(schedule, storage))
    loaded = Schedule.load(schedule)
    graph = loaded.graph
    with api.connect(
        port or "native", storage=storage, arena_bytes=api.arena_for(loaded, port, storage)
    ) as connection:
        state, weights = api.read_card(loaded, connection)
        committed = int(connection.device.info.committed_step)
        # The card names no board where only a host has trained.
        trainer = (state and state.board) or connection.board.name
    if save_weights:
        api.save_weights(save_weights, graph, weights, committed)
        say(f"wrote {save_weights}")
    if log_path:
        with Log(log_path) as log:
            about = {"model": graph.name, "board": trainer, "to_step": committed}
            begun = state.first if state else committed
            log.begin(about, begun, None, board_power(connection.board))
            for step, loss in state.noted() if state else ():
                log.loss(step, loss)
            log.end(ended="read")
        if log.broken:
            raise PoetError(log.broken)
        say(f"wrote {log_path}")
    if as_json:
        emit({**_facts(graph, state), "committed": committed, "board": trainer})
    else:
        show_table(("", ">"), _table(committed, state))


def _kept(port: str | None, storage: Path | None) -> None:
    if port and storage is None and (port == "native" or port.startswith("sim:")):
        raise BadInput(
            f"the board that {port} starts has a card for this command alone: name an image with "
            "--storage"
        )


def _image_bytes(schedule: Schedule, dataset: Dataset, seed: int, first: int, last: int) -> int:
    job = make_job(schedule, dataset, seed, first, last - first)
    needed = _BESIDES_BYTES + 512 * schedule.model.data_blocks + job.size_bytes
    return max(IMAGE_BYTES, -(-needed // _MIB) * _MIB)


def _facts(graph: Graph, state: JobState | None) -> dict[str, object]:
    facts: dict[str, object] = {"model": graph.name, "job": None}
    if state:
        losses = [loss if isfinite(loss) else None for loss in state.losses.tolist()]
        job = {"first_step": state.first, "last_step": state.last, "losses": losses}
        facts |= {"job": job, "committed": state.committed}
    return facts


def _table(committed: int, state: JobState | None) -> list[tuple[str, str]]:
    if state is None:
        return [("steps", str(committed)), ("left to train alone", "none: this card has no data")]
    rows = [("steps", f"{committed} of {max(committed, state.last)}")]
    if state.board:
        rows.append(("trained alone by", state.board))
    known = [(step, loss) for step, loss in state.noted() if loss is not None]
    for step, loss in dict([*known[:1], *known[-1:]]).items():
        rows.append((f"loss of step {step}", f"{loss:.4f}"))
    return rows
