"""Transfers: start them early, so that they run while the processor computes.

The order of computations and the paged tensors stay the same. Page-ins move earlier, page-outs and
frees move later, where memory allows. One pass over the statements (`_Dispatcher`) keeps the
transfer lane busy: if the lane would be idle during the next computation, the transfer that is
needed first starts. Several passes run with slightly different priorities, and the fastest result
is used. Limits count passes, not time, so that equal input gives equal plans.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from ..work import add, now_s
from .effects import Contents, effects_of
from .placement import arrange
from .plan import Statement
from .problem import CostGraph, Problem
from .timeline import Clock, Span, lanes, time_us, timeline
from .transfer_memory import Memory, is_placed

LOOKAHEAD = 8  # page-ins considered at once, in the order in which they are needed
MAX_RANDOM_PASSES = 40  # passes with randomly changed priorities
MAX_DISPATCHES = 10_000  # limit of (number of random passes) x (number of statements)
STATEMENTS_PER_S = 25_000  # of a pass, for counted work
MAX_PLACEMENTS = 5  # attempts to place a faster order
LAST_RANK = 1 << 30  # sort rank above the index of every input of a node
SEED = 1

Order = tuple[Statement, ...]


def overlap(
    problem: Problem,
    statements: Sequence[Statement],
    time_limit_s: float = inf,
    *,
    thorough: bool = True,
) -> tuple[Statement, ...]:
    """Reorder the statements so that they finish no later, usually much earlier.

    `statements` and the result are legal within the problem's RAM budget, with or without offsets.
    Placed tensors may get other offsets. Energy and the order of computations stay the same.
    Equal input gives equal plans, unless `time_limit_s` ends the search. `thorough` False: run no
    random passes.
    """
    tries = MAX_RANDOM_PASSES if thorough else 0
    ends_at = now_s() + time_limit_s
    given = tuple(statements)
    if not any(statement.op in ("page_in", "page_out") for statement in given):
        return given
    moved = _fastest(problem, given, ends_at, tries)  # keeps offsets where possible
    return _placed_again(problem, given, moved, ends_at, tries) if is_placed(given) else moved


def _placed_again(problem: Problem, given: Order, best: Order, ends_at: float, tries: int) -> Order:
    """Return `best` or, if it is faster, an order of `given` that is placed again.

    If the placement does not fit, reorder for less RAM.
    """
    best_us = time_us(problem.graph, best)
    loose = [replace(it, offset=None, workspace_offset=None, also_offsets=()) for it in given]
    limit = problem.ram_bytes
    for _ in range(MAX_PLACEMENTS):
        order = _fastest(replace(problem, ram_bytes=limit), loose, ends_at, tries)
        left_s = ends_at - now_s()
        if left_s <= 0 or time_us(problem.graph, order) >= best_us:
            break
        placement = arrange(problem.graph, order, problem.ram_bytes, left_s, thorough=False)
        if placement.height_bytes <= problem.ram_bytes:
            return placement.statements
        excess = placement.height_bytes - problem.ram_bytes
        limit -= max(excess, problem.ram_bytes // 64)
    return best


def _fastest(problem: Problem, given: Sequence[Statement], ends_at: float, tries: int) -> Order:
    """Return the fastest order that several passes find; `given` if none is faster."""
    best = tuple(given)
    best_us, bound_us = time_us(problem.graph, best), lanes(problem, best).bound_us
    statements = _early(problem.graph, given)
    spans = timeline(problem, statements)
    due_us = _deadlines(problem.graph, statements, spans)
    movable_from = _movable_from(problem.graph, statements)
    for due, movable, strict in _priorities(statements, due_us, movable_from, tries):
        if best_us <= bound_us or now_s() > ends_at:
            break
        found = _Dispatcher(problem, statements, due, movable, strict).run()
        add(len(statements) / STATEMENTS_PER_S)
        found_us = time_us(problem.graph, found)
        if found_us < best_us:
            best, best_us = found, found_us
    return best


def _early(graph: CostGraph, statements: Sequence[Statement]) -> list[Statement]:
    """Move each page-out right after its tensor's creation, and each free after the last use."""
    created: dict[int, int] = {}
    needed: dict[int, int] = {}  # by tensor, the last position that needs it
    keys: list[tuple[int, int, int]] = []
    for s, (statement, effect) in enumerate(
        zip(statements, effects_of(graph, statements), strict=True)
    ):
        i = graph.index[statement.node]
        if statement.op == "page_out":
            keys.append((created.get(i, -1), LAST_RANK, s))
        elif statement.op == "free":
            user = graph.index[statements[needed[i]].node] if i in needed else i
            inputs = graph.nodes[user].all_inputs
            rank = inputs.index(i) if i in inputs and user != i else LAST_RANK + 1
            keys.append((needed.get(i, -1), rank, s))
        else:
            keys.append((s, -1, 0))
            created.update(dict.fromkeys(effect.makes, s))
            needed.update(dict.fromkeys((*effect.needs, *effect.makes), s))
    order = sorted(range(len(statements)), key=keys.__getitem__)
    return [statements[s] for s in order]


def _priorities(
    statements: Sequence[Statement],
    due_us: Sequence[float],
    movable_from: Sequence[int],
    tries: int,
) -> Iterator[tuple[Sequence[float], Sequence[int], bool]]:
    """Yield the last three arguments of _Dispatcher for each pass over the statements.

    The first two passes use the given times and positions. Later passes change them at random.
    """
    yield due_us, movable_from, True
    yield due_us, movable_from, False
    rng = random.Random(SEED)
    for _ in range(min(tries, MAX_DISPATCHES // len(statements))):
        spread, share = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.1, 0.3))
        movable = [
            rng.randint(first, s) if it.op == "page_in" and rng.random() < share else first
            for s, (it, first) in enumerate(zip(statements, movable_from, strict=True))
        ]
        yield [due * (1 + spread * rng.gauss()) for due in due_us], movable, True


class _Dispatcher:
    """One pass over statements. Positions are indices of statements; `now` is the current one."""

    def __init__(
        self,
        problem: Problem,
        statements: Sequence[Statement],
        due_us: Sequence[float],
        movable_from: Sequence[int],
        strict: bool,
    ) -> None:
        """`strict`: never start a page-in before another page-in that is needed earlier."""
        self.statements, self.strict = statements, strict
        self.tensors = [problem.graph.index[it.node] for it in statements]
        self.effects = effects_of(problem.graph, statements)
        self.clock = Clock()
        self.memory = Memory(problem, statements)
        self.due_us, self.movable_from = due_us, movable_from
        self.out: list[Statement] = []
        self.outs: list[int] = []  # positions of page-outs that are not started yet
        self.frees: list[int] = []  # frees not done yet
        self.ins = [s for s, it in enumerate(statements) if it.op == "page_in"]  # not started
        self.on_storage = Contents(problem.graph).storage

    def run(self) -> tuple[Statement, ...]:
        for now, statement in enumerate(self.statements):
            i = self.tensors[now]
            for s in [s for s in self.frees if self.memory.forced[s] <= now]:
                self._free_late(now, s)
            if statement.op == "compute":
                self._compute(now)
            elif statement.op == "page_out":
                self.outs.append(now)
            elif statement.op == "start":
                self._emit(now)
            elif statement.op == "free":
                self._free(now, i)
            elif now in self.ins:
                self._start_outs(i)
                self.ins.remove(now)
                self._emit(now)
        for s in (*self.outs, *self.frees):
            self._emit(s)
        return tuple(self.out)

    def _compute(self, now: int) -> None:
        """Start transfers while their lane would be idle during this computation. Then compute.

        A mode other than 0 occupies both lanes, and waits for all transfers that were started.
        """
        effect = self.effects[now]
        alone = effect.lane == "both"
        for j in (*effect.reads, *effect.drops):
            self._start_outs(j)
        for s in [s for s in self.frees if self.tensors[s] in effect.absent]:
            self._free_late(now, s)
        self._free_idle(now)
        while not alone and self.clock.x < self.clock.ready(effect) + effect.processor_us:
            chosen = self._next(now)
            if chosen is None:
                break
            if chosen in self.outs:
                self.outs.remove(chosen)
            else:
                self.memory.hold_from(now, chosen)
                self.ins.remove(chosen)
            self._emit(chosen)
            self._free_idle(now)
        self._emit(now)

    def _next(self, now: int) -> int | None:
        """Return the position of the transfer that may start now and is needed first."""
        candidates = list(self.outs)
        for s in self.ins[:LOOKAHEAD]:
            if self._may_start(now, s):
                candidates.append(s)
                break
            if self.strict:
                break
        return min(candidates, key=lambda s: (self.due_us[s], s), default=None)

    def _may_start(self, now: int, s: int) -> bool:
        """Return whether the page-in at `s` may start: all earlier statements of its tensor are
        done, and memory is free.
        """
        i = self.tensors[s]
        return (
            self.movable_from[s] <= now
            and i in self.on_storage
            and all(self.tensors[free] != i for free in self.frees)
            and self.memory.fits_from(now, s)
        )

    def _free(self, now: int, i: int) -> None:
        if self._busy(i):
            self.memory.keep_from(now)
            self.frees.append(now)
        else:
            self._emit(now)

    def _busy(self, i: int) -> bool:
        waiting = any(self.tensors[s] == i for s in self.outs)
        return waiting or self.clock.idle(i) > self.clock.p

    def _free_idle(self, now: int) -> None:
        for s in list(self.frees):
            if not self._busy(self.tensors[s]):
                self._free_late(now, s)

    def _free_late(self, now: int, s: int) -> None:
        self._start_outs(self.tensors[s])
        self.memory.release(now, s)
        self.frees.remove(s)
        self._emit(s)

    def _start_outs(self, i: int) -> None:
        """Start the waiting page-outs of a tensor that leaves RAM or is paged in again."""
        for s in [s for s in self.outs if self.tensors[s] == i]:
            self.outs.remove(s)
            self._emit(s)

    def _emit(self, s: int) -> None:
        self.clock.run(self.effects[s])
        self.out.append(self.memory.with_offsets(s, self.statements[s]))
        self.on_storage.update(self.effects[s].stores)


def _movable_from(graph: CostGraph, statements: Sequence[Statement]) -> list[int]:
    """Return how early each statement may run: after the previous one on its tensors."""
    last: dict[int, int] = {}
    first: list[int] = []
    for s, effect in enumerate(effects_of(graph, statements)):
        tensors = (*effect.needs, *effect.reads, *effect.makes, *effect.stores)
        first.append(max(last.get(i, -1) for i in tensors) + 1)
        last.update(dict.fromkeys(tensors, s))
    return first


def _deadlines(
    graph: CostGraph, statements: Sequence[Statement], spans: Sequence[Span]
) -> list[float]:
    """Return when each transfer is due: a page-in at the first use of its tensor, a page-out at the
    end of its tensor's life.
    """
    used: dict[int, float] = {}
    gone: dict[int, float] = {}
    due = [0.0] * len(statements)
    for s, effect in reversed([*enumerate(effects_of(graph, statements))]):
        begin_us = spans[s].begin_us
        if effect.op == "compute":
            used.update(dict.fromkeys(effect.needs, begin_us))
        else:
            wanted = [used.get(i, inf) for i in effect.makes]
            due[s] = min(wanted + [gone.get(i, inf) for i in effect.stores], default=0.0)
        gone.update(dict.fromkeys((*effect.reads, *effect.drops, *effect.absent), begin_us))
    return due
