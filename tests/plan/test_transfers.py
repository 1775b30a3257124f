"""Transfers move under computations: same work, same memory, never later."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from poet_host.plan.placement import arrange
from poet_host.plan.plan import Op, Statement
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.timeline import Span, lanes, time_us, timeline
from poet_host.plan.transfers import overlap
from support.cost_graphs import general, problem_of, training
from support.mode_graphs import with_modes
from support.oracle import cheapest
from support.plans import node_with, totals
from support.random_plans import random_cost_graph, random_plan

node = node_with(
    time_us=10.0, energy_uj=1.0, page_in_uj=1.0, page_out_uj=1.0, page_in_us=8.0, page_out_us=6.0
)


def plan(*rows: str) -> tuple[Statement, ...]:
    """Statements from rows like "page_in w 0"."""
    parts = [row.split() for row in rows]
    return tuple(
        Statement(op, name, int(rest[0]) if rest else None)  # type: ignore[arg-type]
        for op, name, *rest in parts
    )


def order(statements: Sequence[Statement]) -> list[str]:
    return [f"{it.op} {it.node}" for it in statements]


# a and b run alone; c needs the parameter w.
THREE = CostGraph(
    "three", (node("w", 4, stored=True), node("a", 4), node("b", 4, 1), node("c", 4, 0, 2))
)
LATE = plan("compute a", "compute b", "free a", "page_in w", "compute c", "free w", "free b")


def test_page_in_moves_under_the_computations_before_its_use() -> None:
    problem = Problem(THREE, 12)
    assert time_us(THREE, LATE) == 38.0
    early = overlap(problem, LATE)
    assert time_us(THREE, early) == 30.0
    assert totals(problem, early, placed=False).peak_bytes <= 12


def test_page_in_waits_for_memory() -> None:
    """With room for two tensors, w can come only when a is gone."""
    graph = replace(THREE, nodes=(*THREE.nodes[:2], node("b", 8, 1), node("c", 0, 0, 2)))
    problem = Problem(graph, 12)
    early = overlap(problem, LATE)
    assert order(early).index("page_in w") > order(early).index("free a")
    assert time_us(graph, early) == 38.0


def test_page_out_starts_when_its_data_is_there() -> None:
    graph = CostGraph("g", (node("a", 4, keep=True), node("b", 4, 0), node("c", 4, 1)))
    late = plan("compute a", "compute b", "compute c", "page_out a")
    assert time_us(graph, late) == 36.0
    early = overlap(Problem(graph, 12), late)
    assert time_us(graph, early) == 30.0
    assert order(early)[:2] == ["compute a", "page_out a"]


def test_an_urgent_page_in_goes_before_a_page_out() -> None:
    """b must wait for w, nobody waits for the copy of a."""
    graph = CostGraph(
        "g",
        (node("w", 4, stored=True), node("a", 4, keep=True), node("b", 4, 0), node("c", 4, 2)),
    )
    given = plan("compute a", "page_out a", "page_in w", "compute b", "compute c")
    early = overlap(Problem(graph, 16), given)
    assert order(early).index("page_in w") < order(early).index("page_out a")
    assert time_us(graph, early) == 30.0
    tight = overlap(Problem(graph, 12), plan(*order(given)[:3], "free a", *order(given)[3:]))
    assert totals(Problem(graph, 12), tight, placed=False).time_us <= 34.0


def test_a_free_waits_where_memory_is_plenty() -> None:
    """Freeing a at once would stop the processor until a is written."""
    graph = CostGraph("g", (node("a", 4, keep=True), node("b", 4), node("c", 4, 1)))
    given = plan("compute a", "page_out a", "free a", "compute b", "compute c")
    assert time_us(graph, given) == 36.0
    assert time_us(graph, overlap(Problem(graph, 12), given)) == 30.0
    assert time_us(graph, overlap(Problem(graph, 4 + 4), given)) == 30.0
    alone = replace(graph, nodes=(node("a", 8, keep=True), *graph.nodes[1:]))
    assert time_us(alone, overlap(Problem(alone, 8), given)) == 36.0


def test_a_moved_tensor_finds_another_place() -> None:
    """At 4, where w was to go, a is in the way as long as w could come early."""
    given = plan("compute a 4", "compute b 0", "free a", "page_in w 4", "compute c 8")
    problem = Problem(THREE, 12)
    assert totals(problem, given, placed=True).time_us == 38.0
    early = overlap(problem, given)
    assert totals(problem, early, placed=True).time_us == 30.0


def test_what_pages_nothing_stays_as_it_is() -> None:
    given = plan("compute a", "compute b", "free a")
    graph = replace(THREE, nodes=THREE.nodes[:3])
    assert overlap(Problem(graph, 99), given) == given
    assert overlap(Problem(replace(graph, storage=False), 99), given) == given


def test_out_of_time_leaves_things_as_they_are() -> None:
    assert overlap(Problem(THREE, 12), LATE, time_limit_s=-1.0) == LATE
    placed = arrange(THREE, LATE, 12).statements
    assert overlap(Problem(THREE, 12), placed, time_limit_s=-1.0) == placed


def test_timeline_by_hand() -> None:
    graph = replace(
        THREE, nodes=(replace(THREE.nodes[0], page_in_cpu_us=1.0, keep=True), *THREE.nodes[1:])
    )
    given = plan("page_in w", "compute a", "compute b", "compute c", "page_out c", "free c")
    assert timeline(Problem(graph, 16), given) == (
        Span("transfers", 0.0, 8.0),
        Span("processor", 1.0, 11.0),
        Span("processor", 11.0, 21.0),
        Span("processor", 21.0, 31.0),
        Span("transfers", 31.0, 37.0),
        Span("processor", 31.0, 37.0),
    )
    found = lanes(Problem(graph, 16), given)
    assert (found.time_us, found.processor_us, found.transfers_us) == (37.0, 31.0, 14.0)
    assert found.bound_us == 31.0
    assert found.hidden == (31.0 + 14.0 - 37.0) / 14.0


def test_nothing_to_hide_is_all_hidden() -> None:
    graph = replace(THREE, nodes=THREE.nodes[:3])
    assert lanes(Problem(graph, 99), plan("compute a", "compute b")).hidden == 1.0


def with_times(graph: CostGraph, rng: random.Random) -> CostGraph:
    def some(most: float) -> float:
        return rng.choice((0.0, rng.uniform(0, most), rng.uniform(0, most)))

    return replace(
        graph,
        nodes=tuple(
            replace(
                it,
                time_us=some(50),
                energy_uj=some(9),
                page_in_us=some(50),
                page_out_us=some(50),
                page_in_uj=some(9),
                page_out_uj=some(9),
                page_in_cpu_us=some(3),
                page_out_cpu_us=some(3),
            )
            for it in graph.nodes
        ),
    )


def check(problem: Problem, given: Sequence[Statement], placed: bool) -> tuple[float, float]:
    """All that `overlap` promises; the time before and after."""
    early = overlap(problem, given)
    assert early == overlap(problem, given)
    before = totals(problem, given, placed)
    after = totals(problem, early, placed)
    assert after.time_us <= before.time_us
    assert after.energy_uj == pytest.approx(before.energy_uj, rel=1e-12)
    assert Counter(order(early)) == Counter(order(given))
    assert computed(early) == computed(given)
    found = lanes(problem, early)
    assert found.time_us == after.time_us
    assert found.bound_us <= found.time_us * (1 + 1e-9)
    assert max(span.end_us for span in timeline(problem, early)) <= after.time_us
    return before.time_us, after.time_us


def computed(statements: Sequence[Statement]) -> list[tuple[str, int]]:
    return [(it.node, it.mode) for it in statements if it.op == "compute"]


def bare(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    return tuple(replace(it, offset=None, workspace_offset=None) for it in statements)


@pytest.mark.slow
def test_random_plans_placed_and_not() -> None:
    """Plans with repeated page-outs, useless page-ins, odd offsets: everything that is legal."""
    faster = total = modes = 0
    for seed in range(56):
        rng = random.Random(seed)
        graph = with_times(random_cost_graph(rng, rng.randint(3, 15)), rng)
        graph = with_modes(graph, seed) if seed >= 40 else graph
        found = random_plan(graph, rng)
        if found is None or not any(it.op.startswith("page") for it in found.statements):
            continue
        given = found.statements
        height = totals(Problem(graph, 1 << 20), given, placed=True).peak_bytes
        peak = totals(Problem(graph, 1 << 20), given, placed=False).peak_bytes
        packed = arrange(graph, given, 0)
        for problem, statements, placed in (
            (Problem(graph, height), given, True),
            (Problem(graph, packed.height_bytes), packed.statements, True),
            (Problem(graph, peak), bare(given), False),
        ):
            before, after = check(problem, statements, placed)
            faster += after < before
            total += 1
            modes += any(it.mode for it in statements)
    assert total > 120
    assert modes > 20
    assert faster > 0.5 * total


@pytest.mark.slow
def test_close_to_the_fastest_order_of_small_plans() -> None:
    """In nearly all cases an exhaustive search finds no faster order of the same work."""
    total = slower = 0
    for seed in range(120):
        problem = problem_of((general if seed % 2 else training)(seed, 7), seed)
        best = cheapest(problem)
        if best is None or not any(it.op.startswith("page") for it in best.statements):
            continue
        _, after = check(problem, best.statements, placed=False)
        faster = cheapest(replace(problem, deadline_us=after * (1 - 1e-6)))
        total += 1
        slower += faster is not None and work(faster.statements) == work(best.statements)
    assert total > 50
    assert slower <= 0.05 * total


def work(statements: Sequence[Statement]) -> tuple[list[str], list[str]]:
    paged = sorted(row for row in order(statements) if row.startswith("page"))
    return computed(statements), paged


def paged_chain(length: int, pages: Sequence[int]) -> tuple[CostGraph, tuple[Statement, ...]]:
    """A forward and backward chain; activations `pages` go to storage and come back late."""
    forward = [node(f"f{i}", 4, *([i - 1] if i else [])) for i in range(length)]
    backward = [
        node(f"g{i}", 4, *([2 * length - 2 - i] if i < length - 1 else []), i)
        for i in reversed(range(length))
    ]
    rows: list[tuple[Op, str]] = []
    for i in range(length):
        rows.append(("compute", f"f{i}"))
        rows += [("page_out", f"f{i}")] if i in pages else []
        if i and i - 1 in pages:
            rows.append(("free", f"f{i - 1}"))
    for i in reversed(range(length)):
        if i in pages and i < length - 1:
            rows.append(("page_in", f"f{i}"))
        rows.append(("compute", f"g{i}"))
        rows += [("free", f"f{i}")] + ([("free", f"g{i + 1}")] if i < length - 1 else [])
    return (
        CostGraph("chain", tuple(forward + backward)),
        tuple(Statement(op, name) for op, name in rows),
    )


@pytest.mark.parametrize("length", [8, 40])
def test_with_two_spare_tensors_a_long_chain_hides_every_transfer(length: int) -> None:
    graph, given = paged_chain(length, range(0, length - 2, 2))
    problem = Problem(graph, 1 << 20)
    peak = totals(problem, given, placed=False).peak_bytes
    roomy = Problem(graph, peak + 8)
    early = overlap(roomy, given)
    found = lanes(roomy, early)
    assert lanes(roomy, given).hidden < 0.6
    assert found.time_us == found.bound_us
    assert found.hidden == 1.0
    placement = arrange(graph, given, peak + 8)
    placed = overlap(roomy, placement.statements)
    assert totals(roomy, placed, placed=True).time_us == found.bound_us
