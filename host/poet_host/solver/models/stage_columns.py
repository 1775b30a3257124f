"""The columns of the stage model's variables. stage_model.py explains them."""

from collections.abc import Set
from dataclasses import dataclass, field

from ..policy import DEFAULT_POLICY, SearchPolicy
from .model import Columns, Model

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
class StageModel(Model):
    """The integer program, and the columns of its variables."""

    # Indices of the stages that may drop a tensor that is in RAM at their start, and create it
    # again. Only for them, the constraints of conflicts (conflicts.py) hold for all plans.
    conflict_stages: Set[int] = frozenset()
    policy: SearchPolicy = DEFAULT_POLICY
    stages: list[Stage] = field(default_factory=list)
    # By stage, the first of its rows in the program; then the first row that belongs to no stage.
    first_rows: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
