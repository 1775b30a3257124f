"""The command `models`."""

from typing import Any

import click

from .. import api
from .console import Answer, show_table
from .declared import takes


@click.command()
@takes
def models() -> Answer:
    """List the built-in models."""
    found = [
        {"name": name, "what": model.description, **_sizes(api.load_graph(name))}
        for name, model in api.MODELS.items()
    ]

    def show() -> None:
        show_table(
            ("model", ">batch", ">parameters", ">nodes", "description"),
            [
                (row["name"], f"{row['batch']:,}", f"{row['parameters']:,}", f"{row['nodes']:,}",
                 row["what"])
                for row in found
            ],
        )  # fmt: skip

    return Answer({"models": found}, show)


def _sizes(graph: api.Graph) -> dict[str, Any]:
    parameters = [node.size_bytes // 4 for node in graph if node.role == "parameter"]
    return {
        "batch": graph.batch,
        "data_shape": list(graph[graph.data].shape[1:]),
        "parameters": sum(parameters),
        "nodes": len(graph.nodes),
    }
