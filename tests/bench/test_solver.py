"""What the solver's benchmark says about a plan: are its figures right?"""

from dataclasses import replace

import pytest
from poet_host.plan.verify import verify
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve

from bench import graphs
from bench.points import LEAST, Point, points
from bench.solver import Ours, overhead_gap, run_ours


@pytest.fixture(scope="module")
def linear() -> Ours:
    return run_ours(Point("linear", graphs.M4, 50, one_percent_s=20.0), 20.0)


def test_plan_is_within_the_budget_and_not_below_the_live_bytes(linear: Ours) -> None:
    assert linear.memory is not None
    assert linear.memory.live_bytes <= linear.memory.height_bytes <= linear.plan.ram_bytes
    assert linear.memory.fragmentation == (
        linear.memory.height_bytes / linear.memory.live_bytes - 1
    )
    assert verify(linear.point.problem(), linear.plan).peak_bytes == linear.memory.height_bytes


def test_energy_of_once_is_a_floor(linear: Ours) -> None:
    assert linear.plan.energy_uj is not None
    assert linear.once_uj < linear.plan.energy_uj


def test_bits_are_those_of_the_plan_part(linear: Ours) -> None:
    assert linear.header is not None
    assert linear.plan_bytes is not None
    assert linear.header.bit_bytes < linear.plan_bytes
    assert linear.header.statement_count >= len(linear.plan.statements)
    bits = linear.header.bit_bytes * 8 / linear.header.statement_count
    assert linear.bits_per_statement == bits


def test_aims_are_judged_by_the_plan_that_came_out(linear: Ours) -> None:
    assert linear.plan.gap is not None

    def aims(gap: float | None, time_s: float, plan_bytes: int) -> dict[str, bool]:
        plan = replace(linear.plan, gap=gap)
        one = replace(linear, plan=plan, time_s=time_s, one_percent_s=5.0, plan_bytes=plan_bytes)
        return one.aims(60.0)

    assert set(aims(0.0, 6.0, 700).values()) == {True}
    assert [aim for aim, met in aims(0.02, 6.0, 700).items() if not met] == [
        "1 % in 20 s",
        "0.1 % in 60 s",
    ]
    assert [aim for aim, met in aims(0.005, 62.5, 701).items() if not met] == [
        "0.1 % in 60 s",
        "700 B",
        "limit + 2 s",
    ]
    assert not any(met for aim, met in aims(None, 1.0, 700).items() if "%" in aim)


@pytest.mark.parametrize(
    ("energy_uj", "bound_uj", "gap"),
    [(110.0, 109.0, 0.1), (110.0, 110.0, 0.0), (100.0, 100.0, 0.0), (None, 90.0, None)],
)
def test_gap_of_the_overhead(energy_uj: float | None, bound_uj: float, gap: float | None) -> None:
    assert overhead_gap(energy_uj, bound_uj, 100.0) == gap


def test_least_budget_has_a_plan_and_no_smaller_one_has() -> None:
    problem = Point("linear", graphs.M4, LEAST).problem()
    found = run_ours(Point("linear", graphs.M4, LEAST), 20.0)
    assert found.plan.peak_bytes == problem.ram_bytes
    less = replace(problem, ram_bytes=problem.ram_bytes - 1)
    assert solve(less, Settings(time_limit_s=20.0, counted=True)).status == "infeasible"


def test_points_are_different_problems() -> None:
    assert len(set(points(quick=False))) == len(points(quick=False))
    assert set(points(quick=True)) < set(points(quick=False))
