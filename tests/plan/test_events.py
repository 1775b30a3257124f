"""Events and the plans made without search, judged by `verify`."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from poet_host.plan.events import Event, energy_uj, events_of, fits, statements, tidy
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import PlanError, Totals
from poet_host.solver.greedy import everything_paged, latest_paged
from poet_host.solver.modes import Modes
from support.cost_graphs import contrary, random_cost_graph, tight_problem
from support.oracle import cheapest
from support.plans import totals
from support.random_plans import random_cost_graph as walked_graph, random_plan

COSTS = ("energy_uj", "page_in_uj", "page_out_uj")
FITTING = ("RAM", "input", "twice", "keep", "on storage")  # the laws that `fits` answers for


def check(graph: CostGraph, events: Sequence[Event], ram_bytes: int = 1 << 40) -> Totals:
    """What the events cost, if they are a plan."""
    return totals(Problem(graph, ram_bytes), statements(graph, events))


def needs(graph: CostGraph) -> list[int]:
    """What each operator needs in RAM by itself, in bytes."""
    return [
        graph.own_bytes(k) + sum(graph.nodes[i].bytes for i in set(node.inputs))
        for k, node in enumerate(graph.nodes)
        if not node.stored
    ]


def stored_graph(seed: int) -> CostGraph:
    """A few want something again after it was overwritten."""
    graph = contrary(seed) if seed % 3 else random_cost_graph(seed)
    return replace(graph, storage=True)


def wasteful(seed: int) -> tuple[CostGraph, list[Event]] | None:
    """A legal plan that wanders about: it computes and pages what it never uses."""
    rng = random.Random(f"wasteful {seed}")
    graph = walked_graph(rng, rng.randint(3, 14))
    nodes = tuple(
        replace(node, **{key: float(rng.randint(1, 9)) for key in COSTS}) for node in graph.nodes
    )
    graph = replace(graph, nodes=nodes)
    plan = random_plan(graph, rng)
    if plan is None:
        return None
    return graph, events_of(graph, plan.statements)


WASTEFUL = [found for seed in range(120) if (found := wasteful(seed)) is not None]


def best_events(seed: int) -> tuple[Problem, list[Event]] | None:
    """The best plan of a problem, half of them without storage."""
    problem = tight_problem(seed, 7)
    best = cheapest(problem)
    return best and (problem, events_of(problem.graph, best.statements))


BEST = [found for seed in range(80) if (found := best_events(seed)) is not None]


def test_tidy_plans_do_the_same_for_less() -> None:
    cheaper = smaller = 0
    for graph, events in WASTEFUL:
        before, useful = check(graph, events), tidy(graph, events)
        after = check(graph, useful)
        assert after.energy_uj == energy_uj(graph, useful)
        assert after.energy_uj <= before.energy_uj
        assert after.peak_bytes <= before.peak_bytes
        assert tidy(graph, useful) == useful
        cheaper += after.energy_uj < before.energy_uj
        smaller += after.peak_bytes < before.peak_bytes
    assert min(cheaper, smaller) > len(WASTEFUL) / 2


def test_tidy_loses_nothing_of_a_best_plan() -> None:
    for problem, events in BEST:
        found = check(problem.graph, tidy(problem.graph, events), problem.ram_bytes)
        assert found.energy_uj == pytest.approx(energy_uj(problem.graph, events), rel=1e-12)


def test_tidy_frees_right_after_the_last_use_and_makes_nothing_again_for_nothing() -> None:
    plans = [*WASTEFUL, *((problem.graph, events) for problem, events in BEST)]
    for graph, events in plans:
        unused: set[int] = set()
        computed: set[int] = set()
        ram = set() if graph.storage else {i for i, n in enumerate(graph.nodes) if n.stored}
        touched = set(ram)
        for op, i, _ in tidy(graph, events):
            if op == "free":
                assert i in touched & ram - unused
                ram.discard(i)
                continue
            inputs = graph.nodes[i].inputs if op == "compute" else ()
            touched = {i, *inputs}
            unused -= touched
            if op != "page_out":
                ram.add(i)
            if op == "page_in" or (op == "compute" and i in computed):
                unused.add(i)
            if op == "compute":
                computed.add(i)
                ram.discard(graph.nodes[i].overwrites)  # type: ignore[arg-type]
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        assert ram == (set() if graph.storage else kept)


def test_fits_exactly_from_the_peak_on() -> None:
    for graph, events in [*WASTEFUL, *((problem.graph, events) for problem, events in BEST)]:
        peak_bytes = check(graph, events).peak_bytes
        assert fits(graph, events, peak_bytes)
        if peak_bytes:
            assert not fits(graph, events, peak_bytes - 1)


def test_what_is_in_ram_at_the_start_has_to_fit_too() -> None:
    nodes = (CostNode("x", (), 8, stored=True), CostNode("y", (), 4))
    graph = CostGraph("start", nodes, storage=False)
    events: list[Event] = [Event("free", 0), Event("compute", 1), Event("free", 1)]
    assert fits(graph, events, 8)
    assert not fits(graph, events, 4)


def test_fits_judges_damaged_plans_as_verify_does() -> None:
    rng = random.Random("damaged")
    seen = dict.fromkeys((*FITTING, "none"), 0)
    for problem, events in BEST * 20:
        damaged = list(events)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.5:
                del damaged[at]
            else:
                free = Event("free", rng.randrange(len(problem.graph.nodes)))
                damaged.insert(at + 1, rng.choice([*events, free, free]))
            damaged = damaged or list(events)
        ram_bytes = problem.ram_bytes + rng.choice((0, 0, 100))
        law = "none"
        try:
            check(problem.graph, damaged, ram_bytes)
        except PlanError as error:
            law = error.law
        if law in seen and not (law == "keep" and problem.graph.storage):
            seen[law] += 1
            assert fits(problem.graph, damaged, ram_bytes) == (law == "none"), damaged
    assert min(seen.values()) > 5, seen


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_is_needed_latest_is_paged_and_everything_computed_once(share: float) -> None:
    for seed in range(300):
        graph = stored_graph(seed)
        least = max(needs(graph))
        ram_bytes = least + int(share * sum(node.bytes for node in graph.nodes))
        events = latest_paged(Modes(graph), ram_bytes)
        assert events is not None
        found = check(graph, events, ram_bytes)
        assert found.peak_bytes <= ram_bytes
        computed = [i for op, i, _ in events if op == "compute"]
        assert computed == [i for i, node in enumerate(graph.nodes) if not node.stored]
        assert latest_paged(Modes(graph), least - 1) is None


def test_with_room_for_all_only_what_must_be_is_paged() -> None:
    """Tensors that are wanted again after they were overwritten must be, too."""
    for seed in range(300):
        graph = stored_graph(seed)
        events = latest_paged(Modes(graph), sum(n.bytes + n.workspace_bytes for n in graph.nodes))
        assert events is not None
        overwritten = {node.overwrites for node in graph.nodes}
        for op, i, _ in events:
            if op == "page_out":
                assert graph.nodes[i].keep or i in overwritten
            if op == "page_in":
                assert graph.nodes[i].stored or i in overwritten


def test_paging_everything_needs_what_the_largest_operator_needs() -> None:
    for seed in range(300):
        graph = stored_graph(seed)
        found = check(graph, everything_paged(Modes(graph)))
        assert found.peak_bytes == max(needs(graph))


def equal(*inputs: tuple[int, ...], **overwrites: int) -> CostGraph:
    """Nodes n0, n1, ... of 4 bytes."""
    nodes = [
        CostNode(f"n{i}", js, 4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, overwrites=overwrites.get(f"n{i}"))
        for i, js in enumerate(inputs)
    ]
    return CostGraph("equal", tuple(nodes))


def paging(events: Sequence[Event] | None) -> list[Event]:
    return [event for event in events or [] if event[0] in ("page_in", "page_out")]


def test_the_one_needed_latest_goes() -> None:
    graph = equal((), (), (), (), (3, 1), (4, 2), (5, 0), n4=3, n5=4)
    assert paging(latest_paged(Modes(graph), 12)) == [Event("page_out", 0), Event("page_in", 0)]


def test_what_is_wanted_after_it_was_overwritten_comes_from_storage() -> None:
    graph = equal((), (0,), (1, 0), n1=0)
    events = latest_paged(Modes(graph), 12)
    assert events is not None
    assert paging(events) == [Event("page_out", 0), Event("page_in", 0)]
    check(graph, events, 12)
