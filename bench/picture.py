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


def draw(results: Sequence["Ours"], path: Path) -> None:
    """Draw the M4's reference graphs: energy above computing everything once, and the bound."""
    of_m4 = [r for r in results if r.point.board == graphs.M4 and not r.point.training]
    models = list(dict.fromkeys(r.point.model for r in of_m4))
    figure = Figure(figsize=(3.4 * len(models), 3.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for model, axes in zip(models, panels, strict=True):
        known = [r for r in of_m4 if r.point.model == model and r.plan.energy_uj is not None]
        budgets = [r.point.percent for r in known]
        upper = [100 * ((r.plan.energy_uj or 0.0) / r.once_uj - 1) for r in known]
        lower = [100 * max((r.plan.bound or 0.0) / r.once_uj - 1, 0.0) for r in known]
        axes.plot(budgets, upper, marker="o", markersize=4, label="plan")
        axes.fill_between(budgets, lower, upper, alpha=0.25, linewidth=0, label="not yet proved")
        axes.set_xlim(100, 0)
        axes.set_ylim(0, 1.1 * max(*upper, 0.01))
        axes.set_xlabel("RAM, % of keep-everything's peak")
        axes.set_title(model)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("energy above computing everything once, %")
    panels[0].legend(loc="best")
    figure.savefig(path, dpi=120)
