"""Chains: a training graph as a row of blocks, the form that classical checkpointing requires.

    x_0 = data -> block 1 -> x_1 -> block 2 -> x_2 ... -> block L, loss; then groups L ... 1

Block l holds forward nodes and ends with x_l, its only output. Group l holds the backward nodes
(updates included) that need tensors inside block l. A cost graph does not say where the backward
pass begins. This module assumes that the backward pass begins after the node at which the largest
number of tensors wait for a later use. That node is the loss, or one of the first gradients after
the loss.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..plan.problem import CostGraph
from .method import DoesNotApply, Draft
from .replay import Replay

MIN_LINKS = 3  # in a shorter chain, a method has nothing to choose
MERGED = "branches are merged into the links of a chain"


@dataclass(frozen=True)
class Chain:
    """A training graph as a chain. Each block and each group is a tuple of node indices."""

    graph: CostGraph
    blocks: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]  # x_l, the last node of block l; None for the last block
    groups: tuple[tuple[int, ...], ...]
    # Tape l: all tensors of block l (x_l too) that group l or a later group (l - 1 ... 1) uses.
    tapes: tuple[frozenset[int], ...]
    note: str  # "", or MERGED

    def __len__(self) -> int:
        return len(self.blocks)


def chain_of(graph: CostGraph) -> Chain:
    """Make the chain of a graph. Raises DoesNotApply if the chain has fewer than MIN_LINKS links.

    Blocks end only at tensors that the backward pass uses: keeping other tensors does not help.
    """
    turn = turning_point(graph)
    forward = [i for i, node in enumerate(graph.nodes[: turn + 1]) if not node.stored]
    every = _cuts(graph, forward)
    cuts = [i for i in every if any(i in node.inputs for node in graph.nodes[turn + 1 :])]
    if len(cuts) < MIN_LINKS - 1:
        raise DoesNotApply(
            f"the forward pass is not a chain of at least {MIN_LINKS} links, even if parallel "
            "branches count as one link. Try poet, checkmate or dtr"
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
    """Return the node after which the largest number of computed tensors wait for a later use."""
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
    """Return each forward tensor that alone connects the nodes before it with those after it."""
    members = set(forward)
    reach = dict.fromkeys(forward, -1)
    for j in forward:
        for i in graph.nodes[j].inputs:
            if i in members:
                reach[i] = j
    cuts, furthest = [], -1
    for i in forward:
        node = graph.nodes[i]
        renews = node.overwrites is not None and node.overwrites not in members
        if furthest <= i < reach[i] and not node.once and not renews:
            cuts.append(i)
        furthest = max(furthest, reach[i])
    return cuts


def _branches(graph: CostGraph, forward: Sequence[int], cuts: Sequence[int]) -> bool:
    """Return whether the forward pass has parallel branches.

    A node that no forward node uses, such as the loss, is not a branch.
    """
    used = {j for i in forward for j in graph.nodes[i].inputs}
    return any(i in used and i not in cuts for i in forward)


def _groups(
    graph: CostGraph, turn: int, number: dict[int, int], cuts: set[int], blocks: int
) -> list[list[int]]:
    """Group the backward nodes by block.

    A node belongs to block l if it, or an earlier backward node, needs the input of block l or a
    tensor inside block l. If this is true of several blocks, the first of them counts.
    """
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


class Walk(Replay):
    """The events of a chain's step, appended block by block (see replay.py).

    `drop` and `page_out` remove a tensor from RAM, unless its node must be computed only once.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain.graph)
        self.chain = chain
        self.advances = 0  # how often a block was computed for its output alone

    def forward(self, block: int, *, tape: bool) -> None:
        """Compute a block. If it was computed before, compute only what is missing and needed.

        `tape` True: keep the tensors that the backward pass needs (the block's tape) and the
        output in RAM. False: keep only the output.
        """
        chain = self.chain
        output = chain.outputs[block]
        for i in chain.blocks[block]:
            if i not in self.done:
                self.run("compute", i)
        kept = {output}
        if tape:
            self.ensure(sorted(chain.tapes[block]))
            kept |= chain.tapes[block]
        else:
            self.advances += 1
            self.ensure([output] if output is not None else [])
        self.drop(i for i in chain.blocks[block] if i not in kept)

    def backward(self, block: int) -> None:
        """Compute the backward nodes of a block. The tensors kept for them must be in RAM."""
        for i in self.chain.groups[block]:
            self.ensure(self.graph.nodes[i].inputs)
            self.run("compute", i)

    def drop(self, tensors: Iterable[int | None]) -> None:
        self.have -= {i for i in tensors if i is not None and not self.graph.nodes[i].once}

    def page_out(self, i: int) -> None:
        """Page out a tensor, then drop it from RAM."""
        self.run("page_out", i)
        self.drop([i])


def segmented(chain: Chain, ends: Sequence[int]) -> Draft:
    """Return the schedule of Chen et al. for a chain in segments, which end after blocks `ends`.

    In the forward pass, RAM keeps the output of each segment, and the tape of the last segment.
    In the backward pass, every other segment is recomputed, with its tape, from the output of the
    previous segment.
    """
    starts = [0, *(end + 1 for end in ends)]
    walk = Walk(chain)
    for block in range(len(chain)):
        walk.forward(block, tape=block >= starts[-1])
        if block not in starts and block <= starts[-1]:  # 0 is one of them
            walk.drop([chain.outputs[block - 1]])
    following = [*starts[1:], len(chain)]
    for start, end in reversed(list(zip(starts, following, strict=True))):
        if end < len(chain):
            for block in range(start, end):
                walk.forward(block, tape=True)
        for block in reversed(range(start, end)):
            walk.backward(block)
    return Draft(walk.events, chain.note)
