"""Check the meta part of a schedule, and compare it with the tensors of the model part."""

from typing import TYPE_CHECKING

from ..errors import BadInput, quoted
from ..graph.weights import check_starts
from ..plan.costgraph import parse_cost_graph
from ..plan.plan import plan_from_json
from ..plan.problem import CostGraph
from ..schema import convert
from .layout import numbered, rounded
from .meta import ScheduleMeta
from .model import Model

if TYPE_CHECKING:
    from .schedule import Schedule


def check_meta(schedule: "Schedule", where: str) -> None:
    """Check the meta part. Raises BadInput with a message that begins with `where`."""
    model = schedule.model
    meta = convert(schedule.meta, ScheduleMeta, f"{where}, meta part", extra=True)
    names = [tensor.name for tensor in meta.tensors]
    if len(names) != len(model.tensors) or len(set(names)) < len(names):
        raise BadInput(
            f"{where}: the meta part must have a different name for each tensor: solve again"
        )
    try:
        plan_from_json(meta.plan, "plan")
        if costs := schedule.meta.get("costs"):
            _check_costs(parse_cost_graph(costs, "costs"), names, model)
        if any(op.kernel for op in model.operators):
            graph = schedule.graph
            for node, tensor in zip(graph, model.tensors, strict=True):
                if node.size_bytes != tensor.size_bytes:
                    raise BadInput(
                        f"the shape of tensor {quoted(node.name)} does not match its size in "
                        "the model part"
                    )
            check_starts(graph)
    except BadInput as error:
        reason = str(error).replace("\n", "\\n")  # the error may quote a name with a line break
        raise BadInput(f"{where}, meta part: {reason}: solve again") from error


def _check_costs(graph: CostGraph, names: list[str], model: Model) -> None:
    """Raise BadInput unless the costs have the same tensors and operators as the model."""
    nodes = numbered(graph.nodes)
    number = {graph.nodes.index(node): i for i, node in enumerate(nodes)}
    same = [node.name for node in nodes] == names
    if same:
        for i, (node, tensor) in enumerate(zip(nodes, model.tensors, strict=True)):
            same &= node.stored == (i < model.stored_count)
            same &= rounded(node.bytes) == tensor.size_bytes
            if same and not node.stored:
                op, over = model.operator(i), node.overwrites
                same &= {number[j] for j in node.inputs} == set(op.inputs)
                same &= op.overwrites == (None if over is None else number[over])
    if not same:
        raise BadInput("`costs` and the model part have different tensors or operators")
