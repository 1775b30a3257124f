"""Operators in place: which input the output of an operator overwrites, always or as a choice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..isa import kernels
from .graph import Node


def in_place(nodes: Sequence[Node]) -> list[Node]:
    """Let computed nodes overwrite an input that is not needed later, if the kernel allows it.

    `nodes` are the computed nodes, in execution order. A node that already overwrites an input
    stays as it is. An input qualifies if it has the size of the output, and if no later node needs
    it. Then no good plan is lost. Instead of keeping or paging the input to compute the output
    again, a plan can keep or page the output. What earlier readers of the input computed is
    smaller than the input, so a plan can keep it, or it is not needed later. The new value of a
    stored tensor does not qualify, because the step must end with it.
    """
    place = {node.name: i for i, node in enumerate(nodes)}
    computed = {node.name: node for node in nodes}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    # Place of the last node that reads a tensor, or a forward tensor that is computed from it.
    needed: dict[str, int] = {}
    for node in reversed(nodes):
        needed[node.name] = max(
            (
                max(place[reader.name], needed[reader.name] if reader.phase == "forward" else 0)
                for reader in readers.get(node.name, ())
            ),
            default=-1,
        )

    def dies(name: str, node: Node) -> bool:
        *earlier, last = readers[name]
        return last is node and all(
            reader.size_bytes < node.size_bytes or needed[reader.name] <= place[node.name]
            for reader in earlier
        )

    found = []
    for node in nodes:
        if node.overwrites is None:
            inputs = [it for it in _overwritable(node, computed) if not computed[it].updates]
            node = replace(
                node, overwrites=next((name for name in inputs if dies(name, node)), None)
            )
        found.append(node)
    return found


def choices(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return for each node that overwrites no input the inputs that it may overwrite.

    A later node may need them again, so a planner chooses.
    """
    computed = {node.name: node for node in nodes if not node.stored}
    own = {name: node for name, node in computed.items() if node.overwrites is None}
    return {name: _overwritable(node, computed) for name, node in own.items()}


def _overwritable(node: Node, computed: Mapping[str, Node]) -> list[str]:
    """Return the computed inputs, of the size of the node, that its kernel may overwrite."""
    names = [node.inputs[i] for i in kernels()[node.op].may_overwrite]
    return [
        name
        for name in names
        if name in computed
        and computed[name].size_bytes == node.size_bytes
        and node.inputs.count(name) == 1
    ]
