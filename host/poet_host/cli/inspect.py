"""Commands that look: models, show."""

from html import escape
from pathlib import Path
from typing import Any

import click

from .. import api
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.models import MODELS
from ..plan.plan import Statement
from ..run.picture import draw
from ..schedule.decode import decode
from ..schedule.listing import listing
from ..schedule.schedule import Schedule
from .console import emit, say, show_table, show_text
from .options import json_option, output


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the built-in models."""
    rows = [(name, one.description, api.load_graph(name)) for name, one in MODELS.items()]
    if as_json:
        emit({"models": [{"name": name, "what": text, **_sizes(g)} for name, text, g in rows]})
        return
    show_table(
        ("model", ">batch", ">parameters", ">nodes", "what it is"),
        [
            (
                name,
                str(graph.batch),
                f"{_sizes(graph)['parameters']:,}",
                str(len(graph.nodes)),
                text,
            )
            for name, text, graph in rows
        ],
    )


def _sizes(graph: Graph) -> dict[str, Any]:
    parameters = [node.size_bytes // 4 for node in graph if node.role == "parameter"]
    return {
        "batch": graph.batch,
        "data_shape": list(graph[graph.data].shape[1:]),
        "parameters": sum(parameters),
        "nodes": len(graph.nodes),
    }


@click.command()
@click.argument("schedule", type=click.Path(path_type=Path), metavar="NAME.poet")
@output("--png", help="Draw lanes and arena into a PNG file.")
@output("--html", help="Write picture and listing as one HTML page.")
@json_option
def show(schedule: Path, png: Path | None, html: Path | None, as_json: bool) -> None:
    """Show what a schedule does: a listing, or a picture."""
    loaded = Schedule.load(schedule)
    text = listing(loaded)
    if png:
        write_whole(png, _picture(loaded, "png"))
        say(f"wrote {png}")
    if html:
        write_whole(html, _page(loaded, text))
        say(f"wrote {html}")
    if as_json:
        hidden = ("tensors", "costs")
        about = {key: value for key, value in loaded.meta.items() if key not in hidden}
        emit(about | {"model_bytes": len(loaded.model_part), "plan_bytes": len(loaded.plan_part)})
    elif not (png or html):
        show_text(text)


def _picture(schedule: Schedule, file_format: Any) -> bytes:
    plan = schedule.meta["plan"]
    return draw(
        api.costs_of_schedule(schedule),
        [one for one in decode(schedule) if isinstance(one, Statement)],
        title=f"{schedule.meta['graph']['name']} in {plan['ram_bytes']:,} bytes of RAM",
        ram_bytes=plan["ram_bytes"],
        file_format=file_format,
    )


def _page(schedule: Schedule, text: str) -> str:
    name = escape(schedule.meta["graph"]["name"])
    svg = _picture(schedule, "svg").decode("utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n'
        "<style>body{font-family:sans-serif;margin:2em}svg{max-width:100%;height:auto}</style>\n"
        f"<h1>{name}</h1>\n{svg[svg.index('<svg') :]}\n<pre>{escape(text)}</pre>\n</html>\n"
    )
