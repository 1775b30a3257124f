"""Restore the parameters of modules after an export, so that trained weights fit the module.

PyTorch's exporters merge equal initialisers, such as the first weights (ones) of all batchnorms.
They transpose the weights of linear layers, and replace the names of these weights by numbers. They
also omit biases of zeros. Here each parameter gets the name and the layout that it has in its
module.
"""

import ast
import re
from types import ModuleType
from typing import Any

import numpy as np

from ..graph.weights import Array
from .gates import take_apart

Arrays = dict[str, Array]
Uses = dict[str, list[tuple[Any, int]]]
"""For each tensor, by name: the nodes that read the tensor, each with the number of the input."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_CALLED = "pkg.torch.onnx.fx_node"
PADDED = "row_{}_is_padding"  # in the name of an embedding's node: its row without a gradient
_PADDED = re.compile(PADDED.format(r"(\d+)") + r"(_\d+)?")
_PADDED_CALL = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)")
_RULE = "pkg.onnxscript.rewriter.rule_name"
_NO_BIAS = {f"RemoveOptionalBiasFrom{layer}" for layer in ("Conv", "ConvTranspose", "Gemm")}
# Exporters name computed tensors after their operator, such as `add`, and then `add_1`, `add_2`.
_COMPUTED = re.compile(
    r"(add|sub|mul|div|neg|pow|sqrt|rsqrt|exp|mm|matmul|t|transpose|permute|view|reshape|expand|"
    r"squeeze|unsqueeze|cat|stack|select|slice|norm|linalg_vector_norm|_weight_norm\w*)(_\d+)?"
)
_NUMBERED = re.compile(r"onnx::\w+_\d+|val_\d+(_\d+)?")
_CALL = re.compile(r"_\d+(?=\.|$)")
_LAYERS = {"BatchNormalization", "Conv", "Gemm", "LayerNormalization", "MatMul", "Transpose"}
_SLOTS = ("weight", "bias", "running_mean", "running_var")
# The numbers of the inputs that are parameters or statistics even if they are a single number.
_OWN = {
    "BatchNormalization": (1, 2, 3, 4), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,),
    "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2), "LayerNormalization": (1, 2),
    "PRelu": (1,),
}  # fmt: skip
_NORMS = {op for op in _OWN if "Norm" in op}


def module_of(node: Any) -> str:
    """Return the name of a node's module.

    For example, the node /layer1/layer1.0/relu/Relu belongs to the module layer1.0.relu.
    """
    scopes = _about(node, _SCOPES)
    if scopes is not None:
        *modules, function = ast.literal_eval(scopes)
        return modules[-1] if modules and modules[-1] else str(function)
    parts = [part for part in (node.name or _output(node)).split("/") if part]
    parts = [part for part in parts if not _PADDED.fullmatch(part)]
    if len(parts) > 1 and re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", parts[-1]):
        parts.pop()
    kept: list[str] = []
    for part in parts:
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        kept.append(part)
    return ".".join(kept)


def padding_of(node: Any) -> int | None:
    """Return the row of an embedding that gets no gradient, if its exporter wrote it down."""
    found = _PADDED.search(node.name) or _PADDED_CALL.search(_about(node, _CALLED) or "")
    return int(found[1]) if found else None


def _output(node: Any) -> str:
    return next((name for name in node.output if name), "")


def _about(node: Any, key: str) -> str | None:
    return next((entry.value for entry in node.metadata_props if entry.key == key), None)


def is_numbered(name: str) -> bool:
    """Return True for a name such as val_3, which an exporter gives to a tensor without a name."""
    return _NUMBERED.fullmatch(name) is not None


def is_made_up(name: str) -> bool:
    """Return True if an exporter made up the name, so that the module has no such tensor."""
    return is_numbered(name) or _COMPUTED.fullmatch(name) is not None


def is_folded(node: Any) -> bool:
    """Return True if an exporter folded a batchnorm into this layer, which changes its weights."""
    return "FuseBatchNorm" in (_about(node, _RULE) or "")


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, with a number appended if it is in `taken`. Add the result to `taken`."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


# Names of a graph's own nodes, and of arrays of data that hold samples out.
RESERVED = frozenset({"data", "label", "loss", "x_test", "y_test"})


def legal_name(name: str, default: str, taken: set[str]) -> str:
    """Return a name that a node of a graph can have, for an input or output. Add it to `taken`."""
    return free_name(re.sub(r"[^\w.-]+", "-", name).lstrip("-.") or default, taken)


def restore(onnx: ModuleType, graph: Any) -> None:
    """Restore the parameters of modules in an ONNX graph. The graph computes the same results."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    taken = arrays.keys() | {name for node in graph.node for name in node.output}
    taken |= {value.name for value in (*graph.input, *graph.output)}
    added = _split_merged(graph, arrays, taken)
    added |= _omitted_biases(graph, arrays | added, taken)
    transposed, gone = _linear_weights(onnx, graph, arrays | added, taken)
    layers = _layers(graph)
    gates, joined = take_apart(
        onnx, graph, arrays | added, module_of, lambda node: layers[_output(node)],
        lambda name: free_name(name, taken),
    )  # fmt: skip
    added, gone = added | gates, gone | joined
    for tensor in [tensor for tensor in graph.initializer if tensor.name in gone]:
        graph.initializer.remove(tensor)
    for name, value in (added | transposed).items():
        if name in gone:
            continue
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))


def _split_merged(graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Give each layer its own copy of an initialiser that an exporter merged; return the copies.

    An initialiser counts as merged if all its numbers are equal, or if layers of the same kind in
    different modules read it: an exporter stores the equal weights of copied layers only once.
    But if the older exporter writes no alias for them, they are one tied parameter.
    """
    single = _single(graph)
    even = {
        name: value
        for name, value in arrays.items()
        if value.dtype == np.float32 and value.size > (0 if name in single else 1)
        if (value == value.flat[0]).all()
    }
    added: Arrays = {}
    outputs = {value.name for value in graph.output}
    uses: Uses = {}
    layers = _layers(graph)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if node.op_type != "CastLike" or i == 0:  # the other input only has a type
                uses.setdefault(name, []).append((node, i))
    copies: Arrays = {}
    for name, value in arrays.items():
        readers = uses.get(name, [])
        aliases = [
            node
            for node, _ in readers
            if node.op_type == "Identity" and node.output[0] not in outputs and "/" not in node.name
        ]
        direct = [use for use in readers if use[0] not in aliases]
        through = [use for node in aliases for use in uses.get(node.output[0], [])]
        # The older exporter writes an alias for each copy: others read a tied weight directly.
        is_tied = not through and any(_about(node, _SCOPES) is None for node, _ in direct)
        if not is_tied and _are_copies(value, direct + through, layers):
            copies[name] = value
        elif name not in even:
            continue
        for node in aliases:
            copy = node.output[0]
            added[copy] = even[copy] = value
            graph.node.remove(node)
        uses[name] = direct
    for name, value in (even | copies).items():
        for copy in _give_copies(graph, name, uses.get(name, []), layers, name in copies, taken):
            added[copy] = value
    return added


def _single(graph: Any) -> set[str]:
    """Return the names of parameters and statistics, which may be single numbers."""
    found = {
        node.input[i]
        for node in graph.node
        for i in _OWN.get(node.op_type, ())
        if i < len(node.input)
    }
    aliases = [node for node in graph.node if node.op_type == "Identity"]
    return found | {node.input[0] for node in aliases if node.output[0] in found}


def _give_copies(
    graph: Any,
    name: str,
    readers: list[tuple[Any, int]],
    layers: dict[str, str],
    is_copied: bool,
    taken: set[str],
) -> list[str]:
    """Let each layer read its own copy of a tensor, named after the layer. Return the new names."""
    own = [layers[_output(node)] for node, _ in readers]
    wanted = [
        f"{layer}.{_slot(node.op_type, i)}" for layer, (node, i) in zip(own, readers, strict=True)
    ]
    ops = {node.op_type for node, _ in readers}
    if is_numbered(name) and (ops <= _NORMS or ops == {"MatMul"}):
        wanted = [name] * len(readers)
    elif is_copied and own and name.startswith(f"{own[0]}."):
        wanted = [layer + name.removeprefix(own[0]) for layer in own]
    owner = wanted.index(name) if name in wanted else 0
    # (layer, wanted name of its copy) -> (real name of the copy, first node that reads the copy)
    given: dict[tuple[str, str], tuple[str, Any]] = {}
    made = []
    if readers:
        given[own[owner], wanted[owner]] = name, readers[owner][0]
    for place, (node, i) in enumerate(readers):
        if place == owner:
            continue
        key = own[place], wanted[place]
        before, first = given.get(key, ("", node))
        is_numbered_call = module_of(first) != module_of(node)
        is_same = is_numbered_call or node.op_type in {*_LAYERS, "PRelu"}
        if before and (is_same or _add_to_same_weight(graph, first, node)):
            node.input[i] = before  # a second call of the same layer reads the same copy
            continue
        node.input[i] = free_name(wanted[place], taken)
        made.append(node.input[i])
        given[key] = node.input[i], node
    return made


def _add_to_same_weight(graph: Any, first: Any, second: Any) -> bool:
    products = [node for node in graph.node if node.op_type == "MatMul"]
    weights = [
        {product.input[1] for product in products if product.output[0] in node.input}
        for node in (first, second)
    ]
    return bool(weights[0] & weights[1])


def _omitted_biases(graph: Any, arrays: Arrays, taken: set[str]) -> Arrays:
    """Add the biases of zeros that an exporter removed. Return these biases by name.

    The metadata of a node states that its bias was removed.
    """
    added: Arrays = {}
    of: dict[str, str] = {}
    for node in graph.node:
        weight = arrays.get(node.input[1]) if len(node.input) == 2 else None
        if weight is None or _about(node, _RULE) not in _NO_BIAS:
            continue
        given = {value.name: value.i for value in node.attribute}
        is_transposed = given.get("transB") or node.op_type == "Conv"
        size = weight.shape[0] if is_transposed else weight.shape[1] * given.get("group", 1)
        name = of.get(node.input[1])
        if name is None:
            layer = node.input[1].removesuffix("weight")
            own = f"{layer}bias" if layer != node.input[1] else f"{module_of(node)}.bias"
            name = of[node.input[1]] = free_name(own, taken)
            added[name] = np.zeros(size, np.float32)
        node.input.append(name)
    return added


def _layers(graph: Any) -> dict[str, str]:
    """Return the name of each node's module, by the node's first output.

    If a module is called several times, exporters append the number of the call to its name. This
    number is removed.
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


def _are_copies(value: Array, readers: list[tuple[Any, int]], layers: dict[str, str]) -> bool:
    """Return True if layers of the same kind in different modules read the tensor."""
    kinds = {(node.op_type, _slot(node.op_type, i)) for node, i in readers}
    (op, _), *others = kinds or {("", "")}
    known = all(
        node.name.count("/") > 1 or _about(node, _SCOPES) is not None for node, _ in readers
    )
    plain = op in _LAYERS or (op == "Add" and value.ndim == 1)
    own = {layers[_output(node)] for node, _ in readers}
    return plain and known and not others and len(own) > 1 and value.size > 1


def _slot(op: str, number: int) -> str:
    """Return the parameter name (weight, bias, ...) of input `number` of the operator `op`."""
    if op == "Transpose":
        return "weight"
    return "bias" if op == "Add" else _SLOTS[(number - 1) % len(_SLOTS)]


def _linear_weights(
    onnx: ModuleType, graph: Any, arrays: Arrays, taken: set[str]
) -> tuple[Arrays, set[str]]:
    """Transpose the weights of linear layers back to the layout in the module.

    Return the weights by their names in the module, and the names of the initialisers that they
    replace. If a weight equals the transpose of an embedding table, the layer shares this table.
    """
    added: Arrays = {}
    gone: set[str] = set()
    nodes, layers = list(graph.node), _layers(graph)
    tables = [node.input[0] for node in nodes if node.op_type == "Gather"]
    for at, node in enumerate(nodes):
        weight = node.input[1] if node.op_type == "MatMul" else ""
        if weight not in arrays or arrays[weight].ndim != 2 or not is_numbered(weight):
            continue
        readers = [reader for reader in nodes if weight in reader.input]
        if weight in gone or len({layers[_output(reader)] for reader in readers}) > 1:
            continue
        value = np.ascontiguousarray(arrays[weight].T)
        own = next((name for name in tables if _equal(arrays.get(name), value)), None)
        if own is None:
            own = _weight_name(node, nodes[at:], arrays)
            if own is None or own in taken:
                continue
            taken.add(own)
            added[own] = value
        gone.add(weight)
        transpose = onnx.helper.make_node("Transpose", [own], [weight], f"{own}.T", perm=[1, 0])
        graph.node.insert(list(graph.node).index(node), transpose)
    return added, gone


def _equal(a: Array | None, b: Array) -> bool:
    return a is not None and a.dtype == b.dtype and np.array_equal(a, b)


def _weight_name(node: Any, following: list[Any], arrays: Arrays) -> str | None:
    """Return the name that a linear layer's weight has in its module, or None if it is unknown.

    The name is derived from the name of the layer's bias.
    """
    module = module_of(node)
    sums = [n for n in following if n.op_type == "Add" and node.output[0] in n.input]
    biases = {name for n in sums for name in n.input if name in arrays} or {f"{module}.bias"}
    bias = biases.pop()
    known = not biases and bias.startswith(f"{module}.") and bias.endswith("bias")
    return f"{bias.removesuffix('bias')}weight" if known else None
