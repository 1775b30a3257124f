"""States: cheapest paths over the states of a step, searched in C (state_search.c).

A state is a stage, the tensors in RAM, and those on storage. Sets are integers with one bit for
each tensor. The C files are compiled on first use. Without a C compiler, there is no such search.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ... import work
from ...firmware_build.compile import library_of
from ..program import INFINITY

MOST_TENSORS = 128
LABEL_S, TIMED_LABEL_S = 3e-6, 8e-6  # of each label, for counted work
EDGE_S = 30e-9  # of each edge, each time a table is filled
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
    needed: Sequence[int]  # see state_search.h
    runs: list[Run]
    moves: list[list[tuple[int, int]]]
    useful: Sequence[int] = ()  # in RAM, in each stage and at the end; none: all tensors
    usable: Sequence[int] = ()  # the same for storage
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
                ("int32_t[]", self.needed),
                ("struct state_run[]", runs),
                ("struct state_move[]", [move for moves in self.moves for move in moves]),
                ("int32_t[]", firsts),
                ("struct state_set[]", [words(it) for it in self.useful or every]),
                ("struct state_set[]", [words(it) for it in self.usable or every]),
                ("double[]", self.rest([run.cost for run in self.runs])),
                ("double[]", self.rest([run.processor_us for run in self.runs])),
            )
        ]
        return ffi.new("struct state_problem *", {
            "tensors": len(self.size), "stages": self.stages, "runs": len(runs),
            "timed": self.timed, "ram_bytes": self.ram_bytes, "size": kept[0],
            "padding": kept[1] if self.padding else ffi.NULL, "page_in": kept[2],
            "needed": kept[3], "run": kept[4], "move": kept[5], "first": kept[6],
            "useful": kept[7], "usable": kept[8], "rest": kept[9], "rest_us": kept[10],
            "ram": words(self.ram), "storage": words(self.storage),
            "value_per_us": self.value_per_us, "latest_us": self.latest_us,
            "commit_share": self.commit_share,
        })  # fmt: skip


class StateTable:
    """The least cost from each set of coarse tensors on, for any prices of reads from storage."""

    def __init__(self, problem: StateProblem, in_c: Any, handle: Any) -> None:
        self.problem, self.in_c, self.handle = problem, in_c, handle
        self.edges = int(_lib().state_table_edges(handle))

    @classmethod
    def of(cls, problem: StateProblem, coarse: int, most: int) -> "StateTable | None":
        """Return the table of all coarse sets; None if there are more than `most`."""
        ffi, lib = _ffi(), _lib()
        in_c = problem.in_c(ffi)
        handle = lib.state_table_new(in_c, words(coarse), most)
        if handle == ffi.NULL:
            return None
        return cls(problem, in_c, ffi.gc(handle, lib.state_table_free))

    def price(self, costs: Sequence[float], prices: Any) -> float:
        """Fill the table. Return the least cost of a plan.

        `costs`: of each run. `prices`: an array of a row for each stage and a column for each
        tensor. At most three prices of a row count.
        """
        ffi = _ffi()
        self._given = ffi.new("double[]", costs), np.ascontiguousarray(prices, dtype=np.float64)
        pointer = ffi.cast("const double *", self._given[1].ctypes.data)
        work.add(self.edges * EDGE_S)
        return float(_lib().state_table_price(self.handle, self._given[0], pointer))

    def path(self) -> list[Step]:
        most = 10_000
        steps = _ffi().new("struct state_step[]", most)
        return _steps(steps, _lib().state_table_path(self.handle, steps, most))


class StateSearch:
    """A search for a cheapest path, which can be continued."""

    def __init__(self, problem: StateProblem, table: StateTable | None = None) -> None:
        ffi, lib = _ffi(), _lib()
        self.problem, self.table = problem, table
        self.in_c = problem.in_c(ffi) if table is None else table.in_c
        handle = lib.state_search_new(self.in_c, ffi.NULL if table is None else table.handle)
        if handle == ffi.NULL:
            raise MemoryError
        self.handle = ffi.gc(handle, lib.state_search_free)

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
