"""Events: what a plan does in which order, with the frees that follow from it."""

from collections.abc import Sequence

from ..plan.plan import Op, Statement
from ..plan.problem import CostGraph

Event = tuple[Op, int]  # what happens to which node


def tidy(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """The events without what serves nothing, each tensor freed right after its last use."""
    events = [event for event in events if event[0] != "free"]
    while (useful := _without_waste(graph, events)) != events:
        events = useful
    return _with_frees(graph, events)


def statements(graph: CostGraph, events: Sequence[Event]) -> tuple[Statement, ...]:
    return tuple(Statement(op, graph.nodes[i].name) for op, i in events)


def energy_uj(graph: CostGraph, events: Sequence[Event]) -> float:
    """The sum over the events."""
    total = 0.0
    for op, i in events:
        node = graph.nodes[i]
        if op == "compute":
            total += node.energy_uj
        elif op == "page_in":
            total += node.page_in_uj
        elif op == "page_out":
            total += node.page_out_uj
    return total


def lazy(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """The same work with each page-in right before the first use, each page-out, once, right after
    the first computation: what takes least RAM, and what the models know. Tidy.
    """
    written = {i for op, i in events if op == "page_out" and not graph.nodes[i].stored}
    done: set[int] = set()
    coming: list[int] = []
    moved: list[Event] = []
    for op, i in events:
        if op == "page_in":
            coming.append(i)
        if op == "free" and i in coming:
            coming.remove(i)
        if op != "compute":
            continue
        moved += [("page_in", j) for j in coming if j in graph.nodes[i].inputs]
        coming = [j for j in coming if j not in graph.nodes[i].inputs]
        moved.append(("compute", i))
        if i in written - done:
            moved.append(("page_out", i))
        done.add(i)
    return tidy(graph, moved)


def _last_uses(graph: CostGraph, events: Sequence[Event]) -> dict[int, int]:
    """For each event that creates a tensor, the last event that needs it there.

    Creations before the first event (no storage) stand at -1 - node.
    """
    created: dict[int, int] = {}
    last: dict[int, int] = {}
    if not graph.storage:
        created = {i: -1 - i for i, node in enumerate(graph.nodes) if node.stored}
        last = dict.fromkeys(created.values(), -1)
    for e, (op, i) in enumerate(events):
        if op == "compute":
            for j in graph.nodes[i].inputs:
                last[created[j]] = e
        if op in ("compute", "page_in"):
            created[i] = e
        last[created[i]] = e
    if not graph.storage:
        for i, node in enumerate(graph.nodes):
            if node.keep:
                last[created[i]] = len(events)
    return last


def _without_waste(graph: CostGraph, events: list[Event]) -> list[Event]:
    """Drop repeated creations that nobody uses, and page-outs that nobody reads."""
    last = _last_uses(graph, events)
    read = {i for op, i in events if op == "page_in"}
    computed: set[int] = set()
    useful: list[Event] = []
    for e, (op, i) in enumerate(events):
        again = op == "page_in" or (op == "compute" and i in computed)
        if op == "compute":
            computed.add(i)
        if again and last[e] == e:
            continue
        if op == "page_out" and i not in read and not graph.nodes[i].keep:
            continue
        useful.append((op, i))
    return useful


def _with_frees(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Free every tensor right after the last event that needs it."""
    last = _last_uses(graph, events)
    frees: dict[int, list[int]] = {}
    for created, e in last.items():
        frees.setdefault(e, []).append(events[created][1] if created >= 0 else -1 - created)
    result: list[Event] = [("free", i) for i in frees.get(-1, [])]
    for e, (op, i) in enumerate(events):
        result.append((op, i))
        gone = graph.nodes[i].overwrites if op == "compute" else None
        result += [("free", j) for j in frees.get(e, []) if j != gone]
    return result


def fits(graph: CostGraph, events: Sequence[Event], ram_bytes: int) -> bool:
    """Every event finds in RAM what it needs, and the live bytes are within the budget."""
    nodes = graph.nodes
    ram = set() if graph.storage else {i for i, node in enumerate(nodes) if node.stored}
    live = sum(nodes[i].bytes for i in ram)
    if live > ram_bytes:
        return False
    for op, i in events:
        node = nodes[i]
        if op == "free":
            ram.discard(i)
            live -= node.bytes
            continue
        if op == "page_out":
            continue
        if i in ram or (op == "compute" and not ram.issuperset(node.inputs)):
            return False
        ram.add(i)
        if op == "compute" and node.overwrites is not None:
            ram.discard(node.overwrites)
            live -= node.bytes
        live += node.bytes
        if live + (node.workspace_bytes if op == "compute" else 0) > ram_bytes:
            return False
    return graph.storage or all(i in ram for i, node in enumerate(nodes) if node.keep)


def latest_paged(graph: CostGraph, ram_bytes: int) -> list[Event] | None:
    """Everything computed once; when RAM is short, what is needed latest goes to storage.

    After Belady (1966), doi 10.1147/sj.52.0078, regardless of costs. None: an operator
    does not fit.
    """
    nodes = graph.nodes
    uses: list[list[int]] = [[] for _ in nodes]  # the users, last one first
    for j in reversed(range(len(nodes))):
        for i in set(nodes[j].inputs):
            uses[i].append(j)
    events: list[Event] = []
    ram: set[int] = set()
    live = 0
    written = {i for i, node in enumerate(nodes) if node.stored or node.keep}
    for j, node in enumerate(nodes):
        if node.stored:
            continue
        inputs = set(node.inputs)
        coming = inputs - ram
        own = node.workspace_bytes + (0 if node.overwrites is not None else node.bytes)
        need = live + own + sum(nodes[i].bytes for i in coming)
        for i in sorted(ram - inputs, key=lambda i: uses[i][-1], reverse=True):
            if need <= ram_bytes:
                break
            ram.discard(i)
            written.add(i)
            live, need = live - nodes[i].bytes, need - nodes[i].bytes
        if need > ram_bytes:
            return None
        events += [("page_in", i) for i in sorted(coming)]
        events.append(("compute", j))
        for i in inputs:
            uses[i].pop()
        if node.overwrites is not None and uses[node.overwrites]:
            written.add(node.overwrites)
        ram = {i for i in ram | inputs | {j} if uses[i] and i != node.overwrites}
        live = sum(nodes[i].bytes for i in ram)
    paged: list[Event] = []
    for event in events:
        paged.append(event)
        if event[0] == "compute" and event[1] in written:
            paged.append(("page_out", event[1]))
    return tidy(graph, paged)


def everything_paged(graph: CostGraph) -> list[Event]:
    """The plan that needs least RAM: nothing stays there between two operators."""
    later = {i for node in graph.nodes for i in node.inputs}
    events: list[Event] = []
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        events += [("page_in", j) for j in dict.fromkeys(node.inputs)]
        events.append(("compute", i))
        if node.keep or i in later:
            events.append(("page_out", i))
    return _with_frees(graph, events)
