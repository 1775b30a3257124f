"""Each method against examples worked by hand, published numbers, and exhaustive search."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, isqrt

import pytest
from poet_host.baselines import capuchin, chen_greedy, chen_sqrt, pofo
from poet_host.baselines.chain import Chain, Walk, chain_of
from poet_host.baselines.checkmate import results_only
from poet_host.baselines.griewank import least_advances, revolve
from poet_host.baselines.method import EXTENSION
from poet_host.baselines.registry import plan_by
from poet_host.plan.completion import complete
from poet_host.plan.events import energy_uj
from poet_host.plan.placed_plan import PlacedPlan, realise
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.settings import Settings
from support.chains import chain, with_parameters
from support.cost_graphs import random_problem
from support.oracle import smallest_energy


def computes(plan: object) -> int:
    return sum(s.op == "compute" for s in plan.statements)  # type: ignore[attr-defined]


# Chen.


def test_chen_cuts_a_chain_of_16_into_4_segments_of_4() -> None:
    assert chen_sqrt.segment_ends(16) == [3, 7, 11]
    assert chen_sqrt.segment_ends(17) == [4, 9, 14]
    assert chen_sqrt.segment_ends(2) == [1][:0]


@pytest.mark.parametrize("n", [16, 36, 64, 100])
def test_chen_sqrt_needs_the_root_in_memory_and_one_more_forward_pass(n: int) -> None:
    """O(sqrt n) memory at the cost of one extra forward pass, as the abstract says."""
    graph = chain([1] * n)
    plan = plan_by("chen-sqrt", Problem(graph, 10 * n), Settings(placed=False))
    again = computes(plan) - len(graph.nodes)
    assert n - 3 * isqrt(n) <= again <= n
    assert plan.peak_bytes is not None
    assert plan.peak_bytes <= 2 * isqrt(n) + 3


def test_algorithm_3_by_hand() -> None:
    """temp: 3, 4 > 3 (cut); 2, 6 > 3 (cut); 1 and the rest."""
    found = chain_of(chain([3, 1, 2, 4, 1, 1, 1]))
    assert chen_greedy.segment_ends(found, 3)[:2] == [1, 3]
    assert chen_greedy.segment_ends(found, 10**6) == []
    assert chen_greedy.segment_ends(found, 0) == list(range(len(found) - 1))


def test_chen_greedy_takes_the_cheapest_segments_that_fit() -> None:
    graph = chain([8] * 12)
    energies = [
        plan_by("chen-greedy", Problem(graph, ram)).energy_uj or inf for ram in (48, 64, 80, 120)
    ]
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] == len(graph.nodes)
    assert energies[0] > energies[-1]


# Griewank.


def test_revolve_reaches_the_published_binomial_numbers() -> None:
    """beta(3, 2) = 10: ten steps with three checkpoints take 2 x 10 - beta(4, 1) = 15 advances."""
    assert least_advances(10, 3) == 15
    assert [least_advances(n, 1) for n in (1, 2, 3, 10)] == [0, 1, 3, 45]
    assert least_advances(56, 5) == 3 * 56 - 28  # beta(5, 3) = 56, beta(6, 2) = 28


@cache
def _by_recursion(steps: int, checkpoints: int) -> int:
    if steps == 1:
        return 0
    if checkpoints == 1:
        return steps * (steps - 1) // 2
    return min(
        m + _by_recursion(steps - m, checkpoints - 1) + _by_recursion(m, checkpoints)
        for m in range(1, steps)
    )  # fmt: skip


@pytest.mark.parametrize("checkpoints", range(1, 7))
def test_the_closed_form_and_the_walk_are_the_optimum(checkpoints: int) -> None:
    for steps in range(1, 20):
        assert least_advances(steps, checkpoints) == _by_recursion(steps, checkpoints)
    for n in (3, 7, 12):
        found = chain_of(chain([1] * n))
        walk = revolve(found, checkpoints)
        assert walk.advances == least_advances(len(found), checkpoints)
        done = [event.node for event in walk.events if event.op == "compute"]
        assert [i for k, i in enumerate(done) if i not in done[:k]] == list(range(2 * n + 1))


@pytest.mark.parametrize("checkpoints", [1, 2, 3])
def test_a_binomial_schedule_holds_its_checkpoints_and_no_more(checkpoints: int) -> None:
    graph = chain([1] * 20)
    walk = revolve(chain_of(graph), checkpoints)
    working = 4  # the step's input and output, and two gradients
    assert complete(graph, walk.events, 10**6).least_bytes <= checkpoints + working


# Capuchin.


def test_free_time_by_hand() -> None:
    """f1 is read by f2 (ends at 2) and by g2 (begins at 7); a page takes 1.5 each way."""
    graph = chain([8] * 3, storage=True, page=1.5)
    found = {graph.nodes[it.node].name: it for it in capuchin.candidates(graph)}
    f1 = found["f1"]
    assert [graph.nodes[i].name for i in (f1.first, f1.second)] == ["f2", "g2"]
    assert f1.free_time_us == graph.index["g2"] - 1.5 - (2 + 1.5)


def test_capuchin_pages_while_transfers_hide_and_recomputes_when_they_do_not() -> None:
    hidden = plan_by("capuchin", Problem(chain([8] * 8, storage=True, page=0.4), 48))
    assert any(s.op == "page_out" for s in hidden.statements)
    assert computes(hidden) == 17
    slow = chain([8] * 8, storage=True, page=30.0)
    dear = plan_by("capuchin", Problem(slow, 48))
    assert not any(s.op == "page_out" for s in dear.statements)
    assert computes(dear) > 17


def test_capuchin_does_not_look_at_energy() -> None:
    """Where pages are fast but dear, it pages nonetheless; the best plan computes again."""
    graph = chain([8] * 6, storage=True, page=0.4)
    nodes = [
        CostNode(n.name, n.inputs, n.bytes, n.time_us, n.energy_uj, n.page_in_us, 50.0,
                 n.page_out_us, 50.0)
        for n in graph.nodes
    ]  # fmt: skip
    problem = Problem(CostGraph("dear pages", tuple(nodes)), 40)
    paged, best = plan_by("capuchin", problem), plan_by("poet", problem)
    assert (paged.energy_uj or 0) >= (best.energy_uj or 0) + 80.0


# Checkmate.


@pytest.mark.parametrize("ram", [4, 5, 6, 8])
def test_checkmate_is_the_optimum_of_rematerialisation(ram: int) -> None:
    problem = Problem(chain([1, 2, 1, 1], [3.0, 1.0, 5.0, 2.0]), ram)
    best_uj = smallest_energy(problem)
    plan = plan_by("checkmate", problem, Settings(placed=False))
    assert plan.status == ("infeasible" if best_uj is None else "optimal")
    assert plan.energy_uj == (best_uj if best_uj is None else pytest.approx(best_uj))


@pytest.mark.slow
def test_without_parameters_checkmate_is_poet_remat() -> None:
    """Both prove their optimum."""
    feasible = 0
    graphs = [chain([3, 1, 4, 2], [1.0, 4.0, 2.0, 3.0], storage=True, gradients=2)]
    problems = [Problem(graph, ram) for graph in graphs for ram in range(8, 18, 2)]
    problems += [it for seed in range(80) if not _has_stored(it := random_problem(seed))]
    for problem in problems:
        ours, theirs = (plan_by(name, problem) for name in ("poet-remat", "checkmate"))
        assert (theirs.status, theirs.note) == (ours.status, "")
        assert theirs.statements == ours.statements
        feasible += ours.status == "optimal"
    assert feasible > 6


def _has_stored(problem: Problem) -> bool:
    return any(node.stored for node in problem.graph.nodes)


@pytest.mark.slow
def test_checkmate_holds_parameters_all_the_time() -> None:
    """128 bytes are stored; f1, f2, g3 and g2 are the most results that wait at a time."""
    graph = with_parameters()
    least_uj = 9 * 1.0 + 4 * 4.0 + 3 * 4.0
    published = plan_by("checkmate", Problem(graph, 128 + 32))
    assert (published.status, published.energy_uj, published.note) == ("optimal", least_uj, "")
    ins = [s.node for s in published.statements if s.op == "page_in"]
    assert ins == ["x", "w1", "w2", "w3"]
    # With 8 bytes less f1 cannot stay, and is computed again.
    tight = Problem(graph, 128 + 24)
    again = plan_by("checkmate", tight)
    assert (again.status, again.energy_uj, again.note) == ("optimal", least_uj + 1.0, "")
    extended = plan_by("checkmate", Problem(graph, 100))
    assert extended.note == EXTENSION
    assert extended.energy_uj == plan_by("poet-remat", Problem(graph, 100)).energy_uj


def test_checkmate_lets_no_parameter_stay_from_step_to_step() -> None:
    graph = with_parameters()
    nodes = tuple(replace(node, stays=node.stored) for node in graph.nodes)
    marked = replace(graph, nodes=nodes, commit_every=10)
    plain, plan = (
        plan_by("checkmate", Problem(it, 100), Settings(5.0, counted=True))
        for it in (graph, marked)
    )
    assert plan.note == EXTENSION
    assert plan.initial_offsets == ()
    assert plan.statements == plain.statements


def test_checkmate_computes_what_a_plan_may_leave_out() -> None:
    graph = replace(with_parameters(), may_leave_out=True)
    plan = plan_by("checkmate", Problem(graph, 128 + 32), Settings(5.0, counted=True))
    assert (plan.status, computes(plan), plan.note) == ("optimal", 9, "")


def test_checkmate_pages_in_no_tensor_that_nothing_uses() -> None:
    graph = with_parameters()
    unused = CostNode("unused", (), 40, page_in_uj=4.0, stored=True)
    graph = replace(graph, nodes=(*graph.nodes, unused))
    plan = plan_by("checkmate", Problem(graph, 128 + 32), Settings(5.0, counted=True))
    assert (plan.bound, plan.note) == (pytest.approx(9 * 1.0 + 4 * 4.0 + 3 * 4.0), "")


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_checkmate_is_the_optimum_next_to_resident_parameters(seed: int) -> None:
    """Against exhaustive search over what is left when stored tensors are taken out."""
    problem = random_problem(seed, most_nodes=7)
    nodes = problem.graph.nodes
    stored_bytes = sum(node.bytes for node in nodes if node.stored)
    if problem.graph.storage:
        problem = replace(problem, ram_bytes=problem.ram_bytes + stored_bytes)
    plan = plan_by("checkmate", problem, Settings(placed=False))
    least_uj = smallest_energy(problem, page=False)
    if plan.status == "infeasible":
        assert least_uj is None
        return
    assert least_uj is not None
    assert plan.status == "optimal"
    if not problem.graph.storage or plan.note:
        assert plan.energy_uj == pytest.approx(least_uj)
        return
    rest = Problem(results_only(problem.graph), problem.ram_bytes - stored_bytes)
    given_uj = sum(node.page_in_uj for node in nodes if node.stored)
    given_uj += sum(node.page_out_uj for node in nodes if node.keep and not node.stored)
    assert plan.energy_uj == pytest.approx((smallest_energy(rest) or 0.0) + given_uj)


def test_checkmate_gives_way_where_an_update_overwrites_what_is_needed_later() -> None:
    costs = {"page_in_us": 1.0, "page_in_uj": 1.0, "page_out_us": 1.0, "page_out_uj": 1.0}
    nodes = (
        CostNode("w", (), 8, stored=True, **costs),
        CostNode("a", (0,), 8, 1.0, 1.0, overwrites=0, **costs),
        CostNode("b", (1,), 8, 1.0, 1.0, overwrites=1, **costs),
        CostNode("c", (1, 2), 8, 1.0, 1.0, **costs),
    )
    plan = plan_by("checkmate", Problem(CostGraph("over", nodes), 40))
    assert plan.note == EXTENSION
    assert plan.statements


def test_checkmate_counts_transfers_against_the_deadline() -> None:
    graph = with_parameters()
    free = plan_by("checkmate", Problem(graph, 160))
    assert free.time_us is not None
    assert plan_by("checkmate", Problem(graph, 160, free.time_us)).statements
    late = plan_by("checkmate", Problem(graph, 160, free.time_us * 0.5), Settings(time_limit_s=2.0))
    assert late.status in ("infeasible", "unknown")


# POFO.


def _walks(found: Chain) -> "list[Walk]":
    """Every schedule of the class, by trying all choices at every step."""
    last = len(found) - 1
    outputs = found.outputs

    def again(s: int, t: int) -> list[list[tuple[str, int]]]:
        if s == t:
            return [[("tape", s), ("back", s)]]
        ways = [[("tape", s), ("need", s), *rest, ("back", s)] for rest in again(s + 1, t)]
        for k in range(s + 1, t + 1):
            go = _go(s, k)
            ways += [
                [*go, *after, ("drop", k - 1), *before]
                for after, before in product(again(k, t), again(s, k - 1))
            ]
        return ways

    def first(s: int) -> list[list[tuple[str, int]]]:
        if s == last:
            return [[("tape", s), ("back", s)]]
        ways = []
        for away in (False, True) if s else (False,):
            out, back = ([("out", s - 1)], [("in", s - 1)]) if away else ([], [])
            ways += [
                [("tape", s), ("need", s), *out, *rest, *back, ("back", s)] for rest in first(s + 1)
            ]
            for k in range(s + 1, last + 1):
                ways += [
                    [*_go(s, k), *out, *rest, ("drop", k - 1), *back, *before]
                    for rest, before in product(first(k), again(s, k - 1))
                ]
        return ways

    walks = []
    for way in first(0):
        walk = Walk(found)
        for what, block in way:
            output = outputs[block]
            if what == "tape":
                walk.forward(block, tape=True)
            elif what == "run":
                walk.forward(block, tape=False)
            elif what == "back":
                walk.backward(block)
            elif output is not None and what == "need":
                walk.ensure([output])
            elif output is not None and what == "drop":
                walk.drop([output])
            elif output is not None:
                walk.page_out(output) if what == "out" else walk.run("page_in", output)
        walks.append(walk)
    return walks


def _go(s: int, k: int) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    for block in range(s, k):
        steps.append(("run", block))
        if block > s:
            steps.append(("drop", block - 1))
    return steps


@pytest.mark.parametrize("page", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4), (8, 2, 6, 4, 2), (2, 4, 6, 8, 2)])
def test_as_a_seed_plan_pofo_is_the_best_of_all_schedules_of_its_class(
    sizes: tuple[int, ...], page: float
) -> None:
    graph = chain(sizes, [1.0, 3.0, 2.0, 1.0, 4.0], storage=True, page=page, gradients=2)
    found = chain_of(graph)
    every = [
        (complete(graph, w.events, 10**6).least_bytes, energy_uj(graph, w.events))
        for w in _walks(found)
    ]
    assert len(every) > 100
    for ram in range(8, 30, 2):
        best_uj = min((uj for least, uj in every if least <= ram), default=inf)
        problem = Problem(graph, ram, objective="added-energy")
        plan = pofo.pofo(problem, Settings(placed=False, below=inf))
        if best_uj == inf:
            assert not plan.statements
            continue
        # Where pages are dear, the programme pays for holding a link's input up to its end.
        assert plan.energy_uj is not None
        assert best_uj - 1e-9 <= plan.energy_uj <= best_uj * (1.0 if page <= 1.0 else 1.3) + 1e-9
    roomy = plan_by("pofo", Problem(graph, 100), Settings(placed=False))
    assert roomy.energy_uj == sum(n.energy_uj for n in graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("page", [0.3, 1.0, 4.0])
def test_pofo_finds_the_least_makespan_of_its_class_or_comes_near(page: float) -> None:
    found = equal = 0
    for sizes in ((4, 4, 4, 4, 4), (8, 2, 6, 4, 2), (2, 4, 6, 8, 2)):
        graph = chain(sizes, [1.0, 3.0, 2.0, 1.0, 4.0], storage=True, page=page, gradients=2)
        walks = {tuple(walk.events) for walk in _walks(chain_of(graph))}
        for ram in range(12, 30, 4):
            problem = Problem(graph, ram)
            completed = [complete(graph, events, ram).statements for events in walks]
            plans = [
                realise(problem, it, placed=False, time_limit_s=inf, effort="little")
                for it in completed
                if it is not None
            ]
            best_us = min(
                (it.totals.time_us for it in plans if isinstance(it, PlacedPlan)), default=inf
            )
            plan = plan_by("pofo", problem, Settings(placed=False))
            assert (plan.time_us is None) == (best_us == inf)
            if plan.time_us is not None:
                found += 1
                equal += plan.time_us <= best_us * (1 + 1e-9)
                assert plan.time_us <= best_us * 1.35
    assert equal / found > 0.6


def test_pofo_offloads_once_and_only_on_the_way_forward() -> None:
    graph = chain([8] * 8, [9.0] * 8, storage=True, page=0.5, gradients=2)
    plan = plan_by("pofo", Problem(graph, 28))
    turn = next(k for k, s in enumerate(plan.statements) if s.node == "loss")
    outs = [k for k, s in enumerate(plan.statements) if s.op == "page_out"]
    ins = [k for k, s in enumerate(plan.statements) if s.op == "page_in"]
    assert outs
    assert len(outs) == len({plan.statements[k].node for k in outs}) == len(ins)
    assert min(ins) > turn - 2


def test_pofo_minimises_its_makespan_whatever_the_objective() -> None:
    """Pages are cheap and slow: the plan of least energy pages, the fastest one computes again."""
    slow = [
        CostNode(n.name, n.inputs, n.bytes, 1.0, 1.0, 30.0, 0.1, 30.0, 0.1)
        for n in chain([8] * 8).nodes
    ]
    problem = Problem(CostGraph("slow pages", tuple(slow)), 40, objective="added-energy")
    quick = plan_by("pofo", problem)
    assert not any(s.op == "page_out" for s in quick.statements)
    assert quick.objective == "added-energy"
    cheap = pofo.pofo(problem, Settings(below=inf))
    assert any(s.op == "page_out" for s in cheap.statements)
    assert (quick.energy_uj or 0.0) > (cheap.energy_uj or inf)
    assert (quick.time_us or inf) < 60.0 < (cheap.time_us or 0.0)
    late = plan_by("pofo", replace(problem, deadline_us=17.5))
    assert late.status == "unknown"  # other schedules of its class were not tried


def test_the_tables_agree_with_what_the_walk_costs() -> None:
    graph = chain([4, 8, 4, 6, 4], [2.0, 1.0, 3.0, 1.0, 2.0], storage=True, gradients=2)
    found = chain_of(graph)
    programme = pofo.Programme(pofo.links_of(found), 30)
    assert programme.unit == 2
    for free in range(programme.slots + 1):
        walk = pofo.best_walk(found, programme, free * 2)
        expected = float(programme.first[0][free])
        assert (walk is None) == (expected == inf)
        if walk is not None:
            once_uj = sum(n.energy_uj for n in graph.nodes)
            assert energy_uj(graph, walk.events) == pytest.approx(once_uj + expected)
            assert complete(graph, walk.events, free * 2).statements is not None
