"""NAME.h and NAME_package.c: a package as C source."""

import zlib
from collections.abc import Iterable

from ..schedule.schedule import Schedule
from .library import filled
from .packaged import Packaged
from .sizes import most_storage_blocks, needs, places

_ROW_BYTES = 24


def header(packaged: Packaged) -> str:
    """Return the text of NAME.h, which C99 and C++11 may include."""
    name = packaged.name
    lines = "".join(
        f"#define {name}_{macro} {value}{f' /* {what} */' if what else ''}\n"
        for macro, (value, what) in macros(packaged).items()
    )
    model = _in_comment(packaged.schedule.graph.name)
    return filled("package.h", name=name, model=model, lines=lines)


def macros(packaged: Packaged) -> dict[str, tuple[object, str]]:
    """Return the macros of NAME.h without its prefix: values, and what they mean."""
    own = ", ".join(f"{number}u" for number in needs(packaged))

    def memory(*, on_storage: bool) -> str:
        count, size = places(packaged, on_storage=on_storage)
        return f"POET_MEMORY_BYTES({own}, {count}u, {size}u)"

    slice_us = packaged.longest_slice_us
    return {
        "MEMORY_BYTES": (memory(on_storage=True), ""),
        "MEMORY_BYTES_WITHOUT_STORAGE": (memory(on_storage=False), "with samples"),
        "STORAGE_BLOCKS": (
            most_storage_blocks(packaged),
            "for erase units of up to 8 blocks",
        ),
        "SAMPLE_BYTES": (packaged.sample_bytes, ""),
        "SAMPLE_VALUES": (packaged.sample_values, packaged.raw.type),
        "OUTPUTS": (packaged.outputs, "floats"),
        "CLASSES": (packaged.classes, ""),
        "BATCH": (packaged.batch, ""),
        "TENSORS": (len(packaged.tensors), ""),
        "LONGEST_SLICE_US": (slice_us or 0, "" if slice_us else "not known"),
    }


def source(packaged: Packaged) -> str:
    """Return the text of NAME_package.c."""
    name, schedule = packaged.name, packaged.schedule
    graph, numbers = schedule.graph, schedule.names
    text = f'/* {name}_package.c - the data of {name}.h. */\n#include "{name}.h"\n\n'
    values: list[str] = []
    crc = 0
    for content in packaged.first_values():
        values.append(f"value_{len(values)}" if content else "0")
        text += _bytes(values[-1], content) if content else ""
        crc = zlib.crc32(content, crc)
    for program, part in (("training", schedule), ("forward", packaged.forward)):
        text += _bytes(f"{program}_model", part.model_part)
        text += _bytes(f"{program}_plan", part.plan_part)
    normalization, raw = packaged.normalization, packaged.raw
    sizes = (str(graph[it].size_bytes) for it in packaged.tensors)
    return text + filled(
        "package.c", name=name, values=_braces(values), crc=crc,
        scale=_braces(map(_float, normalization.scale)),
        offset=_braces(map(_float, normalization.offset)), channels=len(normalization.scale),
        training=_program("training", schedule), forward=_program("forward", packaged.forward),
        raw=raw.type, raw_scale=_float(raw.scale), raw_offset=_float(raw.offset),
        sample_values=packaged.sample_values, outputs=packaged.outputs, batch=packaged.batch,
        seed=packaged.seed, data=numbers.index(graph.data), label=numbers.index(graph.label),
        classes=packaged.classes, slots=packaged.slots,
        repeats=str(packaged.repeats_the_input).lower(), sizes=_braces(sizes),
        class_names=_braces(map(_string, packaged.class_names)),
        tensor_names=_braces(map(_string, packaged.tensor_names)),
    )  # fmt: skip


def _program(name: str, part: Schedule) -> str:
    sizes = f"{len(part.model_part)}, {len(part.plan_part)}"
    return f"{{{name}_model, {name}_plan, {sizes}, 0}}"


def _bytes(name: str, content: bytes) -> str:
    rows = (content[at : at + _ROW_BYTES] for at in range(0, len(content), _ROW_BYTES))
    lines = "".join(f"    {','.join(map(str, row))},\n" for row in rows)
    return f"static const uint8_t {name}[] = {{\n{lines}}};\n\n"


def _braces(values: Iterable[str]) -> str:
    return "{" + ", ".join(values) + "}"


def _float(value: float) -> str:
    return f"{float(value).hex()}f"


def _string(text: str) -> str:
    """Return a text as a C string: UTF-8, of which other bytes than letters and such are octal."""
    plain = {*range(0x20, 0x7F)} - {*b'"\\?'}
    return '"' + "".join(chr(c) if c in plain else f"\\{c:03o}" for c in text.encode()) + '"'


def _in_comment(text: str) -> str:
    text = text if text.isprintable() else ascii(text)
    return text.replace("*/", "* /").replace("/*", "/ *")
