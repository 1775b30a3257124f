"""Lay out tensors on storage, in the areas that schedules/FORMAT.md defines.

This file also gives each tensor of a graph a number, and makes the tables of tensors and operators
that a .poet file contains.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from .. import isa
from ..errors import BadInput
from ..graph.cuts import TRAILER, Cut
from ..graph.graph import Graph, Node
from ..plan.problem import CostGraph, CostNode
from ..profile.transfer import shares
from .model import (
    BLOCK,
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
    SHARED,
    SLOTS,
    STORED,
    STRUCTURE,
    Model,
    Operator,
    Tensor,
)
from .slots import ERASE_BLOCKS, MOST_DATA_BLOCKS, UNIT_BLOCKS, whole_units

SEVERAL_SLOTS = (CURRENT, INPUT)
_N = TypeVar("_N", Node, CostNode)
_ATTRS = isa.field_types("poet_op").keys() - set(STRUCTURE)


def numbered(nodes: Iterable[_N]) -> list[_N]:
    """Sort nodes by tensor number: first stored nodes, then computed nodes in execution order."""
    return sorted(nodes, key=lambda node: not node.stored)


def model_of_graph(
    graph: Graph, cuts: Mapping[str, Cut] | None = None, *, storage: bool = True, slots: int = SLOTS
) -> Model:
    """Return the tables of tensors and operators for a training graph.

    If `storage` is False, they are for a board without a card.
    `cuts` maps nodes to the cuts of their tensors. The new value of a tensor is cut like the old
    one. `slots`: of each tensor that the step renews. Raises BadInput if no board can run the
    graph.
    """
    cuts = cuts or {}
    nodes = numbered(graph)
    number = {node.name: i for i, node in enumerate(nodes)}
    renewed = [node.updates for node in nodes if node.updates is not None]
    for name in renewed:
        if renewed.count(name) > 1:
            raise BadInput(f"graph {graph.name}: several nodes update {name}, but only one may")
        if not graph[name].stored:
            raise BadInput(
                f"graph {graph.name}: a node updates {name}, which is not a stored tensor: it does "
                "not exist before the step begins"
            )
    tensors = []
    for node in nodes:
        if node.updates is not None:
            place, flags = NEXT, KEEP | ONCE
            if graph[node.updates].size_bytes != node.size_bytes:
                raise BadInput(
                    f"graph {graph.name}: {node.name} updates {node.updates}, so both must have "
                    "the same size"
                )
            if not storage and node.overwrites != node.updates:
                raise BadInput(
                    f"graph {graph.name}: {node.name} updates {node.updates} in other memory. A "
                    "board without a card needs updates in place"
                )
        elif node.stored:
            place, flags = _stored_place(graph, node, renewed), STORED
            if place == FIXED and not storage:
                place, flags = CURRENT, STORED | KEEP
        else:
            place, flags = PAGE if storage else PLACE_NONE, 0
        flags |= LOSS if node.name == graph.loss else 0
        cut = cuts.get(node.updates or node.name)
        if cut and cut.size_bytes != node.size_bytes:
            raise BadInput(
                f"graph {graph.name}, node {node.name}: the cut is for {cut.size_bytes:,} bytes, "
                f"but the tensor has {node.size_bytes:,}"
            )
        tensors.append(Tensor(node.size_bytes, place, flags, cut=cut))
    operators = [_operator(graph, node, number) for node in nodes if not node.stored]
    renews = {number[node.name]: number[node.updates] for node in nodes if node.updates is not None}
    model = lay_out(tensors, operators, renews, slots, storage=storage)
    _check_size(graph, model.data_blocks)
    return model


def model_of_forward(trained: Model, graph: Graph, cuts: Mapping[str, Cut]) -> Model:
    """Return the tables of a forward program, whose stored tensors are those of `trained`.

    `graph` is the inference, with the stored nodes of the training graph first, then its own data.
    Pages begin where a training step has its pages. If they end after them, `data_blocks` is larger
    than that of `trained`.
    """
    nodes = numbered(graph)
    number = {node.name: i for i, node in enumerate(nodes)}
    tensors = list(trained.tensors[: trained.stored_count])
    pages = (t.block for t in trained.tensors if t.place == PAGE)
    end, place = min(pages, default=trained.data_blocks), PAGE if trained.storage else PLACE_NONE
    for node in nodes[trained.stored_count :]:
        tensor = Tensor(node.size_bytes, place, 0, cut=cuts.get(node.name))
        if node.stored:
            tensor = Tensor(node.size_bytes, PLACE_NONE, STORED)
        elif trained.storage:
            tensor, end = replace(tensor, block=end), end + tensor.blocks
        tensors.append(tensor)
    _check_size(graph, end)
    operators = tuple(_operator(graph, node, number) for node in nodes if not node.stored)
    return replace(
        trained, tensors=tuple(tensors), operators=operators, trained_by=trained.crc,
        data_blocks=max(trained.data_blocks, end),
    )  # fmt: skip


def _check_size(graph: Graph, data_blocks: int) -> None:
    if data_blocks > MOST_DATA_BLOCKS:
        raise BadInput(
            f"graph {graph.name}: its tensors need {data_blocks * BLOCK / 2**30:,.1f} GiB of "
            "storage, but boards use at most 32 GiB: choose a smaller --batch"
        )


def _is_small(tensor: Tensor) -> bool:
    return shares(tensor.size_bytes) and tensor.cut is None


def _stored_place(graph: Graph, node: Node, renewed: list[str]) -> int:
    if node.name in renewed:
        return CURRENT
    return INPUT if node.name in (graph.data, graph.label) else FIXED


def _operator(graph: Graph, node: Node, number: Mapping[str, int]) -> Operator:
    where = f"graph {graph.name}, node {node.name}"
    kernels, sinks = isa.by_name("KERNEL"), isa.by_name("SINK")
    if node.op not in kernels or node.sink not in sinks:
        raise BadInput(
            f"{where}: the file isa.def must contain both the operator {node.op} and the sink "
            f"{node.sink} (the use of a computed gradient), but does not"
        )
    if len(node.inputs) > MAX_INPUTS:
        raise BadInput(f"{where}: the node has {len(node.inputs)} inputs: use at most {MAX_INPUTS}")
    unknown = sorted(set(node.attrs) - _ATTRS)
    if unknown:
        raise BadInput(f"{where}: the attribute {unknown[0]} is not a field of `struct poet_op`")
    return Operator(
        kernels[node.op].code,
        tuple(number[name] for name in node.inputs),
        sinks[node.sink].code,
        None if node.overwrites is None else number[node.overwrites],
        dict(node.attrs),
    )


def model_of_costs(graph: CostGraph) -> Model:
    """Return the tables of tensors and operators for a cost graph, which has no kernels.

    A schedule can be made with these tables, but boards refuse it. Sizes are rounded up to a
    multiple of 4 bytes, because offsets in RAM are multiples of 4.
    """
    if not graph.storage and any(node.stored or node.keep for node in graph.nodes):
        raise BadInput(
            f"graph {graph.name}: some tensors must be on storage, but the board has no storage. "
            "No schedule is possible: save only the plan, with --plan"
        )
    order = numbered(graph.nodes)
    number = {node.name: i for i, node in enumerate(order)}
    tensors, operators = [], []
    for node in order:
        where = f"graph {graph.name}, node {node.name}"
        if node.bytes == 0:
            raise BadInput(
                f"{where}: the tensor has 0 bytes, but each tensor of a schedule needs at least 1"
            )
        inputs = tuple(number[graph.nodes[i].name] for i in dict.fromkeys(node.inputs))
        if len(inputs) > MAX_INPUTS:
            raise BadInput(f"{where}: the node has {len(inputs)} inputs: use at most {MAX_INPUTS}")
        flags = (STORED * node.stored) | (KEEP * node.keep) | (ONCE * node.once)
        place = FIXED if node.stored else PAGE if graph.storage else PLACE_NONE
        tensors.append(Tensor(rounded(node.bytes), place, flags))
        if not node.stored:
            over = None if node.overwrites is None else number[graph.nodes[node.overwrites].name]
            attrs = {"workspace_bytes": rounded(node.workspace_bytes)}
            operators.append(Operator(0, inputs, overwrites=over, attrs=attrs))
    return lay_out(tensors, operators, {})


def rounded(size_bytes: int) -> int:
    """Return a size rounded up to a multiple of 4 bytes, the size of a float."""
    return -(-size_bytes // 4) * 4


def lay_out(
    tensors: list[Tensor],
    operators: list[Operator],
    renews: Mapping[int, int],
    slots: int = SLOTS,
    *,
    storage: bool = True,
) -> Model:
    """Assign storage blocks to every tensor.

    A step computes the new value of each CURRENT tensor as a NEXT tensor. `renews` maps the number
    of the NEXT tensor to that of the CURRENT tensor. Stored tensors with different values of
    `place` never share an allocation unit of the card. So a step never writes into a unit with a
    tensor that only the host can restore. Small CURRENT tensors share blocks, in the order of their
    renewals, so that a step writes each of these blocks seldom.

    If `storage` is False, only CURRENT tensors have blocks, all in one slot after another. The
    length of a slot is a multiple of all erase units, so that a board can erase it alone.
    """
    placed: dict[int, Tensor] = {}
    laid = (FIXED, *SEVERAL_SLOTS) if storage else (CURRENT,)
    unit = UNIT_BLOCKS if storage else ERASE_BLOCKS
    small = [renews[i] for i in sorted(renews) if storage and _is_small(tensors[renews[i]])]
    end, last = 0, None
    for i, tensor in enumerate(tensors):
        if tensor.place in laid and i not in small:
            if last is not None and tensor.place != last:
                end = whole_units(end)
            placed[i] = replace(tensor, block=end)
            end, last = end + tensor.blocks, tensor.place
    if small and last is not None and last != CURRENT:
        end = whole_units(end)
    at = BLOCK  # the first one begins a block
    for i in small:
        if at + tensors[i].size_bytes + TRAILER > BLOCK:
            end, at = end + 1, 0
        flags = tensors[i].flags | SHARED
        placed[i] = replace(tensors[i], block=end - 1, at=at, flags=flags)
        at += tensors[i].size_bytes + TRAILER
    stride = whole_units(end, unit)
    if twice := [tensor for tensor in placed.values() if tensor.place in SEVERAL_SLOTS]:
        end = (slots - 1) * stride + max(tensor.block + tensor.blocks for tensor in twice)
    end = whole_units(end, unit)
    for i, tensor in enumerate(tensors):
        if tensor.place == PAGE:
            placed[i] = replace(tensor, block=end)
            end += tensor.blocks
        elif tensor.place == NEXT:
            current = placed[renews[i]]
            flags = tensor.flags | current.flags & SHARED
            placed[i] = replace(tensor, block=current.block, at=current.at, flags=flags)
    whole = tuple(placed.get(i, tensor) for i, tensor in enumerate(tensors))
    return Model(whole, tuple(operators), stride, end, storage=storage, slots=slots)
