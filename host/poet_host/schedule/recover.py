"""Recover the training graph from a schedule, so that training needs the .poet file only."""

from typing import TYPE_CHECKING

from .. import isa
from ..errors import BadInput, quoted
from ..graph.graph import Graph, Node
from ..schema import convert
from .meta import TensorMeta, TrainingMeta
from .model import CURRENT, NEXT, Model

if TYPE_CHECKING:
    from .schedule import Schedule


def graph_of(schedule: "Schedule") -> Graph:
    """Return the training graph of a schedule: stored nodes first, floats rounded to float32.

    Raises BadInput for a schedule of a cost graph, or if the meta part does not describe a graph.
    """
    model = schedule.model
    if any(op.kernel == 0 for op in model.operators):
        raise BadInput(
            f"the schedule of {quoted(schedule.meta['graph']['name'])} was solved from costs alone,"
            " so it has no kernels to run: solve a model instead"
        )
    meta = convert(schedule.meta, TrainingMeta, "the schedule's meta part", extra=True)
    names = tuple(row.name for row in meta.tensors)
    nodes = tuple(_node(i, row, model, names) for i, row in enumerate(meta.tensors))
    return Graph(nodes=nodes, origin=schedule.origin, **vars(meta.graph))


def _node(number: int, row: TensorMeta, model: Model, names: tuple[str, ...]) -> Node:
    if number < model.stored_count:
        return Node(**vars(row))
    op, tensor = model.operator(number), model.tensors[number]
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    renewed = None
    if tensor.place == NEXT:
        place = (CURRENT, tensor.block, tensor.at)
        inputs = [(names[i], model.tensors[i]) for i in op.inputs]
        same_place = (name for name, it in inputs if (it.place, it.block, it.at) == place)
        renewed = next(same_place, None)
        if renewed is None:
            raise BadInput(
                f"tensor {quoted(row.name)} must update one of its inputs, but updates none"
            )
    return Node(
        **vars(row),
        op=kernel,
        sink=sink,
        inputs=tuple(names[i] for i in op.inputs),
        attrs=dict.fromkeys(isa.attributes(kernel, sink), 0) | dict(op.attrs),
        overwrites=None if op.overwrites is None else names[op.overwrites],
        updates=renewed,
    )
