"""The long life of a learner: weights stay in RAM for 10 steps, and power and storage fail often.

    PYTHONPATH=tests python -m fuzz.soak --steps 20000 --output bench/soak.txt

It is taught at random. At random moments its power is cut, and an access of its storage fails.
After each start, and after each part of 500 steps, its weights must be those of the replay rule.
The state after each part is kept in build/soak: the same command goes on from there.
"""

import argparse
import pickle
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random

from poet_host.data.taught import Taught, drawn
from poet_host.package.stored import LearnerStore
from support.learner_bench import (
    BATCH,
    SEED,
    Device,
    Kind,
    Learner,
    StorageFailed,
    Trace,
    blocks,
    outputs_of,
    packaged,
    start,
    stored,
    trained,
)  # fmt: skip
from support.memory_board import SURVIVE

from bench.commits import commit

KIND = Kind(pages=True, every=10)
PART_STEPS = 500
KEPT_STEPS = 64  # steps whose weights are known: more than lie between two commits
MEAN_WRITES, MEAN_ACCESSES = 100, 400  # of the storage, before a power cut or a failed access
TAUGHT_SHARE = 0.1  # of the steps, before which a sample is taught
INFERRED_SHARE = 0.3  # of the steps, after which the outputs for a sample are computed


@dataclass
class Soak:
    """`known`: the weights after each of the last steps, by the replay rule."""

    image: bytes
    random: Random
    trace: Trace = field(default_factory=lambda: Trace(KIND))
    known: dict[int, dict[str, bytes]] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)
    step: int = 0
    saved: int = 0  # the step that was committed last, as the device said
    seconds: float = 0.0

    def part(self, last: int) -> None:
        """Go on to step `last`, through all failures."""
        begin = time.monotonic()
        while self.step < last:
            device = Device(0, 0, self.image)
            device.us_per_call = 3
            is_cut = self.random.random() < 0.5
            mean = MEAN_WRITES if is_cut else MEAN_ACCESSES
            after = 1 + int(self.random.expovariate(1 / mean))
            if is_cut:
                device.cut_at = after
                device.survive = SURVIVE[self.random.choice([*SURVIVE])]
            else:
                device.fail_at = after
            unsure: Trace | None = None
            try:
                learner = Learner(KIND, device)
                self.check(learner)
                while self.step < last:
                    if not self.trace.x or self.random.random() < TAUGHT_SHARE:
                        unsure = self.with_sample(learner)
                        if learner.teach(unsure.x[-1], unsure.taught[-1].label):
                            self.trace = unsure
                            self.found["taught"] += 1
                        unsure = None
                    learner.learn(1)
                    learner.run(self.random.choice((0, 0, 50, 100_000)))
                    if self.random.random() < INFERRED_SHARE:
                        self.infer(learner)
                    self.step, self.saved = learner.state().step, learner.state().saved_step
                learner.save()
                self.check(learner)
            except StorageFailed:
                self.found["power cuts" if is_cut else "failed accesses"] += 1
            self.image = device.after_the_cut()
            if unsure:
                self.settle(unsure)
        self.seconds += time.monotonic() - begin

    def with_sample(self, learner: Learner) -> Trace:
        """The trace with one more sample."""
        label, number = self.random.randrange(KIND.classes), self.random.randrange(1 << 30)
        entry = Taught(label, learner.state().next_step)
        return Trace(KIND, [*self.trace.x, KIND.sample(number)], [*self.trace.taught, entry])

    def settle(self, unsure: Trace) -> None:
        """A `teach` that a failure ended has kept its sample or not: the storage has the answer."""
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(self.image)
            with LearnerStore(Path(file.name), packaged(KIND)) as store:
                kept = store.samples()["x"]
        if unsure.x[-1].tobytes() in {sample.tobytes() for sample in kept}:
            self.trace = unsure
            self.found["taught"] += 1

    def infer(self, learner: Learner) -> None:
        """Compare the outputs for a sample with those of the reference."""
        sample = KIND.sample(self.random.randrange(1 << 30))
        expected = outputs_of(KIND, learner.weights(), sample)
        assert learner.infer(sample).tobytes() == expected.tobytes()
        self.found["inferences"] += 1

    def check(self, learner: Learner) -> None:
        """Compare the weights with those of the replay rule after the same step.

        It must not be older than the last commit, whatever failed after that.
        """
        step = learner.state().step
        assert step >= self.saved
        for number in range(max(self.known) + 1, step + 1):
            chosen = drawn(self.trace.taught, SEED, number, BATCH, KIND.slots)
            assert chosen is not None
            batch = [(self.trace.taught[i].label, self.trace.x[i].tobytes()) for i in chosen]
            self.known[number] = trained(KIND, number, self.known[number - 1], batch)
            self.known.pop(number - KEPT_STEPS, None)
        assert learner.weights() == self.known[step], step
        self.found["comparisons"] += 1
        self.step = step


def begun(seed: int) -> Soak:
    made = start(KIND)
    weights = {name: made[name].astype("<f4").tobytes() for name in stored(KIND)}
    device = Device(blocks(KIND, 0))
    Learner(KIND, device)  # lays the storage out
    return Soak(device.after_the_cut(), Random(seed), known={0: weights})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    kept = Path("build/soak") / f"{given.seed}.pickle"
    kept.parent.mkdir(parents=True, exist_ok=True)
    soak: Soak = pickle.loads(kept.read_bytes()) if kept.exists() else begun(given.seed)
    while soak.step < given.steps:
        soak.part(min(soak.step + PART_STEPS, given.steps))
        (new := kept.with_suffix(".new")).write_bytes(pickle.dumps(soak))
        new.replace(kept)
        print(f"step {soak.step:,}: {dict(soak.found)}", flush=True)
    lines = [
        f"python -m fuzz.soak --steps {given.steps} --seed {given.seed}     (make soak-life)",
        f"{date.today()}, commit {commit()}: {soak.seconds:.0f} seconds", "",
        *(f"{what}: {count:,}" for what, count in sorted(soak.found.items())), "",
        "At each comparison, all weights were those of the replay rule.",
    ]  # fmt: skip
    given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
