"""The lives of tensors in RAM, for transfers that start early and frees that wait."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..packing.blocks import aligned
from .effects import effects_of
from .placement import Life, lives_of
from .plan import Statement
from .problem import CostGraph, Problem


def is_placed(statements: Sequence[Statement]) -> bool:
    """Return whether the statements have offsets."""
    return any(
        it.offset is not None or it.workspace_offset is not None or it.also_offsets
        for it in statements
    )


class Memory:
    """The lives of tensors in RAM, which change while transfers and frees move."""

    def __init__(self, problem: Problem, statements: Sequence[Statement]) -> None:
        graph, self.ram_bytes = problem.graph, problem.ram_bytes
        lives = lives_of(graph, statements)
        self.placed = is_placed(statements)
        self.begin = np.array([life.begin for life in lives])
        self.end = np.array([life.end for life in lives])
        self.size = np.array([life.size_bytes for life in lives])
        # Lives whose place is that of the tensor when the step began, and that of the next step.
        returns = {id(life.returns) for life in lives if life.returns is not None}
        self.returning = {k for k, life in enumerate(lives) if id(life) in returns}
        self.at = np.array([_offset_of(life, statements) or 0 for life in lives])
        # The life of each output, by position of the statement and number of the output:
        self.created = {it: k for k, life in enumerate(lives) for it in life.outputs}
        self.more: dict[int, list[int]] = {}  # the lives of the outputs after the first one
        for (s, number), k in sorted(self.created.items()):
            if number:
                self.more.setdefault(s, []).append(k)
        self.freed = {life.end: k for k, life in enumerate(lives) if life.workspace is None}
        self.forced: dict[int, int] = {}  # position of a free -> latest position at which to free
        self.used = np.zeros(len(statements) + 1, dtype=np.int64)  # bytes at each position
        for life in lives:
            self.used[max(life.begin, 0) : life.end] += life.size_bytes
        self.created_again = _created_again(graph, statements)

    def with_offsets(self, s: int, statement: Statement) -> Statement:
        """Return the statement at `s` with the offsets of the tensors that it creates."""
        if not self.placed:
            return replace(statement, offset=None, also_offsets=())
        offset = int(self.at[self.created[s, 0]]) if (s, 0) in self.created else None
        more = tuple(int(self.at[k]) for k in self.more.get(s, ()))
        return replace(statement, offset=offset, also_offsets=more)

    def fits_from(self, now: int, s: int) -> bool:
        """Return whether the tensor created at `s` can be in RAM from `now` on."""
        k = self.created[s, 0]
        if not self.placed:
            return bool(self.used[now:s].max(initial=0) + self.size[k] <= self.ram_bytes)
        return self._place(k, now) is not None

    def hold_from(self, now: int, s: int) -> None:
        k = self.created[s, 0]
        if self.placed:
            self.at[k] = self._place(k, now)
        self.begin[k] = now
        self.used[now:s] += self.size[k]

    def keep_from(self, s: int) -> None:
        """Postpone the `free` at position `s`, to position `forced[s]` at the latest."""
        k = self.freed[s]
        limit = self.created_again.get(s, len(self.used) - 1)
        if self.placed:
            apart = (self.at >= self.at[k] + self.size[k]) | (self.at + self.size <= self.at[k])
            wanted = self.begin[~apart & (self.begin >= s) & (self.size > 0)]
            limit = int(min(limit, wanted.min(initial=limit))) if self.size[k] else limit
        else:
            full = np.flatnonzero(self.used[s:limit] + self.size[k] > self.ram_bytes)
            limit = s + int(full[0]) if len(full) else limit
        self.forced[s] = limit
        self.end[k] = limit
        self.used[s:limit] += self.size[k]

    def release(self, now: int, s: int) -> None:
        k = self.freed[s]
        self.used[now : self.forced[s]] -= self.size[k]
        self.end[k] = now

    def _place(self, k: int, now: int) -> int | None:
        """Return an offset (old one preferred) free from `now` to the end of life k, or None."""
        size = int(self.size[k])
        alive = (self.begin < self.end[k]) & (self.end > now) & (self.size > 0)
        alive[k] = False
        starts, ends = self.at[alive], (self.at + self.size)[alive]
        old = int(self.at[k])
        if not size or not np.any((starts < old + size) & (ends > old)):
            return old
        if k in self.returning:
            return None
        low = 0
        for i in np.argsort(starts, kind="stable"):
            if low + size <= starts[i]:
                break
            low = max(low, aligned(int(ends[i])))
        return low if low + size <= self.ram_bytes else None


def _offset_of(life: Life, statements: Sequence[Statement]) -> int | None:
    if life.workspace is not None:
        return statements[life.workspace].workspace_offset
    if not life.outputs:
        return None
    index, number = life.outputs[0]
    return statements[index].offset_of(number)


def _created_again(graph: CostGraph, statements: Sequence[Statement]) -> dict[int, int]:
    """Return for each `free` the next position at which its tensor is created again, if any."""
    following: dict[int, int] = {}
    again: dict[int, int] = {}
    for s, effect in reversed([*enumerate(effects_of(graph, statements))]):
        again.update((s, following[i]) for i in effect.drops if i in following)
        following.update(dict.fromkeys((*effect.makes, *effect.stores), s))
    return again
