"""Build the test programs in tests/sim/programs and run them, on simulated chips and QEMU."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource
from poet_host.sim.chip_library import chips, load_elf
from poet_host.sim.simulated_chip import RESULTS
from support.compiler import compiler

FIRMWARE = resource("firmware")
FOLDER = Path(__file__).parents[1] / "sim" / "programs"
NANO_33_IOT = Path(__file__).parents[2] / "examples" / "nano_33_iot"
CORES = {
    "m0plus": ["-mcpu=cortex-m0plus"],
    "m4f": ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"],
}
_PICOLIBC = ["--specs=picolibc.specs", "--crt0=hosted", "--oslib=semihost"]
_PICOLIBC += ["-Wl,--defsym=__flash=0x80000000,--defsym=__flash_size=224K"]
_PICOLIBC += ["-Wl,--defsym=__ram=0x80100000,--defsym=__ram_size=16K"]
_RISC_V = {
    "rv32imac": ["-march=rv32imac", "-mabi=ilp32", *_PICOLIBC],
    "rv32imafc": ["-march=rv32imafc", "-mabi=ilp32f", *_PICOLIBC],
}
# Cores that no simulated chip has. Functions of m4f-softfp pass floats in integer registers.
OTHER_CORES = _RISC_V | {
    "m4f-softfp": ["-mcpu=cortex-m4", "-mfloat-abi=softfp", "-mfpu=fpv4-sp-d16"],
    "m7": ["-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"],
    "m33": ["-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16",
            "-Wl,--defsym=flash=0x10000000,--defsym=ram=0x38000000"],
}  # fmt: skip
# The machines of QEMU that have the cores. That of the Cortex-M0+ has a Cortex-M0.
_MACHINES = {
    "m0plus": "microbit", "m4f": "mps2-an386", "m4f-softfp": "mps2-an386", "m7": "mps2-an500",
    "m33": "mps2-an505", "rv32imac": "virt", "rv32imafc": "virt",
}  # fmt: skip
MARK, WRITE, EXIT = 0x1000, 0x04, 0x20

needs_compiler = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="arm-none-eabi-gcc is missing"
)
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None, reason="qemu-system-arm is missing"
)


def build(core: str, source: str, folder: Path, *options: str) -> Path:
    """Compile one test program for a core; `options` go to the compiler."""
    name = hashlib.sha256(" ".join((core, source, *options)).encode()).hexdigest()[:12]
    target = folder / f"{Path(source).stem}-{name}.elf"
    command = [*_compiler(core), "-g", "-Wno-unused"]
    if core not in _RISC_V:
        command += ["-ffreestanding", "-nostartfiles", "--specs=nosys.specs"]
        command += [f"-T{FOLDER / 'test.ld'}", str(FOLDER / "startup.c")]
    command += ["-Wl,--no-warn-rwx-segments", *options, "-o", str(target)]
    subprocess.run([*command, str(FOLDER / source), "-lm"], check=True)
    return target


def build_library(core: str, folder: Path, *options: str) -> list[str]:
    """Compile the portable library and return its object files."""
    folders = [FIRMWARE / name for name in ("include", "src", "kernels")]
    command = [*_compiler(core), *options, *(f"-I{it}" for it in folders[:2])]
    command += ["-ffunction-sections", "-fdata-sections", "-c"]
    sources = [str(path) for it in folders[1:] for path in c_files(it)]
    folder.mkdir()
    subprocess.run([*command, *sources], cwd=folder, check=True)
    return [str(path) for path in sorted(folder.glob("*.o"))]


def _compiler(core: str) -> list[str]:
    options = (CORES | OTHER_CORES)[core]
    if core not in _RISC_V:
        options = ["-mthumb", *options]
    name = "riscv64-unknown-elf-gcc" if core in _RISC_V else "arm-none-eabi-gcc"
    # Products may be fused.
    return [compiler(name), *options, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]


def build_with_sensor(source: str, folder: Path, *options: str) -> Path:
    """Compile a test program that uses the accelerometer's driver, that of the examples."""
    driver, port = NANO_33_IOT, FIRMWARE / "port" / "samd21"
    sources = (f"-I{driver}", f"-I{port}", str(driver / "accelerometer.c"))
    return build("m0plus", source, folder, *sources, *options)


@dataclass
class Outcome:
    """The output of a program and how it ended, with the meter at its marks."""

    code: int = -1
    text: str = ""
    result: str = ""
    message: str = ""
    cycles: int = 0
    instructions: int = 0
    exceptions: int = 0
    asleep_ticks: int = 0
    ticks: int = 0
    marks: list[int] = field(default_factory=list)

    def fails(self, text: str) -> None:
        """Assert that the program ended with a fault whose message has this text."""
        assert self.result == "fault"
        assert text in self.message


def run(
    machine: object,
    *,
    slice_ticks: int = 10_000_000,
    slices: int = 100,
    between: Callable[[object], None] | None = None,
) -> Outcome:
    """Run a struct machine of chip/api.h until it ends, and serve its semihosting calls."""
    ffi, lib = chips()
    out = Outcome()
    meter = ffi.new("struct machine_meter *")
    for _ in range(slices):
        result = lib.machine_run(machine, slice_ticks)
        out.result = RESULTS[result]
        lib.machine_meter(machine, meter)
        for name in ("cycles", "instructions", "exceptions", "asleep_ticks", "ticks"):
            setattr(out, name, getattr(meter, name))
        if out.result == "breakpoint":
            operation, argument = (lib.machine_register(machine, i) for i in (0, 1))
            if operation == MARK:
                out.marks.append(out.cycles)
            elif operation == WRITE:
                out.text += peek_text(machine, argument)
            elif operation == EXIT:
                out.code = int.from_bytes(peek(machine, argument + 4, 4), "little")
                out.result = "exit"
                break
            lib.machine_continue(machine, 0)
        elif out.result != "slice":
            out.message = ffi.string(lib.machine_message(machine)).decode()
            break
        if between:
            between(machine)
    return out


def peek(machine: object, address: int, size: int) -> bytes:
    ffi, lib = chips()
    data = ffi.new("uint8_t[]", size)
    assert lib.machine_peek(machine, address, data, size)
    return bytes(data)


def peek_text(machine: object, address: int) -> str:
    text = b""
    while not text.endswith(b"\0"):
        text += peek(machine, address + len(text), 1)
    return text[:-1].decode()


def bare(core: str, elf: Path) -> object:
    """A chip with only the peripherals of the core, loaded and reset."""
    return started(chips()[1].bare_new(core == "m4f", 224 * 1024, 16384), elf)


def started(machine: Any, elf: Path, flash: Path | None = None) -> Any:
    """Load an image into a new struct machine, reset it, and free it at the end.

    `flash`: file that keeps the content of the chip's flash.
    """
    ffi, lib = chips()
    machine = ffi.gc(machine, lib.machine_free)
    if flash is not None:
        with flash.open("r+b") as file:
            assert lib.machine_flash_file(machine, file.fileno())
    load_elf(machine, elf)
    lib.machine_reset(machine)
    return machine


def samd21(elf: Path, card: Any = None, flash: Path | None = None) -> Any:
    """An MKR1000's chip: UART on SERCOM5, the card on SERCOM1 with select PB10."""
    ffi, lib = chips()
    config = ffi.new("struct samd21_config *")
    config.spi = {"sercom": 1, "input_select": 3, "function": 2, "pins": [16, 17, 19]}
    config.spi.pin_count = 3
    config.uart = {"sercom": 5, "output_select": 1, "input_select": 3, "function": 3}
    config.uart.pins[0], config.uart.pins[1], config.uart.pin_count = 54, 55, 2
    config.card_select_pin = 32 + 10
    config.serial_number = [0x11111111, 2, 3, 0x44444444]
    return started(lib.samd21_new(config, card or ffi.NULL), elf, flash)


def nrf52840(elf: Path, card: Any = None, flash: Path | None = None) -> Any:
    """An nRF52840-DK's chip: UART on P0.06 and P0.08, the card on P1.12 to P1.15."""
    ffi, lib = chips()
    config = ffi.new("struct nrf52840_config *")
    config.spi_sck_pin, config.spi_mosi_pin, config.spi_miso_pin = 47, 45, 46
    config.card_select_pin, config.uart_tx_pin, config.uart_rx_pin = 44, 6, 8
    config.device_id = [0x01234567, 0x89ABCDEF]
    return started(lib.nrf52840_new(config, card or ffi.NULL), elf, flash)


def echo(machine: Any) -> tuple[Outcome, int]:
    """Send 101 bytes to a program that returns each plus 1; its outcome, and the ticks taken."""
    ffi, lib = chips()
    assert run(machine).result == "idle"
    before = run(machine).ticks
    sent = bytes(range(1, 101)) + b"\0"
    assert lib.machine_serial_give(machine, sent, len(sent)) == len(sent)
    outcome = run(machine)
    data = ffi.new("uint8_t[]", 200)
    taken = lib.machine_serial_take(machine, data, 200)
    assert bytes(data)[:taken] == bytes(b + 1 for b in sent)
    return outcome, outcome.ticks - before


def with_other_relu(board: str, code: bytes, folder: Path) -> tuple[Path, int]:
    """The board's image whose relu begins with these instructions, and their address."""
    elf = build_firmware(board)
    image, data = read_elf(elf), bytearray(elf.read_bytes())
    address = image.symbols["poet_relu"] & ~1
    old = next(c[address - at :][:64] for at, c in image.code if at <= address < at + len(c))
    at = data.index(old)
    data[at : at + len(code)] = code
    (made := folder / "broken.elf").write_bytes(data)
    return made, address


def words(text: str) -> list[int]:
    """The hexadecimal numbers that a program has printed."""
    return [int(line, 16) for line in text.split()]


def qemu(core: str, elf: Path) -> tuple[int, str]:
    """Run on QEMU; (exit code, printed text)."""
    architecture = "riscv32" if core in _RISC_V else "arm"
    command = [compiler(f"qemu-system-{architecture}"), "-M", _MACHINES[core], "-nographic"]
    command += ["-monitor", "none", "-serial", "none", "-icount", "shift=0", "-kernel", str(elf)]
    command += ["-bios", "none"] if core in _RISC_V else []
    command += ["-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr
