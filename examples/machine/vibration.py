"""Write motion.csv: the synthetic vibration of a machine, with a fault from a second on.

    python vibration.py motion.csv --seconds 60 --fault 50

Nobody has measured this machine: it is a shaft of 25 Hz with four harmonics, whose speed and load
vary, and noise. The fault is a bearing that rings at 330 Hz, 87 times a second.
"""

import argparse
from pathlib import Path

import numpy as np

RATE_HZ = 833
SEED = 1


def vibration(rng: np.random.Generator, seconds: float, fault_s: float) -> np.ndarray:
    """Return rows of time in s, and acceleration along x, y and z in g."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    changes_s = np.arange(0, seconds + 2, 2.0)
    slow = np.interp(time_s, changes_s, rng.uniform(-1, 1, changes_s.size))
    turns = np.cumsum(25 * (1 + 0.02 * slow)) / RATE_HZ
    load = 1 + 0.15 * slow
    z = 1 + rng.normal(0, 0.02, time_s.size)
    for harmonic, size in ((1, 0.3), (2, 0.12), (3, 0.06), (5, 0.04)):
        z += load * size * np.sin(2 * np.pi * harmonic * turns + harmonic)
    since_s = np.mod(time_s, 1 / 87)
    ringing = 0.3 * np.exp(-since_s / 0.004) * np.sin(2 * np.pi * 330 * since_s)
    z += np.where(time_s >= fault_s, ringing, 0)
    return np.stack([time_s, 0 * z, 0 * z, z], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--fault", type=float, default=90, help="when it begins, in seconds")
    given = parser.parse_args()
    rows = vibration(np.random.default_rng(SEED), given.seconds, given.fault)
    np.savetxt(given.path, rows, "%.6f", ",", header="time_s,ax,ay,az", comments="")
    print(f"--for {given.seconds:g}s")


if __name__ == "__main__":
    main()
