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
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from poet_host.baselines.registry import METHODS
from poet_host.compare.pool import cores
from poet_host.compare.sweep import Case, Point, Progress, Result, Store, sweep, table_csv
from poet_host.device.board import load_board
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.plan.infeasible import largest_operator_bytes

from ..commits import statement
from ..methods import PROPERTIES, properties
from ..report import filled, percent, table
from . import evidence
from .claims import NOTHING, Found, claims, views
from .figures import Figure, figures
from .points import (
    BOARDS,
    FASTER,
    GAP,
    LESS_PEAK,
    LIMIT_S,
    MODELS,
    PARTS,
    RANKED,
    SHARES,
    STREAMED_PATIENCE,
    WHOLE_SHARES,
    Scope,
    points,
)
from .second_look import ENOUGH, PATIENCE, beaten, better, once_more, shared

ROOT = Path(__file__).parents[2]
FINISHED = ROOT / "build" / "paper"
REPORT = ROOT / "schedules" / "paper"
BUSY = (
    "Other processes ran on the same cores. On an idle computer, solving takes less time and "
    "proves more."
)
BEATEN = (
    "Not all searches were completed. In these points another method's plan takes less energy than "
    "the best plan that this planner found in its time (energy above keeping everything, in per "
    "cent). The gap is the proved limit of how much less any plan could take. Heuristics soon "
    "finish steps of hundreds of nodes; a search on busy cores does not."
)


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
        f"{datetime.now(UTC):%Y-%m-%d}, `{scope.command}`, HiGHS {version('highspy')}, "
        f"{cores()} processor cores. {len(found)} points, {planned} plans. "
        f"Solving was limited to {limits}. {statement()}"
    )
    load = os.getloadavg()[1]
    if load > cores() + 1:
        about += f" {BUSY} The load of the machine was {load:.0f} at the end."
    turned = list(evidence.ranked_rows(found))
    captions = (f"{it.caption}\n\n![{it.caption}](figures/{it.name})" for it in drawn)
    values = {
        "about": about,
        "shares": _listed(SHARES),
        "whole_shares": _listed(WHOLE_SHARES),
        "claims": table(head, lines, words=True),
        **evidence.paging_everything(),
        "overhead": _table(evidence.OVERHEAD_HEAD, evidence.overhead_rows(found)),
        "dtr": _table(evidence.DTR_HEAD, evidence.dtr_rows(found)),
        "alone": _table(evidence.ALONE_HEAD, evidence.alone_rows(found)),
        "less_peak": percent(1 - LESS_PEAK, 1),
        "faster": percent(FASTER - 1, 0),
        "pofo": _table(evidence.POFO_HEAD, evidence.pofo_rows(found)),
        "ranked": ", ".join(RANKED),
        "compared": len(list(evidence.ranked_pairs(found))),
        "turned": len(turned),
        "turned_pairs": _table(evidence.RANKED_HEAD, turned),
        "patience": STREAMED_PATIENCE,
        "streamed": _table(evidence.STREAMED_HEAD, evidence.streamed_rows(found)),
        "origins": _table(evidence.ORIGINS_HEAD, evidence.origins_rows(found)),
        "enough": percent(ENOUGH, 0),
        "beaten": _table(evidence.BEATEN_HEAD, evidence.beaten_rows(found), f"{BEATEN}\n\n"),
        "floors": floors(found),
        "methods": table(PROPERTIES, properties(found)),
        "figures": "\n\n".join(captions),
    }
    return filled("paper", **values)


def _listed(shares: Sequence[float]) -> str:
    return ", ".join(percent(share, 0) for share in shares)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], before: str = "") -> str:
    """A table as a part of the report, after a text; "" if the sweep has no points for it."""
    lines = list(rows)
    return before + table(head, lines) if lines else ""


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


def swept(wanted: Sequence[Point], store: Store, jobs: int, say: Progress) -> list[Result]:
    """Solve all points. On a graph without stored tensors, `checkmate` is `poet-remat`: once."""
    distinct = [
        replace(point, method="poet-remat")
        if point.method == "checkmate" and not any(node.stored for node in point.case.costs.nodes)
        else point
        for point in wanted
    ]
    results = sweep(distinct, store, jobs=jobs, progress=say)
    return [
        replace(result, row=result.row | {"method": point.method})
        for point, result in zip(wanted, results, strict=True)
    ]


def solved(wanted: Sequence[Point], scope: Scope, store: Store, jobs: int, say: Progress) -> Found:
    """Solve all points, and hard ones again with more time. The best plan counts."""
    found = shared(list(zip(wanted, swept(wanted, store, jobs, say), strict=True)))
    for harder in (once_more, beaten):
        again = harder(found, scope)
        longer = swept(list(again.values()), store, jobs, say)
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
