"""What the meta part of a .poet file must hold; it may hold more."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..graph.graph import Phase, Role
from ..schema import Count, Name

_Size = Annotated[int, Meta(ge=1, lt=2**32)]


@dataclass(frozen=True)
class TensorMeta:
    """A tensor of a training graph; the other fields of its Node are in the model part."""

    name: Name
    shape: tuple[_Size, ...]
    role: Role
    phase: Phase
    dtype: Literal["float32", "int32"]
    start: str


@dataclass(frozen=True)
class GraphMeta:
    """Names of a training graph and of nodes in it."""

    name: str
    data: Name
    label: Name
    loss: Name
    logits: Name
    lost: tuple[str, ...] = ()  # see graph.returning
    made_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingMeta:
    """A schedule of a training graph; tensors by number."""

    graph: GraphMeta
    tensors: tuple[TensorMeta, ...]


@dataclass(frozen=True)
class NameOnly:
    """All that is known of a graph or tensor of costs only, but for its costs."""

    name: str


@dataclass(frozen=True)
class KeptEverything:
    """What keep-everything takes."""

    peak_bytes: Count | None = None
    time_us: float | None = None
    energy_uj: float | None = None


@dataclass(frozen=True)
class ScheduleMeta:
    """What every schedule holds. `plan`: a plan.json without statements."""

    graph: NameOnly
    tensors: tuple[NameOnly, ...]
    plan: dict[str, Any]
    board: str | None = None
    keep_everything: KeptEverything | None = None
