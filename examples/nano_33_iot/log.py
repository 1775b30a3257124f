"""Turn what an example has sent into files for `poet-host replay`.

    python log.py LOG PACKAGE --trace trace.npz --weights device.safetensors

PACKAGE is the folder of the example's package. The weights are those of the last line `saved`.
"""

import argparse
from pathlib import Path

import numpy as np
import poet_host as poet


def read(log: bytes, package: Path, trace: Path, weights: Path) -> int:
    """Write both files, and return the step of the weights."""
    made = poet.load_package(package)
    lines = [line.split() for line in log.decode("ascii", "replace").splitlines()]
    taught = [line for line in lines if line[:1] == ["taught"]]
    saved = [line for line in lines if line[:1] == ["saved"]][-1]
    raw = [np.frombuffer(bytes.fromhex(line[3]), made.raw.dtype) for line in taught]
    np.savez(
        trace,
        x=np.stack(raw).reshape(-1, *made.sample_shape),
        y=[int(line[1]) for line in taught],
        next_step=[int(line[2]) for line in taught],
    )
    values = np.frombuffer(bytes.fromhex(saved[2]), "<f4")
    graph = made.schedule.graph
    ends = np.cumsum([graph[name].size_bytes // 4 for name in made.tensors])
    parts = np.split(values, ends[:-1])
    found = {
        name: part.reshape(graph[name].shape)
        for name, part in zip(made.tensors, parts, strict=True)
    }
    poet.save_weights(weights, graph, found, int(saved[1]))
    return int(saved[1])


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
