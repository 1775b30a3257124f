"""Names that people know: what exporters renamed, merged and turned is put back as it was.

PyTorch's exporters merge equal initialisers, such as the ones and zeros that batchnorms begin with,
and store the weights of linear layers turned, under numbers. Each parameter gets its own again, by
the name and in the layout of its module, so that weights fit the module that they came from.
"""

import ast
import re
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

_SCOPES = "pkg.torch.onnx.name_scopes"
_NUMBERED = re.compile(r"onnx::\w+_\d+|val_\d+")
_SLOTS = ("weight", "bias", "running_mean", "running_var")


def module_of(node: Any) -> str:
    """What people call a node of the file: /layer1/layer1.0/relu/Relu is layer1.0.relu."""
    scopes = next((one.value for one in node.metadata_props if one.key == _SCOPES), None)
    if scopes is not None:
        *modules, function = ast.literal_eval(scopes)
        return modules[-1] if modules and modules[-1] else str(function)
    parts = [part for part in (node.name or node.output[0]).split("/") if part]
    if len(parts) > 1 and re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", parts[-1]):
        parts.pop()
    kept: list[str] = []
    for part in parts:
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        kept.append(part)
    return ".".join(kept)


def restore(onnx: ModuleType, graph: Any) -> None:
    """Change the file's graph as above; it computes what it did."""
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    taken = arrays.keys() | {name for node in graph.node for name in node.output}
    taken |= {one.name for one in (*graph.input, *graph.output)}
    added = _untied(graph, arrays, taken)
    added |= _turned_back(onnx, graph, arrays, taken)
    for name, value in added.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))


def _untied(graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Give each use its own of initialisers that are one number repeated."""
    even = {
        name: value
        for name, value in arrays.items()
        if value.dtype == np.float32 and value.size > 1 and (value == value.flat[0]).all()
    }
    added: Arrays = {}
    outputs = {one.name for one in graph.output}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in even and node.output[0] not in outputs:
            even[node.output[0]] = added[node.output[0]] = even[node.input[0]]
            graph.node.remove(node)
    uses: dict[str, list[tuple[Any, int]]] = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            uses.setdefault(name, []).append((node, i))
    for name, value in even.items():
        readers = uses.get(name, [])
        wanted = [f"{module_of(node)}.{_slot(node.op_type, i)}" for node, i in readers]
        owner = wanted.index(name) if name in wanted else 0
        for place, ((node, i), own) in enumerate(zip(readers, wanted, strict=True)):
            if place != owner:
                free = (own if k == 1 else f"{own}_{k}" for k in range(1, len(taken) + 2))
                node.input[i] = next(text for text in free if text not in taken)
                taken.add(node.input[i])
                added[node.input[i]] = value
    return added


def _slot(op: str, number: int) -> str:
    """What a layer calls the parameter that is input `number` of its node."""
    return "bias" if op == "Add" else _SLOTS[(number - 1) % len(_SLOTS)]


def _turned_back(onnx: ModuleType, graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Weights of linear layers, which exporters turned, under the names of their modules."""
    added: Arrays = {}
    nodes = list(graph.node)
    for at, node in enumerate(nodes):
        weight = node.input[1] if node.op_type == "MatMul" else ""
        if weight not in arrays or arrays[weight].ndim != 2 or not _NUMBERED.fullmatch(weight):
            continue
        own = f"{module_of(node)}.weight"
        sums = [one for one in nodes[at:] if one.op_type == "Add" and node.output[0] in one.input]
        biases = {name for one in sums for name in one.input if name in arrays}
        shared = sum(weight in one.input for one in nodes) > 1
        if own in taken or shared or biases - {f"{module_of(node)}.bias"}:
            continue
        taken.add(own)
        added[own] = arrays[weight].T
        turn = onnx.helper.make_node("Transpose", [own], [weight], f"{own}.T", perm=[1, 0])
        graph.node.insert(list(graph.node).index(node), turn)
        graph.initializer.remove(next(one for one in graph.initializer if one.name == weight))
    return added
