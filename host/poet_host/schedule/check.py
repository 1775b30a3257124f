"""Check the meta part (JSON) of a .poet file, and compare it with the tensors in the model part."""

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
    """Check the meta part (JSON) of a .poet file. Raises BadInput if it is invalid.

    The message begins with the argument `where`, which names the source.
    """
    model = schedule.model
    meta = convert(schedule.meta, ScheduleMeta, f"{where}, meta part", extra=True)
    names = [tensor.name for tensor in meta.tensors]
    if len(names) != len(model.tensors) or len(set(names)) < len(names):
        raise BadInput(
            f"{where}: the meta part (JSON) must have one name for each tensor, and no name twice: "
            "solve again"
        )
    try:
        plan_from_json(meta.plan, "plan")
        if costs := schedule.meta.get("costs"):
            _check_costs(parse_cost_graph(costs, "costs"), names, model, "modes" in schedule.meta)
        if any(op.kernel for op in model.operators):
            graph = schedule.graph
            if {graph[graph.data].role, graph[graph.label].role} != {"data"}:
                raise BadInput("`data` and `label` must name tensors whose role is data")
            for node, tensor in zip(graph, model.tensors, strict=True):
                if node.size_bytes != tensor.size_bytes:
                    raise BadInput(
                        f"tensor {quoted(node.name)} has the shape {node.shape}, which has "
                        f"{node.size_bytes:,} bytes, but the model part of the file gives it "
                        f"{tensor.size_bytes:,} bytes"
                    )
            check_starts(graph)
    except BadInput as error:
        reason = str(error).replace("\n", "\\n")  # the error may quote a name with a line break
        raise BadInput(f"{where}, meta part: {reason}: solve again") from error


def _check_costs(graph: CostGraph, names: list[str], model: Model, has_nests: bool) -> None:
    """Raise BadInput unless the costs have the same tensors and operators as the model.

    An output may have memory of its own in a nest, although the operator may overwrite an input.
    """
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
                mine = None if over is None else number[over]
                same &= op.overwrites == mine or (has_nests and mine is None)
    if not same:
        raise BadInput(
            "the tensors or operators in `costs` differ from those in the model part of the file"
        )
