"""Shell completion of models, boards and ports."""

from pathlib import Path

import click

from .. import api

MODEL_SUFFIXES = (".onnx", ".json", ".poet")


def models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of built-in models, model files and folders that begin with `incomplete`."""
    before = incomplete[: incomplete.rfind("/") + 1]
    found = [*api.MODELS]
    try:
        for path in sorted(Path(before or ".").iterdir()):
            if path.is_dir():
                found.append(f"{before}{path.name}/")
            elif path.suffix in MODEL_SUFFIXES:
                found.append(before + path.name)
    except OSError:
        pass  # the folder cannot be listed
    return [name for name in found if name.startswith(incomplete)]


def boards(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in api.board_names() if name.startswith(incomplete)]


def ports(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    found = ["auto", *api.ports_here(), *(port.port for port in api.ports(query=False))]
    return [name for name in found if name.startswith(incomplete)]
