"""The command `info`: what of a model is trained, and what boards it fits. `solve` shows it too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import api
from ..device.board import load_board
from ..errors import BadInput
from ..graph.graph import Graph
from ..graph.summary import Layer, Summary, summary_of
from ..plan.infeasible import largest_need
from ..plan.problem import Problem
from ..profile.profile import Profile, estimate_profile
from ..schedule.schedule import Schedule
from ..solver.greedy import unsearched
from .console import emit, progress, show_table, show_text
from .options import (
    board_option,
    json_option,
    model_argument,
    model_options,
    profile_of,
    profile_option,
)

MOST_ROWS = 40  # of the layers that `solve` shows


@click.command()
@model_argument
@board_option
@profile_option
@model_options
@json_option
def info(
    model: str, board: str | None, profile_name: str | None, as_json: bool, **options: Any
) -> None:
    """Show what of MODEL is trained, and the RAM, energy and time that it takes on boards.

    MODEL is built-in, an .onnx file, or the .poet file of a schedule.
    """
    graph = _graph(model, options)
    profiles = [profile_of(board, profile_name)] if board or profile_name else _estimates()
    with progress(f"planning {graph.name} without search"):
        rows = [_row(graph, one) for one in profiles]
    found = summary_of(graph)
    if as_json:
        emit({"name": graph.name, **found.to_json(), "boards": rows})
        return
    show_model(found, assumed_loss=is_loss_assumed(model, options))
    show_table(
        ("board", ">arena, bytes", ">smallest RAM", ">to keep everything", ">energy, uJ",
         ">time, ms"),
        [_shown(row) for row in rows],
        title="A step on each board, within its arena",
    )  # fmt: skip
    show_text(
        "Energy and time are those of a plan made without search; `poet-host solve` finds better "
        "ones. Both leave out the commit that ends a step."
    )


def _graph(model: str, options: dict[str, Any]) -> Graph:
    if Path(model).suffix == ".poet":
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise BadInput(f"{model} is a schedule with options of its own: leave out {given[0]}")
        return Schedule.load(model).graph
    graph = api.load(model, **options)
    if not isinstance(graph, Graph):
        raise BadInput(f"{model} is a graph of costs, without layers: see `poet-host solve`")
    return graph


def _estimates() -> list[Profile]:
    return [estimate_profile(load_board(name)) for name in api.board_names()]


def _row(graph: Graph, profile: Profile) -> dict[str, Any]:
    """What a step takes on one board; energy and time are None where no plan fits its arena."""
    costs = api.costs_of(graph, profile)
    keep, need = costs.keep_everything, largest_need(costs)
    arena_bytes = load_board(profile.board).arena_bytes
    totals = unsearched(Problem(costs, arena_bytes))
    return {
        "board": profile.board,
        "profile": profile.kind,
        "arena_bytes": arena_bytes,
        "smallest_ram_bytes": need.bytes if need else 0,
        "keep_everything_bytes": keep.peak_bytes if keep else None,
        "energy_uj": totals.energy_uj if totals else None,
        "time_us": totals.time_us if totals else None,
    }


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    fits = row["smallest_ram_bytes"] <= row["arena_bytes"]
    missing = "not found" if fits else "does not fit"
    energy_uj, time_us = row["energy_uj"], row["time_us"]
    keep_bytes = row["keep_everything_bytes"]
    return (
        row["board"],
        f"{row['arena_bytes']:,}",
        f"{row['smallest_ram_bytes']:,}",
        "no such plan" if keep_bytes is None else f"{keep_bytes:,}",
        missing if energy_uj is None else f"{energy_uj:,.0f}",
        "" if time_us is None else f"{time_us / 1e3:,.1f}",
    )


def is_loss_assumed(model: str, options: dict[str, Any]) -> bool:
    """Has nobody named the loss of a model of the user's own?"""
    return model.lower().endswith(".onnx") and options.get("loss") is None


def show_model(found: Summary, *, assumed_loss: bool, most_rows: int | None = None) -> None:
    """Tables of the layers and of the training options; at most so many layers."""
    show_table(
        ("layer", "kind", "output", ">parameters", ">MACs of a sample", "trained"),
        _layers(found.layers, most_rows),
    )
    rates = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in found.rates.items())
    assumed = ", assumed (--loss names another)" if assumed_loss else ""
    show_table(
        ("", ""),
        [
            ("parameters", f"{found.parameters:,}, {found.trained_parameters:,} of them trained"),
            (
                "MACs of a sample",
                f"{found.macs:,} forward, {found.training_macs:,} in a training step",
            ),
            ("loss", f"{found.loss}{assumed}"),
            ("optimizer", f"{found.optimizer}: {rates}"),
            ("batch", f"{found.batch} of {'x'.join(map(str, found.data_shape))}"),
        ],
    )


def _trained(layer: Layer) -> str:
    if layer.trained == "partly":
        return f"all but {', '.join(layer.frozen)}"
    return layer.trained + (", statistics frozen" if layer.statistics == "frozen" else "")


def _layers(layers: Sequence[Layer], most_rows: int | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            one.kind,
            "x".join(map(str, one.shape)),
            f"{one.parameters:,}" if one.parameters else "",
            f"{one.macs:,}" if one.macs else "",
            _trained(one),
        )
        for one in layers
    ]
    if most_rows is None or len(rows) <= most_rows:
        return rows
    half = most_rows // 2
    left = f"... {len(rows) - 2 * half} more, see `poet-host info`"
    return [*rows[:half], (left, "", "", "", "", ""), *rows[-half:]]
