"""The firmware's runtime on this computer, with schedules that have nests: two fuzzers in C.

python -m support.nest_bench fuzz SEED -SECONDS   other schedules (make fuzz-nest)
python -m support.nest_bench faults SEED RUNS   faults of the card (make fault-nest)
"""

import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from random import Random

import msgspec
import numpy as np
from poet_host import isa
from poet_host.files import write_whole
from poet_host.firmware_build.recipe import c_files
from poet_host.resources import resource
from poet_host.schedule.schedule import Schedule
from support import row_nests, toy, toy_forward
from support.c_fuzzer import counts, fuzz
from support.kernel_parts_cases import random_case
from support.nest_runs import schedule_of
from support.nests import operator_of, random_nest
from support.pairs import random_pair, random_pair_case, schedule_of_pair
from support.statistics_nests import (
    random_statistics,
    random_statistics_case,
    schedule_of_statistics,
)
from support.usb_layer import FLAGS, SANITIZE

from bench.commits import commit

HERE = Path(__file__).parents[1] / "firmware" / "nest"
# Inputs that reach code which the seeds do not. Those of build/fuzz-nest are chosen with the seeds:
# fuzz_nest -merge=1 -use_counters=0 SEEDS build/fuzz-nest
CORPUS = HERE / "corpus"
SHARED = ("schedule.c", "reference.c", "host.c", "strange.c")
WRAPPED = ("poet_take_bits", "poet_take_gamma", "poet_decode")
QUEUES = 8
SILENT = ": silent"
STAYING = (
    "stays wv every 1", "stays wv every 3", "stays v every 3", "small stays v every 3",
    "cut stays w every 3", "stays x every 3",
)  # fmt: skip
SEEDS = {"kernels": 3, "pairs": 12}
RESULT_RUNS = 100_000  # at least, of a result file; of each part of a longer run
RESULT = Path("bench/fault-nest.txt")
PARTS = Path("build/fault-nest")  # of RESULT_RUNS each, so that a long run can be interrupted


def _staying(seed: int) -> Random | None:
    """In every second schedule tensors stay in RAM."""
    return Random(seed) if seed % 2 else None


def _kernels(seed: int) -> Iterator[tuple[str, Schedule]]:
    for op in isa.kernels():
        case = replace(random_case(op, np.random.default_rng(seed)), step=1)
        one = random_nest(Random(seed), operator_of(case))
        yield op, schedule_of(case, one, 1 + seed % QUEUES, _staying(seed))


def _pairs(seed: int) -> Iterator[tuple[str, Schedule]]:
    for name in ("conv2d", "linear"):
        case = random_pair_case(name, seed)
        one = random_pair(Random(seed), case)
        yield f"pair-{name}", schedule_of_pair(case, one, 1 + seed % QUEUES, _staying(seed))


def _statistics(seed: int) -> Iterator[tuple[str, Schedule]]:
    case = random_statistics_case(seed)
    before = ((), ("alone",), ("both",), ("alone", "both"))[seed % 4]
    one = random_statistics(Random(seed), case)
    yield "statistics", schedule_of_statistics(case, one, QUEUES, before)


def _others() -> Iterator[tuple[str, Schedule]]:
    for name, (cut, nest) in row_nests.NESTS.items():
        for sink in ("sgd", "momentum"):
            one = row_nests.case(sink)
            for seed in range(2):
                schedule = schedule_of(one, row_nests.nested(one, cut, nest), 3, _staying(seed))
                yield f"rows-{name}-{sink}-{seed}", schedule
    for kind in ("frugal", "lavish", "cut", "small", "small returning", *STAYING):
        yield f"toy-{kind}", toy.schedule(kind)
        forward = toy_forward.program(kind).forward
        assert forward is not None
        yield f"forward-{kind}", forward


def write_seeds(folder: Path, kernels: int, pairs: int) -> list[Path]:
    """Write inputs of the fuzzers: random nests of every kernel, `pairs` of each kind, and toys."""
    folder.mkdir()
    seeds = [(name, 0, schedule) for name, schedule in _others()]
    for seed in range(kernels):
        seeds += [(name, seed, schedule) for name, schedule in _kernels(seed)]
    for seed in range(pairs):
        seeds += [(name, seed, schedule) for name, schedule in (*_pairs(seed), *_statistics(seed))]
    paths = []
    for name, seed, schedule in seeds:
        paths.append(folder / f"{name}-{seed}".replace(" ", "-"))
        model = schedule.model_part
        paths[-1].write_bytes(len(model).to_bytes(4, "little") + model + schedule.plan_part)
    return paths


def _compile(compiler: str, program: Path, mine: tuple[str, ...], *flags: str) -> Path:
    firmware = resource("firmware")
    sources = [HERE.parent / "board.c", *(HERE / name for name in (*mine, *SHARED))]
    sources += c_files(firmware / "src") + c_files(firmware / "kernels")
    command = [compiler, *FLAGS, "-ffp-contract=off", "-DPOET_POISON", *flags]
    command += [f"-I{firmware / 'include'}", f"-I{firmware / 'src'}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-lm"], check=True)
    return program


def compile_fuzzer(folder: Path, clang: str = "clang") -> Path:
    """Compile fuzz_nest, which libFuzzer of Clang drives."""
    sanitize = ("-fsanitize=fuzzer,address,undefined,float-cast-overflow", SANITIZE[1])
    wrap = "-Wl," + ",".join(f"--wrap={name}" for name in WRAPPED)
    mine = ("fuzz_nest.c", "fields.c", "mutate.c")
    return _compile(clang, folder / "fuzz_nest", mine, *sanitize, wrap)


def compile_faults(folder: Path, flags: Sequence[str] = SANITIZE) -> Path:
    return _compile("cc", folder / "fault_nest", ("fault_nest.c", "faults.c"), *flags)


def fuzz_command(program: Path, seed: int, limit: int, *folders: Path) -> list[str | Path]:
    """Change the inputs in `folders`. New ones that reach other code go to the first folder.

    `limit`: number of executions, or of seconds if it is negative.
    """
    end = f"-max_total_time={-limit}" if limit < 0 else f"-runs={limit}"
    limits = ("-max_len=400000", "-len_control=0", "-timeout=20", end)
    given = (f"-seed={seed}", f"-artifact_prefix={folders[0]}/")
    return [program, *limits, *given, *folders]


def _run_to_the_counts(command: list[str | Path]) -> int:
    """Run a fuzzer of libFuzzer, and print the last lines of its progress: what it reached."""
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            sys.stderr.write(line)
            last.append(line)
    text = "".join(last)
    sys.stdout.write(text[max(text.rfind("DONE"), 0) :])
    return running.returncode


def silent(stderr: str) -> list[str]:
    """Return what fault_nest says about its silent runs."""
    return [line for line in stderr.replace("\r", "\n").splitlines() if SILENT in line]


@dataclass
class Faults:
    """What runs with faults have done."""

    counts: dict[str, int] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    minutes: float = 0.0

    def add(self, other: "Faults") -> None:
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.silent += other.silent
        self.minutes += other.minutes


def _part(program: Path, first: int, runs: int, seeds: Sequence[Path]) -> Faults:
    """Run a part of a fuzzing, or read what it has done, if this commit has done it before."""
    kept = PARTS / commit() / f"{first}-{runs}.json"
    if kept.exists() and not kept.parent.name.endswith("-dirty"):
        return msgspec.json.decode(kept.read_bytes(), type=Faults)
    begin = time.monotonic()
    done = fuzz(program, first, runs, *seeds, timeout_s=None)
    minutes = (time.monotonic() - begin) / 60
    part = Faults(counts(done), silent(done.stderr), minutes)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, msgspec.json.encode(part))
    return part


def report(found: Faults, command: str) -> str:
    """Return the text of a result file."""
    of = found.counts
    lines = [
        command,
        f"{date.today()}, commit {commit()}: {of['rounds']:,} runs of 6 steps, "
        f"{of['faults']:,} faults, {found.minutes:.0f} minutes",
        "",
        *(f"{count:9,}  {name}" for name, count in of.items() if count and name != "rounds"),
        "",
        *(found.silent or ["No run ended with other weights and no error."]),
    ]
    return "\n".join(lines) + "\n"


def main(what: str, seed: str, limit: str) -> int:
    """Compile one of the fuzzers and run it. 100,000 runs with faults write a result file."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        seeds = write_seeds(here / "seeds", **SEEDS)
        if what == "fuzz":
            found = Path("build") / "fuzz-nest"
            found.mkdir(parents=True, exist_ok=True)
            command = fuzz_command(
                compile_fuzzer(here), int(seed), int(limit), found, CORPUS, here / "seeds"
            )
            return _run_to_the_counts(command)
        program, first, end = compile_faults(here), int(seed), int(seed) + int(limit)
        total = Faults()
        for part in range(first, end, RESULT_RUNS):
            total.add(_part(program, part, min(RESULT_RUNS, end - part), seeds))
    text = report(total, f"make fault-nest SEED={seed} RUNS={limit}")
    sys.stdout.write(text)
    if int(limit) >= RESULT_RUNS:
        RESULT.write_text(text, encoding="utf-8")
    return int(bool(total.silent))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
