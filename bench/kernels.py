"""`make bench-kernels`: the cycles of the kernels on the simulated chips, next to a base commit.

Each call runs in the memory of a simulated board with the real firmware. The data are normally
distributed. Two rows are whole steps of a model. Prints tables, and writes RESULTS-kernels.md and
the figures in kernels.toml. A test holds the kernels to these figures.
"""

import argparse
import json
import sys
import time
import tomllib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import poet_host as poet
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.firmware_build.recipe import compiler_version, recipe
from poet_host.graph.models import load
from poet_host.plan.plan import plan_from_json

from .commits import commit
from .kernel_board import BASE, TREE, KernelBoard, base_tree
from .kernel_rows import Row, rows
from .kernel_shapes import compare
from .report import command, filled, number, table

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "RESULTS-kernels.md", HERE / "kernels.toml"
SHAPES_RESULTS = HERE / "RESULTS-kernel-shapes.md"
RENEW = "make bench-kernels"
BOARDS = {
    "nrf52840_dk": "nRF52840 (Cortex-M4F)",
    "mkr1000": "MKR1000 (Cortex-M0+, floats in software)",
}
MODEL, MODEL_BOARD = "resnet8-cifar", "nrf52840_dk"
# The statements of schedules/resnet-digits-mkr1000.poet at the commit BASE.
PLAN, STEPS = HERE / "instances" / "resnet-digits-mkr1000.plan.json", 8
PLAN_MODEL, PLAN_BOARD = "resnet-digits", "mkr1000"
BASE_SCHEDULE = "schedules/resnet-digits-mkr1000.poet"
STEP_ROWS = {
    MODEL_BOARD: f"{MODEL}, every operator of a step once",
    PLAN_BOARD: f"{PLAN_MODEL}, a step in 24,464 bytes",
}

# What limits the rows that do not reach their goals.
LIMITS = {
    "nrf52840_dk": [
        "5x5, gradients: a tile takes 41 cycles for a term of its 4 by 4 sums, used or not. Six "
        "channels use 12 of 16 sums on average, so 3.42 cycles a product are the least, without "
        "stores.",
        "3x3 with stride 2, gradient of the input: neighbours in memory meet different taps, so "
        "sums of 32 to 128 terms are stored one at a time from a buffer.",
        "1x1 with stride 2, gradient of the input: sums have only 32 terms, and the elements that "
        "meet no tap, three of four, are set to 0.",
        "3x3 with dilation 2: at the border of a plane, a row of the window has two terms, and a "
        "product takes 3.8 cycles; inside 2.80, as without dilation. The four phases have twice as "
        "much border as one plane. They have fewer products, too, so that the whole convolution "
        "takes fewer cycles: 6,548,928, without dilation 6,642,240.",
        "Random shapes (RESULTS-kernel-shapes.md): most that are slower are convolutions with few "
        "products for each tap, whose set-up then counts. Loops in C for short rows, instead of "
        "poet_axpy, were tried: they took up to 1.6 times as long. The gradient of layernorm's "
        "weights keeps 16 sums before it uses them: 17 cycles more for a single column.",
    ],
    "mkr1000": [
        "Gradients of a linear layer, batch 4: sums have ten and four terms. Beginning and storing "
        "a sum takes about 55 cycles, and each weight is tested once for four products.",
    ],
}


@dataclass(frozen=True)
class Figure:
    """Cycles for each unit of a row's work, or milliseconds of a step. None: not known."""

    base: float | None = None  # at the commit BASE
    now: float | None = None
    goal: float | None = None


Figures = dict[str, dict[str, Figure]]  # by board and name of the row


def read_figures() -> tuple[str, Figures]:
    """Return the version of the compiler, and the committed figures."""
    found = tomllib.loads(FIGURES.read_text(encoding="utf-8"))
    return found["compiler"], {
        board: {name: Figure(**row) for name, row in found[board].items()} for board in BOARDS
    }


def write_figures(figures: Figures) -> None:
    lines = [
        f"# Cycles for each MAC, tap or element of a kernel, and milliseconds of a step. {RENEW}",
        f"# writes this file but the goals. `base`: at commit {BASE}, written with OPTIONS=--base.",
        f"compiler = {json.dumps(compiler_version(recipe(PLAN_BOARD)))}",
    ]
    for board, found in figures.items():
        lines += ["", f"[{board}]"]
        for name, figure in found.items():
            known = {key: value for key, value in vars(figure).items() if value is not None}
            values = ", ".join(f"{key} = {value}" for key, value in known.items())
            lines.append(f"{json.dumps(name)} = {{ {values} }}")
    write_whole(FIGURES, "\n".join(lines) + "\n")


def cycles(board: KernelBoard, row: Row) -> float:
    """Return the cycles for each unit of the row's work."""
    return round(board.ask(kernel=row.job) / row.work, 2)


def schedule() -> poet.Schedule:
    """Return the statements of the plan in today's format."""
    plan = plan_from_json(json.loads(PLAN.read_text(encoding="utf-8")), str(PLAN))
    graph = load(PLAN_MODEL)
    # At the base commit, only updates overwrote an input, and sums of gradients an input that no
    # other operator reads.
    readers = Counter(name for node in graph for name in node.inputs)
    nodes = []
    for node in graph:
        alone = [name for name in node.inputs if readers[name] == 1]
        if node.op == "add" and node.phase == "backward" and alone:
            node = replace(node, overwrites=alone[0])
        elif not node.updates:
            node = replace(node, overwrites=None)
        nodes.append(node)
    graph = replace(graph, nodes=tuple(nodes))
    return poet.encode(graph, poet.estimate_profile(poet.load_board(PLAN_BOARD)), plan)


def step_ms(board: KernelBoard, path: Path) -> float:
    """Return the milliseconds of the board's row in STEP_ROWS. `path`: of the schedule."""
    if board.board == MODEL_BOARD:
        return round(board.ask(profile=MODEL), 1)
    return round(board.ask(train=[str(path), STEPS]), 1)


def measure(name: str, tree: Path, only: str = "") -> dict[str, float]:
    """Measure the rows of a board with the firmware in a folder. Print each.

    `only`: text in the names of the rows.
    """
    found: dict[str, float] = {}
    with ExitStack() as stack:
        path = tree / BASE_SCHEDULE
        if tree == TREE:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="poet-plan-"))) / "step.poet"
            schedule().save(path)
        board = stack.enter_context(KernelBoard(name, tree))
        for row in (row for row in rows() if row.board == name and only in row.name):
            found[row.name] = cycles(board, row)
            print(f"{name}: {row.name}: {found[row.name]:,.2f} / {row.unit}", flush=True)
        if only in STEP_ROWS[name]:
            found[STEP_ROWS[name]] = step_ms(board, path)
            print(f"{name}: {STEP_ROWS[name]}: {found[STEP_ROWS[name]]:,.1f} ms", flush=True)
    return found


def report(figures: Figures, seconds: float) -> str:
    units = {row.name: row.unit for row in rows()}
    parts = []
    for board, title in BOARDS.items():
        lines = [
            [
                name,
                units.get(name, "ms"),
                number(figure.base),
                number(figure.now),
                _ratio(figure.base, figure.now),
                number(figure.goal),
                _ratio(figure.now, figure.goal),
            ]
            for name, figure in figures[board].items()
        ]
        head = ["kernel", "unit", BASE, "now", f"{BASE} / now", "goal", "now / goal"]
        reached = [f for f in figures[board].values() if f.goal and f.now and f.now <= f.goal]
        goals = sum(figure.goal is not None for figure in figures[board].values())
        limits = "\n".join(f"- {limit}" for limit in LIMITS[board])
        parts += [f"## {title}", f"{len(reached)} of {goals} goals are reached.",
                  table(head, lines), "What limits the others:", limits]  # fmt: skip
    return filled(
        "kernels",
        now=datetime.now(UTC),
        command=command(),
        commit=commit(),
        compiler=compiler_version(recipe(PLAN_BOARD)),
        seconds=seconds,
        base=BASE,
        steps=STEPS,
        boards="\n\n".join(parts),
    )


def _ratio(value: float | None, other: float | None) -> str:
    return number(value / other if value and other else None)


def merged(before: Figures, key: str, found: dict[str, dict[str, float]]) -> Figures:
    """Return the figures of all rows with the field `key` of those that were found."""
    return {
        board: {
            name: replace(before.get(board, {}).get(name, Figure()), **{key: value})
            for name, value in found[board].items()
        }
        for board in BOARDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.kernels", description=__doc__)
    parser.add_argument("--base", action="store_true", help=f"measure commit {BASE} too")
    parser.add_argument(
        "--shapes",
        action="store_true",
        help=f"run random shapes at {BASE} and now instead, and write {SHAPES_RESULTS.name}",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only kernels with TEXT in their names; no files"
    )
    options = parser.parse_args()
    if not any(options.only in name for name in (*STEP_ROWS.values(), *(r.name for r in rows()))):
        parser.error(f"no kernel has a name with {options.only!r} in it")
    began = time.monotonic()
    figures = read_figures()[1]
    if options.shapes:
        now = {
            board: {name: figure.now for name, figure in found.items() if figure.now}
            for board, found in figures.items()
        }
        text = compare(now, options.only)
        print(text)
        if not options.only:
            write_whole(SHAPES_RESULTS, text)
        return
    trees = {"now": TREE}
    with ExitStack() as stack:
        if options.base:
            trees = {"base": stack.enter_context(base_tree()), **trees}
        for key, tree in trees.items():
            found = {board: measure(board, tree, options.only) for board in BOARDS}
            figures = merged(figures, key, found)
    text = report(figures, time.monotonic() - began)
    print(text)
    if not options.only:
        write_figures(figures)
        write_whole(RESULTS, text)


if __name__ == "__main__":
    try:
        main()
    except PoetError as error:
        sys.exit(str(error))
