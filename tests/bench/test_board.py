"""The board's benchmark: does it measure what it says?"""

import pytest

from bench.board import Case, Measured, measure, report


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    return measure(Case("resnet-digits", "digits", (70,), 6), 6)


@pytest.mark.slow
def test_each_board_has_its_budget_and_no_more(measured: list[Measured]) -> None:
    keep, tight = (board for board in measured if board.every == 1)
    assert (keep.percent, tight.percent) == (100, 70)
    assert keep.run.peak_bytes == keep.plan.peak_bytes == keep.plan.ram_bytes
    assert tight.run.peak_bytes <= tight.plan.ram_bytes == keep.plan.ram_bytes * 70 // 100


@pytest.mark.slow
def test_all_train_the_same_steps_and_are_measured(measured: list[Measured]) -> None:
    for board in measured:
        assert len(board.run.steps) == 6
        assert board.run.energy_uj is not None
        assert board.run.energy_uj > 0
        assert board.run.schedule_bytes > 0
    assert [step.loss for step in measured[0].run.steps] == [
        step.loss for step in measured[1].run.steps
    ]


@pytest.mark.slow
def test_report_has_a_row_for_each_budget(measured: list[Measured]) -> None:
    rows = [line for line in report([measured], 1.0).splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + 4
    assert f"| {measured[1].plan.ram_bytes:,} | {measured[1].run.peak_bytes:,} |" in rows[3]
    assert {row.count("|") for row in rows} == {rows[0].count("|")}
