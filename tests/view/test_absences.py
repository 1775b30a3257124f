"""Why it paid: what tensors that leave and come back cost, and what would have been without."""

from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Op, Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.resources import resource
from poet_host.schedule.decode import decode, initial_offsets
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.times import costs_of_schedule
from poet_host.view.absences import Cost, absences
from poet_host.view.lanes import planned, views_of

PAGING = {"page_in_us": 4.0, "page_in_uj": 40.0, "page_out_us": 5.0, "page_out_uj": 50.0}
GRAPH = CostGraph(
    "chain",
    (
        CostNode("w", (), 8, stored=True, **PAGING),
        CostNode("a", (0,), 16, 10.0, 100.0, **PAGING),
        CostNode("b", (1,), 32, 20.0, 200.0, **PAGING),
        CostNode("c", (2,), 4, 30.0, 300.0, **PAGING),
        CostNode("d", (1, 3), 4, 1.0, 2.0, **PAGING),
        CostNode("e", (0, 1, 4), 4, 1.0, 2.0, **PAGING, keep=True),
    ),
)


def placed(*rows: tuple[Op, str] | tuple[Op, str, int]) -> tuple[Statement, ...]:
    return tuple(Statement(*row) for row in rows)


START = placed(("page_in", "w", 0), ("compute", "a", 8))
# a is recomputed for d, then paged for e; w is loaded for each.
PLAN = (
    *START,
    *placed(
        ("free", "w"), ("compute", "b", 24), ("free", "a"), ("compute", "c", 0), ("free", "b"),
        ("page_in", "w", 4), ("compute", "a", 12), ("free", "w"), ("compute", "d", 4),
        ("page_out", "a"), ("free", "a"), ("free", "c"), ("page_in", "a", 12), ("page_in", "w", 28),
        ("compute", "e", 36), ("page_out", "e"),
    ),
)  # fmt: skip


def test_each_absence_has_its_cost_and_that_of_the_other_way() -> None:
    verify(Problem(GRAPH, 64), Plan("feasible", 64, statements=PLAN))
    found = {(gap.node, gap.left): gap for gap in absences(GRAPH, PLAN, planned(GRAPH, PLAN))}
    assert list(found) == [("w", 2), ("a", 4), ("w", 9), ("a", 12)]

    again = found["a", 4]
    assert (again.how, again.back, again.size_bytes) == ("again", 8, 16)
    assert (again.left_us, again.back_us) == (34, 68)
    assert again.spent == Cost(10, 100)
    assert again.instead == Cost(9, 90)  # out and in
    assert again.without_bytes == 32 + 4 + 16  # while c was computed from b

    paged = found["a", 12]
    assert paged.how == "page_in"
    assert paged.spent == Cost(9, 90)
    assert paged.instead == Cost(10, 100)
    assert paged.missing == ("w",)
    assert paged.hidden_us == 0
    assert paged.without_bytes == 24

    stored = found["w", 2]
    assert (stored.spent, stored.instead) == (Cost(4, 40), None)  # written before, never computed
    assert stored.without_bytes == 16 + 32 + 8
    # Where a had been the second time, nothing was put before it came back.
    assert [gap.place_taken for gap in found.values()] == [True, True, True, False]


def test_a_transfer_may_overlap_with_computations() -> None:
    statements = (
        *START,
        *placed(("page_out", "a"), ("compute", "b", 24), ("free", "a"), ("page_in", "a", 8)),
    )
    (one,) = absences(GRAPH, statements, planned(GRAPH, statements))
    assert one.hidden_us == 5  # writing it, while b is computed; reading it is not hidden
    assert one.spent.time_us == 9


def test_what_is_on_storage_already_need_not_be_written_again() -> None:
    statements = (
        *START,
        *placed(
            ("page_out", "a"), ("free", "a"), ("page_in", "a", 8), ("free", "a"),
            ("page_in", "a", 8), ("free", "a"), ("compute", "a", 8),
        ),
    )  # fmt: skip
    first, second, third = absences(GRAPH, statements, planned(GRAPH, statements))
    assert (first.spent, second.spent) == (Cost(9, 90), Cost(4, 40))
    assert (third.spent, third.instead) == (Cost(10, 100), Cost(4, 40))


def test_without_storage_there_is_no_other_way() -> None:
    nodes = (CostNode("a", (), 4, 1.0, 1.0), CostNode("b", (0,), 4, 1.0, 1.0))
    graph = CostGraph("bare", nodes, storage=False)
    statements = placed(
        ("compute", "a", 0), ("compute", "b", 4), ("free", "a"), ("compute", "a", 0)
    )
    (one,) = absences(graph, statements, planned(graph, statements))
    assert one.instead is None


def test_all_costs_together_are_what_the_plan_spends_more_than_keeping_everything() -> None:
    for path in sorted(resource("schedules").glob("*.poet")):
        schedule = Schedule.load(path)
        costs, statements = costs_of_schedule(schedule), decode(schedule)
        found = absences(costs, statements, *views_of(schedule))
        keep, mine = keep_everything(costs), schedule.meta["plan"]["energy_uj"]
        assert keep.energy_uj is not None
        assert found
        stays = initial_offsets(schedule)  # in RAM from step to step, so it is not loaded
        stays_uj = sum(node.page_in_uj for node in costs.nodes if node.name in stays)
        more_uj = mine - (keep.energy_uj - stays_uj)
        assert abs(sum(gap.spent.energy_uj for gap in found) - more_uj) <= 1e-9 * mine
        ram_bytes = schedule.meta["plan"]["ram_bytes"]
        assert any(gap.without_bytes > ram_bytes for gap in found)
