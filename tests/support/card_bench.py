"""The firmware's SD driver on this computer, with the card of the simulated boards.

python -m support.card_bench SEED -SECONDS     disturbs its wire (make fuzz-card)
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import cffi
from poet_host.firmware_build.compile import declarations
from poet_host.resources import resource
from poet_host.sim.chip_library import SOURCES
from poet_host.sim.chipfile import load_card
from support.c_objects import object_of
from support.sd_card import BLOCK, CardModel
from support.usb_layer import FLAGS, SANITIZE

HERE = Path(__file__).parents[1] / "firmware" / "card"
COMMON = resource("firmware") / "port" / "common"
MODEL = ("sdcard.c", "sdcommand.c", "sdstore.c")
RUNTIME = ("pager.c", "pieces.c", "crc32.c")  # for the lane: what else they call, it does not need
UNCUT = 2**64 - 1
IMAGE_BYTES = 512 * 1024


def compile_bench(target: Path, *flags: str, fuzz: bool, common: Path = COMMON) -> None:
    """Compile driver, bench and card, as a library or as the fuzzer."""
    firmware = resource("firmware")
    mine = ["bench.c", *(["fuzz.c"] if fuzz else [])]
    sources = [HERE / name for name in mine] + [SOURCES / name for name in MODEL]
    sources += [firmware / "src" / name for name in RUNTIME]
    folders = (common, firmware / "include", firmware / "src", SOURCES)
    # The card's warnings are those of chip_library.
    command = ["cc", *FLAGS, "-Wno-conversion", "-Wno-shadow", *flags]
    command += ["-ffunction-sections", "-fdata-sections", *(f"-I{folder}" for folder in folders)]
    # The source driver.c includes those of `common`.
    inputs = [HERE / "driver.c", *(object_of(source, *command) for source in sources)]
    command += [*map(str, inputs), "-Wl,--gc-sections", "-o", str(target)]
    subprocess.run(command, check=True)


class CardBench(CardModel):
    """A powered card with an image of `IMAGE_BYTES`. The driver is reset and has not mounted it.

    `name`: of the card in cards.toml; `changed`: fields of sdcard_config that replace its own.
    """

    def __init__(self, library: Path, folder: Path, name: str = "strict", **changed: int) -> None:
        own = folder / f"{len(list(folder.iterdir()))}.so"  # with statics of its own
        shutil.copy(library, own)
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations(SOURCES / "api.h"))
        bench = declarations(HERE / "bench.h")
        self.ffi.cdef(bench[bench.index("/* Power on a card") :])
        self.lib = self.ffi.dlopen(str(own), self.ffi.RTLD_LAZY)
        self.image = folder / f"{own.stem}.img"
        self.image.write_bytes(bytes(IMAGE_BYTES))
        fields = asdict(load_card(name)) | {"seed": 1} | changed
        self.config = self.ffi.new("struct sdcard_config *", fields)
        self.power_on()

    def power_on(self) -> None:
        assert self.lib.bench_start(str(self.image).encode(), self.config)
        self.card = self.lib.bench_card()

    def mount(self) -> bool:
        return bool(self.lib.bench_mount() == IMAGE_BYTES // BLOCK)

    def write(self, block: int, data: bytes, cut: int = UNCUT) -> int:
        return int(self.lib.bench_write(block, len(data) // BLOCK, data, cut))

    def read(self, block: int, count: int) -> bytes | int:
        """The blocks, or the error."""
        data = self.ffi.new("uint8_t[]", count * BLOCK)
        error = self.lib.bench_read(block, count, data)
        return int(error) if error else bytes(data)

    def stored(self, block: int, count: int) -> bytes:
        return self.image.read_bytes()[block * BLOCK : (block + count) * BLOCK]

    @property
    def retries(self) -> int:
        return int(self.lib.bench_retries())


def main(seed: str, limit: str) -> int:
    """Compile the fuzzer and run it: SEED and -SECONDS, or SEED and a number of rounds."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "fuzz"
        compile_bench(program, *SANITIZE, fuzz=True)
        return subprocess.run([program, seed, limit], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
