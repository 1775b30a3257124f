"""A board refuses a nest that breaks a law, and names the statement."""

from dataclasses import replace

import pytest
from poet_host.errors import BadInput
from poet_host.graph.cuts import Cut
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.bits import BitWriter
from poet_host.schedule.decode import decode
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.schedule import Schedule
from support.kernel_cases import Case, make
from support.memory_board import card
from support.nest_cases import BIAS, FORWARD, RELU, RENEW, UPDATE, C, K, N, W, X, Y
from support.nest_runs import ARENA_BYTES, LateBoard, answer_to, graph_of, with_nest
from support.nests import operator_of

ROWS = Cut(20, (2, 8, 5), (1, 4, 2))
OH = Loop("oh", 2)
R10, R23 = Ring(1, 0), Ring(2, 3)
NEST = Nest((N, K, C), (R23, R23, Ring(2, 2)))
SUMS = Nest((N, K, OH), (Ring(1, 3), Ring(1, 0)))
ACTIVE = Nest((N, C), (Ring(1, 2), Ring(1, 2)))
WALK = make("lstm", {"n": 3, "c": 1, "w": 4}, 1)  # of a weight with 16 rows
STEP, EIGHT = Loop("n", 1), Loop("k", 8)
BY_ROWS = Nest((STEP, EIGHT), (R10, Ring(2, 2), R10, R10, R10, Ring(1, 1)))
IN_ROWS = (None, Cut(16, (1, 1, 16), (1, 1, 8)), None, None, None, Cut(48, (1, 1, 3), (1, 1, 1)))
ROWS_OF_ALL = Nest((OH,), (Ring(1, 0),) * 3)  # of all channels of all samples
GOOD = [
    (FORWARD, (None,) * 3, ROWS_OF_ALL),
    (FORWARD, (None,) * 3, replace(ROWS_OF_ALL, loops=(N, K, OH))),
    (FORWARD, (X, W, Y), NEST),
    (UPDATE, (X, Y, W, W), RENEW),
    (WALK, IN_ROWS, BY_ROWS),
    (WALK, IN_ROWS, replace(BY_ROWS, loops=(Loop("n", 2), STEP, EIGHT), operands=(R10,) * 6)),
    (RELU, (X, X), ACTIVE),
    (RELU, (X, X), replace(ACTIVE, in_place=False)),
]
BAD = [
    ("axes", FORWARD, (X, W, Y), replace(NEST, loops=(Loop("h", 1), K, C))),
    ("axes", FORWARD, (X, W, Y), replace(NEST, loops=(Loop("groups", 1), K, C))),
    ("steps", FORWARD, (X, W, Y), replace(NEST, loops=(Loop("n", 3), K, C))),
    ("steps", FORWARD, (X, W, Y), replace(NEST, loops=(Loop("c", 8), N, K, C))),
    ("terms", BIAS, (ROWS, None), replace(SUMS, loops=(OH, K, N))),
    ("terms", BIAS, (ROWS, None), replace(SUMS, loops=(K, OH))),
    ("terms", WALK, IN_ROWS, replace(BY_ROWS, loops=(EIGHT, STEP), operands=(R10,) * 6)),
    ("terms", WALK, IN_ROWS, replace(BY_ROWS, loops=(Loop("n", 2), EIGHT), operands=(R10,) * 6)),
    ("terms", WALK, IN_ROWS, replace(BY_ROWS, loops=(EIGHT,), operands=(R10,) * 6)),
    ("output", WALK, IN_ROWS, replace(BY_ROWS, operands=(*BY_ROWS.operands[:5], Ring(1, 2)))),
    ("cut", WALK, (Cut(16, (1, 3, 4), (1, 1, 2)), *IN_ROWS[1:]), BY_ROWS),
    ("rings", FORWARD, (X, W, Y), Nest((N, K, Loop("c", 4), C), (Ring(2, 5), Ring(2, 4), None))),
    ("output", FORWARD, (X, W, Y), replace(NEST, operands=(R23, R23, R23))),
    ("output", UPDATE, (X, Y, W, W), replace(RENEW, operands=(R23, R23, R23, R23))),
    ("cut", FORWARD, (Cut(4, (1, 1, 300), (1, 1, 100)), W, Y), NEST),
    ("parts", FORWARD, (X, W, Y), replace(NEST, loops=(N, K, Loop("c", 1)))),
    ("parts", FORWARD, (replace(X, piece_parts=2), W, Y), NEST),
    ("cells", FORWARD, (None, W, Y), Nest((K, C), (Ring(1, 0), Ring(1, 2), Ring(1, 1)))),
    ("cells", FORWARD, (None,) * 3, replace(ROWS_OF_ALL, loops=(K, OH))),
    ("cells", UPDATE, (None,) * 4, Nest((K, C), (Ring(1, 0),) * 4)),
    ("place", RELU, (X, Cut(100, (1, 2, 6), (1, 2, 2))), Nest((), (Ring(1, 0), Ring(1, 0)))),
]  # fmt: skip


def raw_schedule(
    case: Case, cuts: tuple[Cut | None, ...], nest: Nest, arena_bytes: int
) -> Schedule:
    """A schedule whose only statement is this nest, which streams all operands."""
    graph = graph_of(case)
    names = [f"in{i}" for i in range(len(case.inputs))]
    by_name = {name: cut for name, cut in zip([*names, "out"], cuts, strict=True) if cut}
    if case is UPDATE:
        by_name.pop("out", None)  # it has the cut of what it renews
    whole = Nest((), (Ring(1, 0),) * (len(names) + 1))
    statements = (Statement("compute", "out", None, 0, 1),)
    plan = Plan("feasible", 1 << 20, statements=statements)
    plain = encode(graph, plan, nests={("out", 1): whole})
    start = BitWriter()
    start.code("111110")
    model = model_of_graph(graph, by_name)
    return with_nest(plain, model, operator_of(case), nest, start, "0", arena_bytes)


@pytest.mark.parametrize(("case", "cuts", "nest"), GOOD)
def test_a_board_accepts_good_nests(case: Case, cuts: tuple[Cut | None, ...], nest: Nest) -> None:
    one = NestedOperator(operator_of(case), cuts, nest)
    schedule = raw_schedule(case, cuts, nest, one.workspace_bytes)
    board = LateBoard(card(), arena_bytes=one.workspace_bytes)
    board.format()
    facts = board.load(schedule.model_part, schedule.plan_part)
    assert facts["peak_bytes"] == one.workspace_bytes
    assert len(decode(schedule)) == 1


@pytest.mark.parametrize(("law", "case", "cuts", "nest"), BAD)
def test_each_law_is_checked(
    law: str, case: Case, cuts: tuple[Cut | None, ...], nest: Nest
) -> None:
    """`detail` is the statement: the header's numbers would be refused at statement 1."""
    schedule = raw_schedule(case, cuts, nest, ARENA_BYTES)
    assert answer_to(schedule) == ("bad_plan", 0)
    with pytest.raises(BadInput, match=f"law `{law}`"):
        decode(schedule)
