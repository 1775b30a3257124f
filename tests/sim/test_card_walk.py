"""The walk over false writes of a card finds no silent one; and it would find one."""

from pathlib import Path
from typing import Any

import pytest
from fuzz import card_walk
from poet_host.schedule.schedule import Schedule
from support.sim_helper import needs_compiler

EXAMPLE = Path(__file__).parents[2] / "schedules" / "resnet-digits-mkr1000.poet"


@needs_compiler
@pytest.mark.slow
def test_false_writes_end_with_the_same_weights_or_with_an_error() -> None:
    found = card_walk.walk("nrf52840_dk", Schedule.load(EXAMPLE), 2, 2, 1, every=15, first=60)
    assert found.defects == []
    outcomes = {name.partition(": ")[2] for name in found.counts}
    assert card_walk.EQUAL in outcomes
    assert sum(found.counts.values()) >= 2 * len(card_walk.FAULTS)


@needs_compiler
@pytest.mark.slow
def test_other_weights_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = card_walk.undisturbed

    def other(*arguments: Any) -> tuple[Any, int]:
        expected, blocks = usual(*arguments)
        name = next(iter(expected))
        return {**expected, name: expected[name] + 1}, blocks

    monkeypatch.setattr(card_walk, "undisturbed", other)
    found = card_walk.walk("nrf52840_dk", Schedule.load(EXAMPLE), 2, 0, 1, every=30)
    assert set(found.counts) == {f"one fault: {card_walk.SILENT}"}
    # The run without faults is reported too.
    assert len(found.defects) == sum(found.counts.values()) + 1 > len(card_walk.FAULTS)
