"""Other planners next to ours: Moccasin's program, and the saved sets of PyTorch."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
from poet_host.baselines.registry import plan_by
from poet_host.errors import BadInput
from poet_host.plan.events import Event
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from support.chains import chain, with_parameters
from support.cost_graphs import contrary, general, problem_of, swept
from support.oracle import smallest_energy

from bench import moccasin
from bench.torch_saved import Step, replayed

needs_ortools = pytest.mark.skipif(find_spec("ortools") is None, reason="OR-Tools is missing")


def planned(problem: Problem, intervals: int, *, placed: bool = True) -> Plan:
    plan = moccasin.moccasin(problem, Settings(20.0, placed=placed), intervals).plan
    if plan.statements:
        verify(problem, plan, placed=placed)
    return plan


def computed_only(graph: CostGraph) -> CostGraph:
    nodes = tuple(replace(node, stored=False) for node in graph.nodes)
    return replace(graph, nodes=nodes, storage=False)


@needs_ortools
@pytest.mark.slow
@pytest.mark.parametrize("make", [general, contrary, swept])
def test_moccasin_with_enough_intervals_is_the_optimum(
    make: Callable[[int, int], CostGraph],
) -> None:
    found: Counter[str] = Counter()
    for seed in (6, 7):
        graph = computed_only(make(seed, 7))
        problem = replace(problem_of(graph, seed), objective="added-energy")
        plan, best_uj = planned(problem, 4, placed=False), smallest_energy(problem)
        assert plan.energy_uj == (best_uj if best_uj is None else pytest.approx(best_uj))
        assert plan.status == ("infeasible" if best_uj is None else "optimal")
        found[plan.status] += 1
    assert found["optimal"] == 2


@needs_ortools
def test_moccasin_computes_a_node_at_most_as_often_as_it_may() -> None:
    """In 12 bytes, f1 of six layers must be computed three times."""
    problem = Problem(chain([4] * 6), 12, objective="added-energy")
    assert planned(problem, 2, placed=False).status == "infeasible"
    plan = planned(problem, 3, placed=False)
    assert (plan.status, plan.energy_uj) == ("optimal", 18.0)
    assert plan.energy_uj == smallest_energy(problem)
    assert max(Counter(it.node for it in plan.statements if it.op == "compute").values()) == 3


@needs_ortools
def test_moccasin_keeps_parameters_in_ram_as_checkmate_does() -> None:
    problem = Problem(with_parameters(), 152, objective="added-energy")  # 160: all computed once
    mine, theirs = planned(problem, 3), plan_by("checkmate", problem, Settings(10.0))
    assert (mine.energy_uj, mine.status, mine.note) == (38.0, "optimal", "")
    assert theirs.energy_uj == 38.0
    assert planned(replace(problem, ram_bytes=148), 3).status == "infeasible"


def test_moccasin_without_or_tools_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="pip install"):
        moccasin.moccasin(Problem(chain([4, 4]), 100), Settings())


def test_computations_by_stage() -> None:
    """In a stage, nodes that are computed again stand in the graph's order, each once."""
    events = [Event("compute", i) for i in (0, 1, 2, 1, 0, 1, 3, 0)]
    stages = [(0, 0), (1, 1), (2, 2), (3, 0), (3, 1), (3, 3), (4, 0)]
    assert moccasin.staged(chain([4, 4]), events) == stages


@pytest.fixture(scope="module")
def step() -> Step:
    return Step("resnet-digits", "mkr1000")


@pytest.mark.slow
def test_pytorch_saves_what_our_backward_pass_reads(step: Step) -> None:
    nodes = step.costs.nodes
    forward = range(step.loss + 1)
    read = {j for node in nodes[step.loss + 1 :] for j in node.inputs if j in forward}
    saved = step.saved(1.0)
    assert saved.nodes == read


@pytest.mark.slow
def test_what_pytorch_does_not_save_is_computed_once_more(step: Step) -> None:
    graph, read = step.costs, step.saved(1.0).nodes
    counts = Counter(event.node for event in step.events(step.saved(0.0)))
    assert not step.saved(0.0).nodes
    assert max(counts.values()) == 2
    assert all(counts[i] == 2 for i in read)
    assert all(counts[i] == 1 for i in range(step.loss, len(graph.nodes)))


@pytest.mark.slow
def test_a_replay_is_a_plan_that_no_bound_exceeds(step: Step) -> None:
    graph = step.costs
    saved = step.saved(0.5)
    plan = replayed(graph, step.events(saved))
    problem = Problem(graph, plan.ram_bytes, objective="added-energy")
    assert verify(problem, plan).energy_uj == plan.energy_uj
    best = plan_by("poet-remat", problem, Settings(10.0, 0.001))
    assert best.bound is not None
    assert plan.energy_uj is not None
    assert best.bound <= plan.energy_uj * (1 + 1e-9)
    keep = keep_everything(graph)
    assert keep.energy_uj is not None
    assert keep.energy_uj < plan.energy_uj
    assert saved.bytes_of(graph) < step.saved(1.0).bytes_of(graph)
    assert saved.other_bytes < 0.01 * saved.bytes_of(graph)
