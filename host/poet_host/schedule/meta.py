"""Schema of the meta part of a .poet file. The meta part may have other keys too."""

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..graph.graph import Graph, Part, Phase, Role, Target
from ..schema import Count, Name
from .layout import numbered

_Size = Annotated[int, Meta(ge=1, lt=2**32)]


@dataclass(frozen=True)
class TensorMeta:
    """A tensor of a training graph. The model part has the other fields of the tensor's Node."""

    name: Name
    shape: tuple[_Size, ...]
    role: Role
    phase: Phase
    dtype: Literal["float32", "int32"]
    start: str


@dataclass(frozen=True)
class GraphMeta:
    """Names of a training graph and of its nodes. onnx/returning.py sets `lost` and `made_up`."""

    name: str
    data: Name
    label: Name
    loss: Name
    logits: Name
    lost: tuple[str, ...] = ()
    made_up: tuple[str, ...] = ()
    criterion: str = ""
    inputs: tuple[Part, ...] = ()
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class TrainingMeta:
    """The meta part of a schedule of a training graph. `tensors` are sorted by number."""

    graph: GraphMeta
    tensors: tuple[TensorMeta, ...]


@dataclass(frozen=True)
class NameOnly:
    """The name of a cost graph, or of a tensor of a cost graph."""

    name: str


@dataclass(frozen=True)
class KeptEverything:
    """Peak RAM, time and energy of a step that keeps all tensors in RAM."""

    peak_bytes: Count | None = None
    time_us: float | None = None
    energy_uj: float | None = None


@dataclass(frozen=True)
class ScheduleMeta:
    """The meta part of every schedule."""

    graph: NameOnly
    tensors: tuple[NameOnly, ...]
    plan: dict[str, Any]  # a plan as JSON, without its statements
    board: str | None = None
    keep_everything: KeptEverything | None = None
    slice_us: Annotated[float, Meta(gt=0)] | None = None
    slices: dict[str, Annotated[float, Meta(gt=0)]] | None = None


def names_of(graph: Graph) -> dict[str, Any]:
    """Return the names of a graph and its tensors, for the meta part."""
    optional = {field.name for field in fields(GraphMeta) if field.default is not MISSING}
    about = asdict(
        GraphMeta(**{field.name: getattr(graph, field.name) for field in fields(GraphMeta)})
    )
    keys = [field.name for field in fields(TensorMeta)]
    return {
        "graph": {key: value for key, value in about.items() if value or key not in optional},
        "tensors": [{key: getattr(node, key) for key in keys} for node in numbered(graph)],
    }
