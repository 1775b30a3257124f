"""Where tensors live on storage: the areas that schedules/FORMAT.md lays down.

Also from graphs to the model part's tables: numbers are given here, stored tensors first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .. import isa
from ..errors import BadInput
from ..graph.graph import Graph, Node
from ..plan.problem import CostGraph, CostNode
from .model import (
    CURRENT,
    FIXED,
    INPUT,
    KEEP,
    LOSS,
    MAX_INPUTS,
    NEXT,
    ONCE,
    PAGE,
    PLACE_NONE,
    STORED,
    STRUCTURE,
    Model,
    Operator,
    Tensor,
)

TWO_SLOTS = (CURRENT, INPUT)
ERASE_BLOCKS = 64  # of an SD card's erase group, at most
TENSOR_META = ("name", "shape", "role", "phase", "dtype", "start")
_N = TypeVar("_N", Node, CostNode)
_ATTRS = {field for field, _ in isa.ffi().typeof("struct poet_op").fields} - set(STRUCTURE)


def numbered(nodes: Iterable[_N]) -> list[_N]:
    """Nodes in the order of their tensor numbers: stored ones first, then as they run."""
    return sorted(nodes, key=lambda node: not node.stored)


def model_of_graph(graph: Graph) -> Model:
    """Tables of a training graph, laid out on storage."""
    nodes = numbered(graph)
    number = {node.name: i for i, node in enumerate(nodes)}
    renewed = [node.updates for node in nodes if node.updates is not None]
    for name in renewed:
        if renewed.count(name) > 1:
            raise BadInput(f"graph {graph.name}: {name} is updated twice in a step")
        if not graph[name].stored:
            raise BadInput(f"graph {graph.name}: {name} is updated, but is not a stored tensor")
    tensors = []
    for node in nodes:
        if node.updates is not None:
            place, flags = NEXT, KEEP | ONCE
            if graph[node.updates].size_bytes != node.size_bytes:
                raise BadInput(
                    f"graph {graph.name}: {node.name} is not as large as what it updates"
                )
        elif node.stored:
            place, flags = _stored_place(graph, node, renewed), STORED
        else:
            place, flags = PAGE, 0
        flags |= LOSS if node.name == graph.loss else 0
        tensors.append(Tensor(node.size_bytes, place, flags))
    operators = [_operator(graph, node, number) for node in nodes if not node.stored]
    renews = {number[node.name]: number[node.updates] for node in nodes if node.updates is not None}
    return lay_out(tensors, operators, renews)


def _stored_place(graph: Graph, node: Node, renewed: list[str]) -> int:
    if node.name in renewed:
        return CURRENT
    return INPUT if node.name in (graph.data, graph.label) else FIXED


def _operator(graph: Graph, node: Node, number: Mapping[str, int]) -> Operator:
    where = f"graph {graph.name}, node {node.name}"
    kernels, sinks = isa.by_name("KERNEL"), isa.by_name("SINK")
    if node.op not in kernels or node.sink not in sinks:
        raise BadInput(f"{where}: no board has the operator {node.op} with the sink {node.sink}")
    if len(node.inputs) > MAX_INPUTS:
        raise BadInput(f"{where}: {len(node.inputs)} inputs, a board takes at most {MAX_INPUTS}")
    unknown = sorted(set(node.attrs) - _ATTRS)
    if unknown:
        raise BadInput(f"{where}: poet_op has no field {unknown[0]}")
    return Operator(
        kernels[node.op].code,
        tuple(number[name] for name in node.inputs),
        sinks[node.sink].code,
        None if node.overwrites is None else number[node.overwrites],
        dict(node.attrs),
    )


def model_of_costs(graph: CostGraph) -> Model:
    """Tables of a graph of costs only. Boards refuse it, but its plans encode like any other.

    Sizes are rounded up to a multiple of 4, which the placement's offsets leave room for.
    """
    if not graph.storage and any(node.stored or node.keep for node in graph.nodes):
        raise BadInput(
            f"graph {graph.name}: a schedule cannot say where stored or kept tensors sit on a "
            "board without storage: save the plan alone with --plan"
        )
    order = numbered(graph.nodes)
    number = {node.name: i for i, node in enumerate(order)}
    tensors, operators = [], []
    for node in order:
        where = f"graph {graph.name}, node {node.name}"
        if node.bytes == 0:
            raise BadInput(f"{where}: a schedule has no place for a tensor of 0 bytes")
        inputs = tuple(number[graph.nodes[i].name] for i in dict.fromkeys(node.inputs))
        if len(inputs) > MAX_INPUTS:
            raise BadInput(f"{where}: {len(inputs)} inputs, a schedule takes at most {MAX_INPUTS}")
        flags = (STORED * node.stored) | (KEEP * node.keep) | (ONCE * node.once)
        place = FIXED if node.stored else PAGE if graph.storage else PLACE_NONE
        tensors.append(Tensor(rounded(node.bytes), place, flags))
        if not node.stored:
            over = None if node.overwrites is None else number[graph.nodes[node.overwrites].name]
            attrs = {"workspace_bytes": rounded(node.workspace_bytes)}
            operators.append(Operator(0, inputs, overwrites=over, attrs=attrs))
    return lay_out(tensors, operators, {})


def rounded(size_bytes: int) -> int:
    """To whole floats, as tensors and offsets are."""
    return -(-size_bytes // 4) * 4


def lay_out(tensors: list[Tensor], operators: list[Operator], renews: Mapping[int, int]) -> Model:
    """Give every tensor its blocks; `renews`: NEXT tensor -> CURRENT tensor.

    A new erase group begins wherever stored tensors of different places meet, so that nothing
    writes during a step into the group of something that only the host can write again.
    """
    placed: dict[int, Tensor] = {}
    end, last = 0, None
    for i, tensor in enumerate(tensors):
        if tensor.place in (FIXED, *TWO_SLOTS):
            if last is not None and tensor.place != last:
                end = _whole_groups(end)
            placed[i] = replace(tensor, block=end)
            end, last = end + tensor.blocks, tensor.place
    stride = _whole_groups(end)
    if twice := [tensor for tensor in placed.values() if tensor.place in TWO_SLOTS]:
        end = stride + max(tensor.block + tensor.blocks for tensor in twice)
    end = _whole_groups(end)
    for i, tensor in enumerate(tensors):
        if tensor.place == PAGE:
            placed[i] = replace(tensor, block=end)
            end += tensor.blocks
        elif tensor.place == NEXT:
            placed[i] = replace(tensor, block=placed[renews[i]].block)
    laid = tuple(placed.get(i, tensor) for i, tensor in enumerate(tensors))
    return Model(laid, tuple(operators), stride, end)


def _whole_groups(blocks: int) -> int:
    return -(-blocks // ERASE_BLOCKS) * ERASE_BLOCKS


def tensor_meta(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """What the meta part says of each tensor of a training graph, by number."""
    return [{key: getattr(node, key) for key in TENSOR_META} for node in nodes]
