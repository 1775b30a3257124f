"""Small training chains with costs that are easy to add up by hand."""

from collections.abc import Sequence

from poet_host.plan.problem import CostGraph, CostNode


def chain(
    sizes: Sequence[int],
    energies: Sequence[float] | None = None,
    *,
    storage: bool = False,
    page: float = 1.0,
    gradients: int = 1,
    time_us: float = 1.0,
) -> CostGraph:
    """f1 ... fn of the given sizes, the loss, then g(n) ... g1; g(k) needs f(k - 1) and g(k + 1).

    A gradient takes `gradients` bytes and one unit of energy; a page `page` us and uJ each way.
    """
    costs = {"page_in_us": page, "page_in_uj": page, "page_out_us": page, "page_out_uj": page}
    nodes: list[CostNode] = []
    for k, size in enumerate(sizes):
        energy = 1.0 if energies is None else energies[k]
        inputs = (k - 1,) if k else ()
        nodes.append(CostNode(f"f{k + 1}", inputs, size, time_us, energy, **costs))
    last = len(sizes) - 1
    nodes.append(CostNode("loss", (last,), gradients, time_us, 1.0, **costs))
    for k in range(last, -1, -1):
        inputs = (len(nodes) - 1, *((k - 1,) if k else ()))
        nodes.append(CostNode(f"g{k + 1}", inputs, gradients, time_us, 1.0, **costs))
    return CostGraph(f"chain of {len(sizes)}", tuple(nodes), storage)


def residual() -> CostGraph:
    """A training step whose forward pass is not a chain: every result is used two steps later."""
    costs = {"page_in_us": 1.0, "page_in_uj": 1.0, "page_out_us": 1.0, "page_out_uj": 1.0}
    nodes = [CostNode("f0", (), 8, 1.0, 1.0, **costs), CostNode("f1", (), 8, 1.0, 1.0, **costs)]
    for k in range(2, 6):
        nodes.append(CostNode(f"f{k}", (k - 2, k - 1), 8, 1.0, 1.0, **costs))
    for k in range(5, -1, -1):
        nodes.append(CostNode(f"g{k}", (len(nodes) - 1, k), 8, 1.0, 1.0, **costs))
    return CostGraph("residual", tuple(nodes))


def with_parameters(storage: bool = True) -> CostGraph:
    """Three layers with parameters of 40 bytes, updated in place; a result has 8 bytes."""
    costs = {"page_in_us": 4.0, "page_in_uj": 4.0, "page_out_us": 4.0, "page_out_uj": 4.0}
    work = {"time_us": 1.0, "energy_uj": 1.0}
    update = {"keep": True, "once": True}
    nodes: list[CostNode] = []

    def add(name: str, *inputs: str, size: int = 8, **more: object) -> None:
        number = {node.name: i for i, node in enumerate(nodes)}
        if isinstance(over := more.get("overwrites"), str):
            more["overwrites"] = number[over]
        at = tuple(number[name] for name in inputs)
        nodes.append(CostNode(name, at, size, **costs, **more))  # type: ignore[arg-type]

    add("x", stored=True)
    for k in (1, 2, 3):
        add(f"w{k}", size=40, stored=True)
    for k in (1, 2, 3):
        add(f"f{k}", f"f{k - 1}" if k > 1 else "x", f"w{k}", **work)
    add("g3", "f3", **work)
    for k in (3, 2, 1):
        if k > 1:
            add(f"g{k - 1}", f"g{k}", f"w{k}", **work)
        below = f"f{k - 1}" if k > 1 else "x"
        add(f"w{k}:new", f"w{k}", below, f"g{k}", size=40, overwrites=f"w{k}", **work, **update)
    return CostGraph("three layers", tuple(nodes), storage)
