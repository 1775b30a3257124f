"""Run single kernels on a board: compare their bits with the reference, and take their times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from .. import isa
from ..data.fitted import example
from ..device.device import Device, Progress
from ..graph.graph import Graph, Node
from ..graph.models import load
from ..graph.training_options import DEFAULTS, TrainingOptions
from ..graph.weights import Array, start_values
from ..graph.work import work_of
from ..profile.measure import distinct, fitting, write_operands
from ..profile.profile import estimate_profile, signature
from ..reference.step import run_step

CHECKED = ("resnet-digits",)  # the model to whose times the estimates of board.toml are fitted
TIMED = (*CHECKED, "bert-micro")
_TEXTS = TrainingOptions(sequence_length=16)
MOST_BYTES = 24 * 1024  # of all operands, so that a slow link needs no minutes
SAMPLE_US = 1_000.0  # shortest time of a measurement: a board's clock ticks once a microsecond


@dataclass(frozen=True)
class KernelRun:
    """One call of a kernel on a board."""

    kernel: str
    shape: str  # the sizes of its operands (profile.signature)
    same_bits: bool  # its result is that of the reference
    measured_us: float
    estimated_us: float  # from the rates in board.toml
    simulated_us: float | None = None  # on the simulated chip; None: not known


def kernel_runs(
    device: Device, models: Sequence[str], *, every_shape: bool, progress: Progress | None = None
) -> tuple[KernelRun, ...]:
    """Run the kernels of a training step of built-in models, each on the values of such a step.

    `every_shape`: run a kernel on all shapes in the models, not only on the one that takes the
    least time. Left out are operators that need more than MOST_BYTES, or than the arena, and those
    whose kernels the firmware does not have. The arena is overwritten.
    """
    todo = [
        (node, graph, values)
        for graph in (
            load(name, _TEXTS if name.startswith("bert") else DEFAULTS) for name in models
        )
        for values in [_step_values(graph)]
        for node in _chosen(graph, min(MOST_BYTES, device.info.arena_bytes), every_shape)
        if _has(device, node.op)
    ]
    estimate = estimate_profile(device.board)
    found = []
    for done, (node, graph, values) in enumerate(todo):
        if progress:
            progress(done, len(todo))
        op, offsets = write_operands(device, node, graph, values)
        us = device.us(device.probe_op(op, offsets))
        result = device.probe_read(offsets[-2], node.size_bytes)
        if us < SAMPLE_US:
            repeat = ceil(SAMPLE_US / max(us, 1))
            us = device.us(device.probe_op(op, offsets, repeat=repeat)) / repeat
        expected = np.ascontiguousarray(values[node.name]).tobytes()
        model_us = estimate.kernel_us(node, partial(work_of, node, graph))
        found.append(KernelRun(node.op, signature(node), result == expected, us, model_us))
    return tuple(found)


def _has(device: Device, kernel: str) -> bool:
    code = isa.kernels()[kernel].code
    return bool(device.info.kernels[code // 32] >> code % 32 & 1)


def with_simulated(
    runs: Sequence[KernelRun], simulated: Sequence[KernelRun]
) -> tuple[KernelRun, ...]:
    """Return `runs` with the times that the simulated chip took for the same kernels and shapes."""
    times_us = {run.shape: run.measured_us for run in simulated}
    return tuple(replace(run, simulated_us=times_us.get(run.shape)) for run in runs)


def _chosen(graph: Graph, arena_bytes: int, every_shape: bool) -> Iterator[Node]:
    seen: set[str] = set()
    nodes = [fits for node in distinct(graph) if (fits := fitting(node, arena_bytes))]
    for node in (
        nodes if every_shape else sorted(nodes, key=lambda node: work_of(node, graph).bytes)
    ):
        if every_shape or node.op not in seen:
            seen.add(node.op)
            yield node


def _step_values(graph: Graph) -> dict[str, Array]:
    x, y = example(graph)
    stored = {**start_values(graph, seed=0), graph.data: x, graph.label: y}
    return run_step(graph, stored, 1)
