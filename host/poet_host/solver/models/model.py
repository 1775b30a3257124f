"""What the stage model and the slot model share; stage_model.py explains the variables."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...plan.problem import CostGraph
from ..modes import Modes
from ..program import LaneTimes, Program, Term

Columns = dict[int, int]  # tensor, node or mode -> column


@dataclass
class Model:
    """The integer program, and the columns of its variables."""

    graph: CostGraph
    modes: Modes
    ram_bytes: int
    page: bool  # whether computed tensors may be paged
    program: Program = field(default_factory=Program)
    first: dict[int, Columns] = field(default_factory=dict)  # x by mode, of nodes with modes
    written: Columns = field(default_factory=dict)  # o
    starts: Columns = field(default_factory=dict)  # s
    commits: Columns = field(default_factory=dict)  # y, by the node that a commit may write
    lanes: LaneTimes = field(default_factory=LaneTimes)

    def add_written(self, i: int, page_out_uj: float) -> None:
        """Add o_i for a computed tensor. For a kept one, add only the energy of the page-out."""
        node, graph = self.graph.nodes[i], self.graph
        if node.stored or not graph.storage:
            return
        if node.keep and i not in graph.may_commit:
            self.program.offset += 0.0 if node.modes else node.page_out_uj
        elif (self.page or node.keep) and self.modes.whole[i]:
            self.written[i] = self.program.binary(page_out_uj)

    def add_first(self, t: int, page_out_uj: float) -> Columns:
        """Add x_tm, with sum_m x_tm = 1. Return the columns by mode; none for a node without modes.

        Their costs include paging out a tensor that the step must keep on storage, unless a commit
        writes it or the mode streams it.
        """
        node = self.graph.nodes[t]
        if not node.modes:
            self.program.offset += node.energy_uj
            return {}
        written_uj = page_out_uj if t in self.graph.always_written else 0.0
        costs_uj = (
            (m, node.mode(m).energy_uj + (0.0 if node.mode(m).streamed_output else written_uj))
            for m in self.modes.usable[t]
        )
        columns = self.first[t] = {m: self.program.binary(cost_uj) for m, cost_uj in costs_uj}
        self.program.row([(x, 1.0) for x in columns.values()], 1.0, 1.0)
        return columns

    def add_commits(self, value_per_us: float) -> None:
        """Add y_k <= s_i for each kept node k in the place of tensor i that a commit may write.

        All tensors that are in RAM when the step begins must fit.
        """
        graph, program = self.graph, self.program
        sizes = [graph.nodes[i].bytes for i in self.starts]
        program.knapsack(list(self.starts.values()), sizes, self.ram_bytes)
        for k, i in graph.may_commit.items():
            node = graph.nodes[k]
            value = node.page_out_uj + value_per_us * node.page_out_us
            self.commits[k] = program.number(value / graph.commit_every, 0.0, 1.0)
            program.row([(self.commits[k], 1.0), (self.starts[i], -1.0)], upper=0.0)
        self.lanes.commits = [(y, graph.nodes[k].page_out_us) for k, y in self.commits.items()]

    def keep(self, k: int) -> None:
        """Add o_k + sum of x_km + y_k >= 1 over modes that stream k, if a commit may write k."""
        if k in self.commits:
            written = [(column, 1.0) for column, _ in self.storing(k)]
            self.program.row([*written, (self.commits[k], 1.0)], lower=1.0)

    def join(self, j: int) -> None:
        """Let nodes be computed in waiting modes if and only if the last one is in a closing mode.

        Node `j` is the last member.
        """
        for group in self.modes.groups_of.get(j, ()):
            closing = [(self.first[j][k], -1.0) for k in group.closing]
            for i, m in group.waiting:
                self.program.row([(self.first[i][m], 1.0), *closing], 0.0, 0.0)

    def not_if_left_out(self, i: int, columns: Iterable[int]) -> None:
        """Let none of these variables be 1 if the plan leaves node i out."""
        if i in self.modes.apart.left_out and i in self.first:
            out = self.first[i][self.modes.apart.left_out[i]]
            self.program.row([(out, 1.0), *((column, 1.0) for column in columns)], upper=1.0)

    def storing(self, i: int) -> list[Term]:
        """Return the terms -o_i and -x_im, over the modes that stream computed tensor i out."""
        columns = [self.written[i]] if i in self.written else []
        by_mode = self.first.get(i, {})
        columns += [by_mode[m] for m in self.modes.streaming[i] if m in by_mode]
        return [(column, -1.0) for column in columns]

    def on_storage(self, i: int, readers: list[Term]) -> None:
        """Add sum of readers <= o_i + sum of x_im over the modes that stream i to storage.

        Only a tensor that was paged out or streamed out can be read from storage.
        """
        if i in self.graph.may_be_old:
            self.program.row([*readers, (self.starts[i], 1.0)], upper=1.0)
        elif not self.modes.certainly_stored(i):
            self.program.row([*readers, *self.storing(i)], upper=0.0)

    def streams(self, j: int, by_mode: Columns) -> None:
        """Let what the modes of node j stream be on storage."""
        node = self.graph.nodes[j]
        for i in node.all_inputs:
            readers = [(x, 1.0) for m, x in by_mode.items() if i in node.mode(m).streamed_inputs]
            if readers:
                self.on_storage(i, readers)
