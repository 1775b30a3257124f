"""A job of the toy on a card, by which a board trains alone."""

from functools import cache
from pathlib import Path

import numpy as np
from poet_host import isa
from poet_host.card.job import Job, make_job
from poet_host.data.datasets import Dataset
from poet_host.device.device import JOB
from support import toy
from support.card_image import BLOCK, CardImage, read_image
from support.memory_board import MemoryBoard, card
from support.serial_server import Server
from support.toy_boards import load, trained, weights

STEPS, SAMPLES = 3, 5
NAME_BYTES = isa.record_size("poet_job_log")


@cache
def data(columns: int = toy.C) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.3, 0.3, (SAMPLES, columns)).astype(np.float32)
    return Dataset("toy", x, rng.uniform(-0.3, 0.3, (SAMPLES, toy.K)).astype(np.float32))


def job(first: int = 0, steps: int = STEPS) -> Job:
    return make_job(toy.schedule(), data(), 7, first, steps)


def put(board: MemoryBoard, one: Job) -> None:
    """As write_job does."""
    log = bytes(NAME_BYTES) + np.full(one.steps, np.nan, dtype=np.float32).tobytes()
    for block, part in (
        (0, bytes(BLOCK)), (one.loss_block, log), (one.sample_block, one.samples),
        (1, one.order), (0, one.record),
    ):  # fmt: skip
        board.write(JOB, 0, block * BLOCK, part)


@cache
def written() -> CardImage:
    """A card with the job, as `card write` leaves it."""
    board = trained(card())
    put(board, job())
    return board.storage


@cache
def finished() -> tuple[bytes, bytes]:
    """Return the weights after the job, by the library alone."""
    board = MemoryBoard(written().copy())
    board.lib.poet_serve_alone(Server(board).server)
    load(board)
    return weights(board)


def weights_on(path: Path) -> tuple[int, tuple[bytes, bytes]]:
    """Return the committed step and the weights of a card image."""
    board = MemoryBoard(read_image(path))
    load(board)
    return board.hello()["committed_step"], weights(board)
