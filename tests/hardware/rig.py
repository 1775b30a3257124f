"""A board on the bench, real or simulated, and what to look at when it fails."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from poet_host.device.device import TENSOR, Device, connect
from poet_host.errors import PoetError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.graph.graph import Graph
from poet_host.schedule.schedule import Schedule
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.native import create_storage

CARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Rig:
    board: str
    port: str
    upload_port: str | None = None
    no_flash: bool = False
    simulated: SimulatedBoard | None = None

    def connect(self) -> Device:
        return connect(self.port)

    def clock_us(self) -> float:
        """A clock that is not the board's own timer."""
        if self.simulated is None:
            return time.monotonic() * 1e6
        return self.simulated.meter.time_us


@contextmanager
def simulated_rig(board: str, folder: Path) -> Iterator[Rig]:
    card = folder / "card.img"
    create_storage(card, CARD_BYTES)
    with SimulatedBoard(board, build_firmware(board), card) as running:
        yield Rig(board, running.port, simulated=running)


@contextmanager
def look(at: str) -> Iterator[None]:
    """Report a failure inside together with the parts to look at on the bench."""
    failure = None
    try:
        yield
    except (PoetError, AssertionError, OSError) as error:
        failure = str(error)
    if failure is not None:
        pytest.fail(f"{failure}\n>>> look at: {at}", pytrace=False)


def prepare(device: Device, schedule: Schedule, stored: dict[str, np.ndarray]) -> None:
    """Format the card, load the schedule, and commit the stored tensors as step 0."""
    device.format()
    device.load(schedule.model_part, schedule.plan_part)
    for name, array in stored.items():
        data = np.ascontiguousarray(array).tobytes()
        device.write(TENSOR, schedule.names.index(name), data)
    device.begin(0)


def weights(device: Device, graph: Graph, schedule: Schedule) -> dict[str, bytes]:
    """Return all parameters and states that the board has committed."""
    return {
        node.name: device.read(TENSOR, schedule.names.index(node.name), node.size_bytes)
        for node in graph
        if node.role in ("parameter", "state")
    }
