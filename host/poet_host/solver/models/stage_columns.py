"""The columns of the stage model's variables. stage_model.py explains them."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ...plan.problem import CostGraph
from ..modes import Modes
from ..policy import SearchPolicy
from ..program import LaneTimes, Program, Term

Columns = dict[int, int]  # tensor -> column
ALWAYS_IN_RAM = -1  # stands for a column of U whose value is always 1


@dataclass(frozen=True)
class Stage:
    """The columns of the variables of one stage."""

    operator: int | None  # None: the last stage, for the tensors in RAM at the end
    before: Columns  # U of the previous stage
    computed: Columns  # R
    paged: Columns  # P
    used: Columns  # U
    modes: Columns = field(default_factory=dict)  # x, by mode; empty for a node without modes
    ways: dict[int, list[int]] = field(default_factory=dict)  # R_tiw, by index of Modes.ways[i]
    after: Columns = field(default_factory=dict)  # V; ALWAYS_IN_RAM and U where these are the same
    repeated: Columns = field(default_factory=dict)  # W, see conflicts.py
    may_repeat: bool = False  # whether the stage may drop a tensor and create it again

    def may_create(self, i: int) -> bool:
        """Return whether the stage may recompute or page in tensor i."""
        return self.may_repeat or self.before.get(i) != ALWAYS_IN_RAM


@dataclass(frozen=True)
class Gap:
    """The columns of a tensor's variables, from one operator that needs the tensor to the next.

    See `add_gap_cuts`.
    """

    held: int  # H
    paged: int  # Q
    used: tuple[int, ...]  # U within the gap
    pages: tuple[int, ...]  # P within the gap


@dataclass
class StageModel:
    """The integer program, and the columns of its variables."""

    graph: CostGraph
    modes: Modes
    ram_bytes: int
    # Indices of the stages that may drop a tensor that is in RAM at their start, and create it
    # again. Only for them, the constraints of conflicts (conflicts.py) hold for all plans.
    conflict_stages: Set[int]
    policy: SearchPolicy
    program: Program = field(default_factory=Program)
    written: Columns = field(default_factory=dict)  # o
    # For each tensor, the columns of x for the modes that stream it to storage.
    streamed: dict[int, list[int]] = field(default_factory=dict)
    starts: Columns = field(default_factory=dict)  # s
    commits: Columns = field(default_factory=dict)  # y, by the node that a commit may write
    left_out: Columns = field(default_factory=dict)  # x of the mode that leaves a node out
    stages: list[Stage] = field(default_factory=list)
    # By stage, the first of its rows in the program; then the first row that belongs to no stage.
    first_rows: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    lanes: LaneTimes = field(default_factory=LaneTimes)


def join(program: Program, modes: Modes, j: int, columns: Mapping[int, Columns]) -> None:
    """Let nodes be computed in waiting modes if and only if the last one is in a closing mode.

    `columns`: the columns x by node and mode. Node `j` is the last member.
    """
    for group in modes.groups_of.get(j, ()):
        closing = [(columns[j][k], -1.0) for k in group.closing]
        for i, m in group.waiting:
            program.row([(columns[i][m], 1.0), *closing], 0.0, 0.0)


def at_most_once(program: Program, column: int, other: int | None) -> None:
    """Let at most one of two variables be 1, if there are two."""
    if other is not None:
        program.row([(column, 1.0), (other, 1.0)], upper=1.0)


def storing(model: StageModel, i: int) -> list[Term]:
    """Return the terms -o_i and -x_im, over the modes that stream computed tensor i to storage."""
    columns = [*([model.written[i]] if i in model.written else []), *model.streamed.get(i, [])]
    return [(column, -1.0) for column in columns]
