"""Why no plan exists: the limit that no plan keeps, and the operator that sets it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .packing import ALIGNMENT
from .plan import Plan
from .problem import CostGraph, CostNode


@dataclass(frozen=True)
class Need:
    """What one operator holds in RAM at once: `tensors` are names and bytes of inputs and output.

    `bytes` is the sum with each tensor aligned, except the last.
    """

    node: str
    tensors: tuple[tuple[str, int], ...]
    workspace_bytes: int
    bytes: int


def largest_need(graph: CostGraph, unit: int = ALIGNMENT) -> Need | None:
    """The operator that needs most RAM with nothing else there; None if nothing is computed.

    No plan needs less. With storage, paging and tensors placed at multiples of `unit` bytes, a plan
    that needs no more exists: everything is paged out and in again around every operator.
    """
    needs = (_need(graph, i, node, unit) for i, node in enumerate(graph.nodes) if not node.stored)
    return max(needs, key=lambda need: need.bytes, default=None)


def bytes_of(
    graph: CostGraph, tensors: Collection[int], unit: int = ALIGNMENT, workspace_bytes: int = 0
) -> int:
    """Bytes of tensors side by side: each aligned, except the last."""
    sizes = [graph.nodes[i].bytes for i in tensors]
    sizes += [workspace_bytes] if workspace_bytes else []
    slack = max((aligned(size, unit) - size for size in sizes), default=0)
    return sum(aligned(size, unit) for size in sizes) - slack


def aligned(size: int, unit: int) -> int:
    """The least multiple of `unit` from `size`."""
    return -(-size // unit) * unit


def _need(graph: CostGraph, index: int, node: CostNode, unit: int) -> Need:
    tensors = list(dict.fromkeys(node.inputs)) + ([index] if node.overwrites is None else [])
    return Need(
        node.name,
        tuple((graph.nodes[i].name, graph.nodes[i].bytes) for i in tensors),
        node.workspace_bytes,
        bytes_of(graph, tensors, unit, node.workspace_bytes),
    )


def why_infeasible(
    plan: Plan, costs: CostGraph | None = None, kernel_of: Callable[[str], str] = lambda name: ""
) -> str:
    """The limit that no plan keeps, and the smallest one that works, if known.

    With `costs`, the operator that sets the smallest budget; `kernel_of` names a node's kernel.
    """
    ram = f"a RAM budget of {plan.ram_bytes:,} bytes"
    if plan.smallest_deadline_us is not None:
        limit = f"{(plan.deadline_us or 0) / 1e3:,.6g} ms within {ram}"
        works = f"a deadline of {_up(plan.smallest_deadline_us / 1e3)} ms works (--deadline)"
        return f"no plan meets a deadline of {limit}: {works}, or give more --ram"
    if plan.smallest_ram_bytes is None:
        return f"no plan fits {ram} and its deadline: give more --ram or a later --deadline"
    need = largest_need(costs) if costs else None
    floor = ""
    if need and need.bytes == plan.smallest_ram_bytes:
        kernel = kernel_of(need.node)
        floor = f". {_operator(need, f' ({kernel})' if kernel else '')}"
    return f"no plan fits {ram}: the smallest budget that works is {_size(plan)}{floor}"


def _size(plan: Plan) -> str:
    return f"{plan.smallest_ram_bytes:,} bytes (--ram {plan.smallest_ram_bytes})"


def _operator(need: Need, kernel: str) -> str:
    parts = [f"{name} {size:,}" for name, size in need.tensors]
    parts += [f"workspace {need.workspace_bytes:,}"] if need.workspace_bytes else []
    return f"That is what the operator {need.node}{kernel} holds at once: {_joined(parts)} bytes"


def _joined(words: Iterable[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _up(milliseconds: float) -> float:
    """Rounded up, so that the deadline that is named does work."""
    rounded = round(milliseconds, 3)
    return rounded if rounded >= milliseconds else round(rounded + 0.001, 3)
