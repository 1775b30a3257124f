"""The gateway of a device that learns by itself (device.c): it carries weights, and never samples.

Replace `Device` by your radio: it needs `read`, `write`, `adopt` and `learn`, nothing else.
"""

import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet

PIECE_BYTES = 200  # that a request carries: `packet` in device.c


class Device:
    """A process of device.c with its package, as a context manager."""

    def __init__(self, program: Sequence[str | Path], package: str | Path) -> None:
        self.package = poet.load_package(package)
        self._pipe = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.communicate(timeout=10)

    def _ask(
        self, what: str, tensor: int = 0, offset: int = 0, size: int = 0, data: bytes = b""
    ) -> bytes:
        assert self._pipe.stdin is not None
        assert self._pipe.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer
            self._pipe.stdin.write(struct.pack("<4I", ord(what), tensor, offset, size) + data)
            self._pipe.stdin.flush()
        answer = self._pipe.stdout.read(4)
        if len(answer) < 4 or (result := struct.unpack("<i", answer)[0]) < 0:
            end = "has ended" if len(answer) < 4 else f"reports {result}, see poet/learner.h"
            raise poet.LinkBroken(f"the device {end}: start it again, and repeat the round")
        return self._pipe.stdout.read(size) if what == "r" else b""

    def _stored(self, name: str) -> Any:
        """How the device stores a tensor."""
        schedule = self.package.schedule
        return schedule.model.tensors[schedule.names.index(name)]

    def weights(self) -> dict[str, np.ndarray]:
        """Return all parameters and states, by node name."""
        graph, found = self.package.schedule.graph, {}
        for tensor, name in enumerate(self.package.tensors):
            places = range(0, graph[name].size_bytes, PIECE_BYTES)
            sizes = [min(PIECE_BYTES, graph[name].size_bytes - at) for at in places]
            data = b"".join(
                self._ask("r", tensor, at, size) for at, size in zip(places, sizes, strict=True)
            )
            stored = self._stored(name).row_major(data)
            found[name] = np.frombuffer(stored, "<f4").reshape(graph[name].shape)
        return found

    def adopt(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace the weights that are given, all at once. States of the optimiser become zero."""
        graph = self.package.schedule.graph
        trained = {node.name for node in graph.trainable}
        for tensor, name in enumerate(self.package.tensors):
            value = weights.get(name.removesuffix(":anchor"))
            if value is None and graph[name].start != "zeros":
                continue  # a constant
            value = np.zeros(graph[name].shape) if value is None else value
            kept = name not in trained and not name.endswith(":anchor")
            if kept and np.array_equal(value, self.package.weights[name]):
                continue  # it is frozen, and the device may refuse it
            data = self._stored(name).in_order(np.ascontiguousarray(value, "<f4").tobytes())
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                self._ask("w", tensor, at, len(piece), piece)
        self._ask("a")

    def learn(self, steps: int) -> None:
        """Train `steps` steps on the samples of the device, and save."""
        self._ask("l", size=steps)


def train_round(
    device: Device, weights: Mapping[str, np.ndarray], local_steps: int
) -> dict[str, np.ndarray]:
    """Train a round on the device, and return its answer: the new values of `weights`."""
    device.adopt(weights)
    device.learn(local_steps)
    found = device.weights()
    return {name: found[name] for name in weights}
