"""The exact search over the states of a step, for graphs of few nodes.

If time matters, page-ins and page-outs are runs of their own, and the clocks of both lanes are
compared too. Otherwise a computation pages in what it needs, and pages out its result or never.
What stays in RAM from step to step is chosen first: each choice is a search of its own.

The search leaves out three kinds of events, since they make no plan cheaper: creating a tensor that
is in RAM already, paging out a tensor that is on storage already, and freeing memory that is not
needed yet. Frees come right before the event that needs the memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, combinations

from ...packing.blocks import aligned
from ...plan.effects import Effect
from ...plan.events import Event
from ...plan.problem import TOLERANCE
from ..program import INFINITY
from ..search import Task
from ..unavoidable import needed_whole
from .states import Run, StateProblem, StateSearch, Step, library, members, set_of

DONE = 64  # bit of the fact that node 0 has been computed; of node i, i bits later
SLICE = 20_000  # labels between two looks at the limits


@dataclass(frozen=True)
class Exhausted:
    """The result of a search that ran to its end."""

    events: list[Event] | None  # events of the plan of least value; None: no plan exists
    value: float = INFINITY


def search_states(task: Task, max_labels: int, out_of_time: Callable[[], bool]) -> Exhausted | None:
    """Find the plan of least value. Return None if a limit (nodes, labels, time) is exceeded.

    RAM must hold the tensors one after another at multiples of `task.unit` bytes; the last tensor
    needs no padding. The limit counts labels, so that equal input gives equal plans.
    """
    graph = task.exact.graph
    if len(graph.nodes) > task.policy.max_exact_nodes or library() is None:
        return None
    may = graph.starting
    best, labels = Exhausted(None), 0
    for starts in chain.from_iterable(combinations(may, n) for n in range(len(may), -1, -1)):
        states = ExactStates(task, starts)
        if states.begins_above_ram:
            continue
        search = StateSearch(states.problem)
        while (result := search.run(SLICE, best.value)) == "limit":
            if labels + search.labels > max_labels or out_of_time():
                return None
        labels += search.labels
        if result == "no memory":
            return None
        if result == "found" and search.bound < best.value:
            best = Exhausted(states.events(search.path()), search.bound)
    return best


class ExactStates:
    """The states of a task in which these tensors, and no others, begin the step in RAM."""

    def __init__(self, task: Task, starts: Sequence[int]) -> None:
        graph = task.exact.graph
        self.task, self.graph, self.starts = task, graph, starts
        self.order = [i for i, node in enumerate(graph.nodes) if not node.stored]
        self.stage = {i: stage for stage, i in enumerate(self.order)}
        self.end = len(self.order)
        # The event of each run, and the tensors that it pages out:
        self.runs: list[Run] = []
        self.events_of: list[tuple[Event | None, Set[int]]] = []
        self.moves: list[list[tuple[int, int]]] = [[] for _ in range(self.end + 1)]
        self.heirs = {graph.heirs[i] for i in starts if i in graph.heirs}
        self.commits = sorted(k for k, i in graph.may_commit.items() if i in starts)
        self.add_computations()
        if task.is_timed and graph.storage:
            self.add_transfers()
        self.add_end()
        self.problem = self.made()

    @property
    def begins_above_ram(self) -> bool:
        size, padding = self.problem.size, self.problem.padding or (0,)
        ram = list(members(self.problem.ram))
        most = max((padding[i] for i in ram), default=0)
        return sum(size[i] for i in ram) - most > self.task.exact.ram_bytes

    def made(self) -> StateProblem:
        graph, task, unit = self.graph, self.task, self.task.unit
        stored = {i for i, node in enumerate(graph.nodes) if node.stored}
        old = {i for start in self.starts for i in graph.effects["start", start, 0].outdates}
        deadline_us = INFINITY if task.deadline_us is None else task.deadline_us
        due = [0] * (len(self.moves) + 1)
        for i in graph.unavoidable if graph.storage else ():
            for stage in range(self.stage[i] + 1):
                due[stage] |= set_of(needed_whole(graph, i))
        size = [aligned(node.bytes, unit) for node in graph.nodes]
        return StateProblem(
            task.exact.ram_bytes, size, [node.page_in_uj for node in task.padded.nodes],
            self.runs, self.moves, due=due,
            ram=set_of(self.starts if graph.storage else stored),
            storage=set_of(stored - old) if graph.storage else 0,
            timed=task.is_timed,
            padding=[a - node.bytes for a, node in zip(size, graph.nodes, strict=True)],
            value_per_us=task.value_per_us,
            latest_us=deadline_us * (1 + TOLERANCE),
            commit_share=1 / graph.commit_every,
        )  # fmt: skip

    def add(
        self, run: Run, moves: Iterable[tuple[int, int]], event: Event | None = None,
        written: Set[int] = frozenset(),
    ) -> None:  # fmt: skip
        """Add a run that is possible in some stages, each with the stage after it."""
        for stage, after in moves:
            self.moves[stage].append((len(self.runs), after))
        self.runs.append(run)
        self.events_of.append((event, written))

    def add_computations(self) -> None:
        for i in self.order:
            for m in self.task.modes.plain[i]:
                self.add_mode(i, m)
            if i not in self.graph.unavoidable:  # it may be left out
                self.add(Run(), [(self.stage[i], self.stage[i] + 1)])
        for i, m in self.task.modes.fused:
            self.add_mode(i, m)

    def add_mode(self, i: int, m: int) -> None:
        """Add the runs in which a mode computes its last nodes first, and the others again."""
        nodes, may = self.graph.nodes, self.task.may_recompute
        event, made = Event("compute", i, m), self.graph.outputs(i, m)
        effect, cost = self.graph.effects[event], self.task.padded.effects[event].energy_uj
        after = self.stage[made[-1].node] + 1
        for count in range(len(made) + 1):
            again, first = made[:count], made[count:]
            if again and (not self.task.recompute or any(nodes[it.node].once for it in again)):
                break
            if not first and not (effect.stores or any(may[j] for j in effect.makes)):
                break
            run = self.run_of(effect, cost)
            facts = [self.facts(it.node for it in part) for part in (again, first)]
            run = replace(run, reads=run.reads | facts[0], stores=run.stores | facts[1])
            moves = [(stage, stage) for stage in range(after, self.end + 1)]
            moves = [(self.stage[first[0].node], after)] if first else moves
            for written in self.choices([it.node for it in first if not it.streamed]):
                more = sum(self.task.padded.nodes[j].page_out_uj for j in written)
                owed = sum(self.owed_uj(it.node) for it in first if not it.streamed)
                stores = run.stores | set_of(written)
                out = replace(run, cost=run.cost + more + owed, stores=stores)
                self.add(out, moves, event, frozenset(written))

    def facts(self, nodes: Iterable[int]) -> int:
        """Return the facts that nodes have been computed which a plan may leave out."""
        return set_of(DONE + i for i in nodes if i not in self.graph.unavoidable)

    def may_page_out(self, i: int) -> bool:
        node = self.graph.nodes[i]
        return self.graph.storage and not node.stored and (self.task.page or node.keep)

    def choices(self, nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the sets of tensors that may be paged out right after their first computation."""
        may = [] if self.task.is_timed else [i for i in nodes if self.may_page_out(i)]
        yield from chain.from_iterable(combinations(may, n) for n in range(len(may) + 1))

    def owed_uj(self, i: int) -> float:
        """Return what is charged for the page-out of a tensor before it takes place.

        It must take place if no recomputation streams the tensor out.
        """
        graph = self.graph
        streams = any(made.streamed for _, _, made in graph.runs[i])
        is_owed = self.task.is_timed and i in graph.always_written and not streams
        return self.task.padded.nodes[i].page_out_uj if is_owed else 0.0

    def add_transfers(self) -> None:
        everywhere = [(stage, stage) for stage in range(self.end + 1)]
        for i in range(len(self.graph.nodes)):
            costs = self.task.padded.nodes[i]
            event = Event("page_in", i)
            self.add(self.run_of(self.graph.effects[event], costs.page_in_uj), everywhere, event)
            if self.may_page_out(i):
                event = Event("page_out", i)
                cost = costs.page_out_uj - self.owed_uj(i)
                run = replace(self.run_of(self.graph.effects[event], cost), forbids=1 << i)
                self.add(run, everywhere, event)

    def run_of(self, effect: Effect, cost: float) -> Run:
        lanes = {"processor": 1, "transfers": 2, "both": 3}[effect.lane]
        own_bytes = aligned(effect.own_bytes, self.task.unit)
        return Run(
            needs=set_of(effect.needs),
            reads=set_of(effect.reads),
            absent=set_of(effect.absent),
            makes=set_of(effect.makes),
            drops=set_of(effect.drops),
            stores=set_of(effect.stores),
            own_bytes=own_bytes,
            own_padding=own_bytes - effect.own_bytes,
            cost=cost,
            processor_us=effect.processor_us,
            transfers_us=effect.transfers_us,
            lanes=lanes,
        )

    def add_end(self) -> None:
        """Add the end of the step, and then what a commit writes."""
        graph, costs = self.graph, self.task.padded
        kept = {i for i, node in enumerate(graph.nodes) if node.keep}
        if graph.storage:
            made = kept & {*self.order}
            end = Run(needs=set_of(self.heirs), reads=set_of(made - {*self.commits}))
        else:
            end = Run(needs=set_of(kept))
        self.add(end, [(self.end, self.end + 1)])
        for stage, k in enumerate(self.commits, self.end + 1):
            cost = costs.nodes[k].page_out_uj / graph.commit_every
            late_us = graph.nodes[k].page_out_us
            self.moves.append([])
            self.add(Run(reads=1 << k), [(stage, stage + 1)])
            self.add(Run(forbids=1 << k, cost=cost, commit_us=late_us), [(stage, stage + 1)])

    def events(self, path: Sequence[Step]) -> list[Event]:
        """Return the events of a path."""
        events: list[Event] = []
        for step in path:
            event, written = self.events_of[step.run]
            events += [Event("free", i) for i in members(step.freed)]
            events += [Event("page_in", i) for i in members(step.paged)]
            events += [event] if event is not None else []
            events += [Event("page_out", i) for i in sorted(written)]
        stored = {i for event in events for i in self.graph.effects[event].stores}
        modes = {i: int(self.graph.heirs.get(i) in stored) for i in self.starts}
        return [*(Event("start", i, modes[i]) for i in self.starts), *events]
