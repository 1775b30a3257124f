"""`make paper`: the POET paper's claims, its numbers beside ours, from plans that all can check.

A sweep (run/sweep.py) over the paper's models and boards, with the paper's constants and
with realistic ones, by every method. What is finished stays in build/paper, and an interrupted
run goes on. Writes schedules/paper/REPORT.md, its table and its figures.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import poet_host as poet
from poet_host import api
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.plan.baselines.method import largest_operator_bytes
from poet_host.plan.baselines.registry import METHODS
from poet_host.run.figures import PROPERTIES, figures, properties
from poet_host.run.limits import deadline_us, ram_bytes
from poet_host.run.sweep import Case, Point, Result, Store, cores, sweep

from .report import number, percent

ROOT = Path(__file__).parents[1]
FINISHED = ROOT / "build" / "paper"
REPORT = ROOT / "schedules" / "paper"
BOARDS = ("mkr1000", "nrf52840_dk", "rpi4b", "jetson_tx2")
MODELS = ("linear", "resnet18-cifar", "vgg16-cifar", "bert-base")
KINDS: tuple[Literal["paper", "estimate"], ...] = ("paper", "estimate")  # profiles
BUDGETS = ("100%", "75%", "60%", "50%", "40%", "30%")
DEADLINES = ("none", "1.2x")
LIMIT_S, GAP = 600.0, 0.01
NEITHER = "no point at which both have a plan"

Found = Sequence[tuple[Point, Result]]
Rows = dict[tuple[str, str, str, int, float | None], dict[str, Result]]


@dataclass(frozen=True)
class Plan:
    """What is swept."""

    models: Sequence[str] = MODELS
    boards: Sequence[str] = BOARDS
    budgets: Sequence[str] = BUDGETS
    deadlines: Sequence[str] = DEADLINES
    methods: Sequence[str] = METHODS
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; `ours` finds the same number among the rows of one profile."""

    text: str
    paper: str
    ours: Callable[[Rows], str]
    why: str


def cases(plan: Plan) -> list[Case]:
    found = []
    for model in plan.models:
        graph = poet.load(model)
        for board in plan.boards:
            for kind in KINDS:
                profile = poet.estimate_profile(poet.load_board(board), kind)
                found.append(Case(graph.name, board, kind, poet.costs_of(graph, profile)))
    return found


def points(plan: Plan) -> list[Point]:
    wanted = []
    for case in cases(plan):
        keep = case.keeping
        assert keep is not None
        for deadline in plan.deadlines:
            limit = deadline_us(deadline, keep.time_us)
            for budget in plan.budgets:
                ram = ram_bytes(budget, keep.peak_bytes)
                for method in plan.methods:
                    wanted.append(Point(case, method, ram, limit, plan.limit_s, GAP))
    return wanted


# Numbers from rows.


def rows_of(found: Found, kind: str) -> Rows:
    """Results by (model, board, profile, RAM, deadline) and method."""
    rows: Rows = {}
    for point, result in found:
        case = point.case
        if case.profile == kind:
            key = (case.model, case.board, case.profile, point.ram_bytes, point.deadline_us)
            rows.setdefault(key, {})[point.method] = result
    return rows


def _value(results: dict[str, Result], method: str, key: str) -> float | None:
    found = results.get(method)
    return None if found is None or not found.row["plan"] else float(found.row[key])


def _pairs(rows: Rows, other: str, key: str, **where: str) -> list[tuple[float, float]]:
    """(poet's, the other's) where both have a plan."""
    pairs = []
    for (model, board, _, _, _), results in rows.items():
        if where.get("model", model) == model and where.get("board", board) == board:
            mine, theirs = _value(results, "poet", key), _value(results, other, key)
            if mine and theirs:
                pairs.append((mine, theirs))
    return pairs


def _less(rows: Rows, *others: str, board: str | None = None) -> str:
    """How much less energy poet spends, in per cent of the other's, at most and in the middle."""
    where = {} if board is None else {"board": board}
    texts = []
    for other in others:
        saved = sorted(
            1 - mine / theirs for mine, theirs in _pairs(rows, other, "energy_uj", **where)
        )
        if not saved:
            texts.append(f"{other}: {NEITHER}")
            continue
        middle = percent(saved[len(saved) // 2], 1)
        texts.append(
            f"{other}: up to {percent(saved[-1], 1)} %, median {middle} % ({len(saved)} points)"
        )
    return "; ".join(texts)


def _overhead(rows: Rows, cases_: Sequence[Case], model: str, board: str) -> str:
    keep = {(c.model, c.board, c.profile): c.keeping for c in cases_}
    texts = []
    for method in ("poet", "capuchin"):
        over = []
        for key, results in rows.items():
            kept, mine = keep[key[:3]], _value(results, method, "energy_uj")
            if key[:2] == (model, board) and mine is not None and kept and kept.energy_uj:
                over.append(mine / kept.energy_uj - 1)
        span = f"{percent(min(over), 1)} to {percent(max(over), 1)} %" if over else "no plan"
        texts.append(f"{method} {span}")
    return ", ".join(texts)


def _pofo(rows: Rows) -> str:
    """Least peak of any plan, and steps per hour at the same budget."""
    texts = []
    for model in dict.fromkeys(key[0] for key in rows):
        peaks = {
            method: min(
                (peak for key, results in rows.items() if key[0] == model
                 and (peak := _value(results, method, "peak_bytes")) is not None),
                default=None,
            )
            for method in ("poet", "pofo")
        }  # fmt: skip
        times = sorted(
            theirs / mine - 1 for mine, theirs in _pairs(rows, "pofo", "time_us", model=model)
        )
        if peaks["poet"] and peaks["pofo"]:
            saved, faster = 1 - peaks["poet"] / peaks["pofo"], times[len(times) // 2]
            texts.append(
                f"{model}: {percent(abs(saved), 1)} % {'less' if saved >= 0 else 'more'}, "
                f"{percent(abs(faster), 1)} % {'faster' if faster >= 0 else 'slower'} (median)"
            )
    return "; ".join(texts) or NEITHER


def _solving(rows: Rows) -> str:
    solved = [results["poet"] for results in rows.values() if "poet" in results]
    seconds = [float(one.row["solve_s"]) for one in solved]
    optimal = sum(one.row["gap"] is not None and one.row["gap"] <= GAP for one in solved)
    return (
        f"at most {number(max(seconds, default=0.0), 0)} s; {optimal} of {len(solved)} within "
        f"{percent(GAP, 0)} % of the bound"
    )


def _bytes(found: Found, kind: Literal["paper", "estimate"]) -> str:
    """Of poet's schedules as a board gets them."""
    sizes = []
    for point, result in found:
        if point.case.profile == kind and point.method == "poet" and result.row["plan"]:
            graph = poet.load(point.case.model)
            profile = poet.estimate_profile(poet.load_board(point.case.board), kind)
            assert result.plan is not None
            try:
                sizes.append(len(api.encode(graph, profile, result.plan).plan_part))
            except PoetError:
                continue  # too large an offset for the format: not a schedule
    if not sizes:
        return "no schedule"
    sizes.sort()
    return f"{sizes[0]:,} to {sizes[-1]:,} bytes, median {sizes[len(sizes) // 2]:,}"


def claims(found: Found) -> list[Claim]:
    known = list({point.case.digest: point.case for point, _ in found}.values())
    return [
        Claim(
            "Energy overhead over keeping everything, ResNet-18 on the Cortex-A72",
            "poet below 1 %, Capuchin 73 to 141 %",
            lambda rows: _overhead(rows, known, "resnet18-cifar", "rpi4b"),
            "Least and most over the budgets and deadlines tried. Our step has parameters and "
            "updates, which every method pages; the paper's has activations alone.",
        ),
        Claim(
            "Less energy than DTR on the Jetson TX2",
            "up to 35 %",
            lambda rows: _less(rows, "dtr", board="jetson_tx2"),
            "The paper measures every operator on the board and does not publish the times; ours "
            "come from a rate. DTR knows no energy, so that the ratio follows the costs.",
        ),
        Claim(
            "Less energy than paging alone or rematerialisation alone",
            "up to 40 %",
            lambda rows: _less(rows, "poet-paging", "poet-remat"),
            "Both are allowed to page parameters, which are most of the bytes of these models.",
        ),
        Claim(
            "Against POFO: peak memory and throughput",
            "8.3 % less, 13 % faster",
            _pofo,
            "Peak: the smallest of any plan among the budgets. Both minimise energy, not time.",
        ),
        Claim(
            "Time for solving",
            "under ten minutes",
            _solving,
            "Another formulation (HiGHS), and graphs with parameters.",
        ),
    ]  # fmt: skip


def floors(found: Found) -> str:
    """The smallest RAM at which a model runs at all, against the boards of the paper's axes."""
    rows = []
    for case in {point.case.model: point.case for point, _ in found}.values():
        floor = largest_operator_bytes(case.costs)
        widest = max(case.costs.nodes, key=lambda node: 0 if node.stored else node.bytes)
        keep = case.keeping
        fits = ["32 KiB" * (floor <= 32 * 1024), "256 KiB" * (floor <= 256 * 1024)]
        rows.append(
            (
                case.model, f"{floor:,}", f"{keep.peak_bytes:,}" if keep else "-",
                widest.name, ", ".join(one for one in fits if one) or "neither",
            )
        )  # fmt: skip
    head = ("model", "smallest RAM, bytes", "keeping everything, bytes", "largest result", "fits")
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As report.table, but all of it text."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(found: Found, plan: Plan, command: str, drawn: Iterable[str]) -> str:
    """The text; `drawn` are the names of its figures."""
    kinds = {kind: rows_of(found, kind) for kind in KINDS}
    planned = sum(result.row["plan"] is not None for _, result in found)
    lines: list[Sequence[str]] = []
    for claim in claims(found):
        numbers = [claim.ours(kinds[kind]) for kind in KINDS]
        lines.append((claim.text, claim.paper, *numbers, claim.why))
    sizes = [_bytes(found, kind) for kind in KINDS]
    why = "The plan part of a .poet file; what operators do is in the model part, once."
    lines.append(("Size of a schedule", "a few hundred bytes", *sizes, why))
    head = ("claim", "the paper", "ours, its constants", "ours, realistic", "why they differ")
    parts = [
        "# The paper's claims",
        "Patil et al., *POET: Training Neural Networks on Tiny Devices with Integrated "
        "Rematerialization and Paging*, ICML 2022, arXiv 2207.07697. "
        f"{datetime.now(UTC):%Y-%m-%d}, `{command}`, poet-host {version('poet-host')}, "
        f"HiGHS {version('highspy')}, {cores()} processor cores.",
        f"{len(found)} points, {planned} plans. Every plan passed the verifier, and its energy is "
        "what the verifier computed. `table.csv` has a row for each point; a method's note says "
        f"what it was given beyond its publication. Solving was limited to {plan.limit_s:g} s a "
        f"point, and stopped at a gap of {percent(GAP, 0)} %.",
        _table(head, lines),
        "## The floor",
        "One operator with its inputs and its result must be in RAM together, whatever the "
        "schedule, as long as operators are not split. The paper's axes are the boards' 32 KiB "
        "(Cortex-M0+) and 256 KiB (Cortex-M4).",
        floors(found),
        "## Methods",
        "Points planned, proved infeasible, without answer, not applicable, and planned beyond the "
        "published method; results computed again and paged in, per plan.",
        _table(PROPERTIES, properties(found)),
        "## Figures",
        *(f"![{name}](figures/{name})" for name in sorted(drawn)),
    ]
    return "\n\n".join(parts) + "\n"


def write(found: Found, plan: Plan, store: Store, folder: Path, command: str) -> None:
    """REPORT.md, table.csv and the figures, all but the single timelines."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    store.write_table()
    write_whole(folder / "table.csv", (store.folder / "table.csv").read_bytes())
    drawn = {k: png for k, png in figures(found).items() if not k.startswith("timeline-")}
    for name, png in drawn.items():
        write_whole(folder / "figures" / name, png)
    write_whole(folder / "REPORT.md", report(found, plan, command, drawn))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.paper", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), metavar="LIST")
    parser.add_argument("--boards", default=",".join(BOARDS), metavar="LIST")
    parser.add_argument("--budgets", default=",".join(BUDGETS), metavar="LIST")
    parser.add_argument("--deadlines", default=",".join(DEADLINES), metavar="LIST")
    parser.add_argument("--methods", default=",".join(METHODS), metavar="LIST")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="for each plan")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N")
    parser.add_argument("--finished", type=Path, default=FINISHED, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=REPORT, metavar="DIR")
    options = parser.parse_args(arguments)
    names = ("models", "boards", "budgets", "deadlines", "methods")
    lists = {name: getattr(options, name).split(",") for name in names}
    plan = Plan(**lists, limit_s=options.limit)
    store = Store(options.finished)
    wanted = points(plan)
    say = lambda done, total, word: print(f"{done} of {total} {word}", flush=True)  # noqa: E731
    results = sweep(wanted, store, jobs=options.jobs, progress=say)
    command = " ".join(["python -m bench.paper", *(arguments or sys.argv[1:])])
    write(list(zip(wanted, results, strict=True)), plan, store, options.output, command)
    print(f"written: {options.output / 'REPORT.md'}")


if __name__ == "__main__":
    main()
