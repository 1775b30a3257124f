"""The formats of devices that learn: packages, traces, and images of their storage."""

import json
import shutil
from pathlib import Path
from random import Random

import poet_host as poet
from support import corpus

from .formats import Format
from .mutate import changed, damaged, json_bytes

_DEVICE = corpus.NOW / "device"
_BLOCK_BYTES = 512
_STEPS = 3


class PackageFile(Format):
    """The statements of a package; its schedule and weights are whole."""

    suffix = ".json"

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        content = (_DEVICE / "package.json").read_bytes()
        path.write_bytes(content if valid else json_bytes(changed(json.loads(content), rng), rng))

    def use(self, path: Path, rng: Random) -> None:
        folder = self.folder / "package"
        shutil.copytree(_DEVICE, folder, dirs_exist_ok=True)
        shutil.copyfile(path, folder / "package.json")
        poet.replay(folder, corpus.NOW / "device-trace.npz", steps=_STEPS)


class TraceFile(Format):
    """What a device was taught."""

    suffix = ".npz"

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        content = (corpus.NOW / "device-trace.npz").read_bytes()
        path.write_bytes(content if valid else damaged(content, rng))

    def use(self, path: Path, rng: Random) -> None:
        poet.replay(_DEVICE, path, steps=_STEPS)


class LearnerImage(Format):
    """The storage of a learner: its records, weights and samples."""

    suffix = ".img"
    exit_codes = (1, 2)  # 1: weights are damaged

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        content = bytearray(corpus.content(corpus.NOW / "device.img.xz"))
        used = [at for at in range(0, len(content), _BLOCK_BYTES) if any(content[at : at + 4])]
        for _ in range(0 if valid else rng.choice((1, 1, 2, 4))):
            at = rng.choice(used)
            block = damaged(bytes(content[at : at + _BLOCK_BYTES]), rng)
            content[at : at + _BLOCK_BYTES] = block[:_BLOCK_BYTES].ljust(_BLOCK_BYTES, b"\0")
        path.write_bytes(content if valid or rng.random() < 0.9 else damaged(bytes(content), rng))

    def use(self, path: Path, rng: Random) -> None:
        poet.read_learner(path, _DEVICE)


FORMATS: dict[str, type[Format]] = {
    "package.json": PackageFile, "trace": TraceFile, "learner": LearnerImage,
}  # fmt: skip
