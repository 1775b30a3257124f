"""The command `info`, and the tables of a model that `solve` prints too."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..graph.summary import Summary
from ..schedule.times import longest_slices
from ..view.listing import slice_texts
from ..view.model_table import layer_rows, model_rows
from .console import Answer, progress, show_table, show_text
from .declared import takes
from .options import BOARD, MODEL, PROFILE, ModelOptions, profile_of

MAX_ROWS = 40  # largest number of layers in the table that `solve` prints


@click.command()
@takes
def info(
    *,
    model: str = MODEL,
    board: str | None = BOARD,
    profile_name: str | None = PROFILE,
    options: ModelOptions,
) -> Answer:
    """Show the layers of a model, and the costs of its training step.

    MODEL is a built-in model, an .onnx file, or the .poet file of a schedule. Prints RAM, energy
    and time of a training step on each board.

    --board BOARD  Estimate energy and time from the description of this board. `poet-host boards`
        lists all boards. [default: all boards]
    """
    graph = _graph(model, options)
    if board or profile_name:
        profiles = [profile_of(board, profile_name)]
    else:
        profiles = [api.estimate_profile(name) for name in api.board_names()]
    rows = []
    with progress(f"planning {graph.name} without search") as report:
        report(0, len(profiles), "the smallest RAM", is_line=True)
        smallest = api.smallest_ram_bytes(graph, profiles[0])
        for number, profile in enumerate(profiles):
            report(number, len(profiles), f"now {profile.board}", is_line=True)
            rows.append(api.step_without_search(graph, profile, smallest))
    summary = api.summary(graph)
    schedule = api.Schedule.load(model) if Path(model).suffix == ".poet" else None
    slices = [asdict(it) for it in longest_slices(schedule)] if schedule else []
    more = {"longest_slices": slices} if slices else {}

    def show() -> None:
        show_model(summary, is_assumed=is_loss_assumed(model, options))
        for line in slice_texts(schedule) if schedule else ():
            show_text(line)
        show_table(
            ("board", ">arena, bytes", ">smallest RAM", ">to keep everything", ">energy, uJ",
             ">time, ms"),
            [_cells(row) for row in rows],
            title="A training step on each board, within its arena",
        )  # fmt: skip
        show_text(
            "Energy and time are those of a plan that is made without search. `poet-host solve` "
            "finds better plans. The commit at the end of a step is not included."
        )

    return Answer({"name": graph.name, **asdict(summary), "boards": rows, **more}, show)


def _graph(model: str, options: ModelOptions) -> api.Graph:
    if Path(model).suffix == ".poet":
        for name in options.given():
            option = name.replace("_", "-")
            raise BadInput(f"{model} is a schedule, whose options are fixed: omit --{option}")
        return api.Schedule.load(model).graph
    graph = api.load(model, **vars(options))
    if not isinstance(graph, api.Graph):
        raise BadInput(f"{model} is a cost graph, which has no layers: name a model or a schedule")
    return graph


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    smallest_bytes, energy_uj, time_us = (
        row["smallest_ram_bytes"], row["total_energy_uj"], row["time_us"]
    )  # fmt: skip
    fits = smallest_bytes is None or smallest_bytes <= row["arena_bytes"]
    keep_bytes = row["keep_everything_bytes"]
    return (
        row["board"],
        f"{row['arena_bytes']:,}",
        "not known" if smallest_bytes is None else f"{smallest_bytes:,}",
        "no such plan" if keep_bytes is None else f"{keep_bytes:,}",
        ("not found" if fits else "does not fit") if energy_uj is None else f"{energy_uj:,.0f}",
        "" if time_us is None else f"{time_us / 1e3:,.1f}",
    )


def is_loss_assumed(model: str, options: ModelOptions) -> bool:
    """Return True if the user named no loss for an .onnx model, so that the default is used."""
    return model.lower().endswith(".onnx") and options.loss is None


def show_model(summary: Summary, *, is_assumed: bool, max_rows: int | None = None) -> None:
    """Print a table of at most `max_rows` layers, and a table of the training options.

    `is_assumed`: the user named no loss, so the default loss is used.
    """
    show_table(
        ("layer", "kind", "output", ">parameters", ">MACs of a sample", "trained"),
        layer_rows(summary.layers, max_rows),
    )
    show_table(("", ""), model_rows(summary, is_assumed=is_assumed))
