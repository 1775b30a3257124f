"""Changes to valid files: to plain values, to text, to bytes."""

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

HUGE = 10**400
WORDS = (
    "", "a", "\0", "\n", "\x1b[2J", "\u2028", "\ud800", "x" * 3000, "a:b:c", "../../x", "{{DATA}}",
    "</script><script>", "NaN", "1e400", "compute", "running", "kaiming:0", "kaiming:" + "9" * 5000,
    "normal:abc", "normal:1e999", "normal:nan", "model:{}", "model:[]", "model:" + "[" * 3000,
    'model:{"names":["w"],"shape":[2],"transposed":false}',
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 7, 2**31, 2**32, 2**53, 2**63, 2**64, 10**12, -(2**63), HUGE, -HUGE, 0.5, -0.0,
    1e18, 1e30, 1e303, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], [None], {"": None}, [1, 2], ["a", "b"], {"name": "a"})


def odd(rng: Random) -> Any:
    """A value that few readers expect."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(WORDS)
    if kind < 0.6:
        return rng.choice(NUMBERS)
    return deepcopy(rng.choice(OTHERS)) if kind < 0.8 else rng.randrange(-10, 70_000)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value[:40])
    for key, inner in inside:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from _places(inner, (*at, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def changed(value: Any, rng: Random) -> Any:
    """A copy of a plain JSON value with one to three changes at random places."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return odd(rng)
        *above, key = rng.choice(places)
        parent, how = _at(value, tuple(above)), rng.random()
        if how < 0.55:
            parent[key] = odd(rng)
        elif how < 0.7:
            del parent[key]
        elif how < 0.8:
            other = json.loads(json.dumps(_at(value, rng.choice(places)), skipkeys=True))
            parent[key] = other
        elif isinstance(parent, list):
            parent.insert(key, parent[key] if how < 0.92 else odd(rng))
        elif how < 0.92:
            with suppress(ValueError):  # Python writes no number of so many digits
                parent[str(odd(rng))[:50]] = odd(rng)
        else:
            parent[key] = [parent[key]]
    return value


def json_bytes(value: Any, rng: Random) -> bytes:
    """JSON, sometimes broken as text."""
    text, how = json.dumps(value), rng.random()
    if how < 0.02:
        text = text.replace(":", ":" + "[" * 5000, 1)
    elif how < 0.03:
        text = "[" * 100_000
    elif how < 0.05:
        text = text[: rng.randrange(len(text) + 1)]
    elif how < 0.07:
        text = text.replace("0", "1" * 5000, 1)
    elif how < 0.08:
        text = "\ufeff" + text
    raw = text.encode()
    return damaged(raw, rng) if how > 0.95 else raw


def damaged(raw: bytes, rng: Random) -> bytes:
    """Bytes with bits flipped, pieces left out, put in, copied, or the end cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        how, at = rng.random(), rng.randrange(len(data))
        if how < 0.3:
            data[at] ^= 1 << rng.randrange(8)
        elif how < 0.5:
            data[at] = rng.choice((0, 255, 128, 127, 1, 34, 44, 10, rng.randrange(256)))
        elif how < 0.6:
            del data[at : at + rng.choice((1, 2, 4, 30, 500))]
        elif how < 0.7:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 30)))
        elif how < 0.8:
            data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1, 2**24)))
        elif how < 0.88:
            data[at : at + 8] = struct.pack("<Q", rng.choice((10**12, 2**63, 2**64 - 1, 2**40)))
        elif how < 0.95:
            begin, size = rng.randrange(len(data)), rng.randrange(60)
            data[at : at + size] = data[begin : begin + size]
        else:
            del data[at:]
    return bytes(data)


_TOML = (
    "-1", "0", "1e400", "nan", "inf", "-inf", '"x"', "true", "[]", "{}", "1" * 400, "9" * 5000,
    "1979-05-27", "0x" + "f" * 40, "[[[[", '"""', '"../../x"', "1e-320", "3", "2.5", "[1, [2]]",
    "'" + "y" * 4000 + "'", "{ a = 1 }",
)  # fmt: skip


def toml_bytes(text: str, rng: Random) -> bytes:
    """TOML with one to four lines changed."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        number = rng.randrange(len(lines))
        key, equals, _ = lines[number].partition("=")
        how = rng.random()
        if how < 0.6 and equals:
            lines[number] = f"{key}= {rng.choice(_TOML)}"
        elif how < 0.75 and len(lines) > 1:
            del lines[number]
        elif how < 0.85:
            lines.insert(number, rng.choice(lines))
        elif how < 0.88:
            lines.insert(number, "a = " + "[" * 3000)
        else:
            lines[number] = damaged(lines[number].encode() or b" ", rng).decode("utf-8", "replace")
    return "\n".join(lines).encode("utf-8", "surrogatepass")
