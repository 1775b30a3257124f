"""The paper's formulation, with which the benchmark compares ours: is it what it claims to be?"""

import random
from dataclasses import replace

import pytest
from poet_host.device.board import load_board
from poet_host.plan.keepall import keep_everything
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve

from bench import graphs
from bench.paper import milp as paper_milp


def spill(page_uj: float) -> CostGraph:
    """`a` is wanted again by `e`, and within 12 bytes there is no room for it during c and d."""
    costs = {"time_us": 1.0, "page_in_uj": page_uj, "page_out_uj": page_uj}
    return CostGraph(
        "spill",
        (
            CostNode("a", (), 4, energy_uj=10.0, **costs),
            CostNode("b", (0,), 4, energy_uj=1.0, **costs),
            CostNode("c", (1,), 8, energy_uj=2.0, **costs),
            CostNode("d", (2,), 4, energy_uj=3.0, **costs),
            CostNode("e", (0, 3), 4, energy_uj=4.0, **costs),
        ),
    )


@pytest.mark.parametrize(
    ("page_uj", "ram_bytes", "energy_uj"),
    [
        (3.0, 16, 20.0),  # everything fits: each once
        (3.0, 12, 26.0),  # a goes out and in: 3 + 3
        (6.0, 12, 30.0),  # a again: 10, less than 6 + 6
        (3.0, 11, None),  # b and c alone need 12
    ],
)
def test_energy_worked_out_by_hand(page_uj: float, ram_bytes: int, energy_uj: float | None) -> None:
    outcome = paper_milp.solve(Problem(spill(page_uj), ram_bytes), 20.0)
    if energy_uj is None:
        assert outcome.energy_uj is None
        assert outcome.bound_uj == paper_milp.INFINITY
    else:
        assert outcome.energy_uj == pytest.approx(energy_uj, rel=1e-6)
        assert outcome.bound_uj == pytest.approx(energy_uj, rel=1e-6)


def test_without_paging_it_is_the_program_of_checkmate() -> None:
    """Paging `a` would cost 6; computing it again costs 10."""
    outcome = paper_milp.solve(Problem(spill(3.0), 12), 20.0, page=False)
    assert outcome.energy_uj == pytest.approx(30.0, rel=1e-6)
    frees = 4 + 3 + 2 + 1 + 1
    assert outcome.columns == 15 * 2 + 10 + frees


def test_deadline_counts_computing_only() -> None:
    late = Problem(spill(6.0), 12, deadline_us=5.0)  # no time to compute a again
    assert paper_milp.solve(late, 20.0).energy_uj == pytest.approx(32.0, rel=1e-6)


def test_variables_are_lower_triangular() -> None:
    """5 stages: 15 of R and of U, 10 each of S and M; FREE for each (stage, edge)."""
    frees = 4 + 3 + 2 + 1 + 1  # edges into b, c, d and the two into e
    assert paper_milp.solve(Problem(spill(3.0), 12), 20.0).columns == 15 * 2 + 10 * 4 + frees


def layered(rng: random.Random) -> CostGraph:
    """A random graph that the paper's model knows: no parameters, nothing in place."""
    nodes: list[CostNode] = []
    for i in range(rng.randint(4, 7)):
        inputs = rng.sample(range(i), min(i, rng.choice((1, 1, 2))))
        in_uj, out_uj = rng.randint(1, 6), rng.randint(1, 6)
        nodes.append(
            CostNode(
                f"n{i}",
                tuple(inputs),
                4 * rng.randint(1, 6),
                time_us=1.0,
                energy_uj=float(rng.randint(1, 12)),
                page_in_uj=float(in_uj),
                page_out_uj=float(out_uj),
            )
        )
    return CostGraph("layered", tuple(nodes))


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_of_the_paper_is_below_our_bound(seed: int) -> None:
    """Each of its plans is one of ours: page-ins that land a stage later, frees that wait."""
    rng = random.Random(seed)
    graph = layered(rng)
    peak = keep_everything(graph).peak_bytes
    assert peak is not None
    problem = Problem(graph, peak * rng.randint(50, 100) // 100)
    paper, ours = (
        paper_milp.solve(problem, 20.0),
        solve(problem, Settings(placed=False, time_limit_s=20.0)),
    )
    if ours.status == "infeasible":
        assert paper.energy_uj is None
        return
    assert ours.energy_uj is not None
    assert ours.bound is not None
    if paper.energy_uj is not None:
        assert ours.bound <= ours.energy_uj * (1 + 1e-9)
        assert ours.energy_uj <= paper.energy_uj * (1 + 1e-6)


def test_parameters_are_refused() -> None:
    graph = spill(3.0)
    stored = replace(graph, nodes=(replace(graph.nodes[0], stored=True), *graph.nodes[1:]))
    with pytest.raises(ValueError, match="no such nodes"):
        paper_milp.solve(Problem(stored, 100), 1.0)


def test_instances_have_the_m4_costs_of_the_paper() -> None:
    """So that the other boards' may be derived from them."""
    paper = load_board(graphs.M4).paper
    assert paper is not None
    for file in sorted(graphs.INSTANCES.glob("ref-*.graph.json")):
        name = file.name.removeprefix("ref-").removesuffix("-m4.graph.json")
        for node in graphs.reference(name).nodes:
            page_in_us = paper.page_in_us + node.bytes / paper.page_in_bytes_per_us
            page_out_us = paper.page_out_us + node.bytes / paper.page_out_bytes_per_us
            assert node.page_in_us == pytest.approx(page_in_us, rel=1e-5)
            assert node.page_out_us == pytest.approx(page_out_us, rel=1e-5)
            compute_uj = node.time_us * paper.processor_active_uw / 1e6
            assert node.energy_uj == pytest.approx(compute_uj, rel=1e-4)
            assert node.page_in_uj == pytest.approx(page_in_us * paper.storage_uw / 1e6, rel=1e-5)


def test_other_boards_scale_time_by_the_ratio_of_rates() -> None:
    m4, m0 = (graphs.reference("linear", board).nodes[9] for board in (graphs.M4, "mkr1000"))
    assert m0.time_us / m4.time_us == pytest.approx(6.37 / 0.166667)
    assert m0.energy_uj == pytest.approx(m0.time_us * 0.066)
    assert m0.page_in_us == pytest.approx(109 + 40 / 4.61651)
    assert m0.bytes == m4.bytes
