"""How many lines the fuzzers of `make soak` reach, counted in a sample of their rounds.

    PYTHONPATH=tests python -m fuzz.covered --rounds 20000 --cases 2000 --output FILE

`--rounds`: of each fuzzer in C, whose lines gcov counts. `--cases`: of each format of the host.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from support import card_bench, contents_bench, nest_bench, usb_layer

from bench.commits import commit

ROOT = Path(__file__).parents[2]
LIFE_STEPS = 1000
FORMATS = ("poet", "card", "safetensors", "package.json", "trace", "learner")
# What reads these formats.
READERS = ("schedule", "card", "package", "data/files.py", "files.py", "schema.py", "isa.py")


def fuzz_in_c(folder: Path, seed: int, rounds: int) -> None:
    """Run each fuzzer in C. The counts of its lines come into a folder of its own."""

    def flags(name: str) -> tuple[str, ...]:
        (folder / name).mkdir()
        return ("--coverage", "-dumpdir", f"{folder / name}/", "-fno-inline")

    usb, card = folder / "usb" / "fuzz", folder / "card" / "fuzz"
    usb_layer.compile_layer(usb, *flags("usb"), host=False)
    card_bench.compile_bench(card, *flags("card"), fuzz=True)
    contents, images = contents_bench.compile_fuzzer(folder, flags=flags("contents"))
    faults = nest_bench.compile_faults(folder, flags("faults"))
    seeds = nest_bench.write_seeds(folder / "seeds", **nest_bench.SEEDS)
    for program, files in ((usb, ()), (card, ()), (contents, images), (faults, seeds)):
        command = [program, str(seed), str(rounds), *files]
        subprocess.run(command, check=True, capture_output=True)


def live(folder: Path, seed: int) -> None:
    """Run the life of a learner, with a library that counts its lines."""
    paths = (ROOT, ROOT / "tests", ROOT / "host")
    env = os.environ | {
        "POET_COUNTS": str(folder / "life"), "CC": str(ROOT / "tests/support/covering_cc"),
        "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }  # fmt: skip
    command = [sys.executable, "-m", "fuzz.soak", "--steps", str(LIFE_STEPS), "--seed", str(seed)]
    subprocess.run([*command, "--output", folder / "life.txt"], check=True, cwd=folder, env=env)


def lines_in_c(folder: Path) -> list[str]:
    filters = [f"--filter=firmware/{name}/" for name in ("src", "port/common")]
    command = [sys.executable, "-m", "gcovr", "--root", ROOT, *filters, "--txt", "-", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def lines_of_host(folder: Path, seed: int, cases: int) -> list[str]:
    coverage = [sys.executable, "-m", "coverage"]
    where: Any = {"check": True, "cwd": ROOT}
    where["env"] = os.environ | {"COVERAGE_FILE": str(folder / "python")}  # of its workers too
    fuzz = ["-m", "fuzz.host", "--cases", str(cases), "--seed", str(seed)]
    run = [*coverage, "run", "--concurrency=multiprocessing", *fuzz]
    subprocess.run([*run, "--formats", ",".join(FORMATS)], **where)
    subprocess.run([*coverage, "combine", "--quiet"], **where)
    names = (f"*/poet_host/{name}" + "/*" * ("." not in name) for name in READERS)
    how = ("--include", ",".join(names), "--sort=cover", "--fail-under=0")
    done = subprocess.run([*coverage, "report", *how], capture_output=True, text=True, **where)
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fuzz_in_c(Path(folder), given.seed, given.rounds)
        live(Path(folder), given.seed)
        c = lines_in_c(Path(folder))
        host = lines_of_host(Path(folder), given.seed, given.cases)
    lines = [
        f"python -m fuzz.covered --rounds {given.rounds} --cases {given.cases} --seed {given.seed}"
        "     (make soak-coverage)",
        f"{date.today()}, commit {commit()}", "",
        "Lines are counted in a sample, since counting makes the fuzzers several times slower: the",
        f"first {given.rounds:,} rounds of each fuzzer in C, {LIFE_STEPS:,} steps of the life, and",
        f"{given.cases:,} cases of each format. The fuzzer of `make fuzz-nest` is not among them.",
        "", *c, "", *host,
    ]  # fmt: skip
    given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
