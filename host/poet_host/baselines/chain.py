"""Chains: a training graph as blocks in a row, which classical checkpointing is made for.

    x_0 = data -> block 1 -> x_1 -> block 2 -> x_2 ... -> block L, loss; then groups L ... 1

Block l holds forward nodes and ends with x_l, its one output. Group l holds the backward nodes
(updates included) that need what is inside block l. A cost graph does not say where the
backward pass begins: it is taken to begin after the node at which most tensors wait for
a later use, which is the loss, or the first gradients that follow it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..plan.problem import CostGraph
from .completion import Event
from .method import DoesNotApply

FEWEST_LINKS = 3  # two leave nothing to choose
MERGED = "branches are merged into the links of a chain"


@dataclass(frozen=True)
class Chain:
    """Positions of nodes. `outputs[l]` ends block l; the last block has None.

    `tapes[l]`: the tensors of block l that group l or a later one uses; its output may be used by
    the group before alone, and is not among them then.
    """

    graph: CostGraph
    blocks: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]
    groups: tuple[tuple[int, ...], ...]
    tapes: tuple[frozenset[int], ...]
    note: str

    def __len__(self) -> int:
        return len(self.blocks)


def chain_of(graph: CostGraph, method: str) -> Chain:
    """The graph as a chain; raises DoesNotApply if it is none.

    It is cut at tensors that the backward pass uses: to keep another would be of no use.
    """
    turn = turning_point(graph)
    forward = [i for i in range(turn + 1) if not graph.nodes[i].stored]
    every = _cuts(graph, forward)
    cuts = [i for i in every if any(i in node.inputs for node in graph.nodes[turn + 1 :])]
    if len(cuts) < FEWEST_LINKS - 1:
        raise DoesNotApply(
            f"{method} does not apply to {graph.name}: its forward pass is no chain of at least "
            f"{FEWEST_LINKS} links, not even with branches merged; try poet, checkmate or dtr"
        )
    blocks: list[list[int]] = [[]]
    for i in forward:
        blocks[-1].append(i)
        if i in cuts:
            blocks.append([])
    outputs: list[int | None] = [*cuts, None]
    number = {i: b for b, block in enumerate(blocks) for i in block}
    groups = _groups(graph, turn, number, set(cuts), len(blocks))
    tapes = []
    used: set[int] = set()
    for block, group in zip(blocks, groups, strict=True):
        used |= {j for i in group for j in graph.nodes[i].inputs}
        tapes.append(frozenset(used.intersection(block)))
    return Chain(
        graph,
        tuple(tuple(block) for block in blocks),
        tuple(outputs),
        tuple(tuple(group) for group in groups),
        tuple(tapes),
        MERGED if _branches(graph, forward, every) else "",
    )


def turning_point(graph: CostGraph) -> int:
    """The first node after whose computation most computed tensors wait for a later use."""
    last = list(range(len(graph.nodes)))
    for j, node in enumerate(graph.nodes):
        for i in node.inputs:
            last[i] = j
    waiting, most, turn = 0, -1, 0
    ends: dict[int, int] = {}
    for t, node in enumerate(graph.nodes):
        waiting -= ends.pop(t, 0)
        if not node.stored and not node.once and last[t] > t:
            waiting += 1
            ends[last[t]] = ends.get(last[t], 0) + 1
        if waiting > most:
            most, turn = waiting, t
    return turn


def _cuts(graph: CostGraph, forward: Sequence[int]) -> list[int]:
    """Forward tensors that alone connect what comes before with what comes after."""
    members = set(forward)
    reach = dict.fromkeys(forward, -1)
    for j in forward:
        for i in graph.nodes[j].inputs:
            if i in members:
                reach[i] = j
    cuts, furthest = [], -1
    for i in forward:
        node = graph.nodes[i]
        if furthest <= i < reach[i] and not node.once and node.overwrites is None:
            cuts.append(i)
        furthest = max(furthest, reach[i])
    return cuts


def _branches(graph: CostGraph, forward: Sequence[int], cuts: Sequence[int]) -> bool:
    """Does something run beside something else? Leaves, as a loss, do not count."""
    used = {j for i in forward for j in graph.nodes[i].inputs}
    return any(i in used and i not in cuts for i in forward)


def _groups(
    graph: CostGraph, turn: int, number: dict[int, int], cuts: set[int], blocks: int
) -> list[list[int]]:
    """Backward nodes by the first block whose inside they, or a node before them, need."""
    groups: list[list[int]] = [[] for _ in range(blocks)]
    group = blocks - 1
    for j in range(turn + 1, len(graph.nodes)):
        node = graph.nodes[j]
        if node.stored:
            continue
        for i in node.inputs:
            if i in number:
                group = min(group, number[i] + (i in cuts))
        groups[group].append(j)
    return groups


@dataclass
class Walk:
    """The events of a walk along a chain, and what is in RAM on the way.

    Nothing is dropped but by `drop`, and nodes that must not be computed again never are.
    """

    chain: Chain
    events: list[Event] = field(default_factory=list)
    have: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    advances: int = 0  # blocks computed without being taped

    def forward(self, block: int, *, tape: bool) -> None:
        """Compute a block; unless taped, only its output stays of it.

        The first time all of its nodes are computed, later those that are missing.
        """
        chain = self.chain
        output = chain.outputs[block]
        for i in chain.blocks[block]:
            if i not in self.done:
                self.compute(i)
        if tape:
            self.ensure(sorted(chain.tapes[block]))
            kept = {*chain.tapes[block], output}
        else:
            self.advances += 1
            self.ensure([output] if output is not None else [])
            kept = {output}
        self.drop(i for i in chain.blocks[block] if i not in kept)

    def backward(self, block: int) -> None:
        """Compute the group of a block, which is taped."""
        for i in self.chain.groups[block]:
            self.ensure(self.chain.graph.nodes[i].inputs)
            self.compute(i)

    def ensure(self, wanted: Iterable[int]) -> None:
        """Compute again whatever is missing for these tensors to be in RAM."""
        nodes = self.chain.graph.nodes
        missing: set[int] = set()
        todo = [i for i in wanted if not nodes[i].stored and i not in self.have]
        while todo:
            i = todo.pop()
            if i not in missing:
                missing.add(i)
                todo += [j for j in nodes[i].inputs if not nodes[j].stored and j not in self.have]
        for i in sorted(missing):
            self.compute(i)

    def compute(self, i: int) -> None:
        self.events.append(("compute", i))
        self.done.add(i)
        self.have.add(i)
        over = self.chain.graph.nodes[i].overwrites
        if over is not None:
            self.have.discard(over)

    def drop(self, tensors: Iterable[int]) -> None:
        self.have -= {i for i in tensors if not self.chain.graph.nodes[i].once}

    def page_out(self, i: int) -> None:
        """A stored tensor is on storage already."""
        if not self.chain.graph.nodes[i].stored:
            self.events.append(("page_out", i))
            self.drop([i])

    def page_in(self, i: int) -> None:
        if not self.chain.graph.nodes[i].stored:
            self.events.append(("page_in", i))
            self.have.add(i)
