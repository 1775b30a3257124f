"""The registers of firmware and simulated chips, compared with the vendors' SVD files.

The facts are in tests/sim/registers; tests/support/svd_facts.py makes them from the SVD files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from poet_host import sim
from poet_host.resources import resource
from poet_host.sim.chip_library import chips
from support.sim_helper import needs_compiler
from support.svd_facts import Register, table

CHIPS = ["samd21", "nrf52840"]
pytestmark = pytest.mark.parametrize("chip", CHIPS)
MACRO = re.compile(r"^#define (\w+)(?:\(\w+\))? \(?\*?.*?REG(8|16|32)\((.+?)\)", re.MULTILINE)
MODELS = Path(sim.__file__).parent / "chip"
ENUMERATOR = re.compile(r"^  (\w+) = (0x[0-9a-f]+),", re.MULTILINE)
ROW = re.compile(r"^    \{([A-Z]\w+), ", re.MULTILINE)
HEX = re.compile("0x[0-9a-f]+")
SYSTEM = 0xE000E000  # registers of the core, which the SVD files leave out
# Names of the firmware that are not those of the SVD file, and why.
RENAMED = {
    "USBD_SETUP": "BMREQUESTTYPE",  # the first of eight
}
# Addresses of the firmware that the SVD file does not have, and where they are from.
ELSEWHERE = {
    "samd21": {
        "DFLL_CALIBRATION": "data sheet, 10.3.2",
        "USB_CALIBRATION": "data sheet, 10.3.2",
        "SERIAL_WORD_0": "data sheet, 10.3.3",
        "SERIAL_WORD_3": "data sheet, 10.3.3",
        "BOOT_LOADER_WORD": "RAM: Arduino's boot loader reads it",
    },
    "nrf52840": {
        "FICR_PART": "nrf52_erratas.h of the MDK",
        "FICR_VARIANT": "nrf52_erratas.h of the MDK",
        "USBD_TEST_SELECT": "anomaly 199",
        "USBD_TEST_VALUE": "anomaly 199",
        "USBD_MOVING": "anomaly 199",
        "USBD_HIDDEN_KEY": "anomalies 171 and 187",
        "USBD_HIDDEN_171": "anomaly 171",
        "USBD_HIDDEN_187": "anomaly 187",
    },
}
# Rows of the models that are blocks of registers or have another name.
UNNAMED = {
    *("CHANNEL", "ENDPOINT", "HALTED_IN", "HALTED_OUT", "IN_CHANNELS", "OUT_CHANNELS", "SETUP"),
    *("APPROTECT_DISABLE", "TEST_SELECT", "TEST_VALUE", "MOVING_LATCH"),
    *("HIDDEN_KEY", "HIDDEN_171", "HIDDEN_187"),
}
# Values after a reset that are not those of the SVD file, and why.
RESET = {
    "CLOCK HFCLKSTAT": "STATE: the clock runs always",
    "NVMCTRL PARAM": "size of this chip's flash: data sheet, 22.8.3",
    "NVMCTRL INTFLAG": "READY: no command runs",
    "NVMCTRL LOCK": "from the NVM user row: no region is locked",
    "SYSCTRL PCLKSR": "OSC8M and BOD33 have started before the program does",
    "SYSCTRL BOD33": "from the NVM user row: data sheet, table 10-4",
    "PM RCAUSE": "a power-on reset",
    **dict.fromkeys(
        ["TC3 CTRLBCLR", "TC4 CTRLBCLR", "TC5 CTRLBCLR"],
        "the same bits as CTRLBSET, which is 0 in the SVD file; bit 1 is reserved",
    ),
    "NVMC READY": "no operation runs",
}
WIDTHS = {"PORT PMUX1": 8, "PORT PINCFG1": 8}  # bits; the SVD file gives them for group 0 only


def bits(register: Register) -> int:
    key = f"{register.peripheral} {register.name.split('_')[0]}"
    return WIDTHS.get(key, register.bits)


def definitions(chip: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, bits and address of each register of the firmware; an array's first one."""
    text = (resource("firmware") / "port" / chip / "registers.h").read_text(encoding="utf-8")
    for name, size, address in MACRO.findall(text):
        if address == "address":  # the macros REG8, REG16 and REG32 themselves
            continue
        number = HEX.search(address)
        if number is None:  # another macro
            number = HEX.search(text, text.index(f"#define {address.split('(')[0]}("))
        assert number is not None, name
        yield name, int(size), int(number[0], 16)


def plain(name: str) -> str:
    """Return a name without the numbers of arrays."""
    return re.sub(r"\d+(_\d+)?(?=_|$)", "", name.replace(".", "_"))


def test_the_firmware_names_registers_as_the_vendor_does(chip: str) -> None:
    facts: dict[int, list[Register]] = {}
    for register in table(chip):
        facts.setdefault(register.address, []).append(register)
    seen = 0
    for name, size, address in definitions(chip):
        if address >= SYSTEM or name in ELSEWHERE[chip]:
            assert address not in facts, name
            continue
        seen += 1
        found = facts[address]
        owner, _, short = name.partition("_")
        short = plain(RENAMED.get(name, short))
        same = [r for r in found if plain(r.name) == short and size == bits(r)]
        assert any(r.peripheral.startswith(owner) for r in same), (name, found)
    assert seen > 60


def test_the_models_name_registers_as_the_vendor_does(chip: str) -> None:
    facts = table(chip)
    starts = {register.address & ~0x3FF for register in facts}
    names = {(r.address & 0xFFF, plain(r.name)) for r in facts} | {
        (r.address - start, plain(r.name)) for r in facts for start in starts
    }
    seen = 0
    for path in sorted(MODELS.glob("nrf_*.c" if chip == "nrf52840" else "samd21_*.c")):
        text = path.read_text(encoding="utf-8")
        numbers = {name: int(value, 16) for name, value in ENUMERATOR.findall(text)}
        for name in ROW.findall(text):
            if name in UNNAMED:
                continue
            seen += 1
            own = plain(re.sub("^(PM|SYSCTRL|GCLK)_", "", name))
            blocks = {numbers.get(block, 0) for block in ("CHANNEL", "ENDPOINT")} | {0}
            assert any(
                offset - numbers[name] in blocks and (full == own or full.startswith(f"{own}_"))
                for offset, full in names
            ), (path.name, name)
    assert seen > 40


def machine(chip: str, clocked: bool = True) -> Any:
    """A chip after its reset. If its clocks run, all registers can be accessed."""
    ffi, lib = chips()
    config = ffi.new(f"struct {chip}_config *")
    if chip == "nrf52840":
        config.variant, config.protection = 5, 0xFFFFFFFF
    made = ffi.gc(getattr(lib, f"{chip}_new")(config, ffi.NULL), lib.machine_free)
    if chip == "samd21" and clocked:
        for address in (0x40000418, 0x4000041C, 0x40000420):  # PM.APBxMASK
            assert lib.machine_write_register(made, address, 4, 0xFFFFFFFF)
    return made


@needs_compiler
def test_reset_values_and_access_are_those_of_the_vendor(chip: str) -> None:
    ffi, lib = chips()
    made, unclocked, value = machine(chip), machine(chip, False), ffi.new("uint32_t *")
    read, different = 0, []
    for register in table(chip):
        size, where = bits(register) // 8, f"{register.peripheral} {register.name}"
        source = unclocked if register.peripheral == "PM" else made
        if lib.machine_read_register(source, register.address, size, value):
            read += 1
            if "r" not in register.access:
                different.append(f"{where} can be read")
            elif value[0] != register.reset and where not in RESET:
                different.append(f"{where} is {value[0]:#x}, not {register.reset:#x}")
    for register in table(chip):
        if register.access == "r" and lib.machine_write_register(
            made, register.address, bits(register) // 8, 0
        ):
            different.append(f"{register.peripheral} {register.name} can be written")
    assert different == []
    assert read > 250


@needs_compiler
def test_the_simulated_chip_has_no_other_registers(chip: str) -> None:
    ffi, lib = chips()
    made, value = machine(chip), ffi.new("uint32_t *")
    known = {(r.address, size) for r in table(chip) for size in (1, 2, 4) if size * 8 <= bits(r)}
    starts = {register.address & ~0x3FF for register in table(chip)}
    for address in sorted(start + offset for start in starts for offset in range(0x400)):
        for size in (1, 2, 4):
            if address % size == 0 and (address, size) not in known:
                assert not lib.machine_read_register(made, address, size, value), hex(address)
