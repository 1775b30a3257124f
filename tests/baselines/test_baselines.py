"""What all schedulers share: the table, honest plans, and statements from decisions."""

from dataclasses import replace

import pytest
from poet_host.baselines.chain import MERGED, chain_of, turning_point
from poet_host.baselines.method import EXTENSION, DoesNotApply
from poet_host.baselines.pofo import MAX_LINKS
from poet_host.baselines.registry import METHODS, SCHEDULERS, plan_by
from poet_host.errors import BadInput
from poet_host.plan.completion import complete
from poet_host.plan.events import Event
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from support.chains import chain, residual, with_parameters
from support.cost_graphs import random_problem
from support.oracle import smallest_energy

HEURISTICS = [name for name in METHODS if not name.startswith("poet") and name != "checkmate"]


def test_the_table_has_all_schedulers_with_sources() -> None:
    assert set(METHODS) == {
        "poet", "poet-paging", "poet-remat", "checkpoint-all", "chen-sqrt", "chen-greedy",
        "griewank", "checkmate", "dtr", "dtr-eq", "capuchin", "pofo",
    }  # fmt: skip
    for row in SCHEDULERS.values():
        assert row.description
        assert row.applies_to
        assert any(char.isdigit() for char in row.citation)
    with pytest.raises(BadInput, match="no method 'best'"):
        plan_by("best", Problem(chain([8, 8]), 100))


@pytest.mark.parametrize("method", [*HEURISTICS, "checkmate"])
def test_other_methods_ignore_what_may_stay(method: str) -> None:
    graph = with_parameters()
    nodes = tuple(replace(node, stays=node.stored) for node in graph.nodes)
    marked = replace(graph, nodes=nodes, commit_every=10)
    kept = keep_everything(graph)
    assert keep_everything(marked).energy_uj == kept.energy_uj
    plain, plan = (
        plan_by(method, Problem(it, kept.peak_bytes or 0), Settings(5.0, counted=True))
        for it in (graph, marked)
    )
    assert plan.statements == plain.statements != ()
    assert plan.energy_uj == plain.energy_uj
    assert not plan.initial_offsets


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_plans_a_step_with_parameters(method: str) -> None:
    graph = with_parameters()
    least = largest_operator_bytes(graph)
    kept = keep_everything(graph)
    for ram_bytes in (least - 4, least, least + 16, kept.peak_bytes or 0):
        problem = Problem(graph, ram_bytes)
        plan = plan_by(method, problem, Settings(time_limit_s=5.0))
        assert plan.method == method
        if plan.statements:
            totals = verify(problem, plan)
            assert totals.energy_uj == plan.energy_uj
            assert totals.peak_bytes <= ram_bytes
            assert plan_from_json(plan.to_json()) == plan
        else:
            assert ram_bytes < (kept.peak_bytes or 0)
            assert plan.status in ("infeasible", "unknown")
    if method not in ("chen-sqrt", "griewank"):  # they may compute again with any RAM
        assert plan.energy_uj == kept.energy_uj


@pytest.mark.slow
@pytest.mark.parametrize("method", HEURISTICS)
def test_whatever_a_heuristic_plans_is_legal_and_no_better_than_the_best(method: str) -> None:
    planned = 0
    for seed in range(80):
        problem = random_problem(seed, most_nodes=8)
        for placed in (True, False):
            try:
                plan = plan_by(method, problem, Settings(placed=placed, time_limit_s=5.0))
            except DoesNotApply:
                continue
            if plan.statements:
                planned += 1
                verify(problem, plan, placed=placed)
                assert plan.status == "feasible"
                assert plan.bound is None
                best_uj = smallest_energy(problem)
                assert best_uj is not None
                assert best_uj <= (plan.energy_uj or 0.0) * (1 + 1e-9)
    assert planned > 4


@pytest.mark.slow
@pytest.mark.parametrize("method", ["checkpoint-all", "chen-sqrt", "griewank", "capuchin"])
def test_the_smallest_budget_that_is_named_works(method: str) -> None:
    named = 0
    for seed in range(60):
        problem = random_problem(seed)
        try:
            smallest = plan_by(method, problem).smallest_ram_bytes
        except DoesNotApply:
            continue
        if smallest is not None:
            named += 1
            assert plan_by(method, replace(problem, ram_bytes=smallest)).statements
    assert named > 9


@pytest.mark.parametrize("method", ["chen-sqrt", "chen-greedy", "griewank", "pofo"])
def test_methods_for_chains_say_when_there_is_none(method: str) -> None:
    with pytest.raises(DoesNotApply, match=rf"{method} does not apply to residual: .*forward pass"):
        plan_by(method, Problem(residual(), 200))


@pytest.mark.parametrize("method", ["capuchin", "pofo"])
def test_methods_that_page_need_storage(method: str) -> None:
    with pytest.raises(DoesNotApply, match="no storage"):
        plan_by(method, Problem(chain([8, 8, 8]), 200))


def test_pofo_refuses_a_chain_that_would_take_it_minutes() -> None:
    graph = chain([8] * (MAX_LINKS + 1), storage=True)
    links = len(chain_of(graph))
    assert links > MAX_LINKS
    with pytest.raises(DoesNotApply, match=f"{links} links"):
        plan_by("pofo", Problem(graph, 800))


@pytest.mark.parametrize("method", ["checkmate", "poet", "dtr"])
def test_a_step_that_computes_nothing_has_a_plan(method: str) -> None:
    graph = CostGraph("still", (CostNode("w", (), 64, stored=True),))
    assert plan_by(method, Problem(graph, 64)).status in ("optimal", "feasible")


def test_one_schedule_too_large_is_infeasible_and_names_what_would_do() -> None:
    graph = chain([8] * 6, gradients=4)
    plan = plan_by("checkpoint-all", Problem(graph, 40))
    assert plan.status == "infeasible"
    assert plan.smallest_ram_bytes == 6 * 8 + 4  # all results, and the loss
    assert "need 52 bytes" in plan.note
    assert plan_by("checkpoint-all", Problem(graph, 52)).statements
    assert not plan_by("checkpoint-all", Problem(graph, 48)).statements


@pytest.mark.parametrize(
    "method", ["checkpoint-all", "chen-greedy", "dtr", "capuchin", "checkmate"]
)
def test_budgets_need_not_be_multiples_of_an_offset(method: str) -> None:
    """Tensors of 5 bytes at 0, 8 and 16 end at 21."""
    graph = chain([5] * 6, storage=True, page=50.0, gradients=5)
    tight = keep_everything(graph).peak_bytes or 0
    assert tight % 4
    assert plan_by(method, Problem(graph, tight)).peak_bytes == tight


def test_a_deadline_that_no_schedule_of_the_method_meets_is_infeasible() -> None:
    graph = chain([8] * 6)
    all_us = float(len(graph.nodes))
    assert plan_by("checkpoint-all", Problem(graph, 99, all_us)).status == "feasible"
    late = plan_by("checkpoint-all", Problem(graph, 99, all_us - 0.1))
    assert late.status == "infeasible"
    assert "even if every transfer is hidden" in late.note


# Statements from decisions.


def test_stored_tensors_stay_if_they_can_and_leave_where_they_must() -> None:
    graph = with_parameters()
    events = [Event("compute", i) for i in range(4, len(graph.nodes))]
    roomy = complete(graph, events, 400)
    assert roomy.exits == 0
    names = [(s.op, s.node) for s in roomy.statements or ()]
    assert names.count(("page_in", "w1")) == 1
    assert names.count(("page_out", "w2:new")) == 1
    # Most is needed by w3:new: w3, f1 (for w2:new), f2, g3 and g2. There x, w1 and w2 must be away.
    assert roomy.least_bytes == 40 + 4 * 8
    tight = complete(graph, events, roomy.least_bytes)
    assert tight.exits == 3
    assert [(s.op, s.node) for s in tight.statements or ()].count(("page_in", "w1")) == 2
    assert complete(graph, events, roomy.least_bytes - 1).statements is None
    plan = plan_by("checkpoint-all", Problem(graph, 72))
    assert plan.note == EXTENSION
    assert plan.energy_uj == 9 * 1.0 + (4 + 3) * 4.0 + 3 * 4.0


def test_of_two_stored_tensors_the_one_that_saves_less_for_its_room_leaves() -> None:
    costs = {"page_in_us": 1.0, "page_out_us": 1.0, "page_out_uj": 1.0, "energy_uj": 1.0}
    nodes = (
        CostNode("cheap", (), 8, stored=True, page_in_uj=1.0, **costs),
        CostNode("dear", (), 8, stored=True, page_in_uj=9.0, **costs),
        CostNode("a", (0, 1), 4, **costs),
        CostNode("b", (2,), 12, **costs),
        CostNode("c", (0, 1), 4, **costs),
    )
    plan = plan_by("checkpoint-all", Problem(CostGraph("two", nodes), 24))
    ins = [s.node for s in plan.statements if s.op == "page_in"]
    assert sorted(ins) == ["cheap", "cheap", "dear"]


def test_an_overwritten_result_that_is_needed_again_goes_out_and_comes_back() -> None:
    costs = {"page_in_us": 1.0, "page_in_uj": 2.0, "page_out_us": 1.0, "page_out_uj": 3.0}
    nodes = (
        CostNode("a", (), 4, energy_uj=1.0, **costs),
        CostNode("b", (0,), 4, energy_uj=1.0, overwrites=0, **costs),
        CostNode("c", (0, 1), 4, energy_uj=1.0, **costs),
    )
    events = [Event("compute", i) for i in range(3)]
    plan = plan_by("checkpoint-all", Problem(CostGraph("over", nodes), 12))
    assert plan.energy_uj == 3 * 1.0 + 3.0 + 2.0
    assert complete(CostGraph("over", nodes, storage=False), events, 12).statements is None
    lost = plan_by("checkpoint-all", Problem(CostGraph("over", nodes, storage=False), 12))
    assert (lost.status, "overwrites" in lost.note) == ("infeasible", True)


# Chains.


@pytest.mark.parametrize("method", ["checkpoint-all", "capuchin"])
def test_an_overwritten_result_that_is_computed_once_comes_back_from_storage(method: str) -> None:
    nodes = (
        CostNode("x", (), 64, stored=True),
        CostNode("m", (0,), 16, once=True),
        CostNode("f", (0,), 16),
        CostNode("new", (1, 2), 16, overwrites=1, once=True, keep=True),
        CostNode("both", (1, 2), 4, keep=True),
    )
    problem = Problem(CostGraph("once", nodes), 200)
    verify(problem, plan_by(method, problem))


def test_a_chain_is_found_with_its_groups_and_tapes() -> None:
    graph = chain([8, 8, 8, 8], storage=True)
    found = chain_of(graph)
    names = [[graph.nodes[i].name for i in block] for block in found.blocks]
    assert names[:3] == [["f1"], ["f2"], ["f3"]]
    groups = [[graph.nodes[i].name for i in group] for group in found.groups]
    assert groups[:3] == [[], ["g2", "g1"], ["g3"]]  # g(k) needs f(k - 1), the input of link k
    assert not any(found.tapes[:3])  # an output is used as the next link's input alone
    assert not found.note
    assert graph.nodes[turning_point(graph)].name in ("f4", "loss")


def test_branches_are_merged_and_noted() -> None:
    graph = chain([8, 8, 8, 8, 8], storage=True)
    nodes = [
        CostNode(
            node.name,
            tuple(j + (j > 0) for j in node.inputs) + ((1,) if node.name == "f3" else ()),
            node.bytes,
            node.time_us,
            node.energy_uj,
        )
        for node in graph.nodes
    ]
    nodes.insert(1, CostNode("branch", (0,), 8, 1.0, 1.0))
    merged = CostGraph("merged", tuple(nodes))
    found = chain_of(merged)
    assert [merged.nodes[i].name for i in found.blocks[1]] == ["branch", "f2", "f3"]
    assert found.note == MERGED
    assert plan_by("pofo", Problem(merged, 100)).note == MERGED


def test_effort_is_bounded_by_the_time_limit() -> None:
    settings = Settings(time_limit_s=0.0)
    plan = SCHEDULERS["chen-greedy"].run(Problem(chain([8] * 6), 100), settings)
    assert plan.status == "unknown"
    assert "time ran out" in plan.note
