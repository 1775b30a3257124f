"""The least energy of any *placed* plan, by exhaustive search; no deadline. Good for about 6 nodes.

A state says which tensor sits where, what is on storage, and how many first computations are done.
Every creation is tried at every offset (multiples of 4); it frees exactly what sits in its way: a
free can wait until somebody wants the place. A tensor in RAM may be created again at another place.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, product

from poet_host.plan.problem import CostGraph, Problem
from support.oracle import smallest_ram_bytes

ALIGNMENT = 4
Places = tuple[tuple[int, int], ...]  # (tensor, offset), by tensor


class ManyStates(Exception):
    """Too many for a test."""


def placed_energy(problem: Problem, most_states: int = 150_000) -> float | None:
    graph, ram = problem.graph, problem.ram_bytes
    nodes = graph.nodes
    order = [i for i, node in enumerate(nodes) if not node.stored]
    stored = [i for i, node in enumerate(nodes) if node.stored]
    kept = {i for i, node in enumerate(nodes) if node.keep}

    def offsets(size: int) -> range:
        return range(0, ram - size + 1, ALIGNMENT) if size else range(1)

    def apart(i: int, at: int, j: int, to: int) -> bool:
        a, b = nodes[i].bytes, nodes[j].bytes
        return not a or not b or at + a <= to or to + b <= at

    def clear(places: Places, at: int, size: int) -> tuple[Places, set[int]]:
        """What stays, and what must go for [at, at + size)."""
        gone = {
            j
            for j, to in places
            if size and nodes[j].bytes and at < to + nodes[j].bytes and to < at + size
        }
        return tuple(it for it in places if it[0] not in gone), gone

    def with_(places: Places, i: int, at: int) -> Places:
        return tuple(sorted((*places, (i, at))))

    def starts() -> Iterator[tuple[Places, frozenset[int]]]:
        if graph.storage:
            yield (), frozenset(stored)
            return
        for at in product(*(offsets(nodes[i].bytes) for i in stored)):
            pairs = list(zip(stored, at, strict=True))
            if all(apart(i, a, j, b) for n, (i, a) in enumerate(pairs) for j, b in pairs[:n]):
                yield tuple(pairs), frozenset()

    def moves(
        places: Places, storage: frozenset[int], done: int
    ) -> Iterator[tuple[float, Places, frozenset[int], int]]:
        here = dict(places)
        for i, node in enumerate(nodes):
            if graph.storage and i in here and i not in storage:
                yield node.page_out_uj, places, storage | {i}, done
            rest = tuple(it for it in places if it[0] != i)
            if i in storage:
                for at in offsets(node.bytes):
                    if here.get(i) != at:
                        stay, _ = clear(rest, at, node.bytes)
                        yield node.page_in_uj, with_(stay, i, at), storage, done
            first = done < len(order) and i == order[done]
            again = not node.once and i in order[:done]
            if not (first or again) or any(j not in here for j in node.inputs):
                continue
            over = node.overwrites
            spots = [here[over]] if over is not None else offsets(node.bytes)
            for at in spots:
                if here.get(i) == at and over is None:
                    continue
                if over is None:
                    stay, gone = clear(rest, at, node.bytes)
                    if gone & set(node.inputs):
                        continue
                else:
                    stay = rest
                for w in offsets(node.workspace_bytes):
                    if node.workspace_bytes > ram:
                        break
                    end = w + node.workspace_bytes
                    if (
                        over is None
                        and node.workspace_bytes
                        and node.bytes
                        and w < at + node.bytes
                        and at < end
                    ):
                        continue
                    stay2, gone2 = clear(stay, w, node.workspace_bytes)
                    if gone2 & set(node.inputs):
                        continue
                    left = tuple(it for it in stay2 if it[0] != over)
                    yield node.energy_uj, with_(left, i, at), storage, done + first
                    if not node.workspace_bytes:
                        break

    tie = count()
    heap = [(0.0, next(tie), places, storage, 0) for places, storage in starts()]
    seen: set[object] = set()
    while heap:
        energy, _, places, storage, done = heappop(heap)
        key = (places, storage, done)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > most_states:
            raise ManyStates
        there = storage if graph.storage else {i for i, _ in places}
        if done == len(order) and kept <= set(there):
            return energy
        for cost, *state in moves(places, storage, done):
            if (state[0], state[1], state[2]) not in seen:
                heappush(heap, (energy + cost, next(tie), *state))
    return None


def smallest_placed_ram_bytes(graph: CostGraph) -> int | None:
    """The smallest budget with a placed plan."""
    least = smallest_ram_bytes(graph)
    if least is None:
        return None
    while placed_energy(Problem(graph, least)) is None:
        least += 1
    return least
