"""RAM budgets and deadlines as people write them."""

from dataclasses import replace

import pytest
from poet_host.errors import BadInput
from poet_host.plan.infeasible import why_infeasible
from poet_host.plan.limits import deadline_us, problem_of, ram_bytes
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.sizes import size_bytes
from poet_host.solver.solve import solve
from support.chains import chain


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24576", 24576),
        (24576, 24576),
        ("24KiB", 24576),
        ("24 kib", 24576),
        ("1.5KiB", 1536),
        ("2MiB", 2**21),
        ("512B", 512),
        ("10KB", 10_000),
        ("1.5MB", 1_500_000),
        (24576.0, 24576),
        ("50%", 500),
        ("33.3%", 333),
        ("200%", 2000),
    ],
)
def test_ram(text: str | float, size: int) -> None:
    assert ram_bytes(text, 1000) == size


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "-5", "50%%", "nan", "inf", "1e9", "9999999999GiB", "1" * 5000, "1.5", "0.3KiB",
        "24 k", "24 furlongs", True, None,
    ],
)  # fmt: skip
def test_bad_ram(text: str) -> None:
    with pytest.raises(BadInput, match="RAM budget"):
        ram_bytes(text, 1000)


@pytest.mark.parametrize("share", [0.5, "0.5", "1.5"])
def test_a_share_is_written_in_per_cent(share: str | float) -> None:
    with pytest.raises(BadInput, match="50%"):
        ram_bytes(share, 1000)


@pytest.mark.parametrize(("text", "words"), [("64k", "64KiB"), ("2M", "2MiB"), ("1.5g", "1.5GiB")])
def test_a_bare_prefix_is_answered_with_both_spellings(text: str, words: str) -> None:
    for read in (lambda: ram_bytes(text, 1000), lambda: size_bytes(text, "--size")):
        with pytest.raises(BadInput, match=words):
            read()


def test_sizes_are_bytes_and_no_shares() -> None:
    assert size_bytes("1.5KiB", "--size") == 1536
    for text in ("50%", "-5MiB", "9999999TiB", "abc"):
        with pytest.raises(BadInput, match=f"--size '{text}' .*: write"):
            size_bytes(text, "--size")
    with pytest.raises(BadInput, match="--arena '9999999999GiB' is too large"):
        size_bytes("9999999999GiB", "--arena")


def test_shares_need_a_whole() -> None:
    with pytest.raises(BadInput, match=r"'50%': a share .* the graph has no such plan"):
        ram_bytes("50%", None)
    with pytest.raises(BadInput, match=r"'1\.2x': a multiple .* the graph has no such plan"):
        deadline_us("1.2x", None)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1.2x", 1200.0),
        ("15", 15e3),
        ("15ms", 15e3),
        ("7.5us", 7.5),
        (0.5, 500.0),
        ("none", None),
        (None, None),
    ],
)
def test_deadline(text: str | float | None, limit: float | None) -> None:
    assert deadline_us(text, 1000.0) == limit


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.2y", "nan", "inf", "0x", "1e999"])
def test_bad_deadline(text: str) -> None:
    with pytest.raises(BadInput, match="deadline"):
        deadline_us(text, 1000.0)


def test_a_problem_takes_shares_of_its_keep_everything_plan() -> None:
    costs = chain([8] * 6, gradients=4)
    keep = problem_of(costs, "100%").keep_everything
    assert keep is not None
    assert (keep.peak_bytes, keep.time_us) == (52, 13.0)
    half = problem_of(costs, "50%", "2x")
    assert (half.graph, half.ram_bytes, half.deadline_us) == (costs, 26, 26.0)
    assert half.keep_everything == keep
    assert half.graph.keep_everything is costs.keep_everything
    with pytest.raises(BadInput, match="--ram"):
        problem_of(costs)


def test_no_budget_is_advised_where_every_plan_loses_a_tensor() -> None:
    nodes = (CostNode("w", (), 4, stored=True, keep=True), CostNode("a", (0,), 4, overwrites=0))
    problem = Problem(CostGraph("lost", nodes, storage=False), 100)
    plan = replace(solve(problem), problem=problem)
    assert plan.status == "infeasible"
    why = why_infeasible(plan, problem.graph)
    assert "'w'" in why
    assert "'a'" in why
    assert "--ram" not in why


def test_the_smallest_budget_is_one_without_a_deadline() -> None:
    small = Plan("infeasible", 1000, smallest_ram_bytes=2000)
    assert "deadline" not in why_infeasible(small)
    assert "without --deadline" in why_infeasible(replace(small, deadline_us=5.0))


def test_only_limits_that_were_given_are_blamed() -> None:
    assert "deadline" not in why_infeasible(Plan("infeasible", 1000))
    assert "--time-limit" in why_infeasible(Plan("infeasible", 1000))
    assert "--deadline" in why_infeasible(Plan("infeasible", 1000, deadline_us=5.0))
