"""What `make paper` solves: the paper's graphs and whole training steps, on its boards.

RAM budgets are shares of the way from the floor, which every schedule needs, to the RAM of keeping
everything. So a share is comparable between models.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import poet_host as poet
from poet_host.baselines.registry import METHODS
from poet_host.compare.sweep import Case, Point, Result, Store, solve_job
from poet_host.errors import BadInput
from poet_host.plan.infeasible import largest_operator_bytes

from . import graphs

BOARDS = ("mkr1000", "nrf52840_dk", "rpi4b", "jetson_tx2")
TX2 = ("jetson_tx2",)
WHOLE_ON = {
    "linear": BOARDS,
    "transformer": TX2,
    "vgg16-cifar": ("nrf52840_dk", "rpi4b", "jetson_tx2"),
    "resnet18-cifar": BOARDS,
    "bert": TX2,
}  # whole steps take long to solve; on the other boards these models are far too large
PREFIX = "ref-"  # of the names of the paper's graphs in the table
MODELS = {
    "linear": "linear",
    "transformer": "transformer",
    "vgg16-cifar": "vgg16-cifar",
    "resnet18-cifar": "resnet18-cifar",
    "bert": "bert-base",
}  # the paper's graph: our whole step
SHARES = (0.05, 0.15, 0.3, 0.5, 0.75)
WHOLE_SHARES = (0.1, 0.3, 0.6)
TIMES = (1.0, 1.05, 1.2, 1.5)  # deadlines, multiples of keep-everything's time
TIMED_SHARE = 0.15
ABLATION = ("poet", "poet-paging", "poet-remat")
CHAINS = ("linear", "vgg16-cifar")  # POFO needs no extension for them
LESS_PEAK, FASTER = 1 - 0.083, 1.13  # than POFO, as the paper claims
LEAST_STEP = 0.002  # of the bisection for the least RAM in which POFO has a plan
LIMIT_S, GAP = 10.0, 0.001
PARTS = ("paper", "repository", "estimate", "whole", "times", "pofo", "floor")


@dataclass(frozen=True)
class Scope:
    """What is swept. Each of the `parts` is one of the functions below."""

    models: Sequence[str] = tuple(MODELS)
    boards: Sequence[str] = BOARDS
    methods: Sequence[str] = METHODS
    parts: Sequence[str] = PARTS
    limit_s: float = LIMIT_S

    def __post_init__(self) -> None:
        known = {"models": MODELS, "boards": BOARDS, "methods": METHODS, "parts": PARTS}
        for name, words in known.items():
            wrong = [word for word in getattr(self, name) if word not in words]
            if wrong:
                raise BadInput(f"--{name}: there is no {wrong[0]}; choose of {', '.join(words)}")

    @property
    def command(self) -> str:
        """The command that makes the report of this scope."""
        options = [
            f"--{field.name} {','.join(given)}"
            for field in fields(self)
            if (given := getattr(self, field.name)) != field.default and field.name != "limit_s"
        ]
        if self.limit_s != LIMIT_S:
            options.append(f"--limit {self.limit_s:g}")
        return f'make paper OPTIONS="{" ".join(options)}"' if options else "make paper"

    def point(self, case: Case, method: str, ram: int, limit_us: float | None = None) -> Point:
        return Point(case, method, ram, limit_us, self.limit_s, GAP, "added-energy")

    def on(self, boards: Iterable[str]) -> list[str]:
        return [board for board in boards if board in self.boards]


@cache
def reference_case(model: str, board: str, kind: graphs.Kind) -> Case:
    return Case(PREFIX + model, board, kind, graphs.reference(model, board, kind))


@cache
def whole_case(model: str, board: str) -> Case:
    graph, profile = poet.load(MODELS[model]), poet.estimate_profile(board)
    return Case(graph.name, board, "estimate", poet.costs_of(graph, profile))


def ram_of(case: Case, share: float) -> int:
    floor, most = largest_operator_bytes(case.costs), most_bytes(case)
    return floor + int((most - floor) * share) // 4 * 4


def most_bytes(case: Case) -> int:
    assert case.keeping is not None
    assert case.keeping.peak_bytes is not None
    return case.keeping.peak_bytes


def points(scope: Scope, store: Store) -> list[Point]:
    """All points. Some depend on POFO's least RAM, which is solved first and kept in `store`."""
    parts = {
        "paper": lambda: paper(scope), "repository": lambda: repository(scope),
        "estimate": lambda: estimate(scope), "whole": lambda: whole(scope),
        "times": lambda: times(scope), "pofo": lambda: against_pofo(scope, store),
        "floor": lambda: floor(scope),
    }  # fmt: skip
    wanted = {point.key: point for part in scope.parts for point in parts[part]()}
    return list(wanted.values())


def _swept(scope: Scope, case: Case, shares: Iterable[float]) -> Iterator[Point]:
    for share in shares:
        for method in scope.methods:
            yield scope.point(case, method, ram_of(case, share))


def paper(scope: Scope) -> Iterator[Point]:
    """The paper's graphs with its constants."""
    for model in scope.models:
        for board in scope.on(BOARDS):
            yield from _swept(scope, reference_case(model, board, "paper"), SHARES)


def repository(scope: Scope) -> Iterator[Point]:
    """ResNet-18 with the other energy per FLOP that the repository has for the A72."""
    for board in scope.on(["rpi4b"]) if "resnet18-cifar" in scope.models else []:
        yield from _swept(scope, reference_case("resnet18-cifar", board, "repository"), SHARES)


def estimate(scope: Scope) -> Iterator[Point]:
    """The paper's graphs with realistic constants."""
    for model in scope.models:
        for board in scope.on(TX2 if model == "bert" else BOARDS):
            yield from _swept(scope, reference_case(model, board, "estimate"), SHARES)


def whole(scope: Scope) -> Iterator[Point]:
    """Whole training steps, as boards execute them, with realistic constants."""
    for model in scope.models:
        for board in scope.on(WHOLE_ON[model]):
            yield from _swept(scope, whole_case(model, board), WHOLE_SHARES)


def times(scope: Scope) -> Iterator[Point]:
    """The ablation within one budget, with deadlines and without."""
    for case in _timed(scope):
        assert case.keeping is not None
        for time in (None, *TIMES):
            limit_us = None if time is None else time * (case.keeping.time_us or 0.0)
            for method in ABLATION:
                yield scope.point(case, method, ram_of(case, TIMED_SHARE), limit_us)


def _timed(scope: Scope) -> Iterator[Case]:
    if "resnet18-cifar" in scope.models:
        for board in scope.on(("nrf52840_dk", "rpi4b")):
            yield reference_case("resnet18-cifar", board, "paper")
        for board in scope.on(("rpi4b",)):
            yield whole_case("resnet18-cifar", board)


def against_pofo(scope: Scope, store: Store) -> Iterator[Point]:
    """POFO in the least RAM in which it has a plan.

    POET in that RAM and in less, also with the deadline of the paper's claim.
    """
    for model in CHAINS if set(METHODS[:1]) | {"pofo"} <= set(scope.methods) else ():
        for is_whole in (False, True) if model in scope.models else ():
            least: int | None = None
            for board in scope.on(WHOLE_ON[model] if is_whole else BOARDS):
                case = reference_case(model, board, "paper")
                case = whole_case(model, board) if is_whole else case
                # Feasibility hardly depends on costs: one board's RAM serves for all.
                least = least or least_ram(scope, case, "pofo", store)
                theirs = scope.point(case, "pofo", least)
                found = solved(theirs, store)
                yield theirs
                yield from _compared(scope, case, least, found)


def _compared(scope: Scope, case: Case, least: int, theirs: Result) -> Iterator[Point]:
    time_us = theirs.row["time_us"]
    less = max(int(least * LESS_PEAK) // 4 * 4, largest_operator_bytes(case.costs))
    for ram in (least, less):
        yield scope.point(case, "poet", ram)
        if time_us is not None:
            yield scope.point(case, "poet", ram, time_us / FASTER)


def least_ram(scope: Scope, case: Case, method: str, store: Store) -> int:
    """The least RAM in which a method has a plan, by bisection to LEAST_STEP."""
    low, high = largest_operator_bytes(case.costs), most_bytes(case)
    while high - low > max(LEAST_STEP * low, 4):
        middle = (low + high) // 8 * 4
        found = solved(scope.point(case, method, middle), store)
        low, high = (low, middle) if found.row["plan"] else (middle, high)
    return high


def solved(point: Point, store: Store) -> Result:
    """Solve one point in this process, unless it is in the store."""
    return store.find(point) or store.add(point, solve_job(point.job))


def floor(scope: Scope) -> Iterator[Point]:
    """A plan at the floor of each model shows that the floor can be reached."""
    for model in scope.models:
        for board in scope.on(TX2):
            for case in (reference_case(model, board, "paper"), whole_case(model, board)):
                yield scope.point(case, "poet", ram_of(case, 0.0))
