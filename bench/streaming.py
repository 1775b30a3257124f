"""`make bench-streaming`: networks whose operators exceed the RAM of their board train there.

Each step is compared with a native board that keeps everything in RAM: their trained weights must
be the same bits. Prints a table and writes RESULTS-streaming.md. Times of simulated boards are
simulated, so other processes do not change them.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import poet_host as poet
from poet_host.data.datasets import Dataset
from poet_host.files import write_whole
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import Plan, moved_bytes
from poet_host.plan.problem import Objective
from poet_host.run.energy import planned_states_us
from poet_host.run.run import Run, Step, weights_sha256

from .report import about, filled, number, percent, table

RESULTS = Path(__file__).with_name("RESULTS-streaming.md")
SOLVE_WORK = 60_000  # about as much as both searches of a solve do in 30 s
STAYING_FACTOR = 2  # for N above 1: plans in which weights stay come from further searches
STEPS = 1
HIDDEN = (
    "Hidden: the time in which processor and card both work, over the busy time of the lane that "
    "works less."
)


@dataclass(frozen=True)
class Case:
    """A model on a board, in some RAM."""

    model: str | Callable[[], poet.Graph]
    data: str | Dataset
    board: str
    ram_bytes: int
    tokens: int | None = None  # of a text; None: the model's own number
    objective: Objective = "energy"
    commit_every: int = 1  # N, see docs/how-to/commit-every.md

    @property
    def model_name(self) -> str:
        return self.model if isinstance(self.model, str) else self.model.__name__

    @property
    def name(self) -> str:
        length = f" of {self.tokens} tokens" if self.tokens else ""
        least = f", least {self.objective}" if self.objective != "energy" else ""
        every = f", N = {self.commit_every}" if self.commit_every > 1 else ""
        return f"{self.model_name}{length} on {self.board}{least}{every}"

    def graph(self) -> poet.Graph:
        if not isinstance(self.model, str):
            return self.model()
        graph = poet.load(self.model, sequence_length=self.tokens)
        assert isinstance(graph, poet.Graph)
        return graph


def resnet18_stem() -> poet.Graph:
    """The first layers of ResNet-18, with max pooling, for images of 224x224 pixels."""
    b = Builder("resnet18-stem", data=(1, 3, 224, 224))
    x = b.batchnorm2d(b.conv2d(b.data, 64, 7, stride=2, padding=3, name="conv1"), name="bn1")
    x = b.maxpool2d(b.relu(x, name="relu"), 3, stride=2, padding=1, name="maxpool")
    y = b.batchnorm2d(b.conv2d(x, 64, 3, padding=1, name="conv2"), name="bn2")
    x = b.relu(b.add(x, y, name="add"), name="relu2")
    x = b.linear(b.global_avgpool(x, name="avgpool"), 10, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.01))


IMAGES = "synthetic:3x32x32:10"
WORDS = "tokens:128:30522:10"
CASES = (
    Case("resnet18", IMAGES, "native", 24_576),
    Case("vgg16-cifar", IMAGES, "native", 24_576),
    Case("mobilenet-vww", "synthetic:3x96x96:2", "native", 24_576),
    Case(resnet18_stem, "synthetic:3x224x224:10", "native", 24_576),
    Case("resnet8-cifar", IMAGES, "mkr1000", 24_576),
    Case("resnet8-cifar", IMAGES, "nrf52840_dk", 24_576),
    Case("resnet18", IMAGES, "nrf52840_dk", 225_280),
    Case("bert-tiny", WORDS, "native", 24_576),
    Case("bert-base", WORDS, "native", 24_576, tokens=128),
    Case("bert-tiny", WORDS, "nrf52840_dk", 225_280),
    Case("resnet8-cifar", IMAGES, "mkr1000", 24_576, objective="time"),
    Case("resnet18", IMAGES, "nrf52840_dk", 225_280, objective="time"),
)


@dataclass(frozen=True)
class Measured:
    """The run of a case, and the run that keeps everything."""

    case: Case
    largest_bytes: int  # of RAM for the largest operator without streaming
    plan: Plan
    run: Run
    is_same: bool  # whether both runs have trained the same bits


@contextmanager
def native(arena_bytes: int | None) -> Iterator[poet.Connection]:
    """A native board whose card has room for the three copies of large weights."""
    with TemporaryDirectory() as folder:
        card = Path(folder, "card.img")
        poet.prepare_storage(card, "4GiB")
        with poet.connect("native", storage=card, arena_bytes=arena_bytes) as board:
            yield board


def measure(case: Case, steps: int, work: int) -> Measured | Plan:
    """Solve and train. Return the plan alone if it has no statements."""
    graph = case.graph()
    profile = poet.estimate_profile(case.board)
    costs = poet.costs_of(graph, profile)
    keep = poet.keep_everything(costs)
    wanted = poet.problem(
        graph, profile, ram=case.ram_bytes, objective=case.objective, commit_every=case.commit_every
    )
    factor = STAYING_FACTOR if case.commit_every > 1 else 1
    plan = poet.solve(wanted, work_limit=factor * work)
    if not plan.statements:
        return plan
    with native(keep.peak_bytes) as board:
        kept = poet.train(poet.encode(graph, profile, keep), board, case.data, steps=steps)
    chosen = native(case.ram_bytes) if case.board == "native" else poet.connect(f"sim:{case.board}")
    with chosen as board:
        run = poet.train(poet.encode(graph, plan), board, case.data, steps=steps)
    same = weights_sha256(run.weights) == weights_sha256(kept.weights)
    return Measured(case, largest_operator_bytes(costs), plan, run, same)


def hidden(run: Run) -> str:
    """Return the share of the shorter lane in which the other one works too, in per cent."""
    if run.board == "native":
        return "-"  # its transfers are function calls
    return percent(median(map(_hidden, run.steps)), 1)


def _hidden(step: Step) -> float:
    awake_us, reading_us, writing_us = planned_states_us(step)
    card_us = reading_us + writing_us
    both_us = awake_us + card_us - (step.time_us - step.overhead_us)
    return both_us / min(awake_us, card_us) if card_us else 1.0


def hidden_in_nests(plan: Plan) -> str:
    """Return the same share within each streamed statement, summed, as planned, in per cent."""
    assert plan.problem is not None
    graph = plan.problem.graph
    modes = [
        graph.nodes[graph.index[it.node]].mode(it.mode)
        for it in plan.statements
        if it.op == "compute" and it.mode
    ]
    both_us = sum(mode.time_us + mode.transfer_us - mode.wall_us for mode in modes)
    least_us = sum(min(mode.time_us, mode.transfer_us) for mode in modes)
    return percent(both_us / least_us, 1) if least_us else "-"


def report(found: Sequence[tuple[Case, Measured | Plan]]) -> str:
    head = ["model on board", "RAM bytes", "largest operator, bytes", "high-water mark",
            "plan bytes", "gap %", "bytes moved in", "bytes moved out", "step s, predicted",
            "step s", "hidden %", "in nests %", "weights"]  # fmt: skip
    return filled(
        "streaming",
        about=about("highspy", "numpy"),
        steps=STEPS,
        hidden=HIDDEN,
        table=table(head, [_row(mine) for _, mine in found if isinstance(mine, Measured)]),
    )


def _row(mine: Measured) -> list[str]:
    plan, run = mine.plan, mine.run
    assert plan.problem is not None
    assert plan.time_us is not None
    assert run.time_us is not None
    moved_in, moved_out = moved_bytes(plan.problem.graph, plan)
    return [
        mine.case.name,
        f"{mine.case.ram_bytes:,}",
        f"{mine.largest_bytes:,}",
        f"{run.peak_bytes:,}",
        f"{run.schedule_bytes:,}",
        percent(plan.gap),
        f"{moved_in:,}",
        f"{moved_out:,}",
        number(plan.time_us / 1e6),
        number(run.time_us / 1e6),
        hidden(run),
        hidden_in_nests(plan),
        "equal" if mine.is_same else "DIFFERENT",
    ]


def run_cases(
    program: str,
    description: str | None,
    cases: Sequence[Case],
    steps: int,
    report_of: Callable[[Sequence[tuple[Case, Measured | Plan]]], str],
    results: Path,
) -> None:
    """Run the cases that the command line chooses. Print the report, and write it if all ran.

    Exit with an error if trained weights differ, after the report.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--only", metavar="NAME", help="only rows whose name contains NAME; no file"
    )
    parser.add_argument(
        "--work-limit", type=int, default=SOLVE_WORK, metavar="N",
        help=f"counted work of a solve for N of 1 (default {SOLVE_WORK}); if given, no file",
    )  # fmt: skip
    options = parser.parse_args()
    only = options.only
    chosen = [case for case in cases if only is None or only in case.name]
    if not chosen:
        parser.error(f"no row has a name with {only!r} in it")
    began = time.monotonic()
    found = []
    for case in chosen:
        found.append((case, measure(case, max(steps, case.commit_every), options.work_limit)))
        print(f"{case.name}: {time.monotonic() - began:.0f} s", flush=True)
    text = report_of(found)
    print(text)
    if only is None and options.work_limit == SOLVE_WORK:
        write_whole(results, text)
    if not all(mine.is_same for _, mine in found if isinstance(mine, Measured)):
        sys.exit("trained weights differ from those of keep-everything")


if __name__ == "__main__":
    run_cases("bench.streaming", __doc__, CASES, STEPS, report, RESULTS)
