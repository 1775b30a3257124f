"""What `make paper` solves: the paper's graphs and whole training steps, on its boards.

RAM budgets are shares of the way from the floor, which every schedule needs, to the RAM of keeping
everything. So a share is comparable between models.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import poet_host as poet
from poet_host.baselines.registry import METHODS
from poet_host.compare.sweep import Case, Point, Result, Store, solve_job
from poet_host.errors import BadInput
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.problem import Objective

from .. import graphs

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
WHOLE = {
    "linear": "linear",
    "transformer": "transformer",
    "vgg16-cifar": "vgg16-cifar",
    "resnet18-cifar": "resnet18-cifar",
    "bert": "bert-base",
}  # the paper's graph: our whole step
LARGE = ("resnet18-224", "vgg16-224")  # graphs of its repository with images of 224x224 pixels
MODELS = (*WHOLE, *LARGE)
SHARES = (0.05, 0.15, 0.3, 0.5, 0.75)
WHOLE_SHARES = (0.1, 0.3, 0.6)
# Deadlines of the ablation, in multiples of keep-everything's time. The paper's, for VGG-16, are
# 0.5, 0.6, 0.7, 0.8 and 0.9 ms: its figure has no plan in less than 0.5 ms.
TIMES = (1.0, 1.2, 1.4, 1.6, 1.8)
TIMED_SHARE = 0.05
ABLATION = ("poet", "poet-paging", "poet-remat")
RIVALS = ("linear", "vgg16-cifar", "resnet18-cifar", "resnet18-224")  # of POFO, on the TX2
LESS_PEAK, FASTER = 1 - 0.083, 1.13  # than POFO, as the paper claims
LEAST_STEP = 0.002  # of the bisection for the least RAM in which POFO has a plan
STREAMED = {
    "resnet18-cifar": ("mkr1000", "nrf52840_dk"),
    "vgg16-cifar": ("nrf52840_dk",),
}  # whole steps below the floor of operators that are not split
STREAMED_KIB = (24, 48, 96, 160)
STREAMED_PATIENCE = 6  # times the time limit of other points
# Methods whose order may depend on the current of the card:
RANKED = ("poet-paging", "poet-remat", "dtr", "capuchin")
CARD_BOARDS = ("mkr1000", "nrf52840_dk")  # with an SD card, whose current is an estimate
LIMIT_S, GAP = 3.0, 0.001
# Of the paper's constants for the A72, and what is different in them:
VARIANTS: dict[graphs.Kind, str] = {
    "repository": "its repository’s energy per FLOP",
    "nocache": "page-outs without a cache",
    "x10": "memory power x 10",
    "nocache-x10": "page-outs without a cache, memory power x 10",
}
PARTS = (
    "paper", "variants", "large", "estimate", "whole", "current", "times", "pofo", "floor",
    "streamed",
)  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """What is swept. Each of the `parts` is one of the functions below."""

    models: Sequence[str] = MODELS
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

    def point(
        self, case: Case, method: str, ram: int, limit_us: float | None = None,
        objective: Objective = "added-energy",
    ) -> Point:  # fmt: skip
        return Point(case, method, ram, limit_us, self.limit_s, GAP, objective, True)

    def of(self, models: Iterable[str]) -> list[str]:
        return [model for model in models if model in self.models]

    def on(self, boards: Iterable[str]) -> list[str]:
        return [board for board in boards if board in self.boards]


@cache
def reference_case(model: str, board: str, kind: graphs.Kind) -> Case:
    return Case(PREFIX + model, board, kind, graphs.reference(model, board, kind))


@cache
def whole_case(model: str, board: str, kind: graphs.Kind = "estimate") -> Case:
    graph, profile = poet.load(WHOLE[model]), graphs.profile_of(board, kind)
    return Case(graph.name, board, kind, poet.costs_of(graph, profile))


def streamed_case(model: str, board: str, ram_bytes: int) -> Case:
    """A whole step whose operators stream, in a budget below its floor."""
    whole = whole_case(model, board)
    graph, profile = poet.load(WHOLE[model]), graphs.profile_of(board)
    problem = poet.problem(graph, profile, ram=ram_bytes)
    return replace(whole, profile="streamed", costs=problem.graph, whole_costs=whole.costs)


def ram_of(case: Case, share: float) -> int:
    floor, most = largest_operator_bytes(case.costs), most_bytes(case)
    return floor + int((most - floor) * share) // 4 * 4


def most_bytes(case: Case) -> int:
    assert case.keeping is not None
    assert case.keeping.peak_bytes is not None
    return case.keeping.peak_bytes


def objectives(case: Case) -> tuple[Objective, ...]:
    """The paper's objective, and the whole board's energy where the sleeping board needs power."""
    return ("added-energy", "energy") if case.costs.base_power_uw else ("added-energy",)


def points(scope: Scope, store: Store) -> list[Point]:
    """All points. Some depend on POFO's least RAM, which is solved first and kept in `store`."""
    parts: dict[str, Callable[[Scope], Iterator[Point]]] = {
        "paper": paper, "variants": variants, "large": large, "estimate": estimate, "whole": whole,
        "current": current, "times": times, "floor": floor, "streamed": streamed,
        "pofo": lambda scope: against_pofo(scope, store),
    }  # fmt: skip
    wanted = {point.key: point for part in scope.parts for point in parts[part](scope)}
    return list(wanted.values())


def _swept(scope: Scope, case: Case, shares: Iterable[float]) -> Iterator[Point]:
    for share in shares:
        for method in scope.methods:
            for objective in objectives(case):
                yield scope.point(case, method, ram_of(case, share), objective=objective)


def paper(scope: Scope) -> Iterator[Point]:
    """The paper's graphs with its constants."""
    for model in scope.of(WHOLE):
        for board in scope.on(BOARDS):
            yield from _swept(scope, reference_case(model, board, "paper"), SHARES)


def variants(scope: Scope) -> Iterator[Point]:
    """ResNet-18 on the A72 with the other constants that the repository has for it."""
    for model in scope.of(("resnet18-cifar",)):
        for board in scope.on(("rpi4b",)):
            for kind in VARIANTS:
                yield from _swept(scope, reference_case(model, board, kind), SHARES)


def large(scope: Scope) -> Iterator[Point]:
    """The graphs of the paper's repository with images of 224x224 pixels."""
    for model in scope.of(LARGE):
        for board in scope.on(TX2):
            yield from _swept(scope, reference_case(model, board, "paper"), SHARES)


def estimate(scope: Scope) -> Iterator[Point]:
    """The paper's graphs with realistic constants."""
    for model in scope.of(WHOLE):
        for board in scope.on(TX2 if model == "bert" else BOARDS):
            yield from _swept(scope, reference_case(model, board, "estimate"), SHARES)


def whole(scope: Scope) -> Iterator[Point]:
    """Whole training steps, as boards execute them, with realistic constants."""
    for model in scope.of(WHOLE):
        for board in scope.on(WHOLE_ON[model]):
            yield from _swept(scope, whole_case(model, board), WHOLE_SHARES)


def current(scope: Scope) -> Iterator[Point]:
    """Methods whose order may change with a card that draws 20 mA instead of 100 mA."""
    methods = [method for method in RANKED if method in scope.methods]
    ranked = replace(scope, methods=methods)
    for board in scope.on(CARD_BOARDS):
        for model in scope.of(WHOLE):
            if model != "bert":
                yield from _swept(ranked, reference_case(model, board, "estimate-20mA"), SHARES)
            if board in WHOLE_ON[model]:
                yield from _swept(ranked, whole_case(model, board, "estimate-20mA"), WHOLE_SHARES)


def times(scope: Scope) -> Iterator[Point]:
    """The ablation within one budget, with deadlines and without."""
    for case in _timed(scope):
        assert case.keeping is not None
        for time in (None, *TIMES):
            limit_us = None if time is None else time * (case.keeping.time_us or 0.0)
            for method in ABLATION:
                yield scope.point(case, method, ram_of(case, TIMED_SHARE), limit_us)


def _timed(scope: Scope) -> Iterator[Case]:
    for model in scope.of(("vgg16-cifar",)):
        for board in scope.on(("rpi4b", "jetson_tx2")):
            yield reference_case(model, board, "paper")
    for model in scope.of(("resnet18-cifar",)):
        for board in scope.on(("rpi4b",)):
            yield whole_case(model, board)


def against_pofo(scope: Scope, store: Store) -> Iterator[Point]:
    """POFO in the least RAM in which it has a plan.

    POET in that RAM and in less, also with the deadline of the paper's claim.
    """
    is_wanted = {"poet", "pofo"} <= set(scope.methods)
    for model in scope.of(RIVALS) if is_wanted else ():
        for board in scope.on(TX2):
            cases = [reference_case(model, board, "paper")]
            cases += [whole_case(model, board)] if model in WHOLE else []
            for case in cases:
                least = least_ram(scope, case, "pofo", store)
                theirs = scope.point(case, "pofo", least)
                yield theirs
                yield from _compared(scope, case, least, solved(theirs, store))


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
            yield _at_floor(scope, reference_case(model, board, "paper"))
            if model in WHOLE:
                yield _at_floor(scope, whole_case(model, board))


def _at_floor(scope: Scope, case: Case) -> Point:
    return scope.point(case, "poet", ram_of(case, 0.0))


def streamed(scope: Scope) -> Iterator[Point]:
    """Whole steps in less RAM than their largest operator needs."""
    patient = replace(scope, limit_s=STREAMED_PATIENCE * scope.limit_s)
    for model in scope.of(STREAMED):
        for board in scope.on(STREAMED[model]):
            for kib in STREAMED_KIB:
                case = streamed_case(model, board, 1024 * kib)
                yield patient.point(case, "poet", 1024 * kib, objective="energy")
