"""Forward programs of the toy."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from poet_host.graph.cuts import Cut
from poet_host.plan.plan import Statement
from poet_host.reference.inference import forward_graph
from poet_host.reference.step import run_kernel
from poet_host.schedule.decode import initial_offsets
from poet_host.schedule.forward import with_forward
from poet_host.schedule.schedule import Schedule
from support import toy

OUTPUT_BYTES = 4 * toy.K
SAMPLE = toy.V + 1  # number of the tensor
_CUT = Cut(4, (1, 1, toy.K), (1, 1, 2))


@cache
def program(kind: str = "frugal", *, pages: bool = True) -> Schedule:
    """Return the toy's schedule with a forward program.

    What has no home is paged in. `pages`: the first activation is paged out and in again.
    """
    schedule = toy.schedule(kind)
    graph = forward_graph(toy.graph(_columns(kind)))
    homes = initial_offsets(schedule)
    ends = [at + graph[name].size_bytes for name, at in homes.items()]
    sample = max(ends, default=0) + 4  # after a gap
    w = sample + graph[graph.data].size_bytes
    y = w + graph["w"].size_bytes
    steps = [Statement("compute", "y", y), Statement("free", graph.data)]
    if "w" not in homes:
        steps = [Statement("page_in", "w", w), *steps, Statement("free", "w")]
    if pages and kind != "in RAM":
        steps += [Statement("page_out", "y"), Statement("free", "y"), Statement("page_in", "y", w)]
        y = w
    steps.append(Statement("compute", "z", y, y + OUTPUT_BYTES))
    initial = (*homes.items(), (graph.data, sample))
    plan = replace(toy.lavish(), statements=tuple(steps), initial_offsets=initial)
    cuts = {"y": _CUT} if kind.startswith("cut") else {}
    return with_forward(schedule, graph, plan, cuts=cuts)


def parts(kind: str, *, pages: bool = True) -> tuple[bytes, bytes]:
    forward = program(kind, pages=pages).forward
    assert forward is not None
    return forward.model_part, forward.plan_part


@cache
def of_batch(kind: str) -> tuple[bytes, bytes]:
    """A forward program without homes, which reads the data of training from storage."""
    graph = forward_graph(toy.graph(_columns(kind)), of_batch=True)
    w = graph["x"].size_bytes
    y = w + graph["w"].size_bytes
    steps = (
        Statement("page_in", "x", 0), Statement("page_in", "w", w), Statement("compute", "y", y),
        Statement("page_out", "y"), *(Statement("free", name) for name in "xwy"),
        Statement("page_in", "y", 0), Statement("compute", graph.logits, 0, y),
    )  # fmt: skip
    plan = replace(toy.lavish(), statements=steps, initial_offsets=())
    forward = with_forward(toy.schedule(kind), graph, plan, has_homes=False).forward
    assert forward is not None
    return forward.model_part, forward.plan_part


def sample(kind: str, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(_columns(kind)).astype("<f4").tobytes()


def truth(w: bytes, x: bytes) -> bytes:
    """The outputs of a sample by the reference kernels."""
    rows: list[NDArray[Any]] = [np.frombuffer(it, "<f4").reshape(-1, len(x) // 4) for it in (x, w)]
    sizes = {"n": 1, "c": len(x) // 4, "h": 1, "w": 1, "k": toy.K, "oh": 1, "ow": 1}
    return np.maximum(run_kernel("linear", "none", sizes, rows, 0), 0).astype("<f4").tobytes()


def _columns(kind: str) -> int:
    return toy.sizes(kind)[toy.X] // 4 // toy.N
