"""Files of a release that are not Python packages: firmware images, libraries, a bill of materials.

Images have the start addresses of their boards. UF2: https://github.com/microsoft/uf2.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from poet_host.firmware_build.flash import build
from poet_host.firmware_build.image import read_elf

from .commits import ROOT

# Families of chips in Microsoft's list uf2families.json. The nRF52840 has no UF2 file: its image
# begins at address 0, where boot loaders for UF2 keep the MBR. Adafruit's skips what is below
# 0x1000, reports success, and writes the rest over the SoftDevice (src/usb/uf2/ghostfat.c).
UF2_FAMILIES = {"mkr1000": 0x68ED2B88, "nano_33_iot": 0x68ED2B88, "nrf52840_dk": None}
_UF2_START, _UF2_SECOND, _UF2_END = 0x0A324655, 0x9E5D5157, 0x0AB16F30
_UF2_HAS_FAMILY = 0x2000
_UF2_DATA_BYTES, _UF2_BLOCK_BYTES = 256, 512
_HEX_DATA_BYTES = 16
EXAMPLES = ("gesture", "gait", "machine")  # those with a package and a Makefile
# The examples call `python` and `poet-host`: those of this environment.
_ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
}
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # of a file in a zip archive


class Failed(Exception):
    """What was built does not work."""


def run(command: Sequence[object], **how: object) -> str:
    """Run a command, and return its stdout. Raises Failed, with its output, if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **{"cwd": ROOT, **how})  # type: ignore[call-overload]
    if done.returncode:
        raise Failed(f"{' '.join(words[:6])} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return str(done.stdout)


def uf2(start: int, image: bytes, family: int) -> bytes:
    """Return a UF2 file that writes an image to flash from address `start` on."""
    parts = [image[at : at + _UF2_DATA_BYTES] for at in range(0, len(image), _UF2_DATA_BYTES)]
    blocks = []
    for number, part in enumerate(parts):
        address = start + number * _UF2_DATA_BYTES
        header = struct.pack(
            "<8I", _UF2_START, _UF2_SECOND, _UF2_HAS_FAMILY, address, _UF2_DATA_BYTES, number,
            len(parts), family,
        )  # fmt: skip
        data = part.ljust(_UF2_DATA_BYTES, b"\xff").ljust(476, b"\0")
        blocks.append(header + data + struct.pack("<I", _UF2_END))
    return b"".join(blocks)


def read_uf2(content: bytes) -> tuple[int, bytes, int]:
    """Return the start address, the image and the family of a UF2 file of this module.

    The image ends at a multiple of 256 bytes. Raises ValueError for any other content.
    """
    if not content or len(content) % _UF2_BLOCK_BYTES:
        raise ValueError("a UF2 file consists of blocks of 512 bytes")
    found, first = bytearray(), struct.unpack_from("<8I", content)
    for at in range(0, len(content), _UF2_BLOCK_BYTES):
        number = at // _UF2_BLOCK_BYTES
        wanted = (
            _UF2_START, _UF2_SECOND, _UF2_HAS_FAMILY, first[3] + number * _UF2_DATA_BYTES,
            _UF2_DATA_BYTES, number, len(content) // _UF2_BLOCK_BYTES, first[7],
        )  # fmt: skip
        end = struct.unpack_from("<I", content, at + _UF2_BLOCK_BYTES - 4)
        if struct.unpack_from("<8I", content, at) != wanted or end != (_UF2_END,):
            raise ValueError(f"block {number} of the UF2 file is wrong")
        found += content[at + 32 : at + 32 + _UF2_DATA_BYTES]
    return first[3], bytes(found), first[7]


def intel_hex(start: int, image: bytes) -> str:
    """Return an image as an Intel HEX file."""

    def record(kind: int, address: int, data: bytes) -> str:
        content = bytes([len(data), address >> 8, address & 0xFF, kind]) + data
        return f":{(content + bytes([-sum(content) & 0xFF])).hex().upper()}\n"

    lines, upper = [], None
    for at in range(0, len(image), _HEX_DATA_BYTES):
        address = start + at
        if address >> 16 != upper:
            upper = address >> 16
            lines.append(record(4, 0, upper.to_bytes(2, "big")))
        lines.append(record(0, address & 0xFFFF, image[at : at + _HEX_DATA_BYTES]))
    return "".join(lines) + record(1, 0, b"")


def write_images(dist: Path, version: str) -> None:
    """Write the firmware of each microcontroller board, with FIRMWARE.txt.

    Each has a .bin and a .hex file, and a .uf2 file if UF2_FAMILIES has its family. Raises Failed
    if a UF2 file is not the image when it is read again.
    """
    rows = []
    for board, family in UF2_FAMILIES.items():
        start, image = read_elf(build(board)).flash()
        name = f"poet-firmware-{board}-{version}"
        (dist / f"{name}.bin").write_bytes(image)
        (dist / f"{name}.hex").write_text(intel_hex(start, image), encoding="ascii")
        rows.append(f"{name}: start 0x{start:x}, {len(image):,} bytes\n")
        if family is not None:
            packed = uf2(start, image, family)
            address, found, read_family = read_uf2(packed)
            if (address, found[: len(image)], read_family) != (start, image, family):
                raise Failed(f"the UF2 file of {board} is not its image")
            (dist / f"{name}.uf2").write_bytes(packed)
    (dist / "FIRMWARE.txt").write_text("".join(rows) + _ABOUT_IMAGES, encoding="utf-8")


_ABOUT_IMAGES = """
`poet-host flash` builds and writes the firmware, and checks that the board answers. Without it,
write a .bin file to its start address, or a .hex file.

mkr1000 and nano_33_iot: addresses 0 to 0x1fff belong to Arduino's boot loader. No file touches
them. A .uf2 file is for a boot loader that is a disk (uf2-samdx1): copy the file to that disk. The
boards do not come with such a boot loader.

nrf52840_dk: the image begins at address 0. Write it with the debugger of the kit. Do not write it
to a board that starts through a boot loader or a SoftDevice, such as those of Adafruit: it replaces
the MBR at address 0, through which they start. This is also why there is no .uf2 file. Boot
loaders for .uf2 files leave out the first 4,096 bytes, and write the rest over the SoftDevice.
"""


def write_libraries(dist: Path, version: str) -> None:
    """Write the package of each example as an Arduino library and as one for PlatformIO."""
    with tempfile.TemporaryDirectory() as name:
        examples = Path(name) / "examples"
        shutil.copytree(ROOT / "examples", examples)
        (examples.parent / "firmware").symlink_to(ROOT / "firmware")
        for example in EXAMPLES:
            for kind in ("arduino", "platformio"):
                folder = examples / example / example  # the name of the library
                shutil.rmtree(folder, ignore_errors=True)
                made = (f"KIND={kind}", f"PACKAGE={example}", f"{example}/package.json")
                run(["make", "-s", *made], cwd=folder.parent, env=_ENVIRONMENT)
                _zip(dist / f"poet-{example}-{kind}-{version}.zip", folder)


def _zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for path in sorted(it for it in folder.rglob("*") if it.is_file()):
            entry = zipfile.ZipInfo(str(path.relative_to(folder.parent)), _EARLIEST_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            content.writestr(entry, path.read_bytes())


# A program that lists the packages of an environment: name, version, SPDX expression, names of
# licences. `pip inspect` of an older pip leaves out the expressions.
LISTING = """
import importlib.metadata, json
print(json.dumps([
    (it.name, it.version, it.metadata["License-Expression"],
     [text.rpartition(" :: ")[2] for text in it.metadata.get_all("Classifier", [])
      if text.startswith("License ::")] or (it.metadata["License"] or "").splitlines()[:1])
    for it in importlib.metadata.distributions()
]))
"""


def write_bill(dist: Path, version: str, installed: list[Any]) -> None:
    """Write the packages that the wheel was tried with, as CycloneDX 1.5 in JSON.

    `installed`: what LISTING prints in that environment. Firmware and C library contain no code of
    others but that of the compiler's libraries.
    """
    components = []
    for name, its_version, expression, licences in sorted(installed, key=lambda it: it[0].lower()):
        if name in ("pip", "setuptools", "poet-host"):
            continue
        component = _component(name, its_version)
        if expression:
            component["licenses"] = [{"expression": expression}]
        elif licences:
            component["licenses"] = [{"license": {"name": text}} for text in licences]
        components.append(component)
    own = _component("poet-host", version) | {"licenses": [{"license": {"id": "MIT"}}]}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, own['purl'])}",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
    }
    text = json.dumps(bill, indent=1) + "\n"
    (dist / f"poet-host-{version}.cdx.json").write_text(text, encoding="utf-8")


def _component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
