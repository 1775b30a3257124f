"""The command `models`."""

from typing import Any

import click

from .. import api
from ..graph.graph import Graph
from ..graph.models import MODELS
from .console import emit, show_table
from .options import json_option


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
