"""`make bench-keyword`: a DS-CNN learns words of a voice that its training did not have.

espeak-ng speaks twelve words with different pitch, speed, loudness and noise. The model is trained
with OLD voices. Then a learner (poet/learner.h) is taught RECORDINGS of each word by one of the NEW
voices, with and without samples of the old voices in its store; `replay` computes its weights.
Writes RESULTS-keyword.md. Needs the program espeak-ng.
"""

import argparse
import io
import subprocess
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import poet_host as poet
from numpy.typing import NDArray
from poet_host.api.connection import arena_for
from poet_host.files import write_whole
from poet_host.graph.weights import Weights, weight_nodes

from .report import about, filled, number, table

RESULTS = Path(__file__).with_name("RESULTS-keyword.md")
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "one", "two")
OLD = ("m1", "m3", "m5", "m7", "f1", "f3", "Andy", "Annie")
NEW = ("Alicia", "whisper", "robosoft3")
TRAINING, HELD_OUT = 8, 5  # recordings of each word by each old voice
RECORDINGS, NEW_HELD_OUT = 4, 10  # by a new voice
RATE_HZ, FRAME, HOP, TIMES, BANDS, FEATURES = 22_050, 882, 441, 49, 20, 10
EPOCHS, BATCH, RATE = 15, 16, 0.002
STEPS, LEARNER_RATE = 1_000, 0.003  # of the learner, with one sample each
Array = NDArray[Any]


def spoken(voice: str, word: str, take: int) -> Array:
    """Return the features of a recording of one second, (1, TIMES, FEATURES). All differ."""
    rng = np.random.default_rng([*voice.encode(), 0, *word.encode(), take])
    pitch, speed = rng.integers(30, 71), rng.integers(130, 191)
    found = subprocess.run(
        ["espeak-ng", "-v", f"en-us+{voice}", "-p", f"{pitch}", "-s", f"{speed}", "--stdout", word],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    with wave.open(io.BytesIO(found)) as file:
        assert file.getframerate() == RATE_HZ
        sound = np.frombuffer(file.readframes(RATE_HZ * 2), "<i2") / 2**15
    loud = np.flatnonzero(np.abs(sound) > 0.02)
    sound = sound[loud[0] : loud[-1]][: RATE_HZ * 9 // 10]
    second = np.zeros(HOP * (TIMES - 1) + FRAME)
    at = rng.integers(0, len(second) - len(sound))
    second[at : at + len(sound)] = sound * rng.uniform(0.3, 1)
    second += rng.normal(0, 0.003, len(second))
    return features(second)


def features(second: Array) -> Array:
    """Return mel-frequency cepstral coefficients of a sound."""
    windows = np.lib.stride_tricks.sliding_window_view(second, FRAME)[::HOP] * np.hanning(FRAME)
    power = np.abs(np.fft.rfft(windows, 1024)) ** 2
    low, high = (1127 * np.log1p(hz / 700) for hz in (40, 8000))
    mel = np.linspace(low, high, BANDS + 2)
    edges = 700 * np.expm1(mel / 1127) * 1024 / RATE_HZ
    bins = np.arange(power.shape[1])
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    logs = np.log(power @ np.clip(np.minimum(rise, fall), 0, None).T + 1e-4)
    turns = np.outer(np.arange(BANDS) + 0.5, np.arange(FEATURES)) * np.pi / BANDS
    found: Array = (logs @ np.cos(turns))[None].astype(np.float32)
    return found


@dataclass(frozen=True)
class Recorded:
    """Recordings `x` with their words `y`."""

    x: Array
    y: Array


def record(voices: Sequence[str], takes: range) -> Recorded:
    rows = [*product(voices, WORDS, takes)]
    with ThreadPoolExecutor() as pool:
        x = [*pool.map(lambda row: spoken(*row), rows)]
    return Recorded(np.stack(x), np.array([WORDS.index(word) for _, word, _ in rows], np.int32))


def schedule_of(**how: Any) -> poet.Schedule:
    """Return a schedule that keeps all tensors in the RAM of this computer. Its bits are those of
    each other schedule."""
    graph = poet.load("dscnn-speech", **how)
    problem = poet.problem(graph, "native", storage=False)
    assert problem.keep_everything is not None
    return poet.encode(graph, poet.estimate_profile("native"), problem.keep_everything)


def accuracy(schedule: poet.Schedule, weights: Weights, of: Recorded) -> float:
    with connected(schedule) as board:
        outputs = poet.predict(schedule, of.x, connection=board, weights=weights).outputs
    return float(np.mean(outputs.argmax(1) == of.y))


def connected(schedule: poet.Schedule) -> poet.Connection:
    return poet.connect("native", card=False, arena_bytes=arena_for(schedule, "native"))


def trained(old: Recorded) -> Weights:
    """Train the model with old voices."""
    schedule = schedule_of(batch=BATCH, optimizer="adam", lr=RATE)
    with connected(schedule) as board:
        data = (old.x, old.y)
        return poet.train(schedule, board, data, epochs=EPOCHS, commit_every=10_000).weights


def taught(
    schedule: poet.Schedule, weights: Weights, kept: Sequence[Recorded], folder: Path
) -> Weights:
    """Return the weights of a learner that was taught these recordings, and then trained."""
    slots = sum(len(it.y) for it in kept) // len(WORDS)
    own = {node.name: weights[node.name] for node in weight_nodes(schedule.graph)}
    poet.write_package(schedule, folder / "package", name="words", weights=own, samples=slots)
    x, y = (np.concatenate([getattr(it, name) for it in kept]) for name in ("x", "y"))
    np.savez(folder / "trace.npz", x=x, y=y, next_step=np.ones(len(y), int))
    return poet.replay(folder / "package", folder / "trace.npz", steps=STEPS)


def measure() -> list[list[str]]:
    """Return a row for each store and voice: accuracies before and after, in percent."""
    training, held_out = record(OLD, range(TRAINING)), record(OLD, range(100, 100 + HELD_OUT))
    mean, deviation = training.x.mean((0, 1, 2)), training.x.std((0, 1, 2))

    def scaled(of: Recorded) -> Recorded:
        return Recorded(((of.x - mean) / deviation).astype(np.float32), of.y)

    training, held_out = scaled(training), scaled(held_out)
    weights = trained(training)
    # One recording of each word by every second old voice, which the device has in its store.
    few = [np.flatnonzero(training.y == word)[:: 2 * TRAINING] for word in range(len(WORDS))]
    kept = Recorded(training.x[np.concatenate(few)], training.y[np.concatenate(few)])
    schedule = schedule_of(batch=1, lr=LEARNER_RATE, batchnorm="frozen")
    before, rows = accuracy(schedule, weights, held_out), []
    for voice, (store, more) in product(NEW, (("new", []), ("old and new", [kept]))):
        lesson = scaled(record([voice], range(RECORDINGS)))
        test = scaled(record([voice], range(100, 100 + NEW_HELD_OUT)))
        with TemporaryDirectory() as folder:
            after = taught(schedule, weights, [*more, lesson], Path(folder))
        shares = (
            accuracy(schedule, weights, test), accuracy(schedule, after, test),
            before, accuracy(schedule, after, held_out),
        )  # fmt: skip
        rows.append([voice, store, *(number(100 * share, 1) for share in shares)])
        print(*rows[-1], flush=True)
    return rows


def main() -> None:
    argparse.ArgumentParser(prog="bench.keyword", description=__doc__).parse_args()
    heads = ["new voice", "store", "new, before", "new, after", "old, before", "old, after"]
    words = subprocess.run(["espeak-ng", "--version"], check=True, capture_output=True, text=True)
    text = filled(
        "keyword", about=about("numpy"), espeak=words.stdout.split()[3],
        words=len(WORDS), old=len(OLD), training=TRAINING, epochs=EPOCHS, recordings=RECORDINGS,
        steps=f"{STEPS:,}", held_out=HELD_OUT, new_held_out=NEW_HELD_OUT,
        table=table(heads, measure()),
    )  # fmt: skip
    write_whole(RESULTS, text)


if __name__ == "__main__":
    main()
