"""The firmware's USB device on this computer, plugged into a simulated host.

python tests/support/usb_layer.py SEED -SECONDS     fuzzes it (make fuzz-usb)
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
from poet_host.firmware_build.compile import declarations
from poet_host.resources import resource
from poet_host.sim.chip_library import SOURCES, unicorn_folder

HERE = Path(__file__).parents[1] / "firmware" / "usb"
FIRMWARE = ("usb.c", "usb_descriptors.c", "usb_serial.c", "link.c")
HOST = ("usb_bus.c", "usb_host.c", "usb_tty.c", "serial.c")
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZE = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
STALLED = -1
CALLS = """
    struct machine *plugged_start(const char *product, const char *serial, bool reports_status);
    bool plugged_run(uint32_t us);
    uint64_t plugged_ticks(void);
    unsigned plugged_sent(uint8_t sizes[256]);
    unsigned plugged_touches(void);
    void plugged_uart_give(const uint8_t *data, uint32_t size);
    uint32_t plugged_uart_take(uint8_t data[4096]);
    uint32_t usb_session(void);
    bool usb_waiting(void);
    uint32_t usb_receive(uint8_t *data, uint32_t size);
    void usb_send(const uint8_t *data, uint32_t size);
    void usb_last_words(const char *text);
    bool link_waiting(void);
    uint32_t link_receive(uint8_t *data, uint32_t size);
    void link_send(const uint8_t *data, uint32_t size);
"""


COMMON = resource("firmware") / "port" / "common"


def compile_layer(target: Path, *flags: str, host: bool, common: Path = COMMON) -> None:
    """Compile the firmware's files with the loop-back controller, for the host or the fuzzer."""
    mine = ("loopback.c", "plugged.c" if host else "fuzz.c")
    sources = [HERE / name for name in mine] + [common / name for name in FIRMWARE]
    include = [f"-I{common}", f"-I{resource('firmware') / 'include'}"]
    if host:
        sources += [SOURCES / name for name in HOST]
        include += [f"-I{SOURCES}", f"-I{unicorn_folder() / 'include'}"]
    command = ["cc", *FLAGS, *flags, *include, *map(str, sources), "-o", str(target)]
    subprocess.run(command, check=True)


@dataclass(frozen=True)
class Request:
    """A control transfer of the host: eight bytes in hexadecimal, address, result and answer."""

    setup: str
    address: int
    result: int
    data: bytes


def requests(lib: Any, machine: object) -> list[Request]:
    """Return the latest control transfers of a simulated host, at most 64."""
    count = lib.machine_usb_requests(machine)
    raw = [lib.machine_usb_request(machine, i) for i in range(max(0, count - 64), count)]
    return [
        Request(
            bytes(item.setup).hex(),
            item.address,
            item.result,
            bytes(item.data)[: max(0, item.result)],
        )
        for item in raw
    ]


# The requests of Linux' hub and cdc_acm for a new serial port: address, setup, and result.
LINUX = [
    (0, "8006000100004000", 18),  # GET_DESCRIPTOR device, as much as fits
    (0, "0005050000000000", 0),  # SET_ADDRESS
    (5, "8006000100001200", 18),
    *3 * [(5, "8006000600000a00", STALLED)],  # GET_DESCRIPTOR device qualifier, of faster devices
    (5, "8006000200000900", 9),  # GET_DESCRIPTOR configuration, and whole
    (5, "8006000200004300", 67),
    (5, "800600030000ff00", 4),  # strings: languages, product, manufacturer, serial number
    (5, "800602030904ff00", 16),
    (5, "800601030904ff00", 20),
    (5, "800603030904ff00", 34),
    (5, "0009010000000000", 0),  # SET_CONFIGURATION
    (5, "2120000000000700", 7),  # SET_LINE_CODING
    (5, "2122030000000000", 0),  # SET_CONTROL_LINE_STATE: a program opens the port
    (5, "2120000000000700", 7),
]


class Plugged:
    """A new device, plugged in. It copies `library`, so that it has statics of its own."""

    def __init__(
        self,
        library: Path,
        folder: Path,
        product: bytes = b"mkr1000",
        serial: bytes = b"0123456789abcdef",
        *,
        reports_status: bool = True,
    ) -> None:
        own = folder / f"{len(list(folder.iterdir()))}.so"
        shutil.copy(library, own)
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations(SOURCES / "api.h"))
        self.ffi.cdef(CALLS)
        self.lib: Any = self.ffi.dlopen(str(own))
        self._texts = [self.ffi.new("char[]", text) for text in (product, serial)]
        self.machine = self.lib.plugged_start(*self._texts, reports_status)

    def run(self, us: int) -> bool:
        """Run for `us`; return True if the host still has something to do."""
        return bool(self.lib.plugged_run(us))

    def enumerate(self) -> None:
        self.run(1_000_000)
        assert self.lib.machine_usb_state(self.machine) == self.lib.USB_READY

    def open(self, is_open: bool = True, baud: int = 115200) -> None:
        self.lib.machine_usb_open(self.machine, is_open, baud)
        self.run(50_000)
        assert self.lib.machine_usb_is_open(self.machine) == is_open

    @property
    def requests(self) -> list[Request]:
        return requests(self.lib, self.machine)

    def ask(
        self, type_: int, request: int, value: int, index: int, length: int, data: bytes = b""
    ) -> bytes | int:
        """Make a control transfer; return the device's answer or STALLED."""
        setup = b"".join(
            number.to_bytes(size, "little")
            for number, size in ((type_, 1), (request, 1), (value, 2), (index, 2), (length, 2))
        )
        self.lib.machine_usb_ask(self.machine, setup, data, len(data))
        self.run(50_000)
        answer = self.ffi.new("uint8_t[512]")
        result = int(self.lib.machine_usb_answer(self.machine, answer))
        return bytes(answer)[:result] if result >= 0 else result

    def host_writes(self, data: bytes) -> None:
        assert self.lib.machine_usb_give(self.machine, data, len(data)) == len(data)

    def host_reads(self) -> bytes:
        self.run(5_000)
        size = self.lib.machine_usb_waiting(self.machine)
        data = self.ffi.new("uint8_t[]", size + 1)
        assert self.lib.machine_usb_take(self.machine, data, size) == size
        return bytes(data)[:size]

    def device_reads(self, room: int = 64) -> bytes:
        data = self.ffi.new("uint8_t[]", room)
        size = self.lib.usb_receive(data, room)
        return bytes(data)[:size]

    def device_reads_all(self) -> bytes:
        got = b""
        while self.run(1_000) or self.lib.usb_waiting():
            got += self.device_reads()
        return got

    def device_sends(self, data: bytes) -> None:
        self.lib.usb_send(data, len(data))

    @property
    def packets(self) -> list[int]:
        """Sizes of the data packets that the host has fetched, at most the first 256."""
        sizes = self.ffi.new("uint8_t[256]")
        count = self.lib.plugged_sent(sizes)
        return list(bytes(sizes)[:count])

    @property
    def time_us(self) -> float:
        return self.lib.plugged_ticks() / 48


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        compile_layer(Path(folder) / "fuzz", *SANITIZE, host=False)
        sys.exit(subprocess.run([Path(folder) / "fuzz", *sys.argv[1:]], check=False).returncode)
