"""The example of planner.md: a cost graph of five nodes, its programs, and their picture.

    python docs/explanation/five_nodes.py docs/explanation/five-nodes.svg

It prints the figures that planner.md quotes.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.models import stage_model
from poet_host.solver.models.conflicts import Conflict, forbid, violated_sets
from poet_host.solver.models.stage_columns import ALWAYS_IN_RAM, StageModel
from poet_host.solver.program import Term, Values, minimise
from poet_host.solver.recompute_candidates import RecomputeCandidates, recomputable
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve

KIB = 1024
RAM_BYTES = 10 * KIB
LIMIT_S = 60.0  # of one search, which takes some milliseconds


def _node(name: str, inputs: Sequence[int], kib: int, mj: float, out_mj: float, in_mj: float,
          workspace_kib: int = 0) -> CostNode:  # fmt: skip
    return CostNode(
        name, tuple(inputs), kib * KIB, energy_uj=mj * 1e3, page_out_uj=out_mj * 1e3,
        page_in_uj=in_mj * 1e3, workspace_bytes=workspace_kib * KIB,
    )  # fmt: skip


GRAPH = CostGraph(
    "five",
    (
        _node("a", (), 4, 9, 5, 3),
        _node("b", (0,), 3, 7, 5, 4, workspace_kib=3),
        _node("c", (1,), 3, 3, 5, 4),
        _node("d", (2,), 2, 3, 5, 4),
        _node("e", (0, 1, 3), 1, 2, 5, 4),
    ),
)


def model_with(conflicts: Sequence[Conflict]) -> StageModel:
    """Return the stage model of the graph with these conflicts."""
    may_recompute = recomputable(GRAPH, recompute=True, page=True, deadline=False)
    stages = {conflict.stage for conflict in conflicts}
    candidates = RecomputeCandidates(GRAPH, may_recompute, conflict_stages=stages)
    model = stage_model.build(candidates, RAM_BYTES)
    for conflict in conflicts:
        forbid(model, conflict)
    return model


def names(model: StageModel) -> dict[int, str]:
    """Return the names of the variables, by column: kind, stage, tensor."""
    found = {column: f"o_{GRAPH.nodes[i].name}" for i, column in model.written.items()}
    for stage in model.stages:
        assert stage.operator is not None
        operator = GRAPH.nodes[stage.operator].name
        for kind, columns in (("R", stage.computed), ("P", stage.paged), ("U", stage.used)):
            for i, column in columns.items():
                if column != ALWAYS_IN_RAM:
                    found.setdefault(column, f"{kind}_{operator}{GRAPH.nodes[i].name}")
    return found


def _sum(terms: Iterable[Term], names: dict[int, str]) -> str:
    signed = [
        f"{'-' if factor < 0 else '+'} {abs(factor):g} {names[column]}".replace(" 1 ", " ")
        for column, factor in terms
    ]
    return " ".join(signed).removeprefix("+ ")


def rows(model: StageModel) -> Iterator[str]:
    """Yield the constraints. Each has been divided by the greatest divisor of its numbers."""
    program, name = model.program, names(model)
    for row, (low, high) in enumerate(zip(program.row_lower, program.row_upper, strict=True)):
        at = slice(program.row_starts[row], program.row_starts[row + 1])
        factors = [round(factor) for factor in program.coefficients[at]]
        relation, right = ("=" if low == high else ">=", low) if low > -1e9 else ("<=", high)
        unit = gcd(*factors, round(right))
        terms = zip(program.columns[at], (factor / unit for factor in factors), strict=True)
        yield f"{_sum(terms, name)} {relation} {right / unit:g}"


def objective(model: StageModel) -> str:
    """Return the sum that is minimised, in mJ, without variables that no constraint has."""
    program, name = model.program, names(model)
    used = sorted(set(program.columns), key=lambda column: name[column])
    costs = ((column, program.cost[column] / 1e3) for column in used if program.cost[column])
    return f"{program.offset / 1e3:g} + {_sum(costs, name)}"


def solution(model: StageModel, *, integer: bool) -> tuple[str, Values]:
    """Return the minimum in mJ with the variables that are not 0, and all values."""
    result = minimise(model.program, LIMIT_S, integer=integer)
    assert result.values is not None
    name = names(model)
    values = [f"{name[i]} = {value:.3g}" for i, value in enumerate(result.values) if value > 1e-6]
    return f"{result.objective / 1e3:.1f} mJ: {', '.join(sorted(values))}", result.values


def plan() -> Plan:
    """Return the plan of least energy that `poet-host solve` finds."""
    problem = Problem(GRAPH, RAM_BYTES, objective="added-energy")
    return solve(problem, Settings(time_limit_s=LIMIT_S, gap=0.0))


def figures() -> dict[str, list[str]]:
    """Return the lines that planner.md quotes."""
    first = model_with([])
    relaxation, _ = solution(first, integer=False)
    optimum, values = solution(first, integer=True)
    conflicts = violated_sets(first, values)
    second = model_with(conflicts)
    best = plan()
    statements = (f"{it.op} {it.node}" for it in best.statements if it.op != "free")
    return {
        "minimise": [objective(first)],
        "subject to": list(rows(first)),
        "relaxation": [relaxation],
        "optimum": [optimum],
        "conflict": list(rows(second))[-len(conflicts) :],
        "optimum with the conflict": [solution(second, integer=True)[0]],
        "plan": [f"{best.status}, {(best.energy_uj or 0) / 1e3:.1f} mJ: {', '.join(statements)}"],
    }


COMPUTED, INPUT, EDGE = "#4878a8", "#a9c4de", "#666666"
FREE = {"a": [("U_ca", 2, 3)], "b": [("U_db", 3, 3)]}  # variable, first and last stage
BEFORE = {("a", 4): "P_ea", ("b", 4): "R_eb\nP_eb"}  # in the stage, before its operator
AFTER = {"a": "o_a", "b": "o_b"}
RAM = ("4", "4 + 3 + 3", "6 + 4 U_ca", "5 + 4 U_ca + 3 U_db", "10")  # at most 10
SPLIT = 0.36  # the share of a stage's width before its operator runs


def _cell(axes: Axes, stage: int, row: int, colour: str, text: str) -> None:
    axes.add_patch(Rectangle((stage + SPLIT, row + 0.12), 1 - SPLIT, 0.76, color=colour))
    axes.text(stage + (1 + SPLIT) / 2, row + 0.5, text, ha="center", va="center", fontsize=8,
              color="white" if colour == COMPUTED else "black")  # fmt: skip


def _edges(axes: Axes) -> None:
    """Draw the graph: an arrow from each input to its user."""
    for t, node in enumerate(GRAPH.nodes):
        middle = t + (1 + SPLIT) / 2
        axes.text(middle, -0.95, node.name, ha="center", va="center", fontsize=12, weight="bold")
        axes.text(
            middle, -0.5, f"{node.energy_uj / 1e3:g} mJ", ha="center", va="center", fontsize=8
        )
        for i in node.inputs:
            bend = 0.0 if i == t - 1 else -0.16
            axes.add_patch(
                FancyArrowPatch(
                    (i + (1 + SPLIT) / 2, -0.95), (middle, -0.95), arrowstyle="-|>", color=EDGE,
                    connectionstyle=f"arc3,rad={bend}", shrinkA=10, shrinkB=10, mutation_scale=11,
                )
            )  # fmt: skip


def draw(path: Path) -> None:
    """Draw the graph, and below it the variables: a row for each tensor, a column a stage."""
    mpl.rcParams.update({"svg.hashsalt": "five", "svg.fonttype": "none"})
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.subplots()
    _edges(axes)
    for i, node in enumerate(GRAPH.nodes):
        label = f"{node.name}: {node.bytes // KIB} KiB"
        axes.text(-0.08, i + 0.5, label, ha="right", va="center", fontsize=9)
        _cell(axes, i, i, COMPUTED, "computed")
        for t, user in enumerate(GRAPH.nodes):
            if i in user.inputs:
                _cell(axes, t, i, INPUT, "input")
        for name, first, last in FREE.get(node.name, []):
            box = Rectangle((first + 0.04, i + 0.12), last - first + 0.92, 0.76,
                            fill=False, edgecolor=COMPUTED, linestyle="--")  # fmt: skip
            axes.add_patch(box)
            axes.text((first + last + 1) / 2, i + 0.5, name, ha="center", va="center", fontsize=9)
        axes.text(i + 1.02, i + 0.5, AFTER.get(node.name, ""), va="center", fontsize=9)
    for (name, stage), text in BEFORE.items():
        row = GRAPH.index[name]
        axes.text(stage + SPLIT / 2, row + 0.5, text, ha="center", va="center", fontsize=9)
    axes.text(-0.08, 5.5, "KiB of 10", ha="right", va="center", fontsize=9)
    for t, text in enumerate(RAM):
        axes.text(t + 0.5, 5.5, text, ha="center", va="center", fontsize=8)
        axes.text(t + 0.5, 6.15, f"stage {GRAPH.nodes[t].name}", ha="center", fontsize=9)
    for t in range(len(GRAPH.nodes) + 1):
        axes.plot([t, t], [0, 6], color=EDGE, linewidth=0.6)
    axes.plot([0, 5], [5, 5], color=EDGE, linewidth=0.6)
    axes.set(xlim=(-0.9, 5.05), ylim=(6.3, -1.9))
    axes.axis("off")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    for head, lines in figures().items():
        print(head, *lines, sep="\n    ")
    if sys.argv[1:]:
        draw(Path(sys.argv[1]))
