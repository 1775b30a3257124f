"""The listing: one line a statement, with names, places and what is in RAM."""

import re

import toy
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.schedule.decode import decode
from poet_host.schedule.encode import encode, encode_costs
from poet_host.schedule.listing import listing


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


def test_the_head_says_what_it_takes() -> None:
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
    assert "2 tensors trained, two slots (1,800 bytes)" in text


def test_graphs_of_costs_have_a_listing_too() -> None:
    nodes = (CostNode("größe", (), 6, stored=True), CostNode("y", (0,), 4))
    statements = (Statement("page_in", "größe", 0), Statement("compute", "y", 8))
    plan = Plan("optimal", 64, None, 1.0, 1.0, 0.0, 1.0, 1.0, 12, 0.0, statements)
    text = listing(encode_costs(CostGraph("costs", nodes), plan))
    assert "costs: 3 statements" in text
    assert "none(größe)" in text
