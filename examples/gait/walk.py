"""Write walk.csv: people who walk with the board, and print when the button is pressed.

    python walk.py walk.csv --teach 4 --test 4

Nobody has walked for these data: each person is a sum of sines of the stride and its harmonics,
drawn from a seed. Speed, size of the steps and how the board is worn change from walk to walk.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

RATE_HZ, PEOPLE, HARMONICS = 52, 3, 6
PEOPLE_SEED = 5
APART_S, REST_S = 13.0, 4.0  # from walk to walk, and before each
PRESS_S, PRESSES_APART_S, PRESSED = 1.0, 0.3, "100ms"
_SIZES_G = np.array([[0.12, 0.2, 0.08], [0.1, 0.35, 0.45]] + [[0.05, 0.09, 0.11]] * 4)


def people() -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Return for each person the strides per second, and size and phase by harmonic and axis."""
    rng = np.random.default_rng(PEOPLE_SEED)
    shape = (HARMONICS, 3)
    found = []
    for _ in range(PEOPLE):
        strides_hz, sizes = rng.uniform(0.85, 1.0), _SIZES_G * rng.uniform(0.5, 1.5, shape)
        found.append((strides_hz, sizes, rng.uniform(0, 6.3, shape)))
    return found


def walk(rng: np.random.Generator, person: int, seconds: float) -> np.ndarray:
    """Return the acceleration in g of a walk, with gravity along z: rows of x, y, z."""
    strides_hz, sizes, phases = people()[person]
    count = round(seconds * RATE_HZ)
    speed = rng.uniform(0.93, 1.07) + 0.03 * np.cumsum(rng.normal(0, 1 / RATE_HZ**0.5, count))
    stride = rng.uniform(0, 1) + np.cumsum(strides_hz * speed) / RATE_HZ
    angle = 2 * np.pi * stride[:, None, None] * np.arange(1, HARMONICS + 1)[:, None] + phases
    own = sizes * rng.uniform(0.85, 1.15, sizes.shape)
    motion = (own * np.sin(angle)).sum(1) + rng.normal(0, 0.05, (count, 3)) + (0, 0, 1)
    return np.asarray(motion @ worn(rng).T)


def worn(rng: np.random.Generator) -> np.ndarray:
    """Return how the board is worn: a rotation by up to 10 degrees about x and y."""
    a, b = rng.uniform(-np.radians(10), np.radians(10), 2)
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    return np.asarray(about_x @ about_y)


def scene(walks: int, taught: int, seed: int) -> tuple[list[tuple[float, ...]], list[str]]:
    """Return rows of walk.csv, and the presses that teach the first `taught` walks."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, ...]] = [(0, 0, 0, 1)]
    presses = []
    for i in range(walks):
        person, begin_s = i % PEOPLE, i * APART_S + REST_S
        motion = walk(rng, person, APART_S - REST_S)
        times = begin_s + np.arange(len(motion)) / RATE_HZ
        rows += [(at, *axes) for at, axes in zip(times, motion, strict=True)]
        rows.append((times[-1] + 1 / RATE_HZ, 0, 0, 1))
        if i < taught:
            first_s = i * APART_S + PRESS_S
            presses += [
                f"{first_s + k * PRESSES_APART_S:.1f}s:{PRESSED}" for k in range(person + 1)
            ]
    return rows, presses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--teach", type=int, default=4, help="taught walks of each person")
    parser.add_argument("--test", type=int, default=4, help="walks of each person after them")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    walks = PEOPLE * (given.teach + given.test)
    rows, presses = scene(walks, PEOPLE * given.teach, given.seed)
    with given.path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("time_s", "ax", "ay", "az"))
        writer.writerows([f"{value:.5f}" for value in row] for row in rows)
    print(" ".join(f"--button {press}" for press in presses), end=" ")
    print(f"--for {walks * APART_S:.0f}s")


if __name__ == "__main__":
    main()
