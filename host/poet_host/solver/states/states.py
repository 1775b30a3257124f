"""States: cheapest paths over the states of a step, searched in C (state_search.c).

A state is a stage, the tensors in RAM, and those on storage. Sets are integers with one bit for
each tensor. The C files are compiled on first use. Without a C compiler, there is no such search.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ... import work
from ...firmware_build.compile import library_of
from ..program import INFINITY

MOST_TENSORS = 128
LABEL_S, TIMED_LABEL_S = 3e-6, 8e-6  # of each label, for counted work
WORD = (1 << 64) - 1
Result = Literal["found", "none", "limit", "no memory"]
_RESULTS: tuple[Result, ...] = ("found", "none", "limit", "no memory")


def library() -> tuple[Any, Any] | None:
    """Return (ffi, lib) of the search in C; None if it cannot be compiled on this computer."""
    return library_of(Path(__file__).parent, "state")


@dataclass(frozen=True)
class Run:
    """What changes a state: a computation, a transfer, or nothing. See state_search.h."""

    needs: int = 0
    reads: int = 0
    forbids: int = 0
    absent: int = 0
    makes: int = 0
    drops: int = 0
    stores: int = 0
    own_bytes: int = 0
    own_padding: int = 0
    cost: float = 0.0
    processor_us: float = 0.0
    transfers_us: float = 0.0
    commit_us: float = 0.0
    lanes: int = 0

    @property
    def sets(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in _SETS)


_SETS = ("needs", "reads", "forbids", "absent", "makes", "drops", "stores")


class Step(NamedTuple):
    """One step of a path."""

    stage: int
    run: int
    paged: int  # tensors that come from storage right before the run
    freed: int  # tensors that leave RAM before the run


@dataclass
class StateProblem:
    """A graph of states. `moves` lists for each stage its runs, each with the stage after it."""

    ram_bytes: int
    size: Sequence[int]  # of each tensor
    page_in: Sequence[float]  # cost for each tensor; negative: it cannot be paged in
    runs: list[Run]
    moves: list[list[tuple[int, int]]]
    useful: Sequence[int] = ()  # in RAM, in each stage and at the end; none: all tensors
    usable: Sequence[int] = ()  # the same for storage
    due: Sequence[int] = ()  # must be in RAM then or later, and can only be paged in; none: nothing
    ram: int = 0  # when the plan begins
    storage: int = 0
    timed: bool = False
    padding: Sequence[int] | None = None
    value_per_us: float = 0.0
    latest_us: float = INFINITY
    commit_share: float = 1.0
    kept: list[Any] = field(default_factory=list)  # arrays that C points to

    @property
    def stages(self) -> int:
        return len(self.moves)

    def rest(self, costs: Sequence[float]) -> list[float]:
        """Return the least sum of the runs' costs from each stage on."""
        rest = [INFINITY] * self.stages + [0.0]
        for stage in reversed(range(self.stages)):
            onwards = [costs[run] + rest[to] for run, to in self.moves[stage] if to > stage]
            rest[stage] = min(onwards, default=INFINITY)
        return rest

    def in_c(self, ffi: Any) -> Any:
        """Return the problem as C sees it."""
        every = [(1 << MOST_TENSORS) - 1] * (self.stages + 1)
        firsts = [0]
        for moves in self.moves:
            firsts.append(firsts[-1] + len(moves))
        runs = [
            {it.name: getattr(run, it.name) for it in fields(run) if it.name not in _SETS}
            | {name: words(getattr(run, name)) for name in _SETS}
            for run in self.runs
        ]
        kept = self.kept = [
            ffi.new(kind, values)
            for kind, values in (
                ("int64_t[]", self.size),
                ("int64_t[]", self.padding or []),
                ("double[]", self.page_in),
                ("struct state_run[]", runs),
                ("struct state_move[]", [move for moves in self.moves for move in moves]),
                ("int32_t[]", firsts),
                ("struct state_set[]", [words(it) for it in self.useful or every]),
                ("struct state_set[]", [words(it) for it in self.usable or every]),
                ("struct state_set[]", [words(it) for it in self.due or [0] * len(every)]),
                ("double[]", self.rest([run.cost for run in self.runs])),
                ("double[]", self.rest([run.processor_us for run in self.runs])),
            )
        ]
        return ffi.new("struct state_problem *", {
            "tensors": len(self.size), "stages": self.stages, "runs": len(runs),
            "timed": self.timed, "ram_bytes": self.ram_bytes, "size": kept[0],
            "padding": kept[1] if self.padding else ffi.NULL, "page_in": kept[2],
            "run": kept[3], "move": kept[4], "first": kept[5], "useful": kept[6],
            "usable": kept[7], "due": kept[8], "rest": kept[9], "rest_us": kept[10],
            "ram": words(self.ram), "storage": words(self.storage),
            "value_per_us": self.value_per_us, "latest_us": self.latest_us,
            "commit_share": self.commit_share,
        })  # fmt: skip


class StateSearch:
    """A search for a cheapest path, which can be continued."""

    def __init__(self, problem: StateProblem, coarser: "StateSearch | None" = None) -> None:
        """Begin a search. `coarser`: a search of the same problem with fewer tensors."""
        ffi, lib = _ffi(), _lib()
        self.problem, self.coarser, self.in_c = problem, coarser, problem.in_c(ffi)
        estimate: Any = coarser.handle if coarser else ffi.NULL
        handle = lib.state_search_new(self.in_c, estimate)
        if handle == ffi.NULL:
            raise MemoryError
        self.handle: Any = ffi.gc(handle, lib.state_search_free)

    def run(self, labels: int, upper: float = INFINITY) -> Result:
        """Go on for so many labels. Leave out paths that cost `upper` or more."""
        before = self.labels
        result: Result = _RESULTS[_lib().state_search_run(self.handle, labels, upper)]
        work.add((self.labels - before) * (TIMED_LABEL_S if self.problem.timed else LABEL_S))
        return result

    @property
    def labels(self) -> int:
        return int(_lib().state_search_labels(self.handle))

    @property
    def bound(self) -> float:
        """Return a lower bound of the costs of all paths, up to `upper`."""
        return float(_lib().state_search_bound(self.handle))

    def back_up(self) -> None:
        """Raise the estimates of all states by those of the states after them.

        Then a finer search can use them, and the search cannot be continued.
        """
        work.add(self.labels * LABEL_S)
        if not _lib().state_search_back_up(self.handle):
            raise MemoryError
        self.coarser = None

    def path(self) -> list[Step]:
        count = _lib().state_search_path(self.handle, _ffi().NULL, 0)
        steps = _ffi().new("struct state_step[]", count)
        return _steps(steps, _lib().state_search_path(self.handle, steps, count))


def set_of(tensors: Iterable[int]) -> int:
    return sum(1 << i for i in set(tensors))


def members(tensors: int) -> Iterator[int]:
    while tensors:
        low = tensors & -tensors
        yield low.bit_length() - 1
        tensors ^= low


def words(tensors: int) -> dict[str, list[int]]:
    """Return a set as a `struct state_set`."""
    return {"words": [tensors & WORD, tensors >> 64]}


def _steps(steps: Any, count: int) -> list[Step]:
    def whole(tensors: Any) -> int:
        return int(tensors.words[0]) | int(tensors.words[1]) << 64

    return [Step(it.stage, it.run, whole(it.paged), whole(it.freed)) for it in steps[0:count]]


def _ffi() -> Any:
    loaded = library()
    assert loaded is not None
    return loaded[0]


def _lib() -> Any:
    loaded = library()
    assert loaded is not None
    return loaded[1]
