"""The search over nests equals a walk over every nest of its grammar."""

import random
from itertools import permutations, product
from math import factorial, prod

import numpy as np
import pytest
from poet_host.graph.cuts import Cut
from poet_host.graph.operands import Operator
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from poet_host.plan.parts import LawError, fit_statistics, parts_of
from poet_host.stream.nest_search import SLOTS, NestSearch
from poet_host.stream.nest_traffic import Prices
from poet_host.stream.priced_nest import front, wall_us
from support.kernel_cases import suited
from support.nests import cut_of

PRICES = Prices(
    load=lambda sizes: np.stack([3.0 + 0.5 * sizes, 2.0 + 0.25 * sizes, 5.0 + 1.5 * sizes]),
    store=lambda sizes: np.stack([7.0 + 0.75 * sizes, 1.0 + 0.5 * sizes, 9.0 + 2.0 * sizes]),
    kernel_us=500.0,
    kernel_uj=70.0,
    piece_us=4.0,
    store_also=lambda sizes: np.stack([5 + 0.5 * sizes, 2 + 0.1 * sizes, 3 + 0.25 * sizes]),
    turns=((40.0, 15.0), (25.0, 10.0)),
)
TABLE_SLABS = 12  # of which the board knows whether it must renew them
Row = tuple[float, ...]


def walked(nested: NestedOperator) -> Row:
    """Workspace, wall, energy, bytes in and bytes out, by walking the nest."""
    parallel, processor, energy = 0.0, PRICES.kernel_us, PRICES.kernel_uj
    serial = ends = 0.0
    for i, ring in enumerate(nested.nest.rings):
        if ring is None:
            continue
        price = PRICES.load if i < nested.count else PRICES.store
        if i > nested.count:
            assert PRICES.store_also is not None
            price = PRICES.store_also
        mine, pieces = np.zeros(3), 0
        for size, count in nested.transfers(i).items():
            mine += count * price(np.array(size))
            pieces += count
        if i >= nested.count:
            mine[[0, 2]] += PRICES.turns[i - nested.count]
        lane_us, cpu_us, uj = mine.tolist()
        energy += uj
        first = next(nested.slabs(i))
        sides = (
            [min(part, end - at) for at in range(begin, end, part)]
            for (begin, end), part in zip(first, nested.parts[i], strict=True)
        )
        if ring.slots == 1:
            serial += max(lane_us, cpu_us) + PRICES.piece_us * pieces
        else:
            parallel += lane_us
            processor += cpu_us + PRICES.piece_us * pieces
            ends += sum(price(np.array(4 * np.prod(side)))[0] for side in product(*sides))
    wall = float(wall_us(*map(np.array, (processor, parallel, serial, ends))))
    return (
        nested.workspace_bytes,
        wall,
        energy,
        sum(nested.loads.elements()),
        sum(nested.stores.elements()),
    )


def every_nest(search: NestSearch, cuts: list[Cut | None]) -> dict[object, list[Row]]:
    """The rows of all nests of the grammar, by what streams."""
    operator, found = search.operator, dict[object, list[Row]]()
    over = operator.overwritten
    places = [True] if over is None or operator.must_overwrite else [True, False]
    tiles = list(product(*search.tiles.values()))
    seen = set()
    for tile in tiles:
        step = dict(zip(search.tiles, tile, strict=True))
        outer = [Loop(a, s) for a, s in step.items() if s < search.sizes[a]]
        inner = [Loop(a, search.cells[a]) for a, s in step.items() if search.cells[a] < s]
        for first, second in product(permutations(outer), permutations(inner)):
            loops = (*first, *second)
            depths = [range(len(loops) + 1) if s else (None,) for s in search.streamable]
            for choice in product(*([None, *d] if d != (None,) else d for d in depths)):
                for slots, in_place in product(SLOTS, places):
                    operands = tuple(
                        None if d is None else Ring(
                            slots[1] if i >= search.count or (in_place and i == over)
                            else slots[0], d)
                        for i, d in enumerate(choice)
                    )  # fmt: skip
                    end = search.count + 1
                    nest = Nest(loops, operands[:end], in_place, operands[end:], search.statistics)
                    if nest in seen or (nest.also and operands[search.count] is None):
                        continue
                    seen.add(nest)
                    try:
                        nested = NestedOperator(operator, tuple(cuts), nest, TABLE_SLABS)
                    except LawError:
                        continue
                    if search.used_rows and any(operands) and not nested.used_rows:
                        continue
                    if any(ring and splits(nested, i) for i, ring in enumerate(operands)):
                        continue
                    key = (in_place, tuple(ring is not None for ring in nest.rings))
                    found.setdefault(key, []).append(walked(nested))
    return found


def splits(nested: NestedOperator, index: int) -> bool:
    """Are slabs smaller than a part along an axis that is not cut?"""
    box = nested.box(index)
    pairs = zip(nested.axes[index], nested.parts[index], box.size, strict=True)
    return any(part == axis.size and size < part for axis, part, size in pairs)


def nests_of(search: NestSearch) -> int:
    """How many nests the walk visits at most."""
    inner = sum(cell < search.sizes[axis] for axis, cell in search.cells.items())
    outer = sum(len(steps) > 1 for steps in search.tiles.values())
    rings = (outer + inner + 2) ** sum(search.streamable)
    tiles = prod(map(len, search.tiles.values()))
    return len(SLOTS) * tiles * factorial(outer) * factorial(inner) * rings


WINDOW = {"kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0}
BANDS = {"n": 1, "h": 4, "w": 1, "ow": 1, "kernel_h": 3, "pad_h": 1}


def random_case(rng: random.Random) -> tuple[Operator, list[Cut | None]]:
    """A small operator, and cuts of its tensors along axes that it can be cut along."""
    kernel, sink, count, over = rng.choice([
        ("conv2d", "none", 2, None), ("conv2d_grad_input", "none", 2, None),
        ("conv2d_grad_weight", "sgd", 3, 2), ("linear", "none", 3, None),
        ("linear_grad_weight", "store", 2, None), ("matmul", "store", 2, None),
        ("batchnorm", "none", 4, 0), ("batchnorm_sums", "none", 3, None), ("add", "none", 2, 1),
        ("relu", "none", 1, None), ("grad_bias", "sgd", 2, 1), ("embedding", "none", 2, None),
        ("maxpool2d", "none", 1, None), ("maxpool2d_grad", "none", 2, None),
        ("embedding_grad", "sgd", 3, 2), ("embedding_grad", "sgd", 3, 2),
    ])  # fmt: skip
    sizes = {name: rng.choice([1, 2, 3, 4]) for name in "nck"}
    groups = 1 if kernel != "matmul" else rng.randint(1, 2)
    attrs = {**sizes, "h": 2, "w": 2, "oh": 2, "ow": 2, "groups": groups, "variant": 0, **WINDOW}
    if kernel in ("linear", "linear_grad_weight"):
        attrs |= {"h": 1, "w": 1}
    if kernel.startswith(("conv2d", "maxpool2d")) and rng.random() < 0.5:
        stride = rng.choice([1, 2])
        attrs |= {**BANDS, "oh": 4 // stride, "stride_h": stride}
    if kernel.startswith("embedding"):
        attrs |= {"n": rng.choice([1, 2]), "k": rng.choice([7, 12, 16, 22])}
    operator = Operator(kernel, sink, count, attrs, over)
    return operator, random_operand_cuts(rng, operator)


def random_operand_cuts(rng: random.Random, operator: Operator) -> list[Cut | None]:
    over = operator.overwritten
    along = {axis: rng.choice([1, 1, 2]) for axis in (*operator.free_axes, *operator.summed)}
    cuts = []
    for i in range(operator.input_count + 1):
        axes = operator.operand(i)
        part = tuple(
            min(a.size, along[a.cut_by] * rng.choice([1, 1, 2]))
            if a.cut_by and rng.random() < 0.7 else a.size
            for a in axes
        )  # fmt: skip
        cuts.append(cut_of(rng, tuple(a.size for a in axes), part))
    if over is not None and rng.random() < 0.9:
        cuts[over] = cuts[-1]
    return cuts


Key = tuple[bool, tuple[bool, ...]]  # whether a nest works in place, and what streams


def rows_of_best(
    search: NestSearch, cuts: list[Cut | None], table_slabs: int = 0
) -> dict[Key, list[Row]]:
    """The costs of the best nests, which are those of a walk."""
    found = dict[Key, list[Row]]()
    for priced in search.best():
        row = walked(NestedOperator(search.operator, tuple(cuts), priced.nest, table_slabs))
        assert row == pytest.approx(
            (priced.workspace_bytes, priced.wall_us, priced.energy_uj, priced.moved_in_bytes,
             priced.moved_out_bytes)
        )  # fmt: skip
        key = (priced.nest.in_place, tuple(ring is not None for ring in priced.nest.rings))
        found.setdefault(key, []).append(row)
    return found


def are_those_of_a_walk(
    found: dict[Key, list[Row]], search: NestSearch, cuts: list[Cut | None]
) -> None:
    wanted = every_nest(search, cuts) if search.cells or not search.sizes else {}
    assert found.keys() == wanted.keys(), (search.operator, cuts)
    for key, rows in wanted.items():
        best = [rows[i][:3] for i in front(np.array(rows)[:, :3].T)]
        assert sorted(r[:3] for r in found[key]) == sorted(best), (search.operator, cuts)


@pytest.mark.slow
def test_random_operators_have_the_nests_of_a_walk() -> None:
    rng = random.Random(7)
    judged = streamed = kept = 0
    while judged < 200:
        operator, cuts = random_case(rng)
        try:
            search = NestSearch(operator, cuts, PRICES, table_slabs=TABLE_SLABS)
        except LawError:
            continue
        if nests_of(search) > 1_500:
            continue
        found = rows_of_best(search, cuts, TABLE_SLABS)
        least = search.smallest()
        for priced, streams in zip(least, ([False] * len(cuts), search.streamable), strict=False):
            everything = [
                row[0] for key, rows in found.items() for row in rows if key[1] == tuple(streams)
            ]
            assert priced.workspace_bytes == min(everything), (operator, cuts)
        assert len(least) == (1 + any(search.streamable)) * bool(found), (operator, cuts)
        are_those_of_a_walk(found, search, cuts)
        streamed += sum(any(key[1]) for key in found)
        judged += 1
        kept += search.used_rows > 0 and any(any(key[1]) for key in found)
    assert streamed > 140
    assert kept > 5


def judged_by_a_walk(
    operator: Operator,
    cuts: list[Cut | None],
    walked_cuts: list[Cut | None],
    most_nests: int,
    statistics: bool = False,
    by_rows: bool = False,
) -> tuple[NestSearch, dict[Key, list[Row]]] | None:
    """Compare the best nests with those of a walk. None: no nest is legal, or there are too many.

    `walked_cuts`: also of what the nests compute in addition.
    """
    try:
        search = NestSearch(operator, cuts, PRICES, statistics=statistics, by_rows=by_rows)
    except LawError:
        return None
    if nests_of(search) > most_nests:
        return None
    found = rows_of_best(search, walked_cuts)
    are_those_of_a_walk(found, search, walked_cuts)
    return search, found


@pytest.mark.slow
def test_random_pairs_have_the_nests_of_a_walk() -> None:
    rng = random.Random(11)
    judged = streamed = 0
    while judged < 26:
        operator, cuts = random_case(rng)
        if not operator.may_be_paired or cuts[2] != cuts[3]:
            continue
        axes = operator.operand(0)
        part = tuple(a.size if a.cut_by is None else rng.randint(1, a.size) for a in axes)
        cuts.append(cut_of(rng, tuple(a.size for a in axes), part))
        judgement = judged_by_a_walk(operator, cuts, cuts, 30_000)
        if judgement is None:
            continue
        _, found = judgement
        streamed += sum(key[1][-1] for key in found)
        judged += bool(found)
    assert streamed > 20


@pytest.mark.slow
def test_random_convolutions_with_statistics_have_the_nests_of_a_walk() -> None:
    rng = random.Random(5)
    judged = streamed = batches = 0
    while judged < 30:
        operator, cuts = random_case(rng)
        if not operator.has_statistics:
            continue
        part, channels = parts_of(operator.operand(2), cuts[2])[1], operator.size("k")
        stats = Cut(4, (1, 2, channels), (1, 2, part), 8) if part < channels else None
        if not fit_statistics(operator, parts_of(operator.operand(2), cuts[2]), stats):
            continue
        judgement = judged_by_a_walk(operator, cuts, [*cuts, stats], 3_000, statistics=True)
        if judgement is None:
            continue
        search, found = judgement
        streamed += sum(key[1][-1] for key in found)
        batches += bool(found) and "n" in search.looped and search.streamable[2]
        judged += bool(found)
    assert streamed > 15
    assert batches > 3


@pytest.mark.slow
def test_random_layers_along_time_have_the_nests_of_a_walk() -> None:
    rng = random.Random(13)
    judged = by_rows = 0
    while judged < 15:
        sizes = {name: rng.randint(1, 3) for name in ("n", "c", "w", "k", "oh", "groups")}
        kernel = rng.choice(["gru", "gru_grad", "lstm", "lstm_grad"])
        operator = Operator(kernel, "none", 5 - (kernel == "gru"), suited(kernel, sizes))
        cuts = random_operand_cuts(rng, operator)
        judgement = judged_by_a_walk(operator, cuts, cuts, 2_000, by_rows=bool(rng.randint(0, 3)))
        if judgement is None:
            continue
        search, found = judgement
        weight = 2 if kernel.endswith("_grad") else 1
        by_rows += "k" in search.looped and any(key[1][weight] for key in found)
        judged += bool(found)
    assert by_rows > 3


def test_loops_of_sums_stand_between_other_loops_if_that_is_best() -> None:
    sizes = {"n": 1, "c": 3, "k": 2, "h": 2, "w": 2, "oh": 2, "ow": 2, "groups": 1, "variant": 0}
    operator = Operator("conv2d_grad_weight", "sgd", 3, {**sizes, **WINDOW}, 2)
    x, dy = Cut(8, (1, 1, 6), (1, 1, 4), 1), Cut(8, (1, 2, 2), (1, 2, 1), 1)
    cuts = [x, dy, None, None]
    assert judged_by_a_walk(operator, cuts, cuts, 60_000) is not None


def test_a_tensor_that_is_both_inputs_streams_as_both_or_as_none() -> None:
    rng = random.Random(3)
    for size in (2, 3, 4):
        sizes = {"n": 1, "c": size, "k": 1, "h": 2, "w": 2, "oh": 2, "ow": 2, "groups": 1}
        operator = Operator("add", "none", 2, {**sizes, "variant": 0, **WINDOW}, None)
        whole = tuple(axis.size for axis in operator.operand(0))
        part = tuple(min(rng.choice([1, 2]), extent) for extent in whole)
        cuts = [cut_of(rng, whole, part)] * 3
        found = NestSearch(operator, cuts, PRICES, ("x", "x"))
        apart = NestSearch(operator, cuts, PRICES)
        assert any(apart.streamable[:2])
        for nests, others in ((found.best(), apart.best()), (found.smallest(), apart.smallest())):
            wanted = [priced for priced in others if alike(priced.nest)]
            assert sorted(map(repr, nests)) == sorted(map(repr, wanted))
            assert any(priced.nest.operands[0] for priced in nests)


def alike(nest: Nest) -> bool:
    """Do both inputs stream, or none?"""
    return (nest.operands[0] is None) == (nest.operands[1] is None)


def test_the_front_has_all_that_nothing_dominates() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        rows = rng.integers(0, 12, (3, 60)).astype(float)
        chosen = front(rows)
        points = {tuple(rows[:, i]) for i in range(60)}
        wanted = {
            p for p in points
            if not any(q != p and all(x <= y for x, y in zip(q, p, strict=True)) for q in points)
        }  # fmt: skip
        assert sorted(tuple(rows[:, i]) for i in chosen) == sorted(wanted)
