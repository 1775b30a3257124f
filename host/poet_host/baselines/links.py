"""Links of a chain: the bytes and costs of each link's forward and backward computations.

The dynamic programme of pofo.py uses these numbers. The bytes of link l do not include its input
x_(l-1): the link that keeps x_(l-1) counts it. Stored tensors count only while an operator uses
them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..plan.problem import CostNode
from .chain import Chain


@dataclass(frozen=True)
class Links:
    """Lists with one number for each link. Link l is block l of the chain with its backward group.

    Costs are energies or times.
    """

    output_bytes: list[int]  # bytes of x_l, the output of the block
    inside_bytes: list[int]  # bytes of the block's tape without x_l
    arriving_bytes: list[int]  # bytes of gradients that come from the groups of later blocks
    forward_bytes: list[int]  # peak bytes while the output is computed without the tape
    tape_bytes: list[int]  # peak bytes while the tape is computed
    backward_bytes: list[int]  # peak bytes while the group is computed, gradients and tape included
    forward_cost: list[float]  # cost of recomputing the output
    tape_cost: list[float]  # cost of recomputing the tape
    both_cost: list[float]  # cost of recomputing the output and the tape
    paging_cost: list[float]  # cost of paging x_l out and in


Weigh = Callable[[CostNode], tuple[float, float]]
"""Returns the cost of computing a node, and the cost of paging it out and in."""


def energy(node: CostNode) -> tuple[float, float]:
    """Return the energies to compute a node, and to page it out and in."""
    return node.energy_uj, node.page_out_uj + node.page_in_uj


def time(node: CostNode, exposed_share: float = 1.0) -> tuple[float, float]:
    """Return times. Of a transfer, only the exposed share counts: it delays computations."""
    return node.time_us, exposed_share * (node.page_out_us + node.page_in_us)


def links_of(chain: Chain, weigh: Weigh = energy) -> Links:
    """Return the bytes and costs of every link."""
    nodes = chain.graph.nodes
    last_group = _last_groups(chain)
    links = Links([], [], [], [], [], [], [], [], [], [])
    for block, (members, output) in enumerate(zip(chain.blocks, chain.outputs, strict=True)):
        tape = chain.tapes[block]
        outside = {chain.outputs[block - 1]} if block else set()
        ends = {output} - {None}
        arriving = {i for i, (made, used) in last_group.items() if used <= block < made}
        leaving = {i for i, (_, used) in last_group.items() if used < block}
        links.output_bytes.append(nodes[output].bytes if output is not None else 0)
        links.inside_bytes.append(sum(nodes[i].bytes for i in tape if i != output))
        links.arriving_bytes.append(sum(nodes[i].bytes for i in arriving))
        measure = _Peak(chain, outside)
        links.forward_bytes.append(measure.of(members, set(), ends))
        links.tape_bytes.append(measure.of(members, set(), tape | ends))
        links.backward_bytes.append(measure.of(chain.groups[block], arriving | tape, leaving))
        links.forward_cost.append(_recompute_cost(chain, weigh, block, ends))
        links.tape_cost.append(_recompute_cost(chain, weigh, block, tape))
        links.both_cost.append(_recompute_cost(chain, weigh, block, tape | ends))
        moved = nodes[output] if output is not None else None
        links.paging_cost.append(weigh(moved)[1] if moved else 0.0)
    return links


def _last_groups(chain: Chain) -> dict[int, tuple[int, int]]:
    """Return two group numbers for each backward tensor that another group uses.

    The first is the group that computes the tensor, the second is the last group that uses it.
    Groups run in descending order of their numbers, so the second number is the smaller one.
    """
    made = {i: g for g, group in enumerate(chain.groups) for i in group}
    used: dict[int, int] = {}
    for g, group in enumerate(chain.groups):
        for i in group:
            for j in chain.graph.nodes[i].inputs:
                if j in made:
                    used[j] = min(used.get(j, g), g)
    return {i: (made[i], g) for i, g in used.items() if g < made[i]}


def _recompute_cost(
    chain: Chain, weigh: Weigh, block: int, wanted: Collection[int | None]
) -> float:
    """Return the cost of recomputing the tensors `wanted` of a block whose input is in RAM."""
    nodes = chain.graph.nodes
    inside = set(chain.blocks[block])
    needed: set[int] = set()
    todo = [i for i in wanted if i is not None]
    while todo:
        i = todo.pop()
        if i in inside and i not in needed and not nodes[i].once:
            needed.add(i)
            todo += nodes[i].inputs
    return sum(weigh(nodes[i])[0] for i in needed)


@dataclass
class _Peak:
    chain: Chain
    outside: Collection[int | None]

    def of(
        self, order: Sequence[int], before: Collection[int | None], after: Collection[int | None]
    ) -> int:
        """Return the peak RAM in bytes while the nodes in `order` are computed.

        `before`: tensors in RAM at the start. `after`: tensors that stay in RAM to the end.
        """
        nodes = self.chain.graph.nodes
        effects = [self.chain.graph.effects["compute", i, 0] for i in order]
        last = {j: e for e, effect in enumerate(effects) for j in (*effect.makes, *effect.needs)}
        there = {i for i in before if i is not None and i not in self.outside}
        most = sum(nodes[i].bytes for i in there)
        for e, effect in enumerate(effects):
            used = there.union(effect.needs).difference(self.outside)
            used.update(it.node for it in effect.places if it.takes not in used)
            most = max(most, sum(nodes[i].bytes for i in used) + effect.workspace_bytes)
            there = there.union(effect.makes).difference(effect.drops)
            there = {j for j in there if j in after or last.get(j, -1) > e}
        return most
