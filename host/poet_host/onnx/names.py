"""Names that people know: what exporters renamed, merged, turned and left out is put back.

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
Uses = dict[str, list[tuple[Any, int]]]
"""Which nodes read a tensor, and as which input."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_RULE = "pkg.onnxscript.rewriter.rule_name"
_NO_BIAS = ("RemoveOptionalBiasFromConv", "RemoveOptionalBiasFromGemm")
# What exporters call a tensor that they compute: after the operator, with a number from the second.
_COMPUTED = re.compile(
    r"(add|sub|mul|div|neg|pow|sqrt|rsqrt|exp|mm|matmul|t|transpose|permute|view|reshape|expand|"
    r"squeeze|unsqueeze|cat|stack|select|slice|norm|linalg_vector_norm|_weight_norm\w*)(_\d+)?"
)
_NUMBERED = re.compile(r"onnx::\w+_\d+|val_\d+(_\d+)?")
_CALL = re.compile(r"_\d+(?=\.|$)")
_LAYERS = {"BatchNormalization", "Conv", "Gemm", "LayerNormalization", "MatMul", "Transpose"}
_SLOTS = ("weight", "bias", "running_mean", "running_var")


def module_of(node: Any) -> str:
    """What people call a node of the file: /layer1/layer1.0/relu/Relu is layer1.0.relu."""
    scopes = _about(node, _SCOPES)
    if scopes is not None:
        *modules, function = ast.literal_eval(scopes)
        return modules[-1] if modules and modules[-1] else str(function)
    parts = [part for part in (node.name or _output(node)).split("/") if part]
    if len(parts) > 1 and re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", parts[-1]):
        parts.pop()
    kept: list[str] = []
    for part in parts:
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        kept.append(part)
    return ".".join(kept)


def _output(node: Any) -> str:
    """The first output of a node that is not left out."""
    return next((name for name in node.output if name), "")


def _about(node: Any, key: str) -> str | None:
    """What an exporter noted of a node."""
    return next((one.value for one in node.metadata_props if one.key == key), None)


def is_numbered(name: str) -> bool:
    """Did an exporter number it, for want of a name?"""
    return _NUMBERED.fullmatch(name) is not None


def is_made_up(name: str) -> bool:
    """Did an exporter, and not the module, give this name?"""
    return is_numbered(name) or _COMPUTED.fullmatch(name) is not None


def is_folded(node: Any) -> bool:
    """Did an exporter fold a batchnorm into this layer? Its tensors keep their names, but are not
    the module's any more."""
    return "FuseBatchNorm" in (_about(node, _RULE) or "")


def free_name(name: str, taken: set[str]) -> str:
    """The name, or with a number behind it if something has it; it is `taken` from now on."""
    numbered = (name if i == 1 else f"{name}_{i}" for i in range(1, len(taken) + 2))
    found = next(one for one in numbered if one not in taken)
    taken.add(found)
    return found


def restore(onnx: ModuleType, graph: Any) -> None:
    """Change the file's graph as above; it computes what it did."""
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for one in [one for one in graph.input if one.name in arrays]:
        graph.input.remove(one)  # only their defaults are ever used
    taken = arrays.keys() | {name for node in graph.node for name in node.output}
    taken |= {one.name for one in (*graph.input, *graph.output)}
    added = _untied(graph, arrays, taken)
    added |= _biases(graph, arrays | added, taken)
    turned, gone = _turned_back(onnx, graph, arrays | added, taken)
    for one in [one for one in graph.initializer if one.name in gone]:
        graph.initializer.remove(one)
    for name, value in (added | turned).items():
        if name in gone:
            continue
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))


def _untied(graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Give each use its own of initialisers that are one number repeated, or that layers of the
    same kind in different modules read: copies of a layer, which are equal until they are trained.
    """
    even = {
        name: value
        for name, value in arrays.items()
        if value.dtype == np.float32 and value.size > 1 and (value == value.flat[0]).all()
    }
    added: Arrays = {}
    outputs = {one.name for one in graph.output}
    uses: Uses = {}
    layers = _layers(graph)
    for node in graph.node:
        for i, name in enumerate(node.input):
            uses.setdefault(name, []).append((node, i))
    copies: Arrays = {}
    for name, value in arrays.items():
        readers = uses.get(name, [])
        again = [node for node, _ in readers if node.op_type == "Identity"]
        again = [node for node in again if node.output[0] not in outputs and "/" not in node.name]
        whole = [one for one in readers if one[0] not in again]
        whole += [one for node in again for one in uses.get(node.output[0], [])]
        if _are_of_copies(value, whole, layers):
            copies[name] = value
        elif name not in even:
            continue
        for node in again:
            copy = node.output[0]
            added[copy] = even[copy] = value
            graph.node.remove(node)
        uses[name] = [one for one in readers if one[0] not in again]
    for name, value in (even | copies).items():
        readers = uses.get(name, [])
        own = [layers[_output(node)] for node, _ in readers]
        wanted = [
            f"{layer}.{_slot(node.op_type, i)}"
            for layer, (node, i) in zip(own, readers, strict=True)
        ]
        if is_numbered(name) and all(node.op_type == "MatMul" for node, _ in readers):
            wanted = [name] * len(readers)
        elif name in copies and own and name.startswith(f"{own[0]}."):
            wanted = [layer + name.removeprefix(own[0]) for layer in own]
        owner = wanted.index(name) if name in wanted else 0
        given: dict[tuple[str, str], tuple[str, Any]] = {}
        if readers:
            given[own[owner], wanted[owner]] = name, readers[owner][0]
        for place, ((node, i), key) in enumerate(
            zip(readers, zip(own, wanted, strict=True), strict=True)
        ):
            if place == owner:
                continue
            before, first = given.get(key, ("", node))
            numbered = module_of(first) != module_of(node)
            same = numbered or node.op_type in _LAYERS or _adds_to_the_same(graph, first, node)
            if before and same:
                node.input[i] = before  # the same layer, called again
                continue
            node.input[i] = free_name(key[1], taken)
            added[node.input[i]] = value
            given[key] = node.input[i], node
    return added


def _adds_to_the_same(graph: Any, first: Any, second: Any) -> bool:
    """Do two nodes add to products with one weight?"""
    products = [
        {one.input[1] for one in graph.node if one.op_type == "MatMul" and one.output[0] in of}
        for of in (set(first.input), set(second.input))
    ]
    return bool(products[0] & products[1])


def _biases(graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Biases that an exporter left out, and noted so, because they were zeros."""
    added: Arrays = {}
    of: dict[str, str] = {}
    for node in graph.node:
        weight = arrays.get(node.input[1]) if len(node.input) == 2 else None
        if weight is None or _about(node, _RULE) not in _NO_BIAS:
            continue
        turned = any(one.name == "transB" and one.i for one in node.attribute)
        size = weight.shape[0 if turned or node.op_type == "Conv" else 1]
        name = of.get(node.input[1])
        if name is None:
            layer = node.input[1].removesuffix("weight")
            own = f"{layer}bias" if layer != node.input[1] else f"{module_of(node)}.bias"
            name = of[node.input[1]] = free_name(own, taken)
            added[name] = np.zeros(size, np.float32)
        node.input.append(name)
    return added


def _layers(graph: Any) -> dict[str, str]:
    """The module that each node belongs to, by an output of it; where a module is called again,
    exporters number it.
    """
    modules = {_output(node): module_of(node) for node in graph.node}
    inside = {
        name: module
        for (name, module), node in zip(modules.items(), graph.node, strict=True)
        if _about(node, _SCOPES) is not None or node.name.count("/") > 1
    }
    known = set(inside.values())
    for name, module in inside.items():
        for call in reversed([*_CALL.finditer(module)]):
            whole = module[: call.start()] + module[call.end() :]
            module = whole if whole in known else module
        modules[name] = module
    return modules


def _are_of_copies(
    value: NDArray[Any], readers: list[tuple[Any, int]], layers: dict[str, str]
) -> bool:
    """Do layers of the same kind, each in a module of its own, read this?"""
    kinds = {(node.op_type, _slot(node.op_type, i)) for node, i in readers}
    (op, _), *others = kinds or {("", "")}
    known = all(
        node.name.count("/") > 1 or _about(node, _SCOPES) is not None for node, _ in readers
    )
    plain = op in _LAYERS or (op == "Add" and value.ndim == 1)
    own = {layers[_output(node)] for node, _ in readers}
    return plain and known and not others and len(own) > 1 and value.size > 1


def _slot(op: str, number: int) -> str:
    """What a layer calls the parameter that is input `number` of its node."""
    if op == "Transpose":
        return "weight"
    return "bias" if op == "Add" else _SLOTS[(number - 1) % len(_SLOTS)]


def _turned_back(
    onnx: ModuleType, graph: Any, arrays: Arrays, taken: set[str]
) -> tuple[Arrays, set[str]]:
    """Weights of linear layers, which exporters turned, under the names of their modules, and the
    names that they had. One that is a table of words, turned, is that table.
    """
    added: Arrays = {}
    gone: set[str] = set()
    nodes, layers = list(graph.node), _layers(graph)
    tables = [node.input[0] for node in nodes if node.op_type == "Gather"]
    for at, node in enumerate(nodes):
        weight = node.input[1] if node.op_type == "MatMul" else ""
        if weight not in arrays or arrays[weight].ndim != 2 or not is_numbered(weight):
            continue
        readers = [one for one in nodes if weight in one.input]
        if weight in gone or len({layers[_output(one)] for one in readers}) > 1:
            continue
        value = np.ascontiguousarray(arrays[weight].T)
        own = next((name for name in tables if _equal(arrays.get(name), value)), None)
        if own is None:
            own = _own_name(node, nodes[at:], arrays)
            if own is None or own in taken:
                continue
            taken.add(own)
            added[own] = value
        gone.add(weight)
        turn = onnx.helper.make_node("Transpose", [own], [weight], f"{own}.T", perm=[1, 0])
        graph.node.insert(list(graph.node).index(node), turn)
    return added, gone


def _equal(a: NDArray[Any] | None, b: NDArray[Any]) -> bool:
    return a is not None and a.dtype == b.dtype and np.array_equal(a, b)


def _own_name(node: Any, behind: list[Any], arrays: Arrays) -> str | None:
    """What the weight of a linear layer is called, by its module and the bias that is added."""
    module = module_of(node)
    sums = [one for one in behind if one.op_type == "Add" and node.output[0] in one.input]
    biases = {name for one in sums for name in one.input if name in arrays} or {f"{module}.bias"}
    bias = biases.pop()
    known = not biases and bias.startswith(f"{module}.") and bias.endswith("bias")
    return f"{bias.removesuffix('bias')}weight" if known else None
