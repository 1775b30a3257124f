"""The table of all planning methods. The command line and `compare` read it.

To add a method, add a row, a file with a function (Problem, Settings) -> Plan, and a test.
method.py makes plans from the schedules that a method proposes. The verifier checks all plans by
the same laws.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from math import inf
from pathlib import Path

from ..errors import BadInput, PoetWarning
from ..plan.plan import Plan
from ..plan.problem import Problem, without_modes, without_staying
from ..plan.verify import PlanError
from ..solver.settings import DEFAULT_SETTINGS, Method, Settings
from ..solver.solve import solve
from ..work import counting
from . import capuchin, checkpoint_all, chen_greedy, chen_sqrt, dtr, griewank, pofo
from .chain import chain_of
from .checkmate import checkmate
from .method import DoesNotApply, Drafts, cheapest_plan

ANY = "any graph"
CHAIN = "chains; branches are merged into links"
PAGED = "any graph with storage"
PAGED_CHAIN = "chains with storage; branches are merged into links"

Planner = Callable[[Problem, Settings], Plan]


@dataclass(frozen=True)
class SeedLimits:
    """The largest graphs for which a method makes a seed plan within two seconds.

    The work of some methods grows with the cube of the graph's size.
    """

    rank: int  # a search asks the method of lowest rank first
    max_nodes: float = inf
    max_links: float = inf  # of a chain


@dataclass(frozen=True)
class Scheduler:
    """One planning method."""

    name: str
    run: Planner  # may raise DoesNotApply
    description: str
    citation: str
    applies_to: str
    recomputes: bool  # whether the method recomputes tensors
    pages: bool  # whether the method pages computed tensors
    minimises: str
    seed: SeedLimits | None = None  # None: the method makes no seed plans, since it searches
    # Whether the method uses modes other than mode 0, and lets tensors stay from step to step.
    knows_extensions: bool = False

    def plan(self, problem: Problem, settings: Settings) -> Plan:
        """Plan the problem. Raises DoesNotApply.

        Counted work (work.py) limits published methods: what they find does not depend on the
        computer's other work.
        """
        if not self.knows_extensions:
            graph = without_modes(problem.graph)
            if graph.starting:
                graph = replace(without_staying(graph), commit_every=graph.commit_every)
            problem = replace(problem, graph=graph, streaming=None, streamable=None)
        with counting(settings.counted or self.citation != _POET):
            return self.run(problem, settings)

    def seed_plan(self, problem: Problem, settings: Settings) -> Plan | None:
        """Make a seed plan. Return None if the method finds none, or the graph is too large."""
        if self.seed is None or len(problem.graph.nodes) > self.seed.max_nodes:
            return None
        try:
            if self.seed.max_links < inf and len(chain_of(problem.graph)) > self.seed.max_links:
                return None
            plan = self.plan(problem, settings)
        except DoesNotApply:
            return None
        except PlanError as error:  # a search needs no seed plan
            text = f"the planner left out a plan by {self.name}, which is a defect: {error}"
            warnings.warn(text, PoetWarning, stacklevel=2)
            return None
        return replace(plan, method=self.name) if plan.statements else None


def own(method: Method, problem: Problem, settings: Settings) -> Plan:
    """Find the plan of least value by this project's planner.

    The search may also make plans by other methods (seed plans), if the method may use them. Its
    result needs no more energy than any of these.

    S. G. Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated
    Rematerialization and Paging*, ICML 2022, arXiv 2207.07697. Figure 4 of the paper has two
    ablations: poet-paging and poet-remat.
    """
    return solve(problem, settings, method=method, seed_plans=SEED_PLANS)


def _checkmate(problem: Problem, settings: Settings) -> Plan:
    return checkmate(problem, settings, SEED_PLANS)


def _cheapest(drafts: Drafts, every: bool = True) -> Planner:
    return partial(cheapest_plan, drafts, every=every)


_POET = "Patil et al., ICML 2022, arXiv 2207.07697"
_ROWS = (
    Scheduler("poet", partial(own, "poet"), "recomputes and pages, least energy proved", _POET,
              ANY, True, True, "energy", knows_extensions=True),
    Scheduler("poet-paging", partial(own, "poet-paging"),
              "poet without recomputation", _POET,
              PAGED, False, True, "energy", knows_extensions=True),
    Scheduler("poet-remat", partial(own, "poet-remat"),
              "poet without paging of results", _POET,
              ANY, True, False, "energy", knows_extensions=True),
    Scheduler("checkpoint-all", _cheapest(checkpoint_all.drafts),
              "keeps everything",
              "Jain et al., MLSys 2020, arXiv 1910.02653",
              ANY, False, False, "nothing", SeedLimits(1)),
    Scheduler("chen-sqrt", _cheapest(chen_sqrt.drafts),
              "keeps every sqrt(n)-th layer",
              "Chen et al., arXiv 1604.06174",
              CHAIN, True, False, "nothing", SeedLimits(4)),
    Scheduler("chen-greedy", _cheapest(chen_greedy.drafts, every=False),
              "keeps layers by the bytes between them",
              "Chen et al., arXiv 1604.06174, Algorithm 3",
              CHAIN, True, False, "bytes", SeedLimits(5, max_nodes=2000)),
    Scheduler("griewank", _cheapest(griewank.drafts),
              "binomial checkpoints (Revolve)",
              "Griewank and Walther, ACM TOMS 26(1), 2000, Algorithm 799",
              CHAIN, True, False, "steps", SeedLimits(7, max_links=128)),
    Scheduler("checkmate", _checkmate, "optimal recomputation, parameters resident",
              "Jain et al., MLSys 2020, arXiv 1910.02653",
              ANY, True, False, "energy"),
    Scheduler("dtr", _cheapest(dtr.drafts),
              "evicts online by h_DTR and recomputes on demand",
              "Kirisame et al., ICLR 2021, arXiv 2006.09616",
              ANY, True, False, "time", SeedLimits(2, max_nodes=1000)),
    Scheduler("dtr-eq", _cheapest(dtr.drafts_eq),
              "like dtr, by h_DTR_eq, which its PyTorch runtime uses",
              "Kirisame et al., ICLR 2021, arXiv 2006.09616",
              ANY, True, False, "time", SeedLimits(3, max_nodes=1000)),
    Scheduler("capuchin", _cheapest(capuchin.drafts),
              "pages what overlaps, then chooses by memory saved per second",
              "Peng et al., ASPLOS 2020",
              PAGED, True, True, "time", SeedLimits(8, max_nodes=500)),
    Scheduler("pofo", pofo.pofo,
              "dynamic programme over recomputing and offloading",
              "Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021",
              PAGED_CHAIN, True, True, "time", SeedLimits(6, max_links=64)),
)  # fmt: skip

SCHEDULERS: dict[str, Scheduler] = {row.name: row for row in _ROWS}
METHODS: tuple[str, ...] = tuple(SCHEDULERS)
SEED_PLANS = tuple(
    row.seed_plan
    for row in sorted(_ROWS, key=lambda row: row.seed.rank if row.seed else 0)
    if row.seed
)


def plan_by(method: str, problem: Problem, settings: Settings = DEFAULT_SETTINGS) -> Plan:
    """Plan the problem by the method with this name.

    Raises BadInput if no method has this name, and DoesNotApply (a BadInput) if the method does
    not work on this kind of graph.
    """
    if method not in SCHEDULERS:
        raise BadInput(f"there is no method {method!r}: choose one of {', '.join(METHODS)}")
    try:
        plan = SCHEDULERS[method].plan(problem, settings)
    except DoesNotApply as error:
        raise DoesNotApply(f"{method} does not apply to {problem.graph.name}: {error}") from error
    return replace(plan, method=method)


@cache
def planner_version() -> str:
    """Return a hash of all that a plan depends on, except for its problem."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    hashed = hashlib.sha256(version("highspy").encode())
    for path in files:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]
