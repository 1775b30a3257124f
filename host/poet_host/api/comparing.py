"""Compare planning methods on many problems."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from ..compare.pool import cluster as cluster, cores
from ..compare.sweep import Case, Point, Progress, Store, sweep
from ..errors import BadInput
from ..plan.problem import CostGraph, Problem
from ..temporary import temporary_folder
from ..work import UNITS_PER_S
from .planning import check_limits


def compare_methods(
    points: Sequence[tuple[Problem, str, str]],
    *,
    time_limit_s: float = 60.0,
    work_limit: float | None = None,
    gap: float = 0.0,
    folder: str | Path | None = None,
    jobs: int | None = None,
    pool: Executor | None = None,
    progress: Progress | None = None,
    report: Callable[[str], object] = lambda text: None,
) -> list[dict[str, Any]]:
    """Plan many problems by several methods, in parallel, and return a row for each point.

    A point is a problem, the name of a method, and a name of the problem's costs ("" if its graph
    has its own). The other limits are those of `solve`. All plans are verified. `folder` keeps the
    table and the plans: rows that are already there are not solved again. `jobs` is the number of
    processes (None: one for each processor). An executor `pool` solves the points instead of them;
    its workers need the same version of poet-host, and a C compiler if this computer has one. At
    the end, even after an error, `report` is called with the number of rows in the folder. Raises
    BadInput for a wrong limit or point, or if the folder cannot be created.
    """
    check_limits(time_limit_s, work_limit, gap)
    for point in points:
        is_row = isinstance(point, tuple | list)
        if not is_row or [type(it) for it in point] != [Problem, str, str]:
            raise BadInput(f"a point must be (Problem, method, name of the costs), not {point!r}")
    if jobs is not None and jobs < 1:
        raise BadInput(f"`jobs` must be at least 1, not {jobs}")
    limit_s = time_limit_s if work_limit is None else work_limit / UNITS_PER_S
    cases: dict[tuple[int, str], Case] = {}

    def case_of(problem: Problem, costs: str) -> Case:
        graph: CostGraph = problem.graph
        board = problem.profile.board if problem.profile else ""
        return cases.setdefault((id(graph), costs), Case(graph.name, board, costs, graph))

    wanted = [
        Point(
            case_of(problem, costs), method, problem.ram_bytes, problem.deadline_us, limit_s, gap,
            problem.objective, work_limit is not None,
        )
        for problem, method, costs in points
    ]  # fmt: skip
    with _store(folder) as store:
        try:
            results = sweep(wanted, store, jobs=jobs or cores(), pool=pool, progress=progress)
        finally:
            rows = store.write_table()
            if folder:
                report(f"wrote {len(rows):,} finished points to {folder}/table.csv and table.json")
        return [result.row for result in results]


@contextmanager
def _store(folder: str | Path | None) -> Iterator[Store]:
    if folder is None:
        with temporary_folder(Path(gettempdir()), "poet-compare-") as temporary:
            yield Store(temporary)
        return
    try:
        store = Store(Path(folder))
    except OSError as error:
        raise BadInput(
            f"-o: {error.filename} cannot be created ({error.strerror or error}). Name a folder "
            "that you can write to"
        ) from error
    yield store
