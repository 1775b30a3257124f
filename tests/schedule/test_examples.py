"""The schedules in the package are read and run by this version."""

from pathlib import Path

import pytest
from poet_host.device.device import connect
from poet_host.resources import resource
from poet_host.schedule.schedule import Schedule
from poet_host.sim.start_board import start_board
from poet_host.view.listing import listing

EXAMPLES = sorted(resource("schedules").glob("*.poet"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_listed_as_its_text_says(path: Path) -> None:
    assert listing(Schedule.load(path)).strip() == path.with_suffix(".txt").read_text().strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_board_accepts_an_example(path: Path) -> None:
    schedule = Schedule.load(path)
    arena_bytes = schedule.header.arena_bytes
    with start_board(arena_bytes=arena_bytes) as board, connect(board.port) as device:
        facts = device.load(schedule.model_part, schedule.plan_part)
    assert facts.peak_bytes == arena_bytes
    assert facts.statement_count == schedule.header.statement_count
