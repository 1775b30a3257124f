"""pofo: the best mix of rematerialisation and offloading on a chain, by dynamic programming.

O. Beaumont, L. Eyraud-Dubois, A. Shilova, *Efficient Combination of Rematerialization and
Offloading for Training DNNs*, NeurIPS 2021 (POFO), which builds on the rematerialisation of
heterogeneous chains (arXiv 1911.13214, rotor). C(s, t, m) is the least cost of links s to t,
forward and backward, with the input of s in RAM and m bytes free. It is the lowest cost of these
options, over all s':

    tape s:       cost(tape s) + C(s + 1, t, m - tape)
    checkpoint:   cost(forward s ... s' - 1) + C(s', t, m - x) + C(s, s' - 1, m),   x = x_(s' - 1)

The tape of a link is the set of its forward tensors that the backward pass needs. To tape a link is
to compute it forward and to keep its tape.
The publication restricts the class of schedules as follows. A tensor is offloaded only in the first
forward pass, and comes back once, in the backward pass. Only the input of a link is offloaded, from
its last forward use until a link that needs it runs backward. The table C plans all recomputation,
without offloading. A second table O(s, m) plans the links from s to the end, during the first
forward pass. Computations of that pass cost nothing, since every schedule has them. O may offload
the input of s: this costs out(x_(s-1)) + in(x_(s-1)), and frees the bytes of x_(s-1).

RAM is divided into at most MAX_SLOTS slots, and sizes are rounded up to whole slots.
Like the publication, this module minimises the makespan: the time of a step whose transfers overlap
computations. It differs in the way to find it. The programme counts a share of the time of all
transfers. It is solved for several shares, from 0 (no transfer delays a computation) to 1 (no
transfer overlaps one), and once more for energy. Then transfers are overlapped with computations as
for every method, and the schedule of least makespan is used.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd, inf
from typing import Any, NamedTuple

import numpy as np

from ..plan.completion import complete
from ..plan.events import Event
from ..plan.infeasible import largest_operator_bytes
from ..plan.plan import Plan
from ..plan.problem import CostGraph, Problem
from ..solver.settings import Settings
from .chain import Chain, Walk, chain_of
from .links import Links, Weigh, energy, links_of, time
from .method import DoesNotApply, Draft, GaveUp, cheapest_plan, check_storage

MAX_SLOTS = 500
# Longest chain: the time grows with the cube of the length, and no time limit ends the programme.
MAX_LINKS = 128
RAM_SHARES = 24  # number of shares of the RAM budget that are tried
MOST_SHARE = 1.5  # the largest of these shares: the programme counts more RAM than is needed
EXPOSED_SHARES = (1.0, 0.5, 0.25, 0.1, 0.0)  # shares of the transfer time that the costs contain

Table = Any  # NumPy array: the cost for each number of free slots


def pofo(problem: Problem, settings: Settings) -> Plan:
    """Find the plan of least makespan. For a search's seed plan, find the plan of least value."""
    shares = EXPOSED_SHARES if settings.below is None else EXPOSED_SHARES[:1]
    times = (partial(time, exposed_share=share) for share in shares)
    drafts = partial(_drafts, (energy, *times))
    if settings.below is not None:
        return cheapest_plan(drafts, problem, settings, every=False)
    fastest = cheapest_plan(drafts, replace(problem, objective="time"), settings, every=False)
    return replace(fastest, objective=problem.objective)


def _drafts(weighs: Sequence[Weigh], graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return the best schedule for each kind of cost and for each of several shares of RAM.

    The rest of RAM may hold stored tensors between their uses.
    """
    check_storage(graph)
    chain = chain_of(graph)
    if len(chain) > MAX_LINKS:
        raise DoesNotApply(
            f"the chain has {len(chain)} links, and the dynamic programme takes minutes above "
            f"{MAX_LINKS}. Try poet or griewank"
        )
    if largest_operator_bytes(graph) > ram_bytes:
        return []
    resident_bytes = sum(node.bytes for node in graph.nodes if node.stored)
    most = int(ram_bytes * MOST_SHARE)
    least = max(ram_bytes - resident_bytes, ram_bytes // 2)
    step = max((most - least) // (RAM_SHARES - 1), 1)
    schedules: dict[tuple[Event, ...], None] = {}
    for weigh in weighs:
        programme = Programme(links_of(chain, weigh), most)
        for free_bytes in (ram_bytes, *range(most, least - 1, -step)):
            walk = best_walk(chain, programme, free_bytes)
            if walk is not None:
                schedules[tuple(walk.events)] = None
    fitting = [s for s in schedules if complete(graph, s, ram_bytes).statements is not None]
    if not fitting:
        raise GaveUp("no schedule of the dynamic programme fits RAM. Try a larger RAM budget")
    return [Draft(events, chain.note) for events in fitting]


def best_walk(chain: Chain, programme: "Programme", free_bytes: int) -> Walk | None:
    """Return the best Walk within `free_bytes`; None if no Walk fits.

    `free_bytes` must be at most the RAM for which the programme was made.
    """
    free = free_bytes // programme.unit
    if programme.first[0][free] == inf:
        return None
    walk = Walk(chain)
    _Tracer(programme, walk).first(0, free)
    return walk


class Option(NamedTuple):
    """An option of C(s, t) or O(s)."""

    link: int  # s'; s' = s: link s is taped
    costs: Table
    offloads: bool = False  # whether the input of link s is offloaded


class Programme:
    """The tables C (`again[s][t]`) and O (`first[s]`), with costs for 0 to `slots` free slots."""

    def __init__(self, links: Links, ram_bytes: int) -> None:
        self.links, self.count = links, len(links.output_bytes)
        lists = (
            links.output_bytes, links.inside_bytes, links.arriving_bytes, links.forward_bytes,
            links.tape_bytes, links.backward_bytes,
        )  # fmt: skip
        unit = gcd(ram_bytes, *(size for sizes in lists for size in sizes))
        if ram_bytes > MAX_SLOTS * unit:
            unit = -(-ram_bytes // MAX_SLOTS)
        self.unit, self.slots = unit, ram_bytes // unit
        up = [[-(-size // unit) for size in sizes] for sizes in lists]
        self.output, self.inside, self.arriving, self.forward, self.tape, self.backward = up
        self.again: list[list[Table]] = [[None] * self.count for _ in range(self.count)]
        self.first: list[Table] = [None] * self.count
        for length in range(self.count):
            for s in range(self.count - length):
                self.again[s][s + length] = _least(self.options(s, s + length))
        for s in reversed(range(self.count)):
            self.first[s] = _least(self.first_options(s))

    def options(self, s: int, t: int) -> list[Option]:
        """Return the options of C(s, t)."""
        links, options = self.links, []
        need = max(self.tape[s] + self.arriving[t], self.backward[s])
        if s == t:
            return [Option(s, self._from(need, np.full(self.slots + 1, float(links.tape_cost[s]))))]
        rest = _less(self.again[s + 1][t], self.inside[s] + self.output[s])
        options.append(Option(s, self._from(need, rest + links.both_cost[s])))
        spent = 0.0
        need = 0
        for k in range(s, t):
            spent += links.forward_cost[k]
            between = self.output[k - 1] if k > s else 0
            need = max(need, self.forward[k] + between + self.arriving[t])
            rest = _less(self.again[k + 1][t], self.output[k])
            options.append(Option(k + 1, self._from(need, rest + self.again[s][k] + spent)))
        return options

    def first_options(self, s: int) -> list[Option]:
        """Return the options of O(s)."""
        last = self.count - 1
        need = max(self.tape[s], self.backward[s])
        if s == last:
            return [Option(s, self._from(need, np.zeros(self.slots + 1)))]
        options = []
        for away in (False, True) if s > 0 else (False,):
            back, paging = (self.output[s - 1], self.links.paging_cost[s - 1]) if away else (0, 0.0)
            rest = _less(self.first[s + 1], self.inside[s] + self.output[s] - back)
            options.append(Option(s, self._from(need, rest + paging), away))
            peak = 0
            for k in range(s, last):
                between = self.output[k - 1] if k > s else 0
                peak = max(peak, self.forward[k] + between)
                rest = _less(self.first[k + 1], self.output[k] - back)
                cost = rest + self.again[s][k] + paging
                options.append(Option(k + 1, self._from(peak, cost), away))
        return options

    def _from(self, need: int, cost: Table) -> Table:
        """Return the costs, with infinity where fewer than `need` slots are free."""
        cost = cost.copy()
        cost[: max(need, 0)] = inf
        return cost


def _least(options: list[Option]) -> Table:
    return np.minimum.reduce([option.costs for option in options])


def _less(cost: Table, slots: int) -> Table:
    """Shift costs: entry m of the result is entry m - `slots` of `cost`.

    If m - `slots` is negative, the entry is infinite. If it is too high, the last entry is used.
    """
    if slots <= 0:
        more = np.full(-slots, cost[-1])
        return np.concatenate([cost[-slots:], more])[: len(cost)]
    return np.concatenate([np.full(min(slots, len(cost)), inf), cost])[: len(cost)]


class _Tracer:
    """Extends a walk by the options that cost least in the tables."""

    def __init__(self, programme: Programme, walk: Walk) -> None:
        self.programme, self.walk = programme, walk

    def first(self, s: int, free: int) -> None:
        programme, walk, outputs = self.programme, self.walk, self.walk.chain.outputs
        last = programme.count - 1
        options = programme.first_options(s)
        k, _, away = min(options, key=lambda option: float(option.costs[free]))
        before = outputs[s - 1] if s > 0 else None
        back = programme.output[s - 1] if away else 0
        self._go(s, k, last)
        if s == last:
            walk.backward(s)
            return
        if away and before is not None:
            walk.page_out(before)
        if k == s:
            kept = programme.inside[s] + programme.output[s]
            self.first(s + 1, free - kept + back)
        else:
            self.first(k, free - programme.output[k - 1] + back)
            self._drop(k - 1)
        if away and before is not None:
            walk.run("page_in", before)
        if k == s:
            walk.backward(s)
        else:
            self.again(s, k - 1, free)

    def again(self, s: int, t: int, free: int) -> None:
        programme = self.programme
        k, *_ = min(programme.options(s, t), key=lambda option: float(option.costs[free]))
        self._go(s, k, t)
        if s == t:
            self.walk.backward(s)
        elif k == s:
            self.again(s + 1, t, free - programme.inside[s] - programme.output[s])
            self.walk.backward(s)
        else:
            self.again(k, t, free - programme.output[k - 1])
            self._drop(k - 1)
            self.again(s, k - 1, free)

    def _go(self, s: int, k: int, t: int) -> None:
        """Compute the links from s on, by the option that leads to link k.

        k = s: compute link s, and keep its tensors that the backward pass needs. Otherwise compute
        links s to k - 1, and keep only the output of link k - 1.
        """
        walk = self.walk
        if k == s:
            walk.forward(s, tape=True)
            output = walk.chain.outputs[s]
            walk.ensure([output] if output is not None and s < t else [])
            return
        for block in range(s, k):
            walk.forward(block, tape=False)
            if block > s:
                self._drop(block - 1)

    def _drop(self, block: int) -> None:
        self.walk.drop([self.walk.chain.outputs[block]])
