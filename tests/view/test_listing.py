"""The listing: one line for each statement, with names, places and the RAM in use."""

import re

from poet_host import api
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.schedule.decode import decode
from poet_host.schedule.encode import encode, encode_costs
from poet_host.view.listing import listing
from support import toy


def test_every_statement_has_a_line() -> None:
    schedule = toy.schedule()
    lines = listing(schedule).splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["#", *["statement", "tensor", "bytes", "at", "RAM", "used", "what"]]
    assert [int(line.split()[0]) for line in table[1:]] == list(range(len(decode(schedule))))
    assert len(table) - 1 == schedule.header.statement_count
    rows = [re.split(r"\s{2,}", line.strip()) for line in table[1:]]
    assert rows[0] == ["0", "page in", "w", "900", "0", "900"]
    assert rows[2] == ["2", "wait", "for all transfers"]
    assert rows[7][1:3] == ["compute", "z"]
    assert rows[7][-1] == "relu(y), workspace 12 bytes at 1,524"
    assert rows[8] == ["8", "wait", "until 1 transfer remains"]
    assert rows[16][1] == "compute again"
    assert rows[28][-1] == "linear_grad_weight(x, dy, v, w) into momentum, in place of v"
    assert rows[-1] == ["38", "free", "v1", "900", "0"]


def test_the_head_shows_costs_and_sizes() -> None:
    plan = toy.frugal()
    keep = {"energy_uj": 1234.5, "time_us": 2.0, "peak_bytes": 4096}
    meta = {"board": "mkr1000", "keep_everything": keep}
    schedule = encode(toy.graph(), plan, meta)
    text = listing(schedule)
    header = schedule.header
    assert text.startswith(f"toy for mkr1000: {header.statement_count} statements in ")
    assert f"in {len(schedule.plan_part)} bytes" in text
    assert f"RAM {header.arena_bytes:,} bytes, at most {header.resident_max} tensors" in text
    assert "promised (feasible, method poet): 1.0 uJ, 1.0 us" in text
    assert "keeping everything: 1,234.5 uJ, 2.0 us, 4,096 bytes of RAM" in text
    assert "2 tensors trained, three slots (1,800 bytes)" in text


def test_graphs_of_costs_have_a_listing_too() -> None:
    nodes = (CostNode("größe", (), 6, stored=True), CostNode("y", (0,), 4))
    statements = (Statement("page_in", "größe", 0), Statement("compute", "y", 8))
    plan = Plan("optimal", 64, None, 1.0, 1.0, 0.0, 1.0, 1.0, 12, 0.0, statements)
    text = listing(encode_costs(CostGraph("costs", nodes), plan))
    assert "costs: 3 statements" in text
    assert "from größe" in text
    assert "at most 2 tensors at once and 1 transfer queued" in text


TIMED = CostGraph(
    "timed",
    (
        CostNode("w", (), 8, page_in_us=40_000.0, page_out_us=50_000.0, stored=True),
        CostNode("a", (0,), 16, time_us=10.0, page_in_us=6.0, page_out_us=7.0),
        CostNode("b", (1,), 16, time_us=2000.0),
    ),
)
STATEMENTS = (
    Statement("page_in", "w", 0), Statement("compute", "a", 8), Statement("compute", "b", 24),
    Statement("free", "a"), Statement("compute", "a", 8), Statement("page_out", "a"),
    Statement("free", "a"),
)  # fmt: skip


def timed_rows(took_us: dict[int, float] | None = None) -> list[list[str]]:
    plan = Plan("feasible", 64, statements=STATEMENTS)
    schedule = api.encode(TIMED, None, plan)
    lines = listing(schedule, took_us).splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines[lines.index("") + 1 :]]


def test_statements_have_times_if_the_costs_are_known() -> None:
    head, *found = timed_rows()
    assert head[:5] == ["#", "begins ms", "takes ms", "statement", "tensor"]
    assert found[0][:5] == ["0", "0.000", "40.000", "page in", "w"]
    assert found[1][:2] == ["1", "wait"]
    assert found[2][:5] == ["2", "40.000", "0.010", "compute", "a"]
    assert found[3][:5] == ["3", "40.010", "2.000", "compute", "b"]
    assert found[4] == ["4", "free", "a", "16", "24"]
    assert found[5][1:4] == ["42.010", "0.010", "compute again"]
    assert found[5][-1] == "from w, back after 0.000 ms"
    assert found[-1][:5] == ["8", "42.020", "0.007", "free", "a"]  # the wait for its page-out


def test_measured_times_have_a_column() -> None:
    head, *found = timed_rows({0: 43210.0, 4: 1.0})
    assert head[:4] == ["#", "begins ms", "takes ms", "took ms"]
    assert found[0][:4] == ["0", "0.000", "40.000", "43.210"]
    assert found[4][:3] == ["4", "0.001", "free"]
    assert found[2][:4] == ["2", "40.000", "0.010", "compute"]


def test_short_steps_are_listed_in_microseconds() -> None:
    head, *found = timed_rows(
        {0: 4321.0, 4: 1.25}
    )  # measured on a faster board than the plan is for
    assert head[:4] == ["#", "begins ms", "takes ms", "took us"]
    assert found[0][:4] == ["0", "0.000", "40.000", "4,321.0"]
    nodes = (CostNode("a", (), 4, 0.25), CostNode("b", (0,), 4, 9000.5))
    statements = (
        Statement("compute", "a", 0), Statement("compute", "b", 4), Statement("free", "a"),
        Statement("compute", "a", 0),
    )  # fmt: skip
    schedule = api.encode(CostGraph("c", nodes), None, Plan("feasible", 8, statements=statements))
    text = listing(schedule)
    assert "begins us  takes us" in text
    assert "0.2   9,000.5  compute" in text
    assert "back after 0.0 us" in text


def test_long_names_are_shortened_in_the_middle() -> None:
    name = "a" * 40 + "/" + "z" * 40
    nodes = (CostNode(name, (), 4, 1.0), CostNode("b", (0,), 4, 1.0))
    statements = (Statement("compute", name, 0), Statement("compute", "b", 4))
    schedule = api.encode(CostGraph("c", nodes), None, Plan("feasible", 8, statements=statements))
    text = listing(schedule)
    short = "a" * 28 + "..." + "z" * 28
    assert f'compute    "{short}"' in text
    assert f'from "{short}"' in text
    assert max(map(len, text.splitlines())) < 200


def test_names_print_no_control_characters() -> None:
    name = "a\x1b[2J"
    nodes = (CostNode(name, (), 4, 1.0), CostNode("b", (0,), 4, 1.0))
    statements = (Statement("compute", name, 0), Statement("compute", "b", 4))
    plan = Plan("feasible", 8, statements=statements)
    text = listing(api.encode(CostGraph("c\x07", nodes), None, plan))
    assert text.replace("\n", "").isprintable()
    assert text.count("[2J") == 2
