"""Cost graphs as JSON: the format in which users pass their own graphs to the planner.

    {"format": "poet-cost-graph", "version": 1, "name": ..., "nodes": [...],
     "storage": true, "base_power_uw": 0.0}

A row of "nodes" has the fields of a CostNode, with names of nodes instead of indices. An
input listed twice (x + x) is in RAM once, so it counts once. A row of "modes" has the fields of a
Mode. If it lacks "overwrites", the mode overwrites what the node does; null means nothing.

In version 2, a mode may have "inputs" and "also", and a plan may leave out a node that no statement
reads, unless it is kept. A mode that has "also", but no "inputs", reads what its nodes read and do
not compute.

In version 3, a "stored" node may have "stays" or "given", and the graph "commit_every".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, quoted
from ..files import read_json
from ..schema import Name, convert, of_format
from .problem import Also, CostGraph, CostNode, Mode

FORMAT = "poet-cost-graph"
VERSIONS = (1, 2, 3)

_COMPUTING = ("time_us", "energy_uj")  # fields that a node needs unless it is stored
# Fields that a node needs if the graph has storage.
_PAGING = ("page_in_us", "page_in_uj", "page_out_us", "page_out_uj")
_OPTIONAL = ("page_in_cpu_us", "page_out_cpu_us", "workspace_bytes", "once")
_MOVED = ("moved_in_bytes", "moved_out_bytes")  # fields that a mode may lack
_FUSED = ("inputs", "also")  # fields that a mode may have in version 2
_STARTING = ("stays", "given")  # fields that a stored node may have in version 3


def load_cost_graph(path: Path | str) -> CostGraph:
    """Read the cost graph in a JSON file. Raises BadInput that names the file and the node."""
    return parse_cost_graph(read_json(path), str(path))


def parse_cost_graph(value: Any, where: str = "cost graph") -> CostGraph:
    """Read a cost graph from a parsed JSON value.

    Raises BadInput with a message that names the node at fault. The message begins with the
    argument `where`, the name of the source, such as a file.
    """
    top = of_format(value, FORMAT, VERSIONS, where, "use the file of a cost graph")
    version = value["version"]
    rows = top.pop("nodes", None)
    if not isinstance(rows, list) or not rows:
        raise BadInput(f'{where}: "nodes" must be a list of at least one node')
    for key in ("may_leave_out", "nodes", *(("commit_every",) if version < 3 else ())):
        if key in top:
            raise BadInput(f'{where}: the key "{key}" is unknown: check the file')
    graph = convert({**top, "nodes": []}, CostGraph, where)
    order: dict[str, int] = {}
    nodes: list[CostNode] = []
    for i, row in enumerate(rows):
        name = _name(row, f"{where}, node {i} of the list")
        if name in order:
            raise BadInput(
                f"{where}, node {quoted(name)}: two nodes have this name: rename one of them"
            )
        nodes.append(_node(row, order, graph.storage, version, f"{where}, node {quoted(name)}"))
        order[name] = i
    for i, row in enumerate(rows):
        at = f"{where}, node {quoted(nodes[i].name)}"
        modes = enumerate(row.get("modes", []), 1)
        found = (_mode(one, i, nodes, order, version, f"{at}, mode {m}") for m, one in modes)
        nodes[i] = replace(nodes[i], modes=tuple(found))
        _check_sizes(nodes[i], nodes, at)
    _check_renewals(nodes, where)
    return replace(graph, nodes=tuple(nodes), may_leave_out=version > 1)


def dump_cost_graph(graph: CostGraph) -> dict[str, Any]:
    """Return the cost graph as a JSON object, which `parse_cost_graph` reads."""
    top: dict[str, Any] = {"format": FORMAT, "version": graph.version, "name": graph.name}
    if not graph.storage:
        top["storage"] = False
    if graph.base_power_uw:
        top["base_power_uw"] = graph.base_power_uw
    if graph.commit_every > 1:
        top["commit_every"] = graph.commit_every
    return top | {"nodes": [_dump_node(graph, node) for node in graph.nodes]}


def _dump_node(graph: CostGraph, node: CostNode) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": node.name,
        "inputs": [graph.nodes[i].name for i in node.inputs],
        "bytes": node.bytes,
    }
    row |= {key: getattr(node, key) for key in (*_COMPUTING, *_PAGING, "stored", "keep")}
    row |= {key: getattr(node, key) for key in (*_OPTIONAL, *_STARTING) if getattr(node, key)}
    if node.overwrites is not None:
        row["overwrites"] = graph.nodes[node.overwrites].name
    if node.modes:
        row["modes"] = [_dump_mode(graph, node, mode) for mode in node.modes]
    return row


def _dump_mode(graph: CostGraph, node: CostNode, mode: Mode) -> dict[str, Any]:
    names = [other.name for other in graph.nodes]
    row = {key: value for key, value in vars(mode).items() if key not in _MOVED or value}
    row["streamed_inputs"] = [names[i] for i in mode.streamed_inputs]
    for key in (*_FUSED, "overwrites"):
        del row[key]
    if mode.inputs is not None:
        row["inputs"] = [names[i] for i in mode.inputs]
    if mode.also:
        row["also"] = [{"node": names[it.node], "streamed": it.streamed} for it in mode.also]
    if mode.overwrites != node.overwrites:
        over = mode.overwrites
        row["overwrites"] = None if over is None else names[over]
    return row


def _name(row: Any, where: str) -> str:
    if not isinstance(row, dict):
        raise BadInput(f"{where}: the node must be a JSON object")
    return convert(row.get("name"), Name, f'{where}, "name"')


def _node(
    row: Mapping[str, Any], order: Mapping[str, int], storage: bool, version: int, where: str
) -> CostNode:
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
    for key in _STARTING:
        if key in row and version < 3:
            raise BadInput(f'{where}: only a node of a graph of "version" 3 may have "{key}"')
        if key in row and row.get("stored") is not True:
            raise BadInput(f'{where}: only a "stored" node may have "{key}": delete it')
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
    return convert({**row, **positions, "modes": []}, CostNode, where)


def _mode(
    row: Any,
    index: int,
    nodes: Sequence[CostNode],
    order: Mapping[str, int],
    version: int,
    where: str,
) -> Mode:
    if not isinstance(row, dict):
        raise BadInput(f"{where}: the mode must be a JSON object")
    for key in _FUSED:
        if key in row and version == 1:
            raise BadInput(f'{where}: only modes of a graph of "version" 2 may have "{key}"')
    node = nodes[index]
    also = _also(row.get("also", []), index, nodes, order, where)
    own = row.get("inputs")
    if own is None and "inputs" not in row:
        inputs = _read_by([index, *(it.node for it in also)], nodes)
    else:
        together = {index, *(it.node for it in also)}
        earlier = [i for i in range(max(together)) if i not in together]
        inputs = _positions(own, "inputs", earlier, order, where, "an earlier node")
    streamed = _positions(
        row.get("streamed_inputs"), "streamed_inputs", inputs, order, where, "an input of the node"
    )
    over = row.get("overwrites")
    if "overwrites" not in row:
        position = node.overwrites
        if position is not None and position not in inputs:
            raise BadInput(
                f"{where}: the node overwrites {quoted(nodes[position].name)}, which the mode does "
                'not read: add it to the "inputs" of the mode, or write "overwrites": null'
            )
    elif over is None:
        position = None
    elif isinstance(over, str) and order.get(over) in inputs:
        position = order[over]
    else:
        raise BadInput(
            f"{where}: the mode overwrites {quoted(over)}, which must be null or one of the inputs "
            "of the node"
        )
    positions: dict[str, Any] = {
        "streamed_inputs": streamed,
        "overwrites": position,
        "inputs": list(inputs) if any(key in row for key in _FUSED) else None,
        "also": [vars(it) for it in also],
        **_whole(row, ("workspace_bytes", *_MOVED)),
    }
    mode = convert({**row, **positions}, Mode, where)
    if mode.wall_us < max(mode.time_us, mode.transfer_us):
        raise BadInput(
            f'{where}: "wall_us" is {mode.wall_us:g}, less than the larger of "time_us" and '
            f'"transfer_us", which is {max(mode.time_us, mode.transfer_us):g}'
        )
    _check_overwriting(mode, index, nodes, where)
    return mode


def _positions(
    names: Any,
    key: str,
    allowed: Sequence[int],
    order: Mapping[str, int],
    where: str,
    kind: str,
) -> list[int]:
    """Return the indices of the nodes in a list of a mode. `allowed`: those that may be in it."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f'{where}: "{key}" must be a list of names of inputs')
    verb = "streams" if key == "streamed_inputs" else "reads"
    for name in names:
        if order.get(name, -1) not in allowed:
            raise BadInput(f"{where}: it {verb} {quoted(name)}, which must be {kind}")
        if names.count(name) > 1:
            raise BadInput(f"{where}: it {verb} {quoted(name)} twice: list each input once")
    return [order[name] for name in names]


def _also(
    rows: Any, index: int, nodes: Sequence[CostNode], order: Mapping[str, int], where: str
) -> list[Also]:
    """Return the nodes that a mode computes too: the next ones that are not stored."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f'{where}: "also" must be a list of JSON objects')
    found: list[Also] = []
    following = (i for i in range(index + 1, len(nodes)) if not nodes[i].stored)
    for row in rows:
        name, expected = row.get("node"), next(following, None)
        if expected is None or not isinstance(name, str) or order.get(name) != expected:
            hint = "no node" if expected is None else quoted(nodes[expected].name)
            raise BadInput(
                f'{where}: "also" has {quoted(name)}, but must list the next computed nodes in '
                f"order, here {hint}"
            )
        found.append(convert({**row, "node": expected}, Also, f'{where}, "also"'))
    return found


def _read_by(together: Sequence[int], nodes: Sequence[CostNode]) -> list[int]:
    """Return what nodes that are computed together read, apart from one another."""
    read = (i for j in together for i in nodes[j].inputs)
    return list(dict.fromkeys(i for i in read if i not in together))


def _check_overwriting(mode: Mode, index: int, nodes: Sequence[CostNode], where: str) -> None:
    """Raise BadInput if one of the nodes of a mode overwrites a tensor that it cannot overwrite."""
    streams = dict.fromkeys(nodes[index].inputs if mode.inputs is None else mode.inputs, False)
    streams |= dict.fromkeys(mode.streamed_inputs, True)
    made = [(index, mode.streamed_output, mode.overwrites)]
    made += [(it.node, it.streamed, nodes[it.node].overwrites) for it in mode.also]
    gone: set[int] = set()
    for i, streamed, over in made:
        if over is not None and (over not in streams or over in gone):
            raise BadInput(
                f"{where}: the node {quoted(nodes[i].name)} overwrites "
                f"{quoted(nodes[over].name)}, which must be an input of the mode, or computed by "
                "it, and overwritten once"
            )
        if over is not None and streams[over] != streamed:
            what = "the mode" if i == index else f"its node {quoted(nodes[i].name)}"
            raise BadInput(
                f"{where}: {what} overwrites an input, so it must stream both this input and its "
                "output, or neither"
            )
        streams[i] = streamed
        gone |= set() if over is None else {over}


def _whole(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, int]:
    """Return the values that are whole numbers written as floats: 64.0 is read as 64."""
    return {
        key: int(row[key])
        for key in keys
        if isinstance(row.get(key), float) and row[key].is_integer()
    }


def _check_renewals(nodes: Sequence[CostNode], where: str) -> None:
    """Raise BadInput if two nodes overwrite a tensor that may stay: only one can take its place."""
    renewed: dict[int, CostNode] = {}
    for node in nodes:
        over = node.overwrites
        if over is not None and nodes[over].stays:
            other = renewed.setdefault(over, node)
            if other is not node:
                raise BadInput(
                    f"{where}: the nodes {quoted(other.name)} and {quoted(node.name)} both "
                    f'overwrite {quoted(nodes[over].name)}, which "stays": let only one do so'
                )


def _check_sizes(node: CostNode, nodes: Sequence[CostNode], where: str) -> None:
    """Raise BadInput if the node differs in size from an input that it overwrites in a mode."""
    for number, mode in enumerate(node.all_modes):
        other = node if mode.overwrites is None else nodes[mode.overwrites]
        if other.bytes != node.bytes:
            at = f"{where}, mode {number}" if number else where
            raise BadInput(
                f"{at}: the node has {node.bytes} bytes, but overwrites {quoted(other.name)} of "
                f"{other.bytes} bytes. Both sizes must be equal"
            )
