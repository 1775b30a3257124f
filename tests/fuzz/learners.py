"""The formats of devices that learn: packages, traces, and images of their storage.

The schedule and the weights of the package are the same in all cases: each process reads them once.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import poet_host as poet
from poet_host.card.weights import SavedWeights, load_weights
from poet_host.package import folder as package
from poet_host.package.trace import read_trace
from poet_host.schedule.schedule import Schedule
from support import corpus

from .formats import Format
from .mutate import changed, damaged, json_bytes

_DEVICE = corpus.NOW / "device"
_TRACE = corpus.NOW / "device-trace.npz"
_BLOCK_BYTES = 512
_STEPS = 3


class _Once:
    load = cache(Schedule.load)


@cache
def _weights(path: Path) -> SavedWeights:
    return load_weights(path, _Once.load(path.with_suffix(".poet")).graph)


@contextmanager
def _read_once() -> Iterator[None]:
    """Within it, a package's schedule and weights are read once; all else is read each time."""
    with patch.multiple(package, Schedule=_Once, load_weights=lambda path, _: _weights(path)):
        yield


class Replayed(Format):
    """A package or a trace. Steps are repeated once for each content that readers return."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.known: set[int] = set()

    def replay(self, folder: Path, trace: Path) -> None:
        packaged = package.load(folder)
        found = read_trace(trace, packaged)
        about = packaged.name, packaged.raw, packaged.slots, packaged.seed
        if (what := hash((about, found.x.tobytes(), found.taught))) not in self.known:
            poet.replay(folder, trace, steps=_STEPS)
            self.known.add(what)


class PackageFile(Replayed):
    """The statements of a package; its schedule and weights are whole."""

    suffix = ".json"
    exit_codes = (1, 2)  # 1: its raw values become so large that training diverges

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.package = folder / "package"
        shutil.copytree(_DEVICE, self.package)
        self.content = (_DEVICE / "package.json").read_bytes()
        self.value = json.loads(self.content)

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        path.write_bytes(self.content if valid else json_bytes(changed(self.value, rng), rng))

    def use(self, path: Path, rng: Random) -> None:
        shutil.copyfile(path, self.package / "package.json")
        with _read_once():
            self.replay(self.package, _TRACE)


class TraceFile(Replayed):
    """What a device was taught."""

    suffix = ".npz"
    content = _TRACE.read_bytes()

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        path.write_bytes(self.content if valid else damaged(self.content, rng))

    def use(self, path: Path, rng: Random) -> None:
        with _read_once():
            self.replay(_DEVICE, path)


class LearnerImage(Format):
    """The storage of a learner: its records, weights and samples."""

    suffix = ".img"
    exit_codes = (1, 2)  # 1: weights are damaged

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.content = corpus.content(corpus.NOW / "device.img.xz")
        starts = range(0, len(self.content), _BLOCK_BYTES)
        self.used = [at for at in starts if any(self.content[at : at + 4])]

    def write(self, path: Path, rng: Random, valid: bool) -> None:
        content = bytearray(self.content)
        for _ in range(0 if valid else rng.choice((1, 1, 2, 4))):
            at = rng.choice(self.used)
            block = damaged(bytes(content[at : at + _BLOCK_BYTES]), rng)
            content[at : at + _BLOCK_BYTES] = block[:_BLOCK_BYTES].ljust(_BLOCK_BYTES, b"\0")
        path.write_bytes(content if valid or rng.random() < 0.9 else damaged(bytes(content), rng))

    def use(self, path: Path, rng: Random) -> None:
        with _read_once():
            poet.read_learner(path, _DEVICE)


FORMATS: dict[str, type[Format]] = {
    "package.json": PackageFile, "trace": TraceFile, "learner": LearnerImage,
}  # fmt: skip
