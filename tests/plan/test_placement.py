"""Placement: never overlapping, within the budget, and as low as anything can be."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings, strategies as st
from poet_host.packing.blocks import ALIGNMENT, Block, live_peak, neighbours
from poet_host.packing.packing import Packing, pack
from poet_host.plan.placement import arrange, lives_of
from poet_host.plan.plan import Statement
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.solver.solve import solve
from support.cost_graphs import random_problem
from support.oracle import cheapest
from support.plans import plan_of, totals
from support.random_plans import random_cost_graph, random_plan

from bench.placement import cut_rectangle


def check(blocks: Sequence[Block], packing: Packing) -> None:
    ends = [o + b.size_bytes for o, b in zip(packing.offsets, blocks, strict=True)]
    assert all(o >= 0 and o % ALIGNMENT == 0 for o in packing.offsets)
    assert packing.height_bytes == max(ends, default=0)
    for i, a in enumerate(blocks):
        for j, b in enumerate(blocks[:i]):
            if a.begin < b.end and b.begin < a.end and a.size_bytes and b.size_bytes:
                assert ends[i] <= packing.offsets[j] or ends[j] <= packing.offsets[i]


def lowest(blocks: Sequence[Block]) -> int:
    """The least height there is: the best of first fit in every order."""
    best = 1 << 60
    for order in permutations(range(len(blocks))):
        placed: dict[int, int] = {}
        for i in order:
            near = [
                j
                for j in placed
                if blocks[j].begin < blocks[i].end and blocks[i].begin < blocks[j].end
            ]
            low = 0
            for j in sorted(near, key=lambda j: placed[j]):
                if low + blocks[i].size_bytes > placed[j]:
                    low = max(low, placed[j] + blocks[j].aligned)
            placed[i] = low
        best = min(best, max(placed[i] + blocks[i].size_bytes for i in placed))
    return best


def some_blocks(seed: int) -> list[Block]:
    rng = random.Random(seed)
    begins = [rng.randrange(6) for _ in range(6)]
    return [Block(begin, begin + rng.randint(1, 4), rng.randint(1, 20)) for begin in begins]


@given(
    st.lists(
        st.builds(
            lambda begin, life, size: Block(begin, begin + life, size),
            *(st.integers(0, 20), st.integers(1, 12), st.integers(0, 99)),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 400),
)
@settings(max_examples=200, deadline=None)
def test_a_packing_is_valid_and_not_below_the_live_peak(blocks: list[Block], capacity: int) -> None:
    packing = pack(blocks, capacity, thorough=False)
    check(blocks, packing)
    assert packing.height_bytes >= live_peak(blocks)
    assert pack(blocks, capacity, thorough=False) == packing
    assert packing.height_bytes <= capacity or packing.height_bytes >= live_peak(blocks)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "below"), [(150, 0), (60, 1)])
def test_smallest_of_all_for_small_problems(seeds: int, below: int) -> None:
    """Just below the least height nothing fits, and the best that is known comes back."""
    for seed in range(seeds):
        blocks = some_blocks(seed)
        least = lowest(blocks)
        packing = pack(blocks, least - below)
        check(blocks, packing)
        assert packing.height_bytes == least


def test_perfect_packings_are_found() -> None:
    for seed in range(20):
        blocks = cut_rectangle(seed, 20, 100, 400)
        packing = pack(blocks, 400)
        check(blocks, packing)
        assert packing.height_bytes == 400


def training_like(seed: int, layers: int) -> list[Block]:
    """Activations nested in each other, short-lived gradients, and parameters at both ends."""
    rng = random.Random(seed)
    end = 4 * layers
    blocks = []
    for k in range(layers):
        begin, life = rng.choice(
            [
                (k, end - 2 * k - rng.randint(0, 3)),
                (k, rng.randint(1, 6)),
                (end - k - 5, rng.randint(1, 5)),
                (rng.randint(0, end - 2), rng.randint(1, layers)),
            ]
        )
        blocks.append(Block(begin, begin + max(1, life), 4 * rng.choice((1, 2, 4, 8, 16, 64, 100))))
    return blocks


@pytest.mark.slow
def test_training_like_lifetimes_reach_the_live_peak() -> None:
    for seed in range(12):
        blocks = training_like(seed, 80)
        packing = pack(blocks, live_peak(blocks))
        check(blocks, packing)
        assert packing.height_bytes == live_peak(blocks)


def test_first_fit_in_time_comes_first() -> None:
    """Where a board's own choice fits, it is taken: schedules encode it in one bit."""
    blocks = [Block(0, 9, 4), Block(1, 3, 8), Block(3, 9, 4), Block(4, 9, 4)]
    assert pack(blocks, 12).offsets == (0, 4, 4, 8)
    assert pack(blocks, 100).offsets == (0, 4, 4, 8)


def test_blocks_that_live_all_the_time_are_at_the_bottom() -> None:
    blocks = [Block(0, 2, 8), Block(0, 9, 4), Block(1, 9, 4), Block(0, 9, 12)]
    assert pack(blocks, 28) == Packing((16, 0, 24, 4), 28)


def test_unaligned_sizes_may_end_right_at_the_capacity() -> None:
    blocks = [Block(0, 2, 5), Block(0, 2, 7)]
    assert live_peak(blocks) == 13
    assert pack(blocks, 13) == Packing((8, 0), 13)
    assert live_peak([Block(0, 1, 7)]) == 7


def test_neighbours_are_those_alive_at_the_same_time() -> None:
    blocks = [Block(0, 3, 4), Block(2, 4, 4), Block(3, 5, 4), Block(0, 9, 0)]
    assert neighbours(blocks) == [[1], [0, 2], [1], []]


def test_a_time_limit_ends_the_search() -> None:
    blocks = cut_rectangle(0, 150, 100, 400)
    packing = pack(blocks, 400, time_limit_s=0.0)
    check(blocks, packing)


# From blocks to plans.

CHAIN = CostGraph(
    "chain",
    (
        CostNode("w", (), 8, stored=True),
        CostNode("a", (0,), 8, overwrites=0),
        CostNode("b", (1,), 8, overwrites=1, workspace_bytes=5),
        CostNode("c", (2,), 4),
    ),
)
CHAIN_PLAN = (
    Statement("page_in", "w"),
    Statement("compute", "a"),
    Statement("compute", "b"),
    Statement("compute", "c"),
    Statement("free", "b"),
    Statement("page_in", "w"),
)


def test_a_chain_of_overwriting_shares_one_offset() -> None:
    lives = lives_of(CHAIN, CHAIN_PLAN)
    assert [(life.begin, life.end, [s for s, _ in life.outputs]) for life in lives] == [
        (0, 4, [0, 1, 2]),
        (2, 3, []),
        (3, 6, [3]),
        (5, 6, [5]),
    ]
    placed = arrange(CHAIN, CHAIN_PLAN, 13, 1.0).statements
    assert [it.offset for it in placed[:3]] == [0, 0, 0]
    assert placed[2].workspace_offset == 8
    assert totals(Problem(CHAIN, 13), placed, placed=True).peak_bytes == 13
    assert arrange(CHAIN, CHAIN_PLAN, 12, 1.0).height_bytes > 12


def test_without_storage_the_start_is_placed_too() -> None:
    graph = replace(CHAIN, storage=False)
    statements = CHAIN_PLAN[1:4]
    placement = arrange(graph, statements, 13)
    assert dict(placement.initial_offsets).keys() == {"w"}
    plan = plan_of(placement.statements, initial_offsets=placement.initial_offsets)
    assert verify(Problem(graph, 13), plan).peak_bytes == placement.height_bytes == 13


@pytest.mark.parametrize("seed", range(40))
def test_random_plans_stay_what_they_are_and_get_legal_offsets(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_cost_graph(rng, rng.randint(3, 20))
    found = random_plan(graph, rng)
    if found is None:
        return
    before = totals(Problem(graph, 1 << 20), found.statements, placed=True)
    placement = arrange(graph, found.statements, 0)
    after = totals(Problem(graph, placement.height_bytes), placement.statements, placed=True)
    assert after.peak_bytes == placement.height_bytes <= before.peak_bytes
    for old, new in zip(found.statements, placement.statements, strict=True):
        assert (old.op, old.node) == (new.op, new.node)


@pytest.mark.slow
def test_the_cheapest_plans_of_small_problems_fit_into_their_live_bytes() -> None:
    placed = 0
    for seed in range(150):
        problem = random_problem(seed)
        nodes = tuple(
            replace(node, bytes=4 * node.bytes, workspace_bytes=4 * node.workspace_bytes)
            for node in problem.graph.nodes
        )
        graph = replace(problem.graph, nodes=nodes)
        best = cheapest(problem)
        if best is None or not best.statements:
            continue
        peak = live_peak([life.block for life in lives_of(graph, best.statements)])
        placement = arrange(graph, best.statements, peak)
        plan = plan_of(placement.statements, initial_offsets=placement.initial_offsets)
        assert verify(Problem(graph, peak), plan).peak_bytes == peak
        placed += 1
    assert placed > 100


# The lives of the cheapest plan of a small problem, with sizes that are not multiples of 4. At most
# 22 bytes are alive, but no packing is that low.
TIGHT = [
    *(Block(0, 3, 8), Block(1, 12, 1), Block(2, 7, 6), Block(4, 10, 7), Block(5, 13, 4)),
    *(Block(8, 18, 7), Block(11, 15, 6), Block(14, 20, 6), Block(16, 22, 1), Block(17, 22, 1)),
    *(Block(19, 22, 8), Block(21, 22, 8)),
]


@pytest.mark.slow
def test_where_nothing_reaches_the_live_peak_the_best_comes_back() -> None:
    assert live_peak(TIGHT) == 22
    packing = pack(TIGHT, 22)
    check(TIGHT, packing)
    assert packing.height_bytes == 23


def test_a_tensor_cannot_return_to_a_place_that_another_one_still_takes() -> None:
    nodes = (
        CostNode("w", (), 16, stored=True, stays=True),
        CostNode("over", (0,), 16, overwrites=0),
        CostNode("both", (0, 1), 4, keep=True),
    )
    graph = CostGraph("returns", nodes)
    steps = [("start", "w"), ("compute", "over"), ("page_in", "w"), ("compute", "both")]
    statements = [Statement(op, name) for op, name in steps]
    placement = arrange(graph, statements, 100)
    assert placement.nothing_fits
    assert placement.height_bytes > 100
    problem = Problem(graph, 36)
    assert verify(problem, solve(problem)).peak_bytes == 36  # another plan is found
