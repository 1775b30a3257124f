"""Options and arguments of commands, declared once: as defaults of parameters or of fields.

@dataclass(frozen=True, kw_only=True)
class Duration:
    steps: int | None = option(type=WholeRange(1), metavar="N", help="Stop after step N.")

@click.command()
@takes
def train(*, port: str = PORT, duration: Duration) -> None: ...

The command has the options --port and --steps. A dataclass arrives as one value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

import click

R = TypeVar("R")


@dataclass(frozen=True)
class Declared:
    """An option, or an argument if it has no flags, without its name and the type of its value."""

    flags: tuple[str, ...] | None  # (): the flag is the name of the parameter
    settings: Mapping[str, Any]  # keywords of click.option or click.argument

    def parameter(self, name: str, kinds: set[object]) -> Callable[[Any], Any]:
        """Return the decorator of click. `kinds`: the types that the value may have."""
        settings = dict(self.settings)
        if Path in kinds:
            settings.setdefault("type", click.Path(path_type=Path))
        if self.flags is None:
            return click.argument(name, **settings)
        flags = self.flags or ("--" + name.replace("_", "-"),)
        if kinds == {bool} and "/" not in flags[0]:
            settings["is_flag"] = True
        elif NoneType not in kinds and "default" not in settings and "multiple" not in settings:
            settings["required"] = True
            settings.pop("show_default", None)
        return click.option(*flags, name, **settings)


def option(*flags: str, help: str, **settings: Any) -> Any:
    """Declare an option. It is required if its value cannot be None and it has no default."""
    return Declared(flags, {"help": help, **settings})


def argument(**settings: Any) -> Any:
    return Declared(None, settings)


def takes(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options and arguments that the parameters declare. --help keeps their order."""

    @wraps(command)
    def call(**values: Any) -> R:
        return command(**_taken(command, values))

    decorated = call
    for parameter in reversed([*_parameters(command)]):
        kinds = {*get_args(parameter.annotation)} or {parameter.annotation}
        decorated = parameter.default.parameter(parameter.name, kinds)(decorated)
    return decorated


def _is_group(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _parameters(owner: Callable[..., Any]) -> Iterator[Parameter]:
    for parameter in signature(owner).parameters.values():
        yield from _parameters(parameter.annotation) if _is_group(parameter) else [parameter]


def _taken(owner: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `owner`. `values`: those of all options, by name."""
    return {
        name: p.annotation(**_taken(p.annotation, values)) if _is_group(p) else values[name]
        for name, p in signature(owner).parameters.items()
    }
