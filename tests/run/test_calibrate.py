"""What statements cost, out of traces whose gaps are known."""

from collections import Counter, namedtuple
from dataclasses import replace

import numpy as np
import pytest
from poet_host import isa
from poet_host.device.board import StatementCosts
from poet_host.profile.transfer import shares
from poet_host.run.calibrate import Observed, averaged, calibrated, fastest, statement_costs
from poet_host.run.run import Step
from poet_host.schedule.decode import Wait, decode
from support import whole_runs as runs

Record = namedtuple("Record", "statement kind begin end")
CODE = {name: row.code for name, row in isa.by_name("STATEMENT").items()}
STEP = Step(1, 0.5, 1000.0, 400.0, 200.0, 30.0, 50.0, 80.0, 150.0, 0.0, 64)


def traced(*statements: tuple[str, int]) -> tuple[Record, ...]:
    """Statements of 10 ticks each, with gaps before them; transfers are in another lane."""
    found, now = [], 2**32 - 100  # the clock wraps around
    for index, (name, gap) in enumerate(statements):
        if name.startswith("page"):
            found.append(Record(index, CODE[name], 5, 900))
            continue
        now += gap
        found.append(Record(index, CODE[name], now % 2**32, (now + 10) % 2**32))
        now += 10
    return tuple(found)


def observed(*steps: tuple[Record, ...]) -> Observed:
    schedule = runs.schedule(runs.digits())
    return Observed((STEP,) * len(steps), steps, tuple(decode(schedule)), 0.5, 0)


def test_gaps_belong_to_the_next_statement() -> None:
    first = traced(("compute", 7), ("free", 20), ("compute", 100), ("page_out", 0), ("wait", 90))
    second = traced(("free", 7), ("compute", 120), ("wait", 30), ("free", 24), ("end", 500))
    found = statement_costs(observed(first, second), StatementCosts())
    assert found.compute_us == 0.5 * 110
    assert found.free_us == 0.5 * 22
    # The page takes 60 in addition to its wait, which takes 30 itself. There are two waits.
    assert found.page_us == 0.5 * (60 + 2 * 30)
    assert found.stream_us == 0.0
    # 80 + 150 us of storage, 200 us in transfers and 30 us in the commit: none for records.
    assert found.reading == 0.0


def test_statements_that_were_not_traced_keep_their_costs() -> None:
    before = StatementCosts(1.0, 2.0, 3.0, 0.5, 4.0)
    streams = traced(("free", 0), ("stream", 60), ("page_in", 0), ("stream", 90))
    found = statement_costs(observed(streams), before)
    assert found == replace(before, page_us=0.5 * 30, stream_us=0.5 * 60, reading=0.0)


def test_reading_records_is_a_share_of_the_gaps() -> None:
    trace = traced(("free", 0), ("compute", 100), ("compute", 100))
    seen = observed(trace)
    gaps_us = 0.5 * 200 * len(seen.statements) / len(trace)
    slow = replace(seen, steps=(replace(STEP, reading_us=80.0 + gaps_us / 4),))
    assert statement_costs(slow, StatementCosts()).reading == pytest.approx(0.25)


def test_extra_time_of_updates_is_part_of_transfers_out() -> None:
    graph, profile = runs.digits(), runs.profile()
    seen = observed(())
    nodes = {
        i: graph[one.node]
        for i, one in enumerate(seen.statements)
        if not isinstance(one, Wait) and one.op == "page_out"
    }
    outs = [i for i, node in nodes.items() if not shares(node.size_bytes)]
    sizes = [nodes[i].size_bytes for i in outs]
    usual = [profile.page_out.times_us(size)[0] for size in sizes]
    late = tuple(
        Record(i, CODE["page_out"], 0, 2 * round(us + 50))
        for i, us in zip(outs, usual, strict=True)
    )
    spent_us = sum(usual) + 50 * len(outs)
    step = replace(STEP, writing_us=spent_us + 900, overhead_writing_us=900)
    found = calibrated(profile, graph, replace(seen, steps=(step,), records=(late,)))
    assert found.renewed_turn_us == pytest.approx(50, abs=1)
    assert found.page_out == profile.page_out
    assert found.page_turn_us == 0.0  # this schedule pages no activation out
    assert found.commit_us == pytest.approx(profile.commit_us, abs=5)
    step = replace(step, writing_us=step.writing_us + 1500)  # to turn from a commit's record
    found = calibrated(profile, graph, replace(seen, steps=(step,), records=(late,)))
    assert found.commit_us == pytest.approx(profile.commit_us + 1500, abs=5)
    renewed = [node.size_bytes for node in graph if node.updates]
    known_us, _ = found.commit(renewed, step.time_us)
    step = replace(step, commit_us=known_us + 700, time_us=2 * known_us)  # a shared block turns
    found = calibrated(profile, graph, replace(seen, steps=(step,), records=(late,)))
    assert found.commit_us > profile.commit_us + 2100


def test_what_nests_write_is_not_extra_time() -> None:
    graph, profile = runs.digits(), runs.profile()
    seen = observed(())
    page = next(node.name for node in graph if node.updates is None and not node.stored)
    renewed = next(node.name for node in graph if node.updates)
    stores = ((page, Counter({504: 3})), (renewed, Counter({1000: 2})))
    sizes = [graph[it.node].size_bytes for it in seen.statements
             if not isinstance(it, Wait) and it.op == "page_out"]  # fmt: skip
    outs_us = sum(profile.page_out.times_us(size)[0] for size in sizes if not shares(size))
    nests_us = profile.page_out.pieces_us(np.array([504, 504, 504, 1000, 1000]))[0].sum()
    step = replace(STEP, writing_us=outs_us + nests_us + 70, overhead_writing_us=0)
    found = calibrated(profile, graph, replace(seen, steps=(step,), records=((),), stores=stores))
    # Only one tensor that is not updated is written: it has all of the extra time.
    assert found.page_turn_us == pytest.approx(70)
    assert found.commit_us == profile.commit_us


def test_statements_that_were_not_traced_do_not_count_as_the_check() -> None:
    profile = replace(runs.profile(), storage=False, check_us_per_byte=0.25)
    assert calibrated(profile, runs.digits(), observed(())).check_us_per_byte == 0.25


def test_several_calibrations_are_averaged() -> None:
    one = replace(runs.profile(), statements=StatementCosts(1.0, 2.0, 3.0, 0.5, 4.0))
    other = replace(
        one, statements=StatementCosts(3.0, 2.0, 7.0, 0.1, 6.0), page_turn_us=8.0,
        renewed_turn_us=4.0, commit_us=one.commit_us + 10, check_us_per_byte=2.0,
    )  # fmt: skip
    mean = averaged([one, other])
    assert mean.statements == StatementCosts(2.0, 2.0, 5.0, 0.3, 5.0)
    assert (mean.page_turn_us, mean.renewed_turn_us) == (4.0, 2.0)
    assert (mean.commit_us, mean.check_us_per_byte) == (one.commit_us + 5, 1.0)
    assert averaged([one]) == one


def test_the_fastest_steps_of_each_window_count_on_a_computer() -> None:
    assert fastest([5, 1, 9, 2, 8, 3, 7, 4], 1) == [1, 3]
    # Every other step traces the same statements.
    assert fastest([5, 1, 9, 2, 8, 3, 7, 4, 6, 0], 2) == [0, 1, 8, 9]
    assert fastest([5, 1, 9], 3) == [0, 1, 2]


@pytest.mark.parametrize("board", ["native", "mkr1000"])
def test_handing_a_page_to_a_thread_is_counted_once(board: str) -> None:
    """A chip serves transfers while it computes, too, which gaps between statements do not show."""
    graph, profile = runs.digits(), replace(runs.profile(), board=board)
    profile = replace(profile, page_in=replace(profile.page_in, cpu_base_us=7.0))
    paging = observed(traced(("free", 0), ("free", 20), ("page_in", 0), ("free", 60)))
    found = calibrated(profile, graph, paging)
    assert found.statements.page_us == 0.5 * 40
    lanes = {(lane.cpu_base_us, lane.cpu_us_per_byte) for lane in (found.page_in, found.page_out)}
    if board == "native":
        assert lanes == {(0.0, 0.0)}
        assert found.transfer(4096).page_in_cpu_us == 0.5 * 40
    else:
        assert found.page_in.cpu_base_us == 7.0
    # Where no page was traced, nothing better is known than what transfers alone took.
    pageless = calibrated(profile, graph, observed(traced(("free", 0), ("free", 20))))
    assert pageless.page_in == profile.page_in
