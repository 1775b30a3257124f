"""Convert values from files to typed values. For each format, a dataclass is the schema."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from .errors import BadInput, named, quoted

_T = TypeVar("_T")
_Keys = tuple[str | int, ...]  # the keys and indices that lead from a value to a part of it

LARGEST_WHOLE = 1 << 53  # above this number of bytes, sums in a solver are not exact
LARGEST = 1e303  # largest number accepted in a file, so that sums are finite
LARGEST_AMOUNT = 1e30  # largest accepted number that is multiplied by others

Amount = Annotated[float, Meta(ge=0, le=LARGEST_AMOUNT)]  # a time, a power, a rate
Count = Annotated[int, Meta(ge=0, le=LARGEST_WHOLE)]  # a number of bytes or of other things
Name = Annotated[str, Meta(min_length=1)]

_WORDS = {
    "float": "a number", "int": "a whole number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "a table of keys and values", "null": "null",
}  # fmt: skip


def convert(
    value: Any, kind: type[_T], where: str, *, extra: bool = False, complete: bool = False
) -> _T:
    """Convert a value of plain JSON or TOML to `kind`. A text is never read as a number.

    `extra`: ignore keys that `kind` does not have. `complete`: require all keys that `kind` has,
    even keys with a default. Raises BadInput for a value that is not a `kind`, for numbers that are
    not finite or beyond LARGEST, and for texts that are not Unicode. The message names `where`,
    the source of the value, and the place in the value.
    """
    try:
        for at, problem in _unsound(value):
            raise BadInput(_message(where, _path(at), problem))
        found = msgspec.convert(value, kind)
        for at, problem in () if extra else _odd_keys(value, found, complete):
            raise BadInput(_message(where, _path(at), problem))
    except msgspec.ValidationError as error:
        raise BadInput(_message(where, *_place_and_problem(str(error)))) from error
    except RecursionError as error:
        raise BadInput(f"{where} is nested too deeply: check the file") from error
    return found


def _place_and_problem(text: str) -> tuple[str, str]:
    """Split a message of msgspec into place and problem, with the problem in plain words."""
    found = re.fullmatch(r"(.*?)(?: - at (?:`key` in )?`(\$.*)`)?", text, re.DOTALL)
    problem, place = (found[1], found[2] or "$") if found else (text, "$")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", problem):
        return f"{place}.{missing[1]}", "the key is missing"
    words = re.sub(r"`(\w+)`", lambda word: _WORDS.get(word[1], word[1]), problem)
    return place, words[:1].lower() + words[1:]


def _message(where: str, place: str, problem: str) -> str:
    return f"{where}{'' if place == '$' else f', at {place}'}: {problem}: check the file"


def _path(keys: _Keys) -> str:
    """Return the place of a value in the notation of msgspec, such as $.steps[3].loss."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{named(key)}" for key in keys)


def _unsound(value: Any, at: _Keys = ()) -> Iterator[tuple[_Keys, str]]:
    """Yield place and problem of each part of a value that is invalid in every format."""
    if isinstance(value, dict):
        for key, one in value.items():
            if not is_unicode(key):
                yield (*at, key), "the key holds half a character (a lone surrogate)"
            yield from _unsound(one, (*at, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _unsound(one, (*at, number))
    elif isinstance(value, str):
        if not is_unicode(value):
            yield at, "the text holds half a character (a lone surrogate)"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        largest = LARGEST_WHOLE if isinstance(value, int) else LARGEST
        if not -largest <= value <= largest:
            yield at, f"the number {quoted(value)} is not finite, or too large"


def is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _odd_keys(
    given: Any, taken: Any, complete: bool, at: _Keys = ()
) -> Iterator[tuple[_Keys, str]]:
    """Yield unknown keys and, if `complete`, missing keys, each with its problem."""
    if is_dataclass(taken):
        known = {field.name for field in fields(taken) if field.compare}  # others are not in files
        for key in sorted(given.keys() - known):
            yield (*at, key), "the key is unknown"
        for key in sorted(known - given.keys()) if complete else ():
            yield (*at, key), "the key is missing"
        for key, one in given.items():
            yield from _odd_keys(one, getattr(taken, key), complete, (*at, key))
    elif isinstance(given, list):
        for number, both in enumerate(zip(given, taken, strict=True)):
            yield from _odd_keys(*both, complete, (*at, number))


def of_format(
    value: Any, name: str, versions: tuple[int, ...], where: str, advice: str
) -> dict[str, Any]:
    """Return a JSON object of the format `name`, without the keys "format" and "version".

    Raises BadInput if the object has another format or version. The error ends with `advice`.
    """
    if not isinstance(value, dict) or value.get("format") != name:
        raise BadInput(
            f'{where} is not a {name.removeprefix("poet-")} ("format" is not "{name}"): {advice}'
        )
    found = value.get("version")
    if found not in versions or isinstance(found, bool):
        known = " and ".join(filter(None, (", ".join(map(str, versions[:-1])), str(versions[-1]))))
        raise BadInput(
            f"{where} has version {quoted(found)}, but this program reads "
            f"version{'s' * (len(versions) > 1)} {known}: {advice}"
        )
    return {key: one for key, one in value.items() if key not in ("format", "version")}
