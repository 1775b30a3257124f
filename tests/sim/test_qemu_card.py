"""The portable SD driver on QEMU's card: driver and card model cannot share an error."""

import subprocess
from pathlib import Path

from support.sim_helper import CORES, FOLDER, build, needs_compiler, needs_qemu

FIRMWARE = Path(__file__).parents[2] / "firmware"
BLOCK, FIRST, COUNT = 512, 5, 3
SIZE = 64 << 20


def block(number: int) -> bytes:
    return bytes((number * 7 + i * 13) % 256 for i in range(BLOCK))


@needs_compiler
@needs_qemu
def test_the_driver_works_on_the_card_of_qemu(tmp_path: Path) -> None:
    CORES["m3"] = ["-mcpu=cortex-m3"]
    common = FIRMWARE / "port" / "common"
    options = [
        f"-I{common}",
        f"-I{FIRMWARE / 'include'}",
        f"-I{FOLDER}",
        *(str(common / name) for name in ("card.c", "card_mount.c", "sd_bus.c")),
    ]
    elf = build("m3", "card_on_qemu.c", tmp_path, *options)
    image = tmp_path / "card.img"
    image.write_bytes(b"".join(map(block, range(64))) + bytes(SIZE - 64 * BLOCK))
    command = ["qemu-system-arm", "-M", "lm3s6965evb", "-nographic", "-monitor", "none"]
    command += ["-serial", "none", "-kernel", str(elf), "-drive", f"file={image},if=sd,format=raw"]
    command += ["-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert (done.stdout + done.stderr).endswith(f"{SIZE // BLOCK:08x}\n")
    after = image.read_bytes()
    written = bytes(b ^ 0xA5 for b in b"".join(map(block, range(FIRST, FIRST + COUNT))))
    assert after[(FIRST + 10) * BLOCK : (FIRST + 13) * BLOCK] == written
    assert after[(FIRST + 20) * BLOCK : (FIRST + 21) * BLOCK] == written[:BLOCK]
    assert after[: (FIRST + 10) * BLOCK] == b"".join(map(block, range(FIRST + 10)))
