"""`make results`: make all committed results again, in two hours on two idle cores.

Parts that count cycles or solve by a work limit run two at a time. Then parts that measure time run
alone. If a part fails, the others still run. A part that is finished at this commit does not run
again, so an interrupted run continues. Logs and durations are in build/results. At the end, it
prints the sentences of the documents that quote a figure which is no longer in the results.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from poet_host.files import write_whole

from .commits import ROOT, commit
from .quoted import missing

FOLDER = ROOT / "build" / "results"


@dataclass(frozen=True)
class Part:
    """Targets of the Makefile that make some results, one after the other."""

    name: str
    targets: tuple[str, ...]
    minutes: int  # estimate for two idle cores
    needs: str | None = None  # a program, without which the part is skipped


# The longest part is first, so that both cores end at about the same time.
COUNTED = (
    Part("paper", ("paper OPTIONS='--jobs 1'",), 75),
    Part("streaming", ("bench-streaming",), 36),
    Part("predict", ("bench-predict", "bench-prices"), 20),
    Part("tiny", ("bench-tiny",), 18),
    Part("forward", ("bench-forward",), 18),
    Part("fine-tune", ("bench-fine-tune",), 12),
    Part("fleet", ("fleet",), 8),
    Part("recurrent", ("bench-recurrent",), 5),
    Part("kernels", ("bench-kernels", "bench-kernels OPTIONS=--shapes"), 3),
    Part("keyword", ("bench-keyword",), 2, needs="espeak-ng"),
    Part("ledger", ("ledger",), 1),
    Part("fuzz-slices", ("fuzz-slices LIVES=1200",), 1),
    Part("transfers", ("bench-transfers",), 1),
    Part("placement", ("bench-placement",), 1),
)
TIMED = (
    Part("solver", ("bench-solver",), 14),
    Part("planners", ("bench-planners",), 5),
    Part("torch", ("bench-torch",), 3),
    Part("schedules", ("schedules",), 3),
    Part("host", ("bench-host",), 1),
    Part("transfer", ("bench-transfer",), 1),
    Part("board", ("bench",), 1),
)


@dataclass(frozen=True)
class Outcome:
    part: Part
    word: str  # "done", "FAILED", or why it did not run
    seconds: float = 0.0


def run(part: Part, at: str) -> Outcome:
    """Run a part, unless it is finished at the commit `at`."""
    finished, log = FOLDER / f"{part.name}.json", FOLDER / f"{part.name}.log"
    if finished.exists() and not at.endswith("-dirty"):
        found = json.loads(finished.read_text(encoding="utf-8"))
        if found["commit"] == at:
            return Outcome(part, "done before", found["seconds"])
    if part.needs and not shutil.which(part.needs):
        return Outcome(part, f"skipped: {part.needs} is not installed")
    print(f"{_now()} {part.name} begins, about {part.minutes} minutes: {log}", flush=True)
    finished.unlink(missing_ok=True)
    began = time.monotonic()
    own = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    with log.open("w") as file:
        for target in part.targets:
            code = subprocess.run(
                ["make", *shlex.split(target)], cwd=ROOT, env=own, stdout=file, stderr=file,
                stdin=subprocess.DEVNULL,
            ).returncode  # fmt: skip
            if code:
                break
    outcome = Outcome(part, "FAILED" if code else "done", time.monotonic() - began)
    if not code:
        write_whole(finished, json.dumps({"commit": at, "seconds": outcome.seconds}) + "\n")
    print(f"{_now()} {part.name} {outcome.word}, {outcome.seconds / 60:.1f} minutes", flush=True)
    return outcome


def _now() -> str:
    return f"{datetime.now(UTC):%H:%M:%S}"


def main(arguments: Sequence[str]) -> int:
    parts = {part.name: part for part in (*COUNTED, *TIMED)}
    parser = argparse.ArgumentParser(prog="bench.results", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"only these: {', '.join(parts)} (default: all)"
    )
    chosen = parser.parse_args(arguments).parts or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"there is no part {unknown[0]}: choose of {', '.join(parts)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    at, began = commit(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        counted = [pool.submit(run, part, at) for part in COUNTED if part.name in chosen]
        outcomes = [future.result() for future in counted]
    outcomes += [run(part, at) for part in TIMED if part.name in chosen]
    for outcome in outcomes:
        print(f"{outcome.part.name:12} {outcome.seconds / 60:6.1f} minutes  {outcome.word}")
    print(f"{'together':12} {(time.monotonic() - began) / 60:6.1f} minutes, commit {at}")
    print(*missing(), sep="\n")
    failed = [outcome.part.name for outcome in outcomes if outcome.word == "FAILED"]
    if failed:
        print(f"failed: {', '.join(failed)}. See the logs in {FOLDER}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
