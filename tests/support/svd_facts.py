"""Make the tables of tests/sim/registers from the vendors' SVD files.

python -m support.svd_facts samd21 ATSAMD21G18A.svd "where the file is from" > samd21.csv

A row is one register of a peripheral that the simulated chip models. Registers of an array or a
cluster are listed one by one.
"""

import csv
import hashlib
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

TABLES = Path(__file__).parents[1] / "sim" / "registers"
ACCESS = {"read-write": "rw", "read-only": "r", "write-only": "w", "read-writeonce": "rw"}
# The modelled peripherals. Some have one set of registers for each mode: here, the modelled modes.
PERIPHERALS: dict[str, dict[str, tuple[str, ...]]] = {
    "samd21": {
        **dict.fromkeys(["DMAC", "GCLK", "NVMCTRL", "PM", "PORT", "SYSCTRL", "WDT"], ("",)),
        **dict.fromkeys([f"SERCOM{n}" for n in range(6)], ("I2CM", "SPI", "USART")),
        **dict.fromkeys(["TC3", "TC4", "TC5"], ("COUNT16", "COUNT32")),
        "USB": ("DEVICE",),
    },
    "nrf52840": dict.fromkeys(
        [
            *("APPROTECT", "CLOCK", "FICR", "NVMC", "P0", "P1", "POWER", "SPIM2", "SPIM3"),
            *("TIMER0", "TIMER1", "TIMER2", "UARTE0", "UICR", "USBD", "WDT"),
        ],
        ("",),
    ),
}


@dataclass(frozen=True)
class Register:
    peripheral: str
    mode: str  # the set of registers; empty: the peripheral has one only
    name: str
    address: int
    bits: int
    access: str  # r, w or rw
    reset: int

    def row(self) -> list[str]:
        numbers = {"address": f"0x{self.address:08x}", "reset": f"0x{self.reset:x}"}
        return [str(numbers.get(f.name, getattr(self, f.name))) for f in fields(self)]


def table(chip: str) -> list[Register]:
    """Read the committed table of a chip."""
    lines = (TABLES / f"{chip}.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.reader(line for line in lines if not line.startswith("#"))
    next(rows)
    return [
        Register(peripheral, mode, name, int(address, 0), int(bits), access, int(reset, 0))
        for peripheral, mode, name, address, bits, access, reset in rows
    ]


def number(element: ET.Element, name: str, default: int = 0) -> int:
    text = element.findtext(name)
    return default if text is None else int(text.lstrip("#").strip(), 0)


def copies(element: ET.Element) -> Iterator[tuple[str, int]]:
    """Yield name and offset of each copy of a register or cluster that may be an array."""
    name, offset = element.findtext("name", ""), number(element, "addressOffset")
    count, stride = number(element, "dim", 1), number(element, "dimIncrement")
    labels = element.findtext("dimIndex", "")
    for k in range(count):
        label = labels.split(",")[k] if "," in labels else str(k)
        yield (
            re.sub(r"\[?%s\]?", label if element.find("dim") is not None else "", name),
            (offset + k * stride),
        )


def registers(element: ET.Element, name: str, base: int, defaults: Register) -> Iterator[Register]:
    """Yield the registers below an element, with their full names and addresses."""
    for part in element:
        for label, offset in copies(part) if part.tag in ("cluster", "register") else ():
            full, address = f"{name}.{label}" if name else label, base + offset
            if part.tag == "cluster":
                yield from registers(part, full, address, defaults)
                continue
            access = ACCESS[part.findtext("access") or "read-write"]
            bits = number(part, "size", defaults.bits)
            reset = number(part, "resetValue", defaults.reset) & ((1 << bits) - 1)
            yield Register(defaults.peripheral, "", full, address, bits, access, reset)


def facts(chip: str, svd: Path) -> Iterator[Register]:
    root = ET.parse(svd).getroot()
    found = {p.findtext("name", ""): p for p in root.iter("peripheral")}
    for name, modes in sorted(PERIPHERALS[chip].items()):
        part = found[name]
        source = found[part.get("derivedFrom", name)]
        bits = number(source, "size", number(root, "size", 32))
        usual = Register(name, "", "", 0, bits, "rw", number(root, "resetValue"))
        body = source.find("registers")
        assert body is not None
        for register in registers(body, "", number(part, "baseAddress"), usual):
            mode, _, rest = register.name.partition(".")
            if "" in modes:
                yield register
            elif mode in modes:
                yield Register(name, mode, rest, *astuple(register)[3:])


def main(chip: str, svd: str, origin: str) -> None:
    path = Path(svd)
    root = ET.parse(path).getroot()
    version = f"{root.findtext('name')} version {root.findtext('version')}"
    print(f"# Registers of the {chip}: facts of the SVD file {path.name}, {version}, from")
    print(f"# {origin}")
    print(f"# (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}).")
    print("# Made by tests/support/svd_facts.py.")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(f.name for f in fields(Register))
    out.writerows(register.row() for register in facts(chip, path))


if __name__ == "__main__":
    main(*sys.argv[1:])
