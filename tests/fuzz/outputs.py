"""A full disk, and SIGKILL, at every event of every output of every command.

    python -m fuzz.outputs [--only NAME ...] [--jobs N] [--output FILE]

An event is what a command does to a file: create, write, truncate, sync, rename, remove. After each
fault, each output must be absent, or the old file, or whole. After a last run without a fault,
nothing of the killed runs may be left. See tests/support/output_walk.py.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from pathlib import Path

from rich.progress import Progress
from support.output_cases import CASES, cases
from support.output_walk import Commands, Walked, built, walk

from bench.commits import commit


def walked(name: str) -> tuple[str, Walked]:
    with tempfile.TemporaryDirectory(prefix="poet-outputs-") as folder:
        root, inputs = Path(folder, "commands"), Path(folder, "inputs")
        root.mkdir()
        inputs.mkdir()
        commands = Commands(root, built(Path(folder)))
        try:
            (case,) = cases(inputs, commands, (name,))
            return name, walk(commands, case)
        finally:
            commands.close()


def table(found: dict[str, Walked]) -> str:
    names = [name for name in CASES if name in found]
    rows = [("command", "events", "runs with a fault", "defects")]
    rows += [
        (name, f"{found[name].events:,}", f"{found[name].runs:,}", f"{len(found[name].defects):,}")
        for name in names
    ]
    counts = [(case.events, case.runs, len(case.defects)) for case in found.values()]
    rows.append(("all", *(f"{sum(column):,}" for column in zip(*counts, strict=True))))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    began_s, found = time.monotonic(), {}
    with ProcessPoolExecutor(options.jobs) as pool, Progress(transient=True) as bar:
        task = bar.add_task("commands", total=len(options.only))
        for future in as_completed([pool.submit(walked, name) for name in options.only]):
            name, result = future.result()
            found[name] = result
            bar.update(task, advance=1)
            print(f"{name}: {result.runs:,} runs", *result.defects[:20], sep="\n    ", flush=True)
    minutes = (time.monotonic() - began_s) / 60
    text = (
        f"make fuzz-outputs\n{date.today()}, commit {commit()}, {options.jobs} processes, "
        f"{minutes:.0f} minutes\n\nAt each event of the files of a command, the disk is full from "
        "then on in one run, and the\ncommand is killed in another. With files that exist before "
        f"the command, and without.\n\n{table(found)}\n"
    )
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return any(case.defects for case in found.values())


if __name__ == "__main__":
    sys.exit(main())
