"""Boards that train the toy: in RAM, and as processes at a port."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from poet_host.device.device import TENSOR, Device, connect
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.schedule.schedule import Schedule
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.simulated_chip import CardFault
from support import toy
from support.card_image import BLOCK, CardImage
from support.memory_board import PARTITION, MemoryBoard, card


def in_partition(block: int) -> slice:
    at = (PARTITION + block) * BLOCK
    return slice(at, at + BLOCK)


def trained(
    storage: CardImage,
    steps: int = 0,
    kind: str = "frugal",
    seed: int = 1,
    cache: int = 3,
    arena_bytes: int = 4096,
    queue: int = 8,
) -> MemoryBoard:
    """Return a board with the toy's tensors of `seed`, after `steps` steps."""
    board = MemoryBoard(storage, arena_bytes, cache=cache, queue=queue)
    board.format()
    load(board, kind, seed)
    for number, data in enumerate(toy.values(seed, kind)):
        board.write(2, number, 0, data)
    board.begin(0)
    for step in range(1, steps + 1):
        board.step(step)
    return board


def load(board: MemoryBoard | Device, kind: str = "frugal", seed: int = 1) -> Schedule:
    """Load a schedule of the toy. A board in memory is given the batch of `seed` in each step."""
    schedule = toy.schedule(kind)
    board.load(schedule.model_part, schedule.plan_part)
    if isinstance(board, MemoryBoard):
        board.batch = dict(zip((toy.X, toy.T), toy.values(seed, kind), strict=False))
    return schedule


def begin(board: MemoryBoard, seed: int = 1) -> None:
    """Train from the toy's weights of `seed`."""
    for number in (toy.W, toy.V):
        board.write(2, number, 0, toy.values(seed)[number])
    board.begin(0)


def give_batch(board: MemoryBoard, kind: str = "frugal") -> None:
    for number in (toy.X, toy.T):
        board.write(2, number, 0, toy.values(1, kind)[number])


def run_in_ram(board: MemoryBoard, first: int, last: int, every: int) -> None:
    """Train with weights in RAM, and commit them after every `every` steps."""
    for step in range(first, last + 1):
        give_batch(board)
        board.step(step)
        if step % every == 0:
            board.save()


def run_step(device: Device, number: int, *trace: int) -> Any:
    """Send the toy's batch to a board, and run a step."""
    for tensor, data in zip((toy.X, toy.T), toy.values(1), strict=False):
        device.write(TENSOR, tensor, data)
    return device.step(number, *trace)


def weights(board: MemoryBoard, kind: str = "frugal") -> tuple[bytes, bytes]:
    sizes = toy.sizes(kind)
    return board.tensor(toy.W, sizes[toy.W]), board.tensor(toy.V, sizes[toy.V])


@cache
def truth(kind: str = "frugal", seed: int = 1, steps: int = 4) -> list[tuple[bytes, bytes]]:
    """Weights after 0, 1, ... steps of an undisturbed run."""
    board = trained(card(), kind="small lavish" if "small" in kind else "lavish", seed=seed)
    found = [weights(board, kind)]
    for step in range(1, steps + 1):
        board.step(step)
        found.append(weights(board, kind))
    assert len(set(found)) == steps + 1  # each step moves them
    return found


def prepare(device: Device, kind: str = "frugal", seed: int = 1) -> None:
    """Format the board's card and bring it to step 0 of the toy."""
    device.format()
    load(device, kind)
    for number, data in enumerate(toy.values(seed)):
        device.write(TENSOR, number, data)
    device.begin(0)


def weights_of(device: Device) -> tuple[bytes, bytes]:
    w, v = toy.SIZES[toy.W], toy.SIZES[toy.V]
    return device.read(TENSOR, toy.W, w), device.read(TENSOR, toy.V, v)


@contextmanager
def running(
    name: str, storage: Path | None, /, *faults: CardFault, seed: int = 1, **card: int | str
) -> Iterator[tuple[SimulatedBoard, Device]]:
    """Start a simulated board and connect to it. `card`: see SimulatedBoard."""
    image = build_firmware(name)
    with (
        SimulatedBoard(name, image, storage, faults=faults, card=card, seed=seed) as board,
        connect(board.port) as device,
    ):
        yield board, device
