"""Placement: a fixed, aligned offset for every tensor of a plan, within the RAM budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .packing import Block, pack
from .plan import Statement
from .problem import CostGraph


@dataclass(frozen=True)
class Placement:
    """Statements with offsets, and the lowest height found; it fits if within the budget.

    `initial_offsets`: of the tensors that a graph without storage has in RAM at the start.
    """

    statements: tuple[Statement, ...]
    initial_offsets: tuple[tuple[str, int], ...]
    height_bytes: int


def place(
    graph: CostGraph, statements: Sequence[Statement], ram_bytes: int, time_limit_s: float
) -> tuple[Statement, ...] | None:
    """The statements with offsets whose height is within `ram_bytes`; None if none was found."""
    placement = arrange(graph, statements, ram_bytes, time_limit_s)
    return placement.statements if placement.height_bytes <= ram_bytes else None


def arrange(
    graph: CostGraph,
    statements: Sequence[Statement],
    ram_bytes: int,
    time_limit_s: float | None = None,
    thorough: bool = True,
) -> Placement:
    """The best placement found: within `ram_bytes`, or as low as the effort allows.

    `statements` are legal, with or without offsets. Deterministic unless `time_limit_s`
    ends the search; the effort is limited without it too, and
    short unless `thorough`.
    """
    lives = lives_of(graph, statements)
    packing = pack([life.block for life in lives], ram_bytes, time_limit_s, thorough)
    placed = list(statements)
    initial: list[tuple[str, int]] = []
    for life, offset in zip(lives, packing.offsets, strict=True):
        for index in life.outputs:
            placed[index] = replace(placed[index], offset=offset)
        if life.workspace is not None:
            index = life.workspace
            placed[index] = replace(placed[index], workspace_offset=offset)
        if life.initial is not None:
            initial.append((life.initial, offset))
    return Placement(tuple(placed), tuple(initial), packing.height_bytes)


@dataclass
class Life:
    """One block of memory and which statements put something there."""

    begin: int
    end: int
    size_bytes: int
    outputs: list[int]
    workspace: int | None = None
    initial: str | None = None

    @property
    def block(self) -> Block:
        return Block(self.begin, self.end, self.size_bytes)


def lives_of(graph: CostGraph, statements: Sequence[Statement]) -> list[Life]:
    """Every stay of a tensor in RAM, a chain of overwriting tensors being one; workspaces.

    Time is the index of a statement, -1 the start. Lives are in the order of their begin.
    """
    number = {node.name: i for i, node in enumerate(graph.nodes)}
    lives: list[Life] = []
    now: dict[int, Life] = {}
    last = len(statements)
    if not graph.storage:
        for i, node in enumerate(graph.nodes):
            if node.stored:
                now[i] = Life(-1, last, node.bytes, [], initial=node.name)
        lives.extend(now.values())
    for index, statement in enumerate(statements):
        i = number[statement.node]
        node = graph.nodes[i]
        if statement.op == "compute" and node.workspace_bytes:
            lives.append(Life(index, index + 1, node.workspace_bytes, [], workspace=index))
        if statement.op == "compute" and node.overwrites is not None:
            now[i] = now.pop(node.overwrites)
            now[i].outputs.append(index)
        elif statement.op in ("compute", "page_in"):
            now[i] = Life(index, last, node.bytes, [index])
            lives.append(now[i])
        elif statement.op == "free":
            now.pop(i).end = index
    return lives
