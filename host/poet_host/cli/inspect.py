"""Commands that look: models, doctor, show."""

import platform
import sys
from collections.abc import Callable
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from .. import api
from ..device.board import load_board
from ..device.flash import find_tool
from ..device.link import candidate_ports
from ..errors import PoetError
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.models import MODELS
from ..plan.plan import Statement
from ..plan.problem import CostGraph, CostNode
from ..run.picture import draw
from ..schedule.decode import decode
from ..schedule.listing import listing
from ..schedule.schedule import Schedule
from ..sim.native import build_native
from ..sim.recipe import compiler_version, find_compiler, recipe, simulated_boards
from .console import emit, say, show_table, show_text
from .options import json_option, output

NATIVE = "native"

# Where b is computed again, or paged: the smallest graph that needs a solver.
CHAIN = CostGraph(
    "chain",
    (
        CostNode("a", (), 4, 1.0, 1.0),
        CostNode("b", (0,), 4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        CostNode("c", (1,), 4, 1.0, 1.0),
        CostNode("d", (2,), 4, 1.0, 1.0),
        CostNode("e", (1,), 4, 1.0, 1.0),
    ),
)


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
@json_option
def doctor(as_json: bool) -> int:
    """Check everything that poet-host needs on this computer."""
    results = [_checked(name, check) for name, check in _CHECKS.items()]
    if as_json:
        emit({"ok": all(r["ok"] for r in results), "checks": results})
    else:
        marks = {True: "ok", False: "FAILED"}
        show_table(
            ("check", "", "found"), [(r["check"], marks[r["ok"]], r["found"]) for r in results]
        )
    return 0 if all(r["ok"] for r in results) else 1


def _checked(name: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "found": check()}
    except (PoetError, OSError, ImportError, PackageNotFoundError) as error:
        return {"check": name, "ok": False, "found": str(error)}


def _python() -> str:
    return f"{platform.python_version()} at {sys.executable}, poet-host {version('poet-host')}"


def _packages() -> str:
    wanted = ("numpy", "highspy", "pyserial", "cffi", "cobs", "safetensors")
    return ", ".join(f"{name} {version(name)}" for name in wanted)


def _compiler() -> str:
    return f"native board at {build_native()}"


def _solver() -> str:
    plan = api.solve(CHAIN, ram=8)
    return f"HiGHS {version('highspy')} solves: {plan.status} in {plan.solve_s:.2f} s"


def _native() -> str:
    with api.connect(NATIVE) as connection:
        info = connection.device.info
        return f"{info.board} answers, {info.arena_bytes} bytes of arena, storage ready"


def _ports() -> str:
    found = candidate_ports()
    return ", ".join(found) if found else "none; plug a board in, or use `native`"


def _cross_compiler() -> str:
    made = recipe(simulated_boards()[0])
    try:
        return f"{made.compiler} {compiler_version(made)} at {find_compiler(made)}"
    except PoetError as error:
        return f"not installed, and only needed for simulated and real boards: {error}"


def _loaders() -> str:
    found = []
    for name in simulated_boards():
        try:
            found.append(f"{find_tool(load_board(name))[0]} for {name}")
        except PoetError as error:
            found.append(f"none for {name}, and only needed to flash it: {error}")
    return "; ".join(found)


def _pictures() -> str:
    try:
        return f"matplotlib {version('matplotlib')}"
    except PackageNotFoundError:
        return "not installed, and only needed for pictures: pip install 'poet-host[plot]'"


_CHECKS: dict[str, Callable[[], str]] = {
    "Python": _python,
    "packages": _packages,
    "C compiler": _compiler,
    "solver": _solver,
    "native board": _native,
    "serial ports": _ports,
    "cross compiler": _cross_compiler,
    "flashing": _loaders,
    "pictures": _pictures,
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
