"""Measure on a simulated board, in a process of its own: `python -m bench.kernel_probe BOARD`.

Each line of the input is a job, an object in JSON with one key; the answer is one line. The
poet_host that is imported may be that of an old commit (bench.kernel_board), so this module uses
only what commit 13d07bf has too. The jobs:

    {"kernel": {...}}        fields of kernel_rows.job; answer: cycles of a call
    {"profile": MODEL}       answer: milliseconds of all operators of a training step
    {"train": [PATH, STEPS]} a .poet file; answer: milliseconds of a step, the mean
"""

import json
import sys
from statistics import fmean
from typing import Any

import numpy as np
import poet_host as poet
from poet_host import isa
from poet_host.profile.profile import signature

CLOCK_MHZ = {"mkr1000": 48, "nrf52840_dk": 64}
ARENA_BYTES = {"mkr1000": 24_576, "nrf52840_dk": 225_280}  # every commit has at least these
# The board's clock ticks once a microsecond: calls are repeated for 5,000 ticks.
SAMPLE_US = 5_000.0
PIECE = 128  # floats that are written at a time


class Probe:
    """Runs kernels in the arena of a board. Operands are normally distributed, always the same.

    Inputs lie at the arena's start and the output at its end. So most inputs are there already,
    and need not be sent.
    """

    def __init__(self, device: Any, board: str) -> None:
        count = ARENA_BYTES[board] // 4
        self.device, self.clock_mhz = device, CLOCK_MHZ[board]
        self.values = np.random.default_rng(1).standard_normal(count).astype(np.float32)
        self.held = np.full(count, np.nan, np.float32)  # what the arena holds

    def cycles(self, job: dict[str, Any]) -> float:
        """Return the cycles of one call."""
        offsets, at = [], 0
        for size, kind in job["inputs"]:
            values = self.values[at : at + size].copy()
            if kind == "half zeros":
                values = np.maximum(values, 0)
            elif kind == "squares":
                values *= values
            elif kind.startswith("below"):
                values = (np.arange(size, dtype=np.int32) % int(kind.split()[1])).view(np.float32)
            elif kind == "stats":  # the second half: variances, or reciprocals of deviations
                values[size // 2 :] = np.abs(values[size // 2 :]) + np.float32(0.5)
            self.send(at, values)
            offsets.append(4 * at)
            at += size
        overwrites = job["overwrites"]
        out = len(self.values) - job["output"] if overwrites is None else offsets[overwrites] // 4
        assert overwrites is not None or at <= out, job
        code, sink = isa.by_name("KERNEL")[job["op"]].code, isa.by_name("SINK")[job["sink"]].code
        count = len(offsets)
        op = isa.pack_op(code, sink, list(range(count)), count, overwrites, job["fields"])
        places = [*offsets, 4 * out, 0]
        self.held[out : out + job["output"]] = np.nan
        repeat = 1
        us = self.device.us(self.device.probe_op(op, places))
        if us < SAMPLE_US:
            repeat = int(SAMPLE_US / max(us, 1)) + 1
            us = self.device.us(self.device.probe_op(op, places, repeat=repeat))
        return float(us * self.clock_mhz / repeat)

    def send(self, at: int, values: Any) -> None:
        """Write what differs from the content of the arena, by pieces of a frame."""
        held = self.held[at : at + len(values)]
        differing = np.flatnonzero(values.view(np.uint32) != held.view(np.uint32))
        for start in np.unique(differing // PIECE) * PIECE:
            piece = slice(int(start), int(start) + PIECE)
            self.device.probe_write(4 * (at + piece.start), values[piece].tobytes())
        held[:] = values


def operators_ms(connection: Any, model: str) -> float:
    """Return the time of every operator of a training step, called once each."""
    graph = poet.load(model)
    assert isinstance(graph, poet.Graph)
    found = connection.profile(graph).operators
    nodes = [node for node in graph if not node.stored]
    return sum(float(found[signature(node)].time_us) for node in nodes) / 1e3


def main() -> None:
    board = sys.argv[1]
    with poet.connect(f"sim:{board}") as connection:
        probe = Probe(connection.device, board)
        for line in sys.stdin:
            answer = 0.0
            match json.loads(line):
                case {"kernel": job}:
                    answer = probe.cycles(job)
                case {"profile": model}:
                    answer = operators_ms(connection, model)
                case {"train": [path, steps]}:
                    run = poet.train(poet.Schedule.load(path), connection, "digits", steps=steps)
                    answer = fmean(step.time_us for step in run.steps) / 1e3
            print(answer, flush=True)


if __name__ == "__main__":
    main()
