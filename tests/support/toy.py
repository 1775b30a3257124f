"""A two-layer training step, small enough to cut its power at every write.

    y = x w^T, z = relu(y), loss = mse(z, t); w is trained with momentum v

Its plan uses every form of statement: pages, recomputation, waits for a part of the queue, frees
with a compute and alone, first fit, offsets above a resident and raw offsets.
"""

import random
from dataclasses import replace
from functools import cache

import numpy as np
from poet_host.graph.cuts import Cut
from poet_host.graph.graph import Graph, Node
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.encode import encode
from poet_host.schedule.schedule import Schedule
from support import homes

N, C, K = 2, 75, 3  # w takes 900 bytes: one whole block and a rest
SMALL_C = 8  # instead of C, in the kinds `small`: w and v share a block
_FLAT = {"n": N, "c": K, "h": 1, "w": 1}
_RULE = {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01}


def graph(columns: int = C) -> Graph:
    layer = {"n": N, "c": columns, "h": 1, "w": 1, "k": K, "oh": 1, "ow": 1}
    weight = {"n": K, "c": columns, "h": 1, "w": 1}

    def value(name: str, shape: tuple[int, ...], op: str, *inputs: str, **more: object) -> Node:
        return Node(name, shape, op=op, inputs=inputs, **more)  # type: ignore[arg-type]

    return Graph(
        "toy",
        (
            Node("x", (N, columns), "data"),
            Node("t", (N, K), "data"),
            Node("w", (K, columns), "parameter", start=f"kaiming:{columns}"),
            Node("v", (K, columns), "state", start="zeros"),
            value("y", (N, K), "linear", "x", "w", attrs=layer, phase="forward"),
            value("z", (N, K), "relu", "y", attrs={**_FLAT, "workspace_bytes": 12},
                  phase="forward"),
            value("loss", (1,), "mse", "z", "t", attrs=_FLAT, phase="forward"),
            value("dz", (N, K), "mse_grad", "z", "t", attrs=_FLAT),
            value("dy", (N, K), "relu_grad", "z", "dz", attrs=_FLAT),
            value("v1", (K, columns), "linear_grad_weight", "x", "dy", "v", "w",
                  attrs=layer | _RULE, sink="momentum", overwrites="v", updates="v"),
            value("w1", (K, columns), "momentum_step", "w", "v1", attrs=weight | _RULE,
                  overwrites="w", updates="w"),
        ),
        "x", "t", "loss", "z",
    )  # fmt: skip


def _sizes(columns: int) -> tuple[int, ...]:
    """Sizes in bytes of x, y, w and v. The size of t is that of y."""
    return 4 * N * columns, 4 * N * K, 4 * K * columns, 4 * K * columns


def frugal(columns: int = C) -> Plan:
    """Recompute z, page y and z out and y in again, and free all that is not needed next."""
    x, y, w, _ = _sizes(columns)
    low, mid, high = w, w + x, w + x + y
    return _plan(
        ("page_in", "w", 0), ("page_in", "x", low), ("compute", "y", mid), ("page_out", "y"),
        ("free", "x"), ("page_in", "t", low), ("compute", "z", low + y, mid + y), ("free", "y"),
        ("compute", "loss", mid), ("free", "loss"), ("free", "z"), ("page_in", "y", mid),
        ("compute", "z", high, high + y), ("page_out", "z"), ("free", "y"),
        ("compute", "dz", mid), ("free", "t"), ("compute", "dy", low), ("free", "z"),
        ("free", "dz"), ("page_in", "v", mid + 36), ("page_in", "x", mid + 36 + w),
        ("compute", "v1", mid + 36), ("free", "dy"), ("page_out", "v1"), ("free", "x"),
        ("compute", "w1", 0), ("page_out", "w1"), ("page_out", "v1"), ("free", "w1"),
        ("free", "v1"),
    )  # fmt: skip


def lavish(columns: int = C) -> Plan:
    """Compute everything once, with everything in RAM."""
    return _plan(*_lavish(columns))


def returning(columns: int = C) -> Plan:
    """The same, but v1 leaves RAM before w1 needs it."""
    steps = _lavish(columns)
    (_, v1, at), back = steps[-4], len(steps) - 3
    steps[back:back] = [("page_out", v1), ("free", v1), ("page_in", v1, at)]
    return _plan(*steps)


def _lavish(columns: int) -> list[tuple[object, ...]]:
    x, y, w, v = _sizes(columns)
    at = np.cumsum([0, x, y, w, v, y, y, 4, y, y, 12]).tolist()
    names = ["x", "t", "w", "v", "y", "z", "loss", "dz", "dy"]
    put = dict(zip(names, at, strict=False))
    steps: list[tuple[object, ...]] = [("page_in", name, put[name]) for name in names[:4]]
    for name in names[4:]:
        space = (at[-2],) if name == "z" else ()
        steps.append(("compute", name, put[name], *space))
    steps += [("compute", "v1", put["v"]), ("compute", "w1", put["w"])]
    steps += [("page_out", "v1"), ("page_out", "w1")]
    return steps


def staying(kind: str, columns: int = C) -> Plan:
    """The lavish plan, in which tensors stay in RAM. `kind`: such as "stays xwv every 3".

    With a last word `paging`, v1 is paged out in each step, although v stays.
    """
    _, names, _, every, *paging = kind.split()
    plan = homes.staying(lavish(columns), graph(columns), names, int(every))
    out = tuple(Statement("page_out", "v1") for _ in paging)
    return replace(plan, statements=plan.statements + out)


def in_ram() -> Plan:
    """Without storage: z is computed again, and x, t and the activations are freed."""
    x, y, w, v = SIZES
    low = x + y + w + v  # x, t, w and v lie from 0 on
    z, last = low + y, low + 2 * y
    return _plan(
        ("compute", "y", low), ("compute", "z", z, last), ("compute", "loss", last),
        ("free", "z"), ("free", "loss"), ("compute", "z", z, last), ("compute", "dz", last),
        ("free", "t"), ("compute", "dy", x), ("free", "z"), ("free", "dz"), ("free", "y"),
        ("compute", "v1", x + y + w), ("free", "dy"), ("free", "x"),
        ("compute", "w1", x + y),
    )  # fmt: skip


def _plan(*steps: tuple[object, ...]) -> Plan:
    statements = tuple(Statement(*step) for step in steps)  # type: ignore[arg-type]
    return Plan("feasible", 1 << 20, None, 1.0, 1.0, 0.0, 1.0, 1.0, None, 0.0, statements)


# All tensors of several elements, in pieces of one part or two; the last ones are smaller.
_ROWS = Cut(4, (1, N, K), (1, 1, 2))
CUTS = {
    "x": Cut(4, (1, N, C), (1, 1, 20)),
    **dict.fromkeys("wv", Cut(4, (1, K, C), (1, 1, 40), 2)),
    **dict.fromkeys(("t", "y", "z", "dz", "dy"), _ROWS),
}


@cache
def schedule(kind: str = "frugal") -> Schedule:
    """Return the schedule of a plan: frugal, cut (frugal with cut tensors), lavish or returning.

    Kinds that begin with `small` have w and v in one block of storage. In those with `stays`, the
    named tensors stay in RAM (`staying`). `in RAM` is without storage.
    """
    if kind == "in RAM":
        return encode(graph(), in_ram(), storage=False)
    columns = _columns(kind)
    if "stays" in kind:
        plan = staying(kind[kind.index("stays") :], columns)
        return encode(graph(columns), plan, cuts=CUTS if kind.startswith("cut") else None)
    plan = {"lavish": lavish, "returning": returning}.get(kind.split()[-1], frugal)(columns)
    return encode(graph(columns), plan, cuts=CUTS if kind == "cut" else None)


def _columns(kind: str) -> int:
    return SMALL_C if kind.startswith("small") else C


X, T, W, V = range(4)  # numbers of the stored tensors
SIZES = _sizes(C)


def sizes(kind: str) -> tuple[int, ...]:
    return _sizes(_columns(kind))


def values(seed: int, kind: str = "frugal") -> list[bytes]:
    """Random x, t, w and v as bytes."""
    rng = random.Random(seed)
    return [
        np.array([rng.uniform(-0.3, 0.3) for _ in range(size // 4)], np.float32).tobytes()
        for size in sizes(kind)
    ]
