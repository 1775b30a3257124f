"""Random lives of boards in slices: budgets, inferences, saves and power cuts, to equal bits.

    PYTHONPATH=tests python -m fuzz.sliced_lives --lives 5000 --output bench/fuzz-slices.txt

`make fuzz-slices` runs it with sanitizers. A life of the toy has four steps. Between its slices,
inferences are asked for: a running step refuses them, and they abandon a save, which then begins
again. In most lives the power is cut. The next start must find the weights of a committed step.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from random import Random

from support import toy, toy_forward
from support.card_image import CardImage
from support.memory_board import SURVIVE, MemoryBoard, Refused, card, refusal
from support.sliced import SlicedBoard
from support.toy_boards import give_batch, load, truth, weights

from bench.commits import commit

KINDS = ("frugal", "lavish", "cut", "in RAM", "stays xwv every 3", "stays wv every 1")
STEPS = 4
CUTS = 0.7  # share of the lives whose power is cut


class Life:
    """One life. `found` counts what happens in it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kind = self.random.choice(KINDS)
        self.found: Counter[str] = Counter()
        self.is_flash = self.kind == "in RAM" and self.random.random() < 0.5
        self.left_out = self.random.choice([(), ("submit",), ("submit", "ticks")])

    def run(self) -> Counter[str]:
        board = self.board(card())
        board.format()
        load(board, self.kind)
        for number, data in enumerate(toy.values(1, self.kind)):
            board.write(2, number, 0, data)
        board.begin(0)
        cut_at = None
        if self.random.random() < CUTS:
            cut_at = board.cut_at = board.writes + self.random.randrange(60)
        try:
            self.train(board, 0)
        except Refused:
            if board.writes != cut_at:  # nothing else may fail
                raise
            self.found["cuts"] += 1
            self.train(self.after(board), None)
        return self.found

    def board(self, image: CardImage) -> SlicedBoard:
        random = self.random
        return SlicedBoard(
            image, seed=random.randrange(2**32), queue=random.randint(4, 9), is_flash=self.is_flash,
            cache=random.randint(1, 3), left_out=self.left_out,
            survive=SURVIVE[random.choice([*SURVIVE])],
        )  # fmt: skip

    def after(self, board: SlicedBoard) -> SlicedBoard:
        following = self.board(board.after_the_cut())
        load(following, self.kind)
        return following

    def train(self, board: SlicedBoard, step: int | None) -> None:
        board.load_forward(*toy_forward.parts(self.kind))
        if step is None:
            step = int(board.lib.poet_last_step(board.state))
        assert weights(board, self.kind) == truth(self.kind)[step]
        for number in range(step + 1, STEPS + 1):
            self.infer(board, number - 1)
            if self.kind == "in RAM":
                give_batch(board)
            board.between = self.asks(board)
            board.step(number)
            board.between = lambda it: None
            self.infer(board, number)
            if number == STEPS or self.random.random() < 0.5:
                self.save(board, number)
        assert weights(board, self.kind) == truth(self.kind)[STEPS]
        self.found["slices"] += board.slices

    def infer(self, board: SlicedBoard, step: int) -> None:
        for _ in range(self.random.randrange(3)):
            sample = toy_forward.sample(self.kind, self.random.randrange(100))
            outputs = board.infer(sample, toy_forward.OUTPUT_BYTES)
            assert outputs == toy_forward.truth(truth(self.kind)[step][0], sample)
            self.found["inferences"] += 1

    def asks(self, board: SlicedBoard) -> Callable[[MemoryBoard], None]:
        sample = toy_forward.sample(self.kind, 1)

        def ask(_: MemoryBoard) -> None:
            if self.random.random() < 0.1:
                found = refusal(board.infer, sample, toy_forward.OUTPUT_BYTES)
                assert found.name == "busy"
                self.found["refused inferences"] += 1

        return ask

    def save(self, board: SlicedBoard, step: int) -> None:
        """Save; an inference may abandon the first attempt."""

        def between(_: MemoryBoard) -> None:
            if self.random.random() < 0.1:
                self.infer(board, step)

        board.between = between
        try:
            board.save()
        except Refused as error:
            if error.name != "wrong_step":
                raise
            self.found["abandoned saves"] += 1
            board.between = lambda it: None
            board.save()
        board.between = lambda it: None
        self.found["saves"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lives", type=int, default=5000)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    begin, found = time.monotonic(), Counter[str]()
    for seed in range(given.seed, given.seed + given.lives):
        found += Life(seed).run()
    minutes = (time.monotonic() - begin) / 60
    lines = [
        f"make fuzz-slices SEED={given.seed} LIVES={given.lives}",
        f"{date.today()}, commit {commit()}: {minutes:.0f} minutes", "",
        *(f"{name}: {count:,}" for name, count in sorted(found.items())),
        "", "After each cut, the weights were those of a committed step, and at the end of each",
        "life those of a run without slices, inferences and cuts.",
    ]  # fmt: skip
    given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
