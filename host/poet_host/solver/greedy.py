"""Greedy plans, made without search."""

from collections.abc import Iterator
from itertools import chain

from ..plan.events import Event, candidate_of, fits, tidy, with_frees, with_page_outs
from ..plan.infeasible import need_of
from ..plan.placed_plan import PLACEMENT_LIMIT_S, PlacedPlan
from ..plan.problem import Problem
from ..plan.verify import Totals
from .modes import Modes
from .policy import DEFAULT_POLICY, SearchPolicy


def greedy_totals(problem: Problem) -> Totals | None:
    """Return the costs of the first greedy plan that fits the budget; None if no such plan fits.

    This is a quick estimate for a graph with storage; `solve` finds better plans. Transfers overlap
    computations where such an order is found quickly.
    """
    graph = problem.graph
    modes = Modes(graph, lambda j, m: need_of(graph, j, m).bytes <= problem.ram_bytes)
    last = everything_paged(modes)
    plans = greedy_plans(modes, problem.ram_bytes, DEFAULT_POLICY)
    for events in chain(plans, [last] if fits(graph, last, problem.ram_bytes) else []):
        plan = candidate_of(
            problem, events, placed=True, time_limit_s=PLACEMENT_LIMIT_S, effort="little"
        )
        if isinstance(plan, PlacedPlan):
            return plan.totals
    return None


def greedy_plans(modes: Modes, ram_bytes: int, policy: SearchPolicy) -> Iterator[list[Event]]:
    """Yield plans that compute every node once. Each plan pages to stay within a share of RAM."""
    for share in policy.greedy_ram_shares:
        events = latest_paged(modes, int(ram_bytes * share))
        if events is not None:
            yield events


def latest_paged(modes: Modes, ram_bytes: int) -> list[Event] | None:
    """Compute every node once. When RAM is short, page out the tensor that is needed latest.

    This is the rule of Belady (1966), doi 10.1147/sj.52.0078. The rule ignores costs. Each node is
    computed in the mode of least energy that fits RAM, where missing inputs are paged in. Return
    None if an operator does not fit RAM.
    """
    graph, nodes = modes.given, modes.given.nodes
    uses: list[list[int]] = [[] for _ in nodes]  # for each node, the nodes that use it, last first
    for j in reversed(range(len(nodes))):
        for i in set(modes.wanted[j]):
            uses[i].append(j)
    events: list[Event] = []
    ram: set[int] = set()
    live = 0
    written = {i for i, node in enumerate(nodes) if node.stored or node.keep}
    for j, node in enumerate(nodes):
        if node.stored:
            continue
        m = _cheapest_mode(modes, j, ram, ram_bytes)
        if m is None:
            return None
        effect = graph.effects["compute", j, m]
        inputs, absent = set(effect.needs), ram.intersection(effect.absent)
        written.update(effect.reads)
        coming = inputs - ram
        need = live + effect.own_bytes + sum(nodes[i].bytes for i in coming)
        leaving = sorted(
            ram - inputs, key=lambda i: (i in absent, uses[i][-1] if uses[i] else 0), reverse=True
        )
        for i in leaving:
            if need <= ram_bytes and i not in absent:
                break
            ram.discard(i)
            written.add(i)
            live, need = live - nodes[i].bytes, need - nodes[i].bytes
        if need > ram_bytes:
            return None
        events += [Event("page_in", i) for i in sorted(coming)]
        events.append(Event("compute", j, m))
        for i in modes.wanted[j]:
            uses[i].pop()
        written.update(i for i in effect.drops if uses[i])
        ram |= inputs.union(effect.makes)
        ram = {i for i in ram if uses[i] and i not in effect.drops}
        live = sum(nodes[i].bytes for i in ram)
    return tidy(graph, with_page_outs(graph, events, written))


def _cheapest_mode(modes: Modes, j: int, ram: set[int], ram_bytes: int) -> int | None:
    """Return the mode of least energy, with the page-ins of inputs that are not in `ram`."""
    nodes = modes.given.nodes
    fitting = [m for m in modes.plain[j] if modes.need_bytes(j, m) <= ram_bytes]

    def cost_uj(m: int) -> float:
        missing = set(nodes[j].whole_inputs(m)) - ram
        return modes.cost_uj(j, m) + sum(nodes[i].page_in_uj for i in missing)

    return min(fitting, key=cost_uj, default=None)


def everything_paged(modes: Modes) -> list[Event]:
    """Make a plan in which no tensor stays in RAM between two operators.

    No plan needs less RAM than the one in which each operator takes the mode of least RAM. Here, it
    takes the mode of least energy of those that the search uses, since all of them fit RAM.
    """
    graph = modes.given
    later = {i for node in graph.nodes for i in node.all_inputs}
    events: list[Event] = []
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        m = min(modes.plain[i], key=lambda m: _paged_uj(modes, i, m, i in later), default=0)
        events += [Event("page_in", j) for j in dict.fromkeys(node.whole_inputs(m))]
        events.append(Event("compute", i, m))
    kept = {i for i, node in enumerate(graph.nodes) if node.keep}
    return with_frees(graph, with_page_outs(graph, events, later | kept))


def _paged_uj(modes: Modes, i: int, m: int, has_uses: bool) -> float:
    """Return the energy of computing node i in mode m, with the transfers around it."""
    node, nodes = modes.given.nodes[i], modes.given.nodes
    paged_out = (node.keep or has_uses) and not node.mode(m).streamed_output
    inputs_uj = sum(nodes[j].page_in_uj for j in set(node.whole_inputs(m)))
    return node.mode(m).energy_uj + inputs_uj + (node.page_out_uj if paged_out else 0.0)
