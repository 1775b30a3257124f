"""Power cuts at random writes of a training that commits every 10 steps.

    python -m fuzz.commit_cuts [--cuts N] [--seed N] [--output FILE]

Small transformers in little RAM: some tensors stay there, others do not, and operators stream. One
is trained by Adam, the other one by SGD, with a table of words. Each training is cut at a random
write, on a board in memory (`MemoryBoard`). Of the blocks that are not flushed, those of one of
SURVIVE or a random part reach the card. The next board must find a committed step with the bits of
the training without cuts, and train on to the same end.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
from poet_host.graph.autodiff import Adam, Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.schedule.model import CURRENT
from poet_host.schedule.schedule import Schedule
from support.card_image import CardImage
from support.memory_board import SURVIVE, MemoryBoard, Refused, card
from support.whole_runs import profile

from bench.commits import commit

EVERY, LAST_STEP = 10, 25
WORDS, CLASSES = 200, 4
OPTIMISERS: dict[str, Any] = {"adam": Adam(0.01, weight_decay=0.01), "sgd": Sgd(0.05)}
RAM = "20%"
EQUAL = ", then equal"
GOOD = "All went on from a committed step, and ended with the bits of a training without cuts."
State = dict[int, bytes]  # weights and optimiser states by the numbers of their tensors


def transformer(optimiser: Any) -> Graph:
    b = Builder("transformer", data=(2, 12), dtype="int32")
    x = b.gather(b.data, b.parameter((WORDS, 8), start="normal:0.5", name="word"))
    x = b.add(x, b.parameter((12, 8), start="normal:0.5", name="place"))
    x = b.layernorm(b.dropout(x, 0.1), name="norm")
    scores = b.attention_scores(b.linear(x, 8, name="q"), b.linear(x, 8, name="k"), 2)
    weights = b.masked_softmax(scores, b.data, causal=True)
    x = b.add(x, b.attention_context(weights, b.linear(x, 8, name="v")))
    x = b.add(x, b.linear(b.gelu(b.linear(x, 16, name="wide")), 8, name="narrow"))
    loss = b.softmax_xent(b.linear(b.mean(x, 1), CLASSES, name="out"), name="loss")
    return training_graph(b.model(loss), optimiser)


@dataclass(frozen=True)
class Training:
    """A schedule, the card with the weights of step 0, and how a training goes on from a card."""

    schedule: Schedule
    start: CardImage

    def board(self, storage: CardImage, **cut: Any) -> MemoryBoard:
        arena_bytes = self.schedule.header.arena_bytes
        return MemoryBoard(storage, arena_bytes, residents=256, tensors=512, **cut)

    def train(self, board: MemoryBoard, last: int) -> int:
        """Train from the committed step, which is returned, to step `last`, and commit."""
        board.load(self.schedule.model_part, self.schedule.plan_part)
        first: int = board.hello()["committed_step"]
        for step in range(first + 1, last + 1):
            board.batch = self.batch(step)
            board.step(step)
        board.save()
        return first

    def batch(self, step: int) -> State:
        rng, graph = np.random.default_rng(step), self.schedule.graph
        return {
            self.schedule.names.index(name): rng.integers(
                0, below, graph[name].shape, np.int32
            ).tobytes()
            for name, below in ((graph.data, WORDS), (graph.label, CLASSES))
        }

    def state(self, board: MemoryBoard) -> State:
        tensors = enumerate(self.schedule.model.tensors)
        return {
            i: board.tensor(i, tensor.size_bytes)
            for i, tensor in tensors
            if tensor.place == CURRENT
        }

    @cached_property
    def expected(self) -> dict[int, State]:
        """The states of the committed steps."""
        board = self.board(self.start.copy())
        found = {}
        for step in (*range(0, LAST_STEP, EVERY), LAST_STEP):
            self.train(board, step)
            found[step] = self.state(board)
        return found

    @cached_property
    def writes(self) -> int:
        board = self.board(self.start.copy())
        self.train(board, LAST_STEP)
        return board.writes

    def cut(self, at: int, survive: Callable[[int], list[int]]) -> str:
        """Cut the power at write number `at`, and go on. Return what the next boards found."""
        board = self.board(self.start.copy(), cut_at=at, survive=survive)
        with suppress(Refused):
            self.train(board, LAST_STEP)
        again = self.board(board.after_the_cut())
        step = self.train(again, 0)
        if self.state(again) != self.expected.get(step):
            return f"other bits in step {step}"
        self.train(again, LAST_STEP)
        same = self.state(again) == self.expected[LAST_STEP]
        return f"step {step}" + (EQUAL if same else ", then other bits")


@cache
def training(name: str) -> Training:
    """The training with this optimiser. Its plan is made by counted work, so always the same."""
    graph = transformer(OPTIMISERS[name])
    problem = poet.problem(graph, profile(), ram=RAM, commit_every=EVERY)
    schedule = poet.encode(graph, poet.solve(problem, work_limit=600))
    made = Training(schedule, card())
    board = made.board(made.start)
    board.format()
    board.load(schedule.model_part, schedule.plan_part)
    values = start_values(graph, 1)
    for i, tensor in enumerate(schedule.model.tensors):
        if tensor.place == CURRENT:
            data = np.ascontiguousarray(values[schedule.names[i]]).tobytes()
            board.write(2, i, 0, tensor.in_order(data))
    board.begin(0)
    return made


def cuts(name: str, count: int, seed: int) -> Counter[str]:
    """Cut the power at so many random writes. Return the outcomes."""
    rng = random.Random(seed)
    one = training(name)
    kinds = [*SURVIVE.values(), lambda n: [i for i in range(n) if rng.random() < 0.5]]
    return Counter(
        one.cut(rng.randrange(one.writes), kinds[number % len(kinds)]) for number in range(count)
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzz.commit_cuts", description=__doc__)
    parser.add_argument("--cuts", type=int, default=500, help="of each training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    found = {name: cuts(name, options.cuts, options.seed) for name in OPTIMISERS}
    lines = [
        f"python -m fuzz.commit_cuts --cuts {options.cuts} --seed {options.seed}",
        f"{date.today()}, commit {commit()}: trainings of {LAST_STEP} steps, a commit every "
        f"{EVERY}, {(time.monotonic() - begin) / 60:.0f} minutes",
    ]
    for name, counts in found.items():
        lines += ["", f"{name}, {training(name).writes:,} written blocks:"]
        lines += [f"{count:8,}  {outcome}" for outcome, count in sorted(counts.items())]
    bad = sum(n for counts in found.values() for it, n in counts.items() if not it.endswith(EQUAL))
    lines += ["", f"{bad:,} trainings went on from other bits, or to others." if bad else GOOD]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
