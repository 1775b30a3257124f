"""Placement: a fixed, aligned offset for every tensor of a plan, within the RAM budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..packing.blocks import Block, aligned
from ..packing.packing import Packing, pack
from .effects import Contents, effects_of
from .plan import Statement
from .problem import CostGraph, CostNode, Mode

_Computed = TypeVar("_Computed", CostNode, Mode)


@dataclass(frozen=True)
class Placement:
    """Statements with offsets, and the bytes of memory that this placement needs."""

    statements: tuple[Statement, ...]
    initial_offsets: tuple[tuple[str, int], ...]  # see Plan
    height_bytes: int  # the placement fits if the RAM budget is at least this
    nothing_fits: bool = False  # proved: no placement fits the RAM budget
    is_provable: bool = True  # False: that nothing fits could not be proved


def arrange(
    graph: CostGraph,
    statements: Sequence[Statement],
    ram_bytes: int,
    time_limit_s: float | None = None,
    thorough: bool = True,
) -> Placement:
    """Find a placement within `ram_bytes`. If none is found, return the lowest placement found.

    `statements` are legal, with or without offsets. Equal input gives equal offsets, unless
    `time_limit_s` ends the search. Without a time limit, the search still ends after a fixed
    effort. `thorough` False makes the search short.
    """
    lives = lives_of(graph, statements)
    if any(it.returns and it.size_bytes and it.returns.begin < it.end for it in lives):
        # A tensor returns to its place while another one, which overwrote it, is still there.
        return Placement(tuple(statements), (), ram_bytes + 1, nothing_fits=True)
    returns = {id(life.returns) for life in lives if life.returns is not None}
    first = [life for life in lives if id(life) not in returns]
    packing = pack([life.block for life in first], ram_bytes, time_limit_s, thorough)
    return _placed(statements, lives, first, packing)


def moved(placement: Placement, by_bytes: int) -> Placement:
    """Return the placement with all offsets greater by `by_bytes`."""

    def change(offset: int | None) -> int | None:
        return None if offset is None else offset + by_bytes

    statements = (
        replace(
            it,
            offset=change(it.offset),
            workspace_offset=change(it.workspace_offset),
            also_offsets=tuple(offset + by_bytes for offset in it.also_offsets),
        )
        for it in placement.statements
    )
    return replace(
        placement, statements=tuple(statements), height_bytes=placement.height_bytes + by_bytes
    )


def arrange_next_to(
    graph: CostGraph,
    statements: Sequence[Statement],
    step: tuple[CostGraph, Sequence[Statement]],
    ram_bytes: int,
    time_limit_s: float,
) -> tuple[Placement, Placement]:
    """Find places for an inference and for a training step, whose homes the inference leaves alone.

    `graph` has no bytes for tensors with homes. The height of both placements is that of both.
    """
    lives, own = lives_of(*step), lives_of(graph, statements)
    returns = {id(life.returns) for life in lives if life.returns is not None}
    first = [life for life in lives if id(life) not in returns]
    begin = len(step[1]) + 1
    end = begin + len(statements) + 1
    blocks = []
    for life in first:
        block = life.block
        starts = life.initial is not None or any(
            step[1][index].op == "start" for index, _ in life.outputs
        )
        if starts and block.again is not None:
            block = replace(block, again=(block.again[0], end))
        elif starts:
            stays = block.end == len(step[1])
            block = replace(block, **({"end": end} if stays else {"again": (begin, end)}))
        blocks.append(block)
    blocks += [Block(begin + life.begin, begin + life.end, life.size_bytes) for life in own]
    packing = pack(blocks, ram_bytes, time_limit_s)
    offsets, count = packing.offsets, len(first)
    return (
        _placed(statements, own, own, replace(packing, offsets=offsets[count:])),
        _placed(step[1], lives, first, replace(packing, offsets=offsets[:count])),
    )


def _placed(
    statements: Sequence[Statement], lives: Sequence["Life"], first: Sequence["Life"],
    packing: Packing,
) -> Placement:  # fmt: skip
    """Return the placement by the offsets of the lives `first`; the others return to these."""
    offsets = {id(life): at for life, at in zip(first, packing.offsets, strict=True)}
    offsets |= {id(life.returns): offsets[id(life)] for life in first if life.returns is not None}
    placed = list(statements)
    initial: list[tuple[str, int]] = []
    for life in lives:
        offset = offsets[id(life)]
        for index, number in life.outputs:
            placed[index] = _with_offset(placed[index], number, offset)
        if life.workspace is not None:
            index = life.workspace
            placed[index] = replace(placed[index], workspace_offset=offset)
        if life.initial is not None:
            initial.append((life.initial, offset))
    return Placement(
        tuple(placed),
        tuple(initial),
        packing.height_bytes,
        packing.nothing_fits,
        len(first) == len(lives),
    )


def _with_offset(statement: Statement, number: int, offset: int) -> Statement:
    """Return the statement with the offset of one of its outputs; see `Life.outputs`."""
    if not number:
        return replace(statement, offset=offset)
    offsets = statement.also_offsets + (0,) * (number - len(statement.also_offsets))
    return replace(statement, also_offsets=(*offsets[: number - 1], offset, *offsets[number:]))


@dataclass
class Life:
    """One block of memory, and the time of its use. Times are indices of statements."""

    begin: int  # -1: before the first statement
    end: int
    size_bytes: int
    # The statements that create a tensor in the block: their indices, and for each which of its
    # offsets this is: 0 is `offset`, and k is the k-th one of `also_offsets`.
    outputs: list[tuple[int, int]]
    workspace: int | None = None  # index of the statement that uses the block as workspace
    initial: str | None = None  # the stored tensor that is in the block at the start
    # If the tensor stays, but leaves RAM during the step: the last life, which has the same place.
    returns: "Life | None" = None

    @property
    def block(self) -> Block:
        again = None if self.returns is None else (self.returns.begin, self.returns.end)
        return Block(self.begin, self.end, self.size_bytes, again)


def lives_of(graph: CostGraph, statements: Sequence[Statement]) -> list[Life]:
    """Return the lives of all tensors in RAM and of all workspaces, sorted by `begin`.

    A tensor that is created again has several lives. Tensors that overwrite one another in a chain
    share one life.
    """
    last = len(statements)
    start = sorted(Contents(graph).ram)
    started: dict[int, Life] = {}  # by the tensor in its place at the end
    now = {i: Life(-1, last, graph.nodes[i].bytes, [], initial=graph.nodes[i].name) for i in start}
    lives = list(now.values())
    for index, effect in enumerate(effects_of(graph, statements)):
        if effect.workspace_bytes:
            lives.append(Life(index, index + 1, effect.workspace_bytes, [], workspace=index))
        for i, over, number in effect.places:
            if over is None:
                now[i] = Life(index, last, graph.nodes[i].bytes, [])
                lives.append(now[i])
            else:
                now[i] = now.pop(over)
            now[i].outputs.append((index, number))
        for i in effect.drops:
            if i in now:
                now.pop(i).end = index
        if effect.op == "start" and graph.nodes[effect.makes[0]].stays:
            i = effect.makes[0]
            started[graph.heirs[i]] = now[i]
    for heir, life in started.items():
        if now.get(heir, life) is not life:
            life.returns = now[heir]
    return lives


def aligned_graph(graph: CostGraph, unit: int) -> CostGraph:
    """Return the graph with all sizes rounded up to multiples of `unit`, as placement needs."""

    def padded(it: _Computed) -> _Computed:
        return replace(it, workspace_bytes=aligned(it.workspace_bytes, unit))

    nodes = (
        replace(padded(node), bytes=aligned(node.bytes, unit), modes=tuple(map(padded, node.modes)))
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))
