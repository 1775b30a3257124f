"""Write motion.csv: synthetic gestures, and print when the button is pressed to teach them.

    python motion.py motion.csv --teach 8 --test 20

Nobody has moved a board for these gestures: they are sums of sines, with noise, that vary from one
to the next. Gesture 1 is a circle, gesture 2 a quick shake, gesture 3 a lift.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

RATE_HZ, GESTURES = 104, 3
FIRST_S, APART_S, LENGTH_S = 1.0, 7.0, 1.2
PRESS_S, PRESSES_APART_S, PRESSED = 1.8, 0.3, "100ms"  # after a gesture begins
REST_S = 3.0  # after the last gesture: to learn it, and to log the weights


def gesture(rng: np.random.Generator, number: int) -> np.ndarray:
    """Return the acceleration of a gesture in g, without gravity: rows of x, y, z."""
    time_s = np.arange(round(LENGTH_S * RATE_HZ)) / RATE_HZ
    angle = 2 * np.pi * (time_s + rng.uniform(0, 0.05))
    motion = rng.normal(0, 0.03, (time_s.size, 3))
    if number == 0:
        angle *= rng.uniform(1.5, 2.2)
        size = rng.uniform(0.5, 0.9)
        motion += size * np.stack([np.sin(angle), np.cos(angle) - 1, 0 * angle], 1)
    elif number == 1:
        motion[:, 0] += rng.uniform(0.8, 1.4) * np.sin(rng.uniform(4, 6) * angle)
    else:
        motion[:, 2] += rng.uniform(0.5, 0.9) * np.sin(rng.uniform(0.9, 1.4) * angle)
    return motion * np.hanning(time_s.size + 2)[1:-1, None] ** 0.25


def held(rng: np.random.Generator) -> np.ndarray:
    """Return how the hand holds the board: a rotation by up to 25 degrees about x and y."""
    a, b = rng.uniform(-np.radians(25), np.radians(25), 2)
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    return np.asarray(about_x @ about_y)


def scene(order: list[int], taught: int, seed: int) -> tuple[list[tuple[float, ...]], list[str]]:
    """Return rows of motion.csv, and the presses that teach the first `taught` gestures."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, ...]] = [(0, 0, 0, 1)]
    presses = []
    for i, number in enumerate(order):
        begin_s = FIRST_S + i * APART_S
        motion = (gesture(rng, number) + np.array([0, 0, 1])) @ held(rng).T
        times = begin_s + np.arange(len(motion)) / RATE_HZ
        rows += [(at, *axes) for at, axes in zip(times, motion, strict=True)]
        rows.append((times[-1] + 1 / RATE_HZ, 0, 0, 1))
        if i < taught:
            first_s = begin_s + PRESS_S
            presses += [
                f"{first_s + k * PRESSES_APART_S:.1f}s:{PRESSED}" for k in range(number + 1)
            ]
    return rows, presses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--teach", type=int, default=8, help="taught gestures of each kind")
    parser.add_argument("--test", type=int, default=20, help="gestures of each kind after them")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    order = [*range(GESTURES)] * (given.teach + given.test)
    rows, presses = scene(order, GESTURES * given.teach, given.seed)
    with given.path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("time_s", "ax", "ay", "az"))
        writer.writerows([f"{value:.5f}" for value in row] for row in rows)
    print(" ".join(f"--button {press}" for press in presses), end=" ")
    print(f"--for {FIRST_S + len(order) * APART_S + REST_S:.0f}s")


if __name__ == "__main__":
    main()
