"""The schedulers, a row each; the command line, `compare` and its figures take them from here.

A new one is a row, a file with a function (Problem, Settings) -> Plan, and a test. What a method
proposes becomes a plan in method.py, and the verifier judges all plans alike.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ..errors import BadInput
from ..plan.plan import Plan
from ..plan.problem import Problem
from ..solver.settings import DEFAULT_SETTINGS, Settings
from .capuchin import capuchin
from .checkmate import checkmate
from .checkpoint_all import checkpoint_all
from .chen_greedy import chen_greedy
from .chen_sqrt import chen_sqrt
from .dtr import dtr
from .griewank import griewank
from .planner import poet, poet_paging, poet_remat
from .pofo import pofo

ANY = "any graph"
CHAIN = "chains; branches are merged into links"
PAGED = "any graph with storage"
PAGED_CHAIN = "chains with storage; branches are merged into links"


@dataclass(frozen=True)
class Scheduler:
    """`recomputes`, `pages`: what the method may do with results. `minimises`: what it weighs."""

    name: str
    run: Callable[[Problem, Settings], Plan]
    description: str
    citation: str
    applies_to: str
    recomputes: bool
    pages: bool
    minimises: str


_POET = "Patil et al., ICML 2022, arXiv 2207.07697"
_ROWS = (
    Scheduler("poet", poet, "recomputes and pages, least energy proved", _POET,
              ANY, True, True, "energy"),
    Scheduler("poet-paging", poet_paging, "poet without recomputation", _POET,
              PAGED, False, True, "energy"),
    Scheduler("poet-remat", poet_remat, "poet without paging of results", _POET,
              ANY, True, False, "energy"),
    Scheduler("checkpoint-all", checkpoint_all, "keeps everything",
              "Jain et al., MLSys 2020, arXiv 1910.02653",
              ANY, False, False, "nothing"),
    Scheduler("chen-sqrt", chen_sqrt, "keeps every sqrt(n)-th layer",
              "Chen et al., arXiv 1604.06174",
              CHAIN, True, False, "nothing"),
    Scheduler("chen-greedy", chen_greedy, "keeps layers by the bytes between them",
              "Chen et al., arXiv 1604.06174, Algorithm 3",
              CHAIN, True, False, "bytes"),
    Scheduler("griewank", griewank, "binomial checkpoints (Revolve)",
              "Griewank and Walther, ACM TOMS 26(1), 2000, Algorithm 799",
              CHAIN, True, False, "steps"),
    Scheduler("checkmate", checkmate, "optimal recomputation, parameters resident",
              "Jain et al., MLSys 2020, arXiv 1910.02653",
              ANY, True, False, "energy"),
    Scheduler("dtr", dtr, "evicts online by h_DTR and recomputes on demand",
              "Kirisame et al., ICLR 2021, arXiv 2006.09616",
              ANY, True, False, "time"),
    Scheduler("capuchin", capuchin, "pages what hides, then by memory saved per second",
              "Peng et al., ASPLOS 2020",
              PAGED, True, True, "time"),
    Scheduler("pofo", pofo, "dynamic programme over recomputing and offloading",
              "Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021",
              PAGED_CHAIN, True, True, "energy, time"),
)  # fmt: skip

SCHEDULERS: dict[str, Scheduler] = {row.name: row for row in _ROWS}
METHODS: tuple[str, ...] = tuple(SCHEDULERS)


def plan_by(method: str, problem: Problem, settings: Settings = DEFAULT_SETTINGS) -> Plan:
    """Make the plan of a method.

    Raises BadInput if there is no such method, and DoesNotApply (a BadInput) if the graph is
    not of the kind that it is made for.
    """
    if method not in SCHEDULERS:
        raise BadInput(f"there is no method {method!r}: choose of {', '.join(METHODS)}")
    return SCHEDULERS[method].run(problem, settings)


@cache
def planner_version() -> str:
    """What a plan depends on besides its problem: a hash of the planner's files and the solver's
    version."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    hashed = hashlib.sha256(version("highspy").encode())
    for path in files:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]
