"""Turn what an example has sent into files for `poet-host replay`.

    python log.py LOG PACKAGE --trace trace.npz --weights device.safetensors

PACKAGE is the folder of the example's package. The weights are those of the last line `saved`. A
line `teach` without an answer is of a sample that the board was taught when its power was cut: it
is in the trace if only then the weights are those of the board.
"""

import argparse
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import poet_host as poet
from numpy.typing import NDArray

Array = NDArray[np.float32]


def read(log: bytes, package: Path, trace: Path, weights: Path) -> int:
    """Write both files, and return the step of the weights."""
    made = poet.load_package(package)
    lines = [line.split() for line in log.decode("ascii", "replace").splitlines() if line.strip()]
    ends = np.cumsum([made.schedule.graph[name].size_bytes // 4 for name in made.tensors])
    saved = [it for it in lines if it[0] == "saved" and len(it[-1]) == 8 * ends[-1]][-1]
    step = int(saved[1])
    answers = [
        (line, after[0])
        for line, after in pairwise(lines)
        if line[0] == "teach" and len(line[-1]) == 2 * made.sample_bytes
    ]
    unsure = [line for line, answer in answers if answer not in ("taught", "busy")]
    values = np.frombuffer(bytes.fromhex(saved[2]), "<f4")
    graph = made.schedule.graph
    parts = np.split(values, ends[:-1])
    found = {
        name: part.reshape(graph[name].shape)
        for name, part in zip(made.tensors, parts, strict=True)
    }
    poet.save_weights(weights, graph, found, step)
    for kept in product((False, True), repeat=len(unsure)):
        left_out = [id(line) for line, keep in zip(unsure, kept, strict=True) if not keep]
        taught = [it for it, answer in answers if answer != "busy" and id(it) not in left_out]
        raw = [np.frombuffer(bytes.fromhex(line[3]), made.raw.dtype) for line in taught]
        np.savez(
            trace,
            x=np.stack(raw).reshape(-1, *made.sample_shape),
            y=[int(line[1]) for line in taught],
            next_step=[int(line[2]) for line in taught],
        )
        if not unsure or same(poet.replay(package, trace, steps=step), found):
            return step
    raise SystemExit("no trace of this log leads to the weights that the board has sent")


def same(weights: Mapping[str, Array], others: Mapping[str, Array]) -> bool:
    return all(weights[name].tobytes() == others[name].tobytes() for name in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    given = parser.parse_args()
    step = read(given.log.read_bytes(), given.package, given.trace, given.weights)
    print(f"the weights are those of step {step}")


if __name__ == "__main__":
    main()
