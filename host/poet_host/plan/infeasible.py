"""Explain why no plan exists: name the limit that no plan meets, and the operator at fault."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ..packing.blocks import ALIGNMENT, aligned
from .plan import Plan
from .problem import CostGraph


@dataclass(frozen=True)
class Need:
    """The bytes that one operator needs in RAM at the same time."""

    node: str
    tensors: tuple[tuple[str, int], ...]  # names and bytes of the operator's inputs and output
    workspace_bytes: int
    bytes: int  # of tensors and workspace, with padding for alignment (see `bytes_of`)


def largest_need(graph: CostGraph, unit: int = ALIGNMENT) -> Need | None:
    """Return the need of the operator that takes most RAM; None if nothing is computed.

    Each operator counts in the mode that takes least RAM. Only the operator's inputs, output and
    workspace count. No plan needs less RAM. `paged_bytes` may be equal to it.
    """
    needs = (
        min(
            (need_of(graph, j, number, unit) for j, number, _ in graph.runs[i]),
            key=lambda it: it.bytes,
        )
        for i in sorted(graph.unavoidable)
    )
    return max(needs, key=lambda need: need.bytes, default=None)


def largest_operator_bytes(graph: CostGraph, unit: int = 1) -> int:
    """Return the bytes of `largest_need`; 0 if nothing is computed."""
    need = largest_need(graph, unit)
    return need.bytes if need else 0


def paged_bytes(graph: CostGraph, unit: int) -> int | None:
    """Return the RAM of a plan that pages in the inputs before each operator, and pages out the
    output after it; None if a node can be computed only together with others.

    It computes every node, alone, in the mode that takes least RAM. Offsets are multiples of `unit`
    bytes. The plan exists if tensors may be paged.
    """
    largest = 0
    for i, node in enumerate(graph.nodes):
        if not node.stored:
            alone = (k for k, mode in graph.runnable(i).items() if not mode.also)
            least = min((need_of(graph, i, k, unit).bytes for k in alone), default=None)
            if least is None:
                return None
            largest = max(largest, least)
    return largest


def bytes_of(
    graph: CostGraph, tensors: Collection[int], unit: int = ALIGNMENT, workspace_bytes: int = 0
) -> int:
    """Return the bytes that tensors and a workspace take, one after another at aligned offsets.

    Each is padded to the alignment, except the last. The one with the most padding comes last.
    """
    sizes = [graph.nodes[i].bytes for i in tensors]
    sizes += [workspace_bytes] if workspace_bytes else []
    slack = max((aligned(size, unit) - size for size in sizes), default=0)
    return sum(aligned(size, unit) for size in sizes) - slack


def need_of(graph: CostGraph, index: int, number: int, unit: int = ALIGNMENT) -> Need:
    """Return the need of a node in the mode with this number."""
    effect = graph.effects["compute", index, number]
    tensors = list(dict.fromkeys(effect.needs))
    tensors += [place.node for place in effect.places if place.takes is None]
    return Need(
        graph.nodes[index].name,
        tuple((graph.nodes[i].name, graph.nodes[i].bytes) for i in tensors),
        effect.workspace_bytes,
        bytes_of(graph, tensors, unit, effect.workspace_bytes),
    )


def lost_tensor(graph: CostGraph) -> tuple[str, str] | None:
    """Return a tensor that every plan loses, and the node that overwrites it, if there is one.

    The tensor must outlive the step, there is no storage, and the node overwrites the tensor in all
    of its modes. The tensor cannot be computed again.
    """

    def lost_by(j: int, number: int) -> tuple[str, str] | None:
        for made in graph.outputs(j, number):
            node = None if made.overwrites is None else graph.nodes[made.overwrites]
            if node is not None and node.keep and (node.stored or node.once):
                return node.name, graph.nodes[made.node].name
        return None

    for i in () if graph.storage else sorted(graph.unavoidable):
        lost = [lost_by(j, number) for j, number, _ in graph.runs[i]]
        if all(lost):
            return lost[0]
    return None


def why_infeasible(
    plan: Plan, costs: CostGraph | None = None, kernel_of: Callable[[str], str] = lambda name: ""
) -> str:
    """Return a message with the limit that no plan meets, and a limit that works, if known.

    If `costs` is given, and one operator alone needs the smallest RAM budget that works, the
    message names this operator. `kernel_of` returns the kernel of the node with a given name.
    """
    if costs and (lost := lost_tensor(costs)):
        tensor, over = lost
        return (
            f"no plan exists: {over!r} overwrites {tensor!r}, which must outlive the step, and no "
            f'storage can hold a copy. Delete "overwrites" of {over!r}, or "keep" of {tensor!r}'
        )
    ram = f"a RAM budget of {plan.ram_bytes:,} bytes"
    if plan.smallest_deadline_us is not None:
        limit = f"{(plan.deadline_us or 0) / 1e3:,.6g} ms within {ram}"
        works = (
            f"a deadline of {_rounded_up(plan.smallest_deadline_us / 1e3)} ms works (--deadline)"
        )
        return f"no plan meets a deadline of {limit}: {works}, or increase --ram"
    if plan.smallest_ram_bytes is None:
        if plan.deadline_us is not None:
            return f"no plan fits {ram} and the deadline: increase --ram or --deadline"
        return f"no plan fits {ram}, and no budget is known to work: increase --ram or --time-limit"
    smallest = f"{plan.smallest_ram_bytes:,} bytes (--ram {plan.smallest_ram_bytes})"
    need = largest_need(costs) if costs else None
    because = ""
    if need and need.bytes == plan.smallest_ram_bytes:
        because = f". {_operator(need, kernel_of(need.node))}"
    works = "works" if plan.deadline_us is None else "works without --deadline"
    return f"no plan fits {ram}: the smallest budget that {works} is {smallest}{because}"


def _operator(need: Need, kernel: str) -> str:
    parts = [f"{name} {size:,}" for name, size in need.tensors]
    parts += [f"workspace {need.workspace_bytes:,}"] if need.workspace_bytes else []
    operator = f"{need.node} ({kernel})" if kernel else need.node
    return f"The operator {operator} needs these at once: {_joined(parts)} bytes"


def _joined(words: Iterable[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _rounded_up(milliseconds: float) -> float:
    """Round up to three decimals, so that a plan meets the deadline in the message."""
    rounded = round(milliseconds, 3)
    return rounded if rounded >= milliseconds else round(rounded + 0.001, 3)
