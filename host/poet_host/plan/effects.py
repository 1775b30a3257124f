"""Effects: what each kind of statement does to RAM, to storage and to the two lanes of a step.

             needs         reads            makes           stores            drops
compute      whole inputs  streamed inputs  placed outputs  streamed outputs  overwritten inputs
page_in i                  i                i
page_out i   i                                              i
start i                                     i
free i       i                                                                i

A plan lists what is in RAM when a step begins. For planners, it begins with a statement `start` for
each of these tensors. In mode 0, this statement has the energy of the step's share in a later
commit, if the tensor stays. In mode 1, another statement stores what is in its place at the end.

Planners and views use this table. The checkers, verify.py and schedule/arena_state.py, do not.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .plan import Statement
    from .problem import CostGraph

Op = Literal["compute", "page_in", "page_out", "free", "start"]
Key = tuple[Op, int, int]  # an Event as a plain tuple


class Event(NamedTuple):
    """An operation on a node, without offsets."""

    op: Op
    node: int  # index in the graph
    mode: int = 0  # of a compute: the mode in which the node is computed


class Place(NamedTuple):
    """Where a statement puts a tensor that it makes."""

    node: int
    takes: int | None  # the tensor whose memory it takes over, if there is one
    offset: int  # which offset of the statement it has: 0 is `offset`, k the k-th `also_offsets`


class Effect(NamedTuple):
    """What one statement does. Tensors are indices of nodes."""

    op: Op
    needs: tuple[int, ...] = ()  # tensors that must be in RAM
    reads: tuple[int, ...] = ()  # tensors that must be on storage
    absent: tuple[int, ...] = ()  # tensors that must not be in RAM
    makes: tuple[int, ...] = ()  # tensors that it puts into RAM
    places: tuple[Place, ...] = ()  # of each of `makes`
    stores: tuple[int, ...] = ()  # tensors that it puts on storage
    drops: tuple[int, ...] = ()  # tensors that it removes from RAM after it has made others
    workspace_bytes: int = 0
    own_bytes: int = 0  # RAM for the workspace and for those of `makes` that take over no memory
    more_bytes: int = 0  # by how much it changes the bytes in RAM
    lane: Literal["processor", "transfers", "both"] = "processor"  # where it runs
    processor_us: float = 0.0
    transfers_us: float = 0.0
    energy_uj: float = 0.0
    commit_us: float = 0.0  # time of a commit that writes the tensor
    outdates: tuple[int, ...] = ()  # tensors whose copy on storage has not the value in RAM
    moved_in_bytes: int = 0  # bytes that it reads from storage
    moved_out_bytes: int = 0  # bytes that it writes to storage


class Effects(dict[Key, Effect]):
    """The effects of a graph's statements, by their events."""

    def __init__(self, graph: "CostGraph") -> None:
        super().__init__()
        self.graph = graph

    def __missing__(self, key: Key) -> Effect:
        effect = self[key] = effect_of(self.graph, *key)
        return effect

    def __reduce__(self) -> "tuple[type[Effects], tuple[CostGraph]]":
        """Leave the effects out of messages to workers: they take longer to send than to make."""
        return Effects, (self.graph,)


def events_of(graph: "CostGraph", statements: "Iterable[Statement]") -> list[Event]:
    """Return the statements as events."""
    index = graph.index
    return [Event(it.op, index[it.node], it.mode) for it in statements]


def effects_of(graph: "CostGraph", statements: "Iterable[Statement]") -> list[Effect]:
    """Return the effect of each statement."""
    return [graph.effects[event] for event in events_of(graph, statements)]


def effect_of(graph: "CostGraph", op: Op, i: int, mode: int = 0) -> Effect:
    """Return the effect of a statement on node i. `CostGraph.effects` has it from a cache."""
    node = graph.nodes[i]
    if op == "compute":
        return _compute(graph, i, mode)
    if op == "free":
        return Effect(op, needs=(i,), drops=(i,), more_bytes=-node.bytes)
    if op == "start":
        return _start(graph, i, mode)
    if op == "page_out":
        return Effect(
            op, needs=(i,), stores=(i,), lane="transfers", processor_us=node.page_out_cpu_us,
            transfers_us=node.page_out_us, energy_uj=node.page_out_uj, moved_out_bytes=node.bytes,
        )  # fmt: skip
    return Effect(
        op, reads=(i,), absent=(i,), makes=(i,), places=(Place(i, None, 0),),
        own_bytes=node.bytes, more_bytes=node.bytes, lane="transfers",
        processor_us=node.page_in_cpu_us, transfers_us=node.page_in_us, energy_uj=node.page_in_uj,
        moved_in_bytes=node.bytes,
    )  # fmt: skip


def _start(graph: "CostGraph", i: int, mode: int) -> Effect:
    size, heir = graph.nodes[i].bytes, graph.nodes[graph.heirs.get(i, i)]
    commits, every = heir.keep and not heir.stored and not mode, graph.commit_every
    return Effect(
        "start", absent=(i,), makes=(i,), places=(Place(i, None, 0),), own_bytes=size,
        more_bytes=size, energy_uj=heir.page_out_uj / every if commits else 0.0,
        commit_us=heir.page_out_us if commits else 0.0,
        outdates=(i,) if every > 1 and not heir.stored else (),
    )  # fmt: skip


def _compute(graph: "CostGraph", i: int, number: int) -> Effect:
    nodes, mode, made = graph.nodes, graph.nodes[i].mode(number), graph.outputs(i, number)
    stores = [it.node for it in made if it.streamed]
    placed = [it for it in made if not it.streamed] if stores else made
    first = 1 if mode.streamed_output else 0
    places = [Place(it.node, it.overwrites, k) for k, it in enumerate(placed, first)]
    left = [it.overwrites for it in made if it.streamed and it.overwrites is not None]
    drops = [it.overwrites for it in placed if it.overwrites is not None]
    new_bytes = sum([nodes[it.node].bytes for it in placed if it.overwrites is None])
    return Effect(
        "compute",
        needs=nodes[i].whole_inputs(number),
        reads=mode.streamed_inputs,
        absent=(*left, *[it.node for it in made]),
        makes=tuple([it.node for it in placed]),
        places=tuple(places),
        stores=tuple(stores),
        drops=tuple(drops),
        workspace_bytes=mode.workspace_bytes,
        own_bytes=mode.workspace_bytes + new_bytes,
        more_bytes=new_bytes,
        lane="both" if number else "processor",
        processor_us=mode.wall_us,
        transfers_us=mode.wall_us if number else 0.0,
        energy_uj=mode.energy_uj,
        moved_in_bytes=mode.moved_in_bytes,
        moved_out_bytes=mode.moved_out_bytes,
    )


class Contents:
    """What RAM and storage hold, from statement to statement."""

    def __init__(self, graph: "CostGraph") -> None:
        stored = {i for i, node in enumerate(graph.nodes) if node.stored}
        self.ram, self.storage = (set[int](), stored) if graph.storage else (stored, set[int]())
        self.bytes = sum(graph.nodes[i].bytes for i in self.ram)  # in RAM

    def allow(self, effect: Effect) -> bool:
        """Return whether a statement finds its tensors, and none where it must not be."""
        return (
            self.ram.issuperset(effect.needs)
            and self.storage.issuperset(effect.reads)
            and self.ram.isdisjoint(effect.absent)
        )

    def change(self, effect: Effect) -> None:
        self.ram.update(effect.makes)
        self.ram.difference_update(effect.drops)
        self.storage.difference_update(effect.outdates)
        self.storage.update(effect.stores)
        self.bytes += effect.more_bytes
