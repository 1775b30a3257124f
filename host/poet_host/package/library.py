"""The C library as one flat folder of sources, for one model or for all.

The folder needs no option of a compiler but its own path. C files have the prefix `poet_`, and
headers that applications do not include lie in poet/internal.
"""

import re
from collections.abc import Collection
from pathlib import Path
from string import Template

from .. import isa
from ..resources import resource
from .packaged import Packaged

_INCLUDE = re.compile(r'#include "(?!poet/)(?:[\w./]*/)?(\w+\.\w+)"')
_KERNEL = re.compile(r"^void poet_(\w+)\(const struct poet_call \*call\) \{", re.MULTILINE)
# What only a board with a host or a job uses.
_SERIAL = {"alone.c", "cobs.c", "job.c", "probe.c", "server.c", "server.h"}


def library_files(packaged: Packaged | None = None) -> dict[str, str]:
    """Return the texts of the library's files, by path.

    `packaged`: the library gets the kernels of this package only, and its schedules.
    """
    firmware, found = resource("firmware"), {}
    for path in sorted((firmware / "include" / "poet").iterdir()):
        found[f"poet/{path.name}"] = _plain_c99(path.read_text("utf-8"))
    for folder in ("src", "kernels"):
        for path in sorted((firmware / folder).rglob("*.[ch]")):
            text = path.read_text("utf-8")
            if folder == "src" or packaged is None or _is_used(text, packaged.kernels):
                name = f"poet_{path.name}" if path.suffix == ".c" else f"poet/internal/{path.name}"
                found[name] = _plain_c99(_INCLUDE.sub(r'#include "poet/internal/\1"', text))
    if packaged:
        found["poet/small.h"] = _for_package(found["poet/small.h"], packaged)
        serial = {name for name in found if Path(name).name.removeprefix("poet_") in _SERIAL}
        found = {name: text for name, text in found.items() if name not in serial}
    return found


def filled(template: str, **values: object) -> str:
    """Return the text of a file in the folder `templates`, with these values."""
    path = Path(__file__).parent / "templates" / template
    return Template(path.read_text("utf-8")).substitute(values)


def _is_used(text: str, kernels: Collection[str]) -> bool:
    defined = set(_KERNEL.findall(text))
    return not defined or not defined.isdisjoint(kernels)


def _plain_c99(text: str) -> str:
    return re.sub(r"\b_Static_assert\(", "__extension__ _Static_assert(", text)


def _for_package(text: str, packaged: Packaged) -> str:
    """Return small.h with the macros of a build for the schedules of a package."""
    streams, kernels = int(packaged.streams), isa.kernel_masks(packaged.kernels)
    values = {"POET_STREAMS": streams, "POET_CARDS": 0, **kernels}
    for name, value in values.items():
        text, count = re.subn(rf"(#define {name}) \w+$", rf"\1 {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    rows = f"#define POET_ROWS_CRC {isa.fingerprint()}u\n"
    return text.removesuffix("#endif\n") + rows + "\n#endif\n"
