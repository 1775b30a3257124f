"""What a package has for those who build it: C compilers, the Arduino IDE, PlatformIO."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ..errors import BadInput, named
from ..resources import resource
from .library import filled
from .packaged import Packaged

_USE = {
    "c": "Build an application:\n\n    cc -std=c99 -I src src/*.c app.c -lm",
    "arduino": "Move this folder to the folder `libraries` of your sketches. Then the menu File > "
    "Examples has\na first sketch.",
    "platformio": "Name this folder in `lib_deps` of your `platformio.ini`, such as "
    "`symlink://../$name`. `examples` has\na first program for the framework arduino.",
}
KINDS = tuple(_USE)
_TYPES = {"float32": "float", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t"}
_READS = {"int8": "analogRead(A0) / 4 - 128", "uint8": "analogRead(A0) / 4"}  # it has 10 bits
_FUNCTIONS = (
    "open", "infer", "teach", "learn", "poll", "save", "state", "read", "write", "adopt", "forget",
    "blocks", "text",
)  # fmt: skip


def files_of_kind(packaged: Packaged, kind: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the files that a kind of package has in addition to `src`, by path.

    Raises BadInput if the name of the package is not allowed.
    """
    name = packaged.name
    texts = {"README.md": _readme(packaged, kind, facts)}
    if kind == "arduino":
        if not re.fullmatch("(?!arduino)[a-z][a-z0-9_]{0,62}", name, re.IGNORECASE):
            raise BadInput(
                f"the Arduino IDE has no libraries with the name {name}: rename the schedule's "
                "file, so that it begins with a letter, has at most 63 characters, and does not "
                "begin with Arduino"
            )
        texts["library.properties"] = filled(
            "library.properties", name=name, version=version("poet-host")
        )
        texts["keywords.txt"] = _keywords(name)
        texts[f"examples/{name}/{name}.ino"] = _sketch(packaged)
    elif kind == "platformio":
        texts["library.json"] = library_json(name)
        texts[f"examples/{name}/main.cpp"] = _sketch(packaged)
    return texts


def library_json(name: str = "poet") -> str:
    """Return PlatformIO's manifest of a library with the folder src: of a package, or of all."""
    manifest = json.loads((resource("firmware") / "library.json").read_text("utf-8"))
    manifest |= {"name": name, "version": version("poet-host")}
    manifest["headers"] = "poet/poet.h" if name == "poet" else f"{name}.h"
    manifest["build"] = {"srcDir": "src", "includeDir": "src"}
    return json.dumps(manifest, indent=2) + "\n"


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a package needs on its board, as rows of a table."""

    def time(name: str) -> str:
        return "not known" if facts[name] is None else f"{facts[name] / 1e3:,.3f} ms"

    def energy(name: str) -> str:
        return "not known" if facts[name] is None else f"{facts[name]:,.1f} uJ"

    def bytes_of(name: str) -> str:
        return "not known" if facts[name] is None else f"{facts[name]:,} bytes"

    without = f"; without storage {facts['memory_bytes_without_storage']:,} bytes"
    return [
        (
            "RAM with storage",
            f"{facts['memory_bytes']:,} bytes{'' if facts['needs_storage'] else without}",
        ),
        ("RAM of struct poet_learner", bytes_of("learner_bytes")),
        ("stack of a call, at most", bytes_of("stack_bytes")),
        ("storage", f"{facts['storage_blocks']:,} blocks of 512 bytes"),
        ("flash of schedules and weights", bytes_of("data_bytes")),
        ("flash with the library, estimated", bytes_of("flash_bytes")),
        ("time, energy of a step", f"{time('step_time_us')}, {energy('step_energy_uj')}"),
        (
            "time, energy of an inference",
            f"{time('inference_time_us')}, {energy('inference_energy_uj')}",
        ),
        ("longest slice of poll", time("longest_slice_us")),
        ("infer, if a step runs, takes about", time("infer_waits_us")),
    ]


def _readme(packaged: Packaged, kind: str, facts: Mapping[str, Any]) -> str:
    return filled(
        "README.md", name=packaged.name, model=named(packaged.schedule.graph.name),
        board=str(facts["board"]), use=_USE[kind].replace("$name", packaged.name),
        rows="\n".join(f"| {what} | {value} |" for what, value in fact_rows(facts)),
        written_by=str(facts["written_by"]),
    )  # fmt: skip


def _sketch(packaged: Packaged) -> str:
    storage = lend = ""
    suffix = "" if packaged.schedule.model.storage else "_WITHOUT_STORAGE"
    if packaged.schedule.model.storage:
        storage = (
            "\n/* Write these two for your card: a block of 512 bytes. 0 is success. */\n"
            "int read_block(void *context, uint32_t block, void *data);\n"
            "int write_block(void *context, uint32_t block, const void *data);\n"
        )
        lend = (
            f"  device.blocks = {packaged.name}_STORAGE_BLOCKS;\n"
            "  device.read = read_block;\n  device.write = write_block;\n"
        )
    return filled(
        "sketch.ino", name=packaged.name, type=_TYPES[packaged.raw.type],
        read=_READS.get(packaged.raw.type, "analogRead(A0)"), storage=storage,
        memory=f"{packaged.name}_MEMORY_BYTES{suffix}", lend=lend,
    )  # fmt: skip


def _keywords(name: str) -> str:
    rows = [("poet_learner", "KEYWORD1"), ("poet_device", "KEYWORD1")]
    rows += [(f"poet_learner_{it}", "KEYWORD2") for it in _FUNCTIONS]
    rows += [(f"{name}_package", "LITERAL1"), ("POET_BUSY", "LITERAL1")]
    return "".join(f"{word}\t{kind}\n" for word, kind in rows)
