"""The firmware's runtime on this computer, with cards in memory whose contents are changed.

python -m support.contents_bench SEED -SECONDS     (make fuzz-contents)
"""

import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from poet_host.card.job import make_job
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource
from support import toy, toy_job
from support.c_objects import object_of
from support.card_image import DATA_BLOCK
from support.memory_board import PARTITION, card
from support.toy_boards import trained
from support.usb_layer import FLAGS, SANITIZE

HERE = Path(__file__).parents[1] / "firmware" / "contents"
CARDS = (  # kind, steps trained
    *(("frugal", 0), ("frugal", 3), ("cut", 2), ("lavish", 1)),
    *(("small", 2), ("small returning", 1), ("stays wv every 3", 4)),
)
PARTITION_BLOCKS = (
    DATA_BLOCK + 57_344 + 8192 + 300
)  # the toy's tensors, a job, and space for probes
AFTER = 64  # blocks of the card that are not in the partition


def write_card(path: Path, kind: str, steps: int) -> None:
    """Write the image of a good card: a trained toy, and a job for the steps after it."""
    blank = card(PARTITION + PARTITION_BLOCKS + AFTER)
    blank[446 + 12 : 446 + 16] = struct.pack("<I", PARTITION_BLOCKS)
    board = trained(blank, steps, kind)
    data = toy_job.data(toy.sizes(kind)[toy.X] // 4 // toy.N)
    toy_job.put(board, make_job(toy.schedule(kind), data, 7, steps, toy_job.STEPS))
    board.storage.write_to(path)


def compile_fuzzer(
    folder: Path, firmware: Path | None = None, flags: Sequence[str] = SANITIZE
) -> tuple[Path, list[Path]]:
    """Write the good cards to `folder`, and compile the fuzzer. Return it, and their images."""
    firmware = firmware or resource("firmware")
    images = [folder / f"{number}.img" for number in range(len(CARDS))]
    for path, (kind, steps) in zip(images, CARDS, strict=True):
        write_card(path, kind, steps)
    program = folder / "fuzz"
    command = ["cc", *FLAGS, "-ffp-contract=off", *flags, "-DPOET_POISON"]
    command += [f"-I{firmware / 'include'}", f"-I{firmware / 'src'}", f"-I{HERE}"]
    sources = [HERE.parent / "board.c", HERE / "change.c", HERE / "fuzz.c"]
    sources += c_files(firmware / "src") + c_files(firmware / "kernels")
    inputs = [object_of(source, *command) for source in sources]
    subprocess.run([*command, *map(str, inputs), "-o", program, "-lm"], check=True)
    return program, images


def main(seed: str, limit: str) -> int:
    """Compile the fuzzer and run it: SEED and -SECONDS, or SEED and a number of rounds."""
    with tempfile.TemporaryDirectory() as folder:
        program, images = compile_fuzzer(Path(folder))
        return subprocess.run([program, seed, limit, *images], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
