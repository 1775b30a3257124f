'''Options and arguments of commands, declared once: as defaults of parameters or of fields.

@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a training lasts.

    --steps N  Stop after step N. A resumed run continues the count of steps. [default: the end of
        --epochs]
    """

    steps: int | None = None

@click.command()
@takes
def train(*, port: str = PORT, duration: Duration) -> None: ...

The command has the options --port and --steps. A dataclass arrives as one value. Docstrings end
with the descriptions of options, in the form of docopt.
'''

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import click

from .console import Answer

_JSON_HELP = "Print one JSON object, and nothing else, on stdout."
_OPTION = re.compile(r"\n(?=-)")  # the beginning of an option in a docstring
_DESCRIBED = re.compile(
    r"(?P<flags>-[^\s,]+(?:, -[^\s,]+)*)(?: (?P<metavar>\S.*?))?  (?P<help>.+?)"
    r"(?: \[default: (?P<show_default>[^]]*)\])?"
)


class WholeRange(click.IntRange):
    """A click.IntRange whose error says what a whole number looks like."""

    name = "whole number, such as 1000"


class FiniteRange(click.FloatRange):
    """A click.FloatRange that refuses NaN and infinity."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@dataclass(frozen=True)
class Declared:
    """An option, or an argument if it has no flags, without its name and the type of its value."""

    flags: tuple[str, ...] | None  # (): the flag is the name of the parameter
    settings: Mapping[str, Any]  # keywords of click.option or click.argument

    def parameter(
        self, name: str, kinds: set[object], described: Mapping[str, Mapping[str, Any]]
    ) -> Callable[[Any], Any]:
        """Return the decorator of click.

        `kinds`: the types that the value may have. `described`: what docstrings say, by flag.
        """
        flags = self.flags or ("--" + name.replace("_", "-"),)
        settings = {**described.get(flags[0], {}), **self.settings}
        flags = settings.pop("flags", flags)
        if Path in kinds:
            settings.setdefault("type", click.Path(path_type=Path))
        elif int in kinds:
            settings.setdefault("type", WholeRange(1))
        elif float in kinds:
            settings.setdefault("type", FiniteRange(0))
        if self.flags is None:
            return click.argument(name, **settings)
        settings["multiple"] = Ellipsis in kinds or settings.get("multiple", False)
        if kinds == {bool} and "/" not in flags[0]:
            settings["is_flag"] = True
        elif settings.get("default") is not None:
            settings.setdefault("show_default", True)
        elif NoneType not in kinds and not settings["multiple"]:
            settings["required"] = True
            settings.pop("show_default", None)
        return click.option(*flags, name, **settings)


def option(*flags: str, **settings: Any) -> Any:
    """Declare an option. It is required if its value cannot be None and it has no default.

    `flags`: one flag, if a docstring describes it by another name than that of the parameter; or
    all flags.
    """
    return Declared(flags, settings)


def argument(**settings: Any) -> Any:
    return Declared(None, settings)


def takes(command: Callable[..., Answer | int | None]) -> Callable[..., int]:
    """Add the options and arguments that the parameters declare, and --json at their end.

    --help keeps their order. The answer of the command is printed. A parameter `as_json` is for
    commands that print more than that.
    """

    @wraps(command)
    def call(**values: Any) -> int:
        answer = command(**_taken(command, values))
        return answer.give(values["as_json"]) if isinstance(answer, Answer) else answer or 0

    call.__doc__ = cleandoc(command.__doc__ or "").partition("\n\n-")[0]
    decorated = click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)(call)
    for parameter, described in reversed([*_parameters(command)]):
        kinds = {*get_args(parameter.annotation)} or {parameter.annotation}
        declared = parameter.default
        if not isinstance(declared, Declared):
            declared = option(default=declared)
        decorated = declared.parameter(parameter.name, kinds, described)(decorated)
    return decorated


def _described(owner: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Return the keywords of click.option that the docstrings of an owner describe, by flag."""
    kinds = getattr(owner, "__mro__", [owner])
    parts = [part for kind in kinds for part in _OPTION.split(cleandoc(kind.__doc__ or ""))[1:]]
    found: dict[str, dict[str, Any]] = {}
    for text in parts:
        match = _DESCRIBED.fullmatch(re.sub(r"\s*\n\s*", " ", text.strip()))
        assert match, text
        settings = {key: value for key, value in match.groupdict().items() if value is not None}
        settings["flags"] = settings["flags"].split(", ")
        found |= dict.fromkeys(settings["flags"][0].split("/"), settings)
    return found


def _is_group(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.name != "as_json"


def _parameters(
    owner: Callable[..., Any],
) -> Iterator[tuple[Parameter, dict[str, dict[str, Any]]]]:
    """Yield options and arguments, each with the descriptions in the docstrings of its owner."""
    described = _described(owner)
    for parameter in signature(owner).parameters.values():
        if _is_group(parameter):
            yield from _parameters(parameter.annotation)
        elif parameter.name != "as_json":
            yield parameter, described


def _taken(owner: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `owner`. `values`: those of all options, by name."""
    return {
        name: p.annotation(**_taken(p.annotation, values)) if _is_group(p) else values[name]
        for name, p in signature(owner).parameters.items()
    }
