"""The training graph of a schedule: a .poet file is all that training and evaluation need."""

from .. import isa
from ..errors import BadInput
from ..graph.graph import Graph, Node
from ..graph.kernels import attributes
from ..graph.returning import RETURNING
from .model import NEXT, Model
from .schedule import Schedule


def graph_of(schedule: Schedule) -> Graph:
    """The graph that `encode` was given, with stored nodes first and floats as float32.

    Raises BadInput for a schedule of costs only, or whose meta part does not describe a graph.
    """
    model, meta = schedule.model, schedule.meta
    name = meta.get("graph", {}).get("name", "?")
    if any(op.kernel == 0 for op in model.operators):
        raise BadInput(
            f"schedule of {name}: it was solved from costs alone, so no board can run it"
        )
    try:
        nodes = tuple(_node(i, row, model, schedule.names) for i, row in enumerate(meta["tensors"]))
        about = meta["graph"]
        return Graph(
            name, nodes, data=about["data"], label=about["label"], loss=about["loss"],
            logits=about["logits"], origin=schedule.origin,
            **{key: tuple(map(str, about.get(key, ()))) for key in RETURNING},
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise BadInput(
            f"schedule of {name}: its meta part lacks {error}: solve again with this poet-host"
        ) from error


def _node(number: int, row: dict[str, object], model: Model, names: tuple[str, ...]) -> Node:
    known = {**row, "shape": tuple(row["shape"])}  # type: ignore[arg-type]
    if number < model.stored_count:
        return Node(**known)  # type: ignore[arg-type]
    op, tensor = model.operator(number), model.tensors[number]
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    renewed = None
    if tensor.place == NEXT:
        same_block = (i for i in op.inputs if model.tensors[i].block == tensor.block)
        renewed = names[next(same_block)]
    return Node(
        **known,  # type: ignore[arg-type]
        op=kernel,
        sink=sink,
        inputs=tuple(names[i] for i in op.inputs),
        attrs=dict.fromkeys(attributes(kernel, sink), 0) | dict(op.attrs),
        overwrites=None if op.overwrites is None else names[op.overwrites],
        updates=renewed,
    )
