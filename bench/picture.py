"""Energy against RAM budget, of the plans in RESULTS-solver.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from . import graphs

if TYPE_CHECKING:
    from .solver import Ours

mpl.use("Agg")


def draw(results: "Sequence[Ours]", path: Path) -> None:
    """The M4's reference graphs: overhead over computing everything once, and what is proved."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    of_m4 = [r for r in results if r.point.board == graphs.M4 and not r.point.training]
    for model in dict.fromkeys(r.point.model for r in of_m4):
        known = [r for r in of_m4 if r.point.model == model and r.plan.energy_uj is not None]
        budgets = [r.point.percent for r in known]
        upper = [100 * ((r.plan.energy_uj or 0.0) / r.once_uj - 1) for r in known]
        lower = [100 * max((r.plan.bound_uj or 0.0) / r.once_uj - 1, 0.0) for r in known]
        (line,) = axes.plot(budgets, upper, marker="o", label=model)
        axes.fill_between(budgets, lower, upper, color=line.get_color(), alpha=0.25, linewidth=0)
    axes.set_xlim(100, 0)
    axes.set_ylim(bottom=-0.5)
    axes.set_xlabel("RAM budget, per cent of keep-everything's peak")
    axes.set_ylabel("energy above computing everything once, %")
    axes.set_title("Energy of the plan (line) and what is not yet proved (band); M4 costs")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
