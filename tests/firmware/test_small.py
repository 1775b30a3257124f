"""A build for one schedule refuses what it leaves out."""

from collections.abc import Iterator
from functools import cache

import pytest
from fuzz.commit_cuts import training
from poet_host.schedule.schedule import Schedule
from support import toy
from support.card_image import CardImage
from support.memory_board import MemoryBoard, card, library, refusal

pytestmark = pytest.mark.slow  # it compiles the library


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A library without nests and without a host's cards."""
    examples()
    monkeypatch.setenv("CC", "cc -DPOET_STREAMS=0 -DPOET_CARDS=0")
    library.cache_clear()
    yield
    library.cache_clear()


@cache
def examples() -> tuple[Schedule, CardImage]:
    """A plan with nests, and a card that a host has laid out: made with the whole library."""
    storage = card()
    MemoryBoard(storage).format()
    return training("sgd").schedule, storage


def load(storage: CardImage, schedule: Schedule) -> MemoryBoard:
    arena_bytes = examples()[0].header.arena_bytes
    board = MemoryBoard(storage, arena_bytes, residents=256, tensors=512)
    board.load_program(schedule.model_part, schedule.plan_part)
    return board


def test_the_whole_library_accepts_nests_and_cards() -> None:
    streamed, from_host = examples()
    load(card(), streamed)
    load(from_host, toy.schedule())


@pytest.mark.usefixtures("small")
def test_a_small_build_refuses_nests_and_cards() -> None:
    streamed, from_host = examples()
    board = load(card(), toy.schedule())
    assert refusal(board.call, "load", 1, 1, board.ffi.NULL).name == "no_schedule"
    assert refusal(load, card(), streamed).name == "bad_plan"
    assert refusal(load, from_host, toy.schedule()).name == "not_blank"
