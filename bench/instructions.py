"""Count the instructions of convolutions on AArch64: QEMU names each one that it executes."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from poet_host import isa
from poet_host.errors import PoetError
from poet_host.firmware_build.native import FLAGS, cross_tools
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource

TARGET, EMULATOR = "aarch64-linux-gnu", "qemu-aarch64"
KERNELS = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
# Taps inside of the image: 16 channels of 32 by 32 to 16, 3 by 3, padding 1 (instructions.c).
MACS = 16 * 16 * (3 * 32 - 2) ** 2
_SOURCE = Path(__file__).with_name("instructions.c")


def instructions_per_mac() -> dict[str, float]:
    """Return, for each kernel of a 3x3 convolution, its instructions per multiply-add.

    Raises PoetError if the compiler or QEMU is missing.
    """
    compiler, _ = cross_tools(TARGET)
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        raise PoetError(f"{EMULATOR} is not on the PATH: try 'apt install qemu-user'")
    firmware = resource("firmware")
    sources = [_SOURCE, *c_files(firmware / "kernels")]
    with TemporaryDirectory() as folder:
        program = Path(folder) / "instructions"
        command = [compiler, *FLAGS, "-static", f"-I{firmware / 'include'}", *map(str, sources)]
        subprocess.run([*command, "-lm", "-o", str(program)], check=True)
        rest = _count(emulator, program, 0)  # what the program executes without a kernel
        codes = isa.by_name("KERNEL")
        return {
            name: (_count(emulator, program, codes[name].code) - rest) / MACS for name in KERNELS
        }


def _count(emulator: str, program: Path, kernel: int) -> int:
    """Return how many instructions the program executes."""
    help_text = subprocess.run([emulator, "--help"], capture_output=True, text=True, check=False)
    single = "-one-insn-per-tb" if "one-insn-per-tb" in help_text.stdout else "-singlestep"
    command = [emulator, single, "-d", "exec,nochain", str(program), str(kernel)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        count = sum(line.startswith(b"Trace") for line in running.stderr)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return count
