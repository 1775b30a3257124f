"""The report of `card check`: what is whole on a card, and which weights can be saved."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

SlotState = Literal["whole", "damaged", "old", "empty"]
PartState = Literal["whole", "damaged", "empty", "foreign", "earlier"]


@dataclass(frozen=True)
class SlotReport:
    """A slot of a tensor. Only damaged slots of FIXED tensors and of a state lose weights."""

    slot: int
    role: str  # fixed, input, current, prior (the step before) or next (the step after)
    state: SlotState  # old: the bytes are whole, but not those of this role


@dataclass(frozen=True)
class TensorReport:
    """A stored tensor and its slots."""

    number: int
    name: str | None  # None: the card has no note
    place: str
    size_bytes: int
    slots: tuple[SlotReport, ...]


@dataclass(frozen=True)
class StateReport:
    """The weights of a step: all FIXED tensors, and all CURRENT tensors in one slot."""

    step: int
    tensors: int
    damaged: tuple[int, ...]  # numbers of tensors
    is_digest_right: bool

    @property
    def is_whole(self) -> bool:
        return self.is_digest_right and not self.damaged


@dataclass(frozen=True)
class CommitReport:
    """A block for a commit record."""

    block: int  # in the partition
    state: PartState
    sequence: int | None = None
    step: int | None = None  # None: no weights
    commit_every: int | None = None  # of the schedule; None: no weights


@dataclass(frozen=True)
class JobReport:
    """A job for a board that trains without a host."""

    is_whole: bool  # the record, the order of the samples, and all samples
    first_step: int = 0
    last_step: int = 0
    samples: int = 0  # number of samples up to the last one that is used
    damaged_samples: int = 0
    losses: int = 0  # number of losses that the board has written
    board: str = ""


@dataclass(frozen=True)
class CardReport:
    """Everything that a card holds. `problems` is empty if nothing of value is damaged."""

    file: str
    format: int
    blocks: int  # that the store uses
    commits: tuple[CommitReport, ...]
    model_part: PartState  # foreign: whole, but not that of the weights
    # foreign: whole, but not for this model part; earlier: in the card's earlier format, not read
    plan_part: PartState
    notes: tuple[str | None, ...]  # the model's name in each valid note
    weights: StateReport | None
    prior: StateReport | None
    tensors: tuple[TensorReport, ...]
    page_count: int
    page_bytes: int
    job: JobReport | None
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<CardReport {self.file}: {self.conclusion}>"

    @property
    def step(self) -> int | None:
        """Return the step whose weights can be saved, or None."""
        for state in (self.weights, self.prior):
            if state and state.is_whole:
                return state.step
        return None

    @property
    def conclusion(self) -> str:
        """Return one sentence about the weights."""
        if self.step is None:
            return "no weights can be saved" if self.problems else "the card holds no weights"
        if self.weights and self.weights.is_whole:
            return f"the weights of step {self.step:,} are whole"
        return (
            f"the weights of the step before, {self.step:,}, can be saved with `poet-host card "
            "export --prior`"
        )

    def to_json(self) -> dict[str, Any]:
        about = asdict(self)
        for name in ("weights", "prior"):
            if state := getattr(self, name):
                about[name] |= {"is_whole": state.is_whole}
        return about | {"step": self.step, "conclusion": self.conclusion}
