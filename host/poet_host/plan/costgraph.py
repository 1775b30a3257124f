"""Cost graphs as JSON: the format in which users pass their own graphs to the planner.

    {"format": "poet-cost-graph", "version": 1, "name": ..., "nodes": [...],
     "storage": true, "base_power_uw": 0.0}

A row of "nodes" has the fields of a CostNode, with names of nodes instead of indices. An
input listed twice (x + x) is in RAM once, so it counts once. A row of "modes" has the fields of a
Mode. If it lacks "overwrites", the mode overwrites what the node does; null means nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, quoted
from ..files import read_json
from ..schema import Name, convert, of_format
from .problem import CostGraph, CostNode, Mode

FORMAT = "poet-cost-graph"
VERSION = 1

_COMPUTING = ("time_us", "energy_uj")  # fields that a node needs unless it is stored
# Fields that a node needs if the graph has storage.
_PAGING = ("page_in_us", "page_in_uj", "page_out_us", "page_out_uj")
_OPTIONAL = ("page_in_cpu_us", "page_out_cpu_us", "workspace_bytes", "once")
_MOVED = ("moved_in_bytes", "moved_out_bytes")
_MODE_OPTIONS = (*_MOVED, "deferred", "completes_streamed")  # fields that a mode may lack


def load_cost_graph(path: Path | str) -> CostGraph:
    """Read the cost graph in a JSON file. Raises BadInput that names the file and the node."""
    return parse_cost_graph(read_json(path), str(path))


def parse_cost_graph(value: Any, where: str = "cost graph") -> CostGraph:
    """Read a cost graph from a parsed JSON value.

    Raises BadInput with a message that names the node at fault. The message begins with the
    argument `where`, the name of the source, such as a file.
    """
    top = of_format(value, FORMAT, VERSION, where, "use the file of a cost graph")
    rows = top.pop("nodes", None)
    if not isinstance(rows, list) or not rows:
        raise BadInput(f'{where}: "nodes" must be a list of at least one node')
    graph = convert({**top, "nodes": []}, CostGraph, where)
    order: dict[str, int] = {}
    nodes: list[CostNode] = []
    for i, row in enumerate(rows):
        name = _name(row, f"{where}, node {i} of the list")
        if name in order:
            raise BadInput(
                f"{where}, node {quoted(name)}: two nodes have this name: rename one of them"
            )
        nodes.append(_node(row, order, graph.storage, f"{where}, node {quoted(name)}"))
        order[name] = i
        for over, at in _overwritten(nodes[-1], f"{where}, node {quoted(name)}"):
            _check_size(nodes[-1], nodes[over], at)
    for i, node in enumerate(nodes):
        _check_deferred(i, node, nodes[i + 1 : i + 2], f"{where}, node {quoted(node.name)}")
    return replace(graph, nodes=tuple(nodes))


def dump_cost_graph(graph: CostGraph) -> dict[str, Any]:
    """Return the cost graph as a JSON object, which `parse_cost_graph` reads."""
    top: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": graph.name}
    if not graph.storage:
        top["storage"] = False
    if graph.base_power_uw:
        top["base_power_uw"] = graph.base_power_uw
    return top | {"nodes": [_dump_node(graph, node) for node in graph.nodes]}


def _dump_node(graph: CostGraph, node: CostNode) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": node.name,
        "inputs": [graph.nodes[i].name for i in node.inputs],
        "bytes": node.bytes,
    }
    row |= {key: getattr(node, key) for key in (*_COMPUTING, *_PAGING, "stored", "keep")}
    row |= {key: getattr(node, key) for key in _OPTIONAL if getattr(node, key)}
    if node.overwrites is not None:
        row["overwrites"] = graph.nodes[node.overwrites].name
    if node.modes:
        row["modes"] = [_dump_mode(graph, node, mode) for mode in node.modes]
    return row


def _dump_mode(graph: CostGraph, node: CostNode, mode: Mode) -> dict[str, Any]:
    row = {key: value for key, value in vars(mode).items() if key not in _MODE_OPTIONS or value}
    row["streamed_inputs"] = [graph.nodes[i].name for i in mode.streamed_inputs]
    row.pop("completes", None)
    if mode.completes is not None:
        row["completes"] = graph.nodes[mode.completes].name
    del row["overwrites"]
    if mode.overwrites != node.overwrites:
        over = mode.overwrites
        row["overwrites"] = None if over is None else graph.nodes[over].name
    return row


def _name(row: Any, where: str) -> str:
    if not isinstance(row, dict):
        raise BadInput(f"{where}: the node must be a JSON object")
    return convert(row.get("name"), Name, f'{where}, "name"')


def _node(row: Mapping[str, Any], order: Mapping[str, int], storage: bool, where: str) -> CostNode:
    """Make a node from a row of "nodes". `order` has the indices of all earlier nodes, by name."""
    names = row.get("inputs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f'{where}: "inputs" must be a list of names of nodes')
    for name in names:
        if name not in order:
            raise BadInput(
                f"{where}: the input {quoted(name)} is not the name of an earlier node. List every "
                "node after its inputs (a graph with a cycle has no such order)"
            )
    positions: dict[str, Any] = {"inputs": list(dict.fromkeys(order[name] for name in names))}
    if "overwrites" in row:
        if row["overwrites"] not in names:
            raise BadInput(
                f"{where}: the node overwrites {quoted(row['overwrites'])}, which must be one of "
                'its "inputs"'
            )
        positions["overwrites"] = order[row["overwrites"]]
    if row.get("stored") is True and names:
        raise BadInput(
            f'{where}: a "stored" node must have no inputs. Write "inputs": [], or delete "stored"'
        )
    needed = (*(() if row.get("stored") else _COMPUTING), *(_PAGING if storage else ()))
    for key in needed:
        if key not in row:
            raise BadInput(f'{where}: the field "{key}" is missing')
    positions |= _whole(row, ("bytes", "workspace_bytes"))
    modes = row.get("modes", [])
    if not isinstance(modes, list):
        raise BadInput(f'{where}: "modes" must be a list')
    if modes and row.get("stored") is True:
        raise BadInput(f'{where}: a "stored" node is never computed: delete its "modes"')
    node = convert({**row, **positions, "modes": []}, CostNode, where)
    found = (
        _mode(one, node, order, f"{where}, mode {number}") for number, one in enumerate(modes, 1)
    )
    return replace(node, modes=tuple(found))


def _mode(row: Any, node: CostNode, order: Mapping[str, int], where: str) -> Mode:
    """Make a mode of `node` from a row of "modes"."""
    if not isinstance(row, dict):
        raise BadInput(f"{where}: the mode must be a JSON object")
    names = row.get("streamed_inputs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f'{where}: "streamed_inputs" must be a list of names of inputs')
    for name in names:
        if order.get(name) not in node.inputs:
            raise BadInput(
                f"{where}: it streams {quoted(name)}, which must be an input of the node"
            )
        if names.count(name) > 1:
            raise BadInput(f"{where}: it streams {quoted(name)} twice: list each input once")
    over = row.get("overwrites")
    if "overwrites" not in row:
        position = node.overwrites
    elif over is None:
        position = None
    elif isinstance(over, str) and order.get(over) in node.inputs:
        position = order[over]
    else:
        raise BadInput(
            f"{where}: the mode overwrites {quoted(over)}, which must be null or one of the inputs "
            "of the node"
        )
    positions: dict[str, Any] = {
        "streamed_inputs": [order[name] for name in names],
        "overwrites": position,
        "completes": _completed(row, node, order, where),
        **_whole(row, ("workspace_bytes", *_MOVED)),
    }
    mode = convert({**row, **positions}, Mode, where)
    if mode.wall_us < max(mode.time_us, mode.transfer_us):
        raise BadInput(
            f'{where}: "wall_us" is {mode.wall_us:g}, less than the larger of "time_us" and '
            f'"transfer_us", which is {max(mode.time_us, mode.transfer_us):g}'
        )
    if position is not None and (position in mode.streamed_inputs) != mode.streamed_output:
        raise BadInput(
            f"{where}: the mode overwrites an input, so it must stream both this input and its "
            "output, or neither"
        )
    return mode


def _completed(
    row: Mapping[str, Any], node: CostNode, order: Mapping[str, int], where: str
) -> int | None:
    """Return the index of the node that a mode computes too."""
    name = row.get("completes")
    if name is None:
        return None
    if name not in order or order[name] != len(order) - 1 or order[name] in node.inputs:
        raise BadInput(
            f"{where}: it completes {quoted(name)}, which must be the node before, and not an input"
        )
    return order[str(name)]


def _check_deferred(i: int, node: CostNode, following: list[CostNode], where: str) -> None:
    """Raise BadInput if a mode defers node i, and no mode of the following node completes it."""
    for number, mode in enumerate(node.modes, 1):
        if not mode.deferred:
            continue
        if mode != Mode((), mode.streamed_output, 0, 0.0, 0.0, 0.0, 0.0, deferred=True):
            raise BadInput(
                f"{where}, mode {number}: the mode is deferred, so its costs and workspace must be "
                "0, and it must neither stream an input, nor overwrite one, nor complete a node"
            )
        if not any(
            other.completes == i and other.completes_streamed == mode.streamed_output
            for after in following
            if set(node.inputs) <= set(after.inputs)
            for other in after.modes
        ):
            raise BadInput(
                f"{where}, mode {number}: the mode is deferred, so the next node must have all "
                "inputs of this node, and a mode that completes it with the same streamed output"
            )


def _whole(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, int]:
    """Return the values that are whole numbers written as floats: 64.0 is read as 64."""
    return {
        key: int(row[key])
        for key in keys
        if isinstance(row.get(key), float) and row[key].is_integer()
    }


def _overwritten(node: CostNode, where: str) -> Iterator[tuple[int, str]]:
    """Yield each input that the node overwrites in a mode, and the place of that mode."""
    for number, mode in enumerate(node.all_modes):
        if mode.overwrites is not None:
            yield mode.overwrites, f"{where}, mode {number}" if number else where


def _check_size(node: CostNode, other: CostNode, where: str) -> None:
    """Raise BadInput if the node differs in size from the input that it overwrites."""
    if other.bytes != node.bytes:
        raise BadInput(
            f"{where}: the node has {node.bytes} bytes, but overwrites {quoted(other.name)} of "
            f"{other.bytes} bytes. Both sizes must be equal"
        )
