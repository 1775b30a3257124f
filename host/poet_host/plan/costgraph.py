"""Cost graphs as JSON: how other people's graphs reach the planner.

    {"format": "poet-cost-graph", "version": 1, "name": ..., "nodes": [...],
     "storage": true, "base_power_uw": 0.0}

Nodes are listed in execution order, and name their inputs. An input listed twice (x + x)
is in RAM once, so it counts once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput, quoted
from ..files import read_json
from ..schema import LARGEST, LARGEST_WHOLE
from .problem import CostGraph, CostNode

FORMAT = "poet-cost-graph"
VERSION = 1

_COMPUTING = ("time_us", "energy_uj")  # needed unless the node is stored
_PAGING = ("page_in_us", "page_in_uj", "page_out_us", "page_out_uj")  # needed with storage
_OPTIONAL_COSTS = ("page_in_cpu_us", "page_out_cpu_us")
_COSTS = (*_COMPUTING, *_PAGING, *_OPTIONAL_COSTS)
_FLAGS = ("stored", "keep", "once")
_NODE_KEYS = {"name", "inputs", "bytes", "overwrites", "workspace_bytes", *_COSTS, *_FLAGS}
_GRAPH_KEYS = {"format", "version", "name", "nodes", "storage", "base_power_uw"}


def load_cost_graph(path: Path | str) -> CostGraph:
    """The cost graph in a JSON file; raises BadInput that names file and node."""
    return parse_cost_graph(read_json(path), str(path))


def parse_cost_graph(value: Any, where: str = "cost graph") -> CostGraph:
    """The cost graph of a parsed JSON value.

    `where` begins every error message. Raises BadInput that names the node which breaks a
    rule of the format.
    """
    top = _object(value, where)
    if top.get("format") != FORMAT:
        raise BadInput(f'{where}: this is no cost graph: "format" is not "{FORMAT}"')
    version = top.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise BadInput(
            f"{where}: version {quoted(version)} of the format is not known, {VERSION} is"
        )
    _refuse_unknown(top, _GRAPH_KEYS, where)
    storage = _flag(top, "storage", where, default=True)
    rows = top.get("nodes")
    if not isinstance(rows, list) or not rows:
        raise BadInput(f'{where}: "nodes" must be a list of at least one node')
    order = _positions(rows, where)
    nodes = tuple(_node(row, i, order, storage, where) for i, row in enumerate(rows))
    for node in nodes:
        if node.overwrites is not None and nodes[node.overwrites].bytes != node.bytes:
            other = nodes[node.overwrites]
            raise BadInput(
                f"{where}, node {quoted(node.name)}: overwrites {quoted(other.name)} of another "
                f"size ({other.bytes} bytes, not {node.bytes})"
            )
    return CostGraph(
        name=_text(top, "name", where),
        nodes=nodes,
        storage=storage,
        base_power_uw=_number(top, "base_power_uw", where) if "base_power_uw" in top else 0.0,
    )


def dump_cost_graph(graph: CostGraph) -> dict[str, Any]:
    """The cost graph as a JSON object; `parse_cost_graph` gives it back."""
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
    row |= {key: getattr(node, key) for key in (*_COMPUTING, *_PAGING)}
    row |= {key: getattr(node, key) for key in _OPTIONAL_COSTS if getattr(node, key)}
    row |= {"stored": node.stored, "keep": node.keep}
    if node.overwrites is not None:
        row["overwrites"] = graph.nodes[node.overwrites].name
    if node.workspace_bytes:
        row["workspace_bytes"] = node.workspace_bytes
    if node.once:
        row["once"] = True
    return row


def _positions(rows: list[Any], where: str) -> dict[str, int]:
    """Position of every node by name; names are unique."""
    order: dict[str, int] = {}
    for i, row in enumerate(rows):
        spot = f"{where}, node {i} of the list"
        name = _text(_object(row, spot), "name", spot)
        if name in order:
            raise BadInput(f"{where}, node {quoted(name)}: the name is used twice")
        order[name] = i
    return order


def _node(
    row: Mapping[str, Any], index: int, order: Mapping[str, int], storage: bool, graph: str
) -> CostNode:
    where = f"{graph}, node {quoted(row['name'])}"
    _refuse_unknown(row, _NODE_KEYS, where)
    flags = {key: _flag(row, key, where, default=False) for key in _FLAGS}
    inputs = _inputs(row, index, order, where)
    if flags["stored"] and inputs:
        raise BadInput(f"{where}: is stored, so it is never computed and can have no inputs")
    needed = (*(() if flags["stored"] else _COMPUTING), *(_PAGING if storage else ()))
    for key in ("bytes", *needed):
        if key not in row:
            raise BadInput(f'{where}: "{key}" is missing')
    given: dict[str, Any] = {key: _number(row, key, where) for key in _COSTS if key in row}
    return CostNode(
        name=row["name"],
        inputs=inputs,
        bytes=_whole(row, "bytes", where),
        overwrites=_overwrites(row, inputs, order, where),
        workspace_bytes=_whole(row, "workspace_bytes", where) if "workspace_bytes" in row else 0,
        **given,
        **flags,
    )


def _inputs(
    row: Mapping[str, Any], index: int, order: Mapping[str, int], where: str
) -> tuple[int, ...]:
    names = row.get("inputs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f'{where}: "inputs" must be a list of names of nodes')
    for name in names:
        if name not in order:
            raise BadInput(f"{where}: its input {quoted(name)} is no node of the graph")
        if order[name] >= index:
            raise BadInput(
                f"{where}: its input {quoted(name)} does not stand before it: list the nodes in "
                "an order in which they can be computed (a cycle has none)"
            )
    return tuple(dict.fromkeys(order[name] for name in names))


def _overwrites(
    row: Mapping[str, Any], inputs: tuple[int, ...], order: Mapping[str, int], where: str
) -> int | None:
    if "overwrites" not in row:
        return None
    name = _text(row, "overwrites", where)
    if order.get(name) not in inputs:
        raise BadInput(f"{where}: overwrites {quoted(name)}, which is no input of it")
    return order[name]


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{where}: must be a JSON object")
    return value


def _refuse_unknown(row: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in row:
        if key not in known:
            raise BadInput(f"{where}: the key {quoted(key)} is not known")


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    text = row.get(key)
    if not isinstance(text, str) or not text:
        raise BadInput(f'{where}: "{key}" must be a text that is not empty')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInput(f'{where}: "{key}" holds half a character (a lone surrogate)') from error
    return text


def _flag(row: Mapping[str, Any], key: str, where: str, default: bool) -> bool:
    flag = row.get(key, default)
    if not isinstance(flag, bool):
        raise BadInput(f'{where}: "{key}" must be true or false, not {quoted(flag)}')
    return flag


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    number = row[key]
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise BadInput(f'{where}: "{key}" must be a number, not {quoted(number)}')
    if not 0 <= number <= LARGEST:
        raise BadInput(f'{where}: "{key}" must be finite and not negative, not {quoted(number)}')
    return float(number) + 0.0  # no negative zero


def _whole(row: Mapping[str, Any], key: str, where: str) -> int:
    number = _number(row, key, where)
    if not number.is_integer() or number > LARGEST_WHOLE:
        raise BadInput(f'{where}: "{key}" must be a whole number of bytes, not {quoted(row[key])}')
    return int(row[key])
