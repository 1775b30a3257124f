"""`make paper`: the POET paper's claims, with its numbers and ours, from plans that you can check.

Sweeps (compare/sweep.py) the points of points.py. Finished points stay in build/paper, so
that an interrupted run continues. Writes schedules/paper: REPORT.md, its table, its figures, and
the plans that it cites.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from poet_host.baselines.registry import METHODS
from poet_host.compare.sweep import Case, Point, Progress, Store, cores, sweep, table_csv
from poet_host.device.board import load_board
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.plan.infeasible import largest_operator_bytes

from ..commits import statement
from ..methods import PROPERTIES, properties
from ..report import percent, table
from . import evidence, text
from .claims import NOTHING, Found, claims, views
from .figures import Figure, figures
from .points import BOARDS, GAP, LIMIT_S, MODELS, PARTS, Scope, points
from .second_look import ENOUGH, PATIENCE, beaten, better, once_more, shared

ROOT = Path(__file__).parents[2]
FINISHED = ROOT / "build" / "paper"
REPORT = ROOT / "schedules" / "paper"


def report(found: Found, scope: Scope, drawn: Iterable[Figure]) -> str:
    planned = sum(result.row["plan"] is not None for _, result in found)
    head = ("claim", "the paper", "graphs, constants, energy", "here")
    lines = [
        (claim.text, claim.paper, view.title, ours)
        for claim in claims()
        for view in views(found)
        if (ours := claim.ours(view)) != NOTHING
    ]
    limits = (
        f"{scope.limit_s:g} s a point, {PATIENCE * scope.limit_s:g} s where a gap above "
        f"{percent(ENOUGH, 0)} % was left, {PATIENCE**2 * scope.limit_s:g} s where another method "
        f"was better than poet, and stopped at a gap of {percent(GAP, 1)} %"
    )
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, `{scope.command}`, poet-host {version('poet-host')}, HiGHS "
        f"{version('highspy')}, {cores()} processor cores. {len(found)} points, {planned} plans. "
        f"Solving was limited to {limits}. {statement()}"
    )
    load = os.getloadavg()[1]
    if load > cores() + 1:
        about += f" {text.BUSY} The load of the machine was {load:.0f} at the end."
    turned = list(evidence.ranked_rows(found))
    parts = [
        "# The paper's claims", text.PAPER, about, text.HOW, table(head, lines, words=True),
        "## Why the numbers differ",
        text.OVERHEAD.format(**evidence.paging_everything()),
        *_rows(evidence.OVERHEAD_HEAD, evidence.overhead_rows(found)),
        text.DTR, *_rows(evidence.DTR_HEAD, evidence.dtr_rows(found)),
        text.ALONE, *_rows(evidence.ALONE_HEAD, evidence.alone_rows(found)),
        text.POFO, evidence.ASKED, *_rows(evidence.POFO_HEAD, evidence.pofo_rows(found)),
        text.DEADLINES,
        text.CURRENT.format(compared=len(list(evidence.ranked_pairs(found))), turned=len(turned)),
        *_rows(evidence.RANKED_HEAD, turned),
        text.STREAMED, *_rows(evidence.STREAMED_HEAD, evidence.streamed_rows(found)),
        text.ORIGINS, *_rows(evidence.ORIGINS_HEAD, evidence.origins_rows(found)),
        text.SOLVING, *not_best(found), text.SIZES,
        "## The floor", text.FLOOR, floors(found),
        "## Methods", text.METHODS, table(PROPERTIES, properties(found)),
        "## Figures", text.FIGURES,
        *(f"{figure.caption}\n\n![{figure.caption}](figures/{figure.name})" for figure in drawn),
        "## Checking", text.CHECKING,
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as a part of the report; nothing if the sweep has no points for it."""
    lines = list(rows)
    return [table(head, lines)] if lines else []


def not_best(found: Found) -> list[str]:
    rows = _rows(evidence.BEATEN_HEAD, evidence.beaten_rows(found))
    return [text.BEATEN, *rows] if rows else []


def floors(found: Found) -> str:
    """The smallest RAM in which each model runs, and the paper's boards that have it."""
    rows = []
    whole = [point.case for point, _ in found if point.case.whole_costs is None]
    for case in {case.model: case for case in whole}.values():
        floor, keep = largest_operator_bytes(case.costs), case.keeping
        reached = any(
            result.row["plan"] is not None and point.ram_bytes == floor
            for point, result in found if point.case.model == case.model
        )  # fmt: skip
        fits = [board for board in BOARDS if floor <= load_board(board).arena_bytes]
        rows.append(
            (
                case.model, f"{floor:,}", _operator(case), "yes" if reached else "not tried",
                f"{keep.peak_bytes:,}" if keep else "-", ", ".join(fits) or "none",
            )
        )  # fmt: skip
    head = (
        "model", "smallest RAM, bytes", "operator", "a plan in it", "keeping everything, bytes",
        "fits the arena of",
    )  # fmt: skip
    return table(head, rows, words=True)


def _operator(case: Case) -> str:
    """The operator that needs most RAM."""
    nodes = case.costs.nodes

    def need(node: int) -> int:
        own = nodes[node].bytes if nodes[node].overwrites is None else 0
        inputs = sum(nodes[j].bytes for j in nodes[node].inputs)
        return own + nodes[node].workspace_bytes + inputs

    computed = [i for i, node in enumerate(nodes) if not node.stored]
    return f"`{nodes[max(computed, key=need)].name}`"


def solved(wanted: Sequence[Point], scope: Scope, store: Store, jobs: int, say: Progress) -> Found:
    """Solve all points, and hard ones again with more time. The best plan counts."""
    found = shared(list(zip(wanted, sweep(wanted, store, jobs=jobs, progress=say), strict=True)))
    for harder in (once_more, beaten):
        again = harder(found, scope)
        longer = sweep(list(again.values()), store, jobs=jobs, progress=say)
        for (i, point), result in zip(again.items(), longer, strict=True):
            found[i] = better(found[i], (point, result))
        found = shared(found)
    return found


def write(found: Found, scope: Scope, store: Store, folder: Path) -> None:
    """Write REPORT.md, table.csv, the figures, and the cited plans with their graphs."""
    store.write_table()
    for part in ("figures", "plans", "graphs"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
    write_whole(folder / "table.csv", table_csv(result.row for _, result in found))
    drawn = figures(found)
    for figure in drawn:
        write_whole(folder / "figures" / figure.name, figure.png or b"")
    for row in evidence.cited(found):
        for path in (row["plan"], row["graph"]):
            write_whole(folder / path, (store.folder / path).read_bytes())
    write_whole(folder / "REPORT.md", report(found, scope, drawn))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.paper", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), metavar="LIST")
    parser.add_argument("--boards", default=",".join(BOARDS), metavar="LIST")
    parser.add_argument("--methods", default=",".join(METHODS), metavar="LIST")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="LIST")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="for each plan")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N")
    parser.add_argument("--finished", type=Path, default=FINISHED, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=REPORT, metavar="DIR")
    options = parser.parse_args(arguments)
    lists = {
        name: tuple(getattr(options, name).split(","))
        for name in ("models", "boards", "methods", "parts")
    }
    say = lambda done, total, word: print(f"{done} of {total} {word}", flush=True)  # noqa: E731
    try:
        scope, store = Scope(**lists, limit_s=options.limit), Store(options.finished)
        wanted = points(scope, store)
        found = solved(wanted, scope, store, options.jobs, say)
    except PoetError as error:
        print(f"bench.paper: {error}", file=sys.stderr)
        return 2
    write(found, scope, store, options.output)
    print(f"written: {options.output / 'REPORT.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
