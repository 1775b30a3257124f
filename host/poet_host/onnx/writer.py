"""Nodes of an .onnx file that is written from a graph, for batches of any size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph, Node
from ..graph.source import source_of
from ..graph.weights import weight_nodes

Sizes = tuple[int, ...]


class Unwritten(Exception):
    """ONNX has no operator for a node that does the same for every batch."""


def fields(node: Node, *names: str) -> Sizes:
    """Sizes that the kernel of a node is told; 0 where there is nothing to tell."""
    return tuple(int(node.attrs.get(name, 0)) for name in names)


class Writer:
    """Collects nodes and constants. A tensor of the graph has its name and, if it follows from the
    data, its shape with the batch in front open.
    """

    def __init__(self, onnx: Any, graph: Graph) -> None:
        self.onnx, self.graph = onnx, graph
        self.nodes: list[Any] = []
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._files = {node.name: source_of(graph, node).names for node in weight_nodes(graph)}
        self._from_data = {graph.data}
        self._shaped: dict[tuple[str, str], str] = {}

    def is_from_data(self, name: str) -> bool:
        return name in self._from_data

    def constant(self, value: NDArray[Any]) -> str:
        """The name of a tensor with these values."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            name = f"constant:{len(self._constants)}"
            self._constants[key] = self.onnx.numpy_helper.from_array(value, name)
        return str(self._constants[key].name)

    @property
    def constants(self) -> list[Any]:
        return list(self._constants.values())

    def numbers(self, *values: float) -> list[str]:
        """Names of numbers; those that are infinite, and so bound nothing, are left out."""
        return [self.constant(np.array(v, np.float32)) if np.isfinite(v) else "" for v in values]

    def add(self, op: str, node: Node, *inputs: str, **attributes: Any) -> None:
        """The operator that computes `node`, in its shape; parameters have their names in files."""
        self.finish(node, self.make(op, *inputs, **attributes))

    def make(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output, yet without a name of its own, of an operator."""
        names = [name for one in inputs for name in self._files.get(one, (one,))]
        output = f"{op}:{len(self.nodes)}"
        made = self.onnx.helper.make_node(op, names, [output], output, **attributes)
        self.nodes.append(made)
        return output

    def finish(self, node: Node, made: str, tail: Sizes | None = None) -> None:
        """`made` by the last operator is `node`; its shape is another unless it ends with `tail`
        and has one axis in front of that.
        """
        if not self._from_data.isdisjoint(node.inputs):
            self._from_data.add(node.name)
            if node.shape[0] != self.graph.batch:
                raise Unwritten
        if tail is not None and (len(tail) + 1, tail) != (len(node.shape), node.shape[1:]):
            made = self.make("Reshape", made, self.constant(np.array(self._open(node.name))))
        self.nodes[-1].output[0] = self.nodes[-1].name = node.name

    def _open(self, name: str) -> Sizes:
        shape = self.graph[name].shape
        return (-1, *shape[1:]) if self.is_from_data(name) else shape

    def seen(self, name: str, shape: Sizes) -> str:
        """The tensor `name`, each sample of it in this shape."""
        if self.graph[name].shape[1:] == shape:
            return name
        return self.shaped(name, (-1, *shape))

    def rows(self, name: str, shape: Sizes) -> str:
        """The tensor `name` as rows that have this shape, flat."""
        size = int(np.prod(shape))
        return name if self.graph[name].shape[1:] == (size,) else self.shaped(name, (-1, size))

    def shaped(self, name: str, sizes: Sequence[int]) -> str:
        """The tensor `name` in these sizes, one of which may be -1."""
        shape = self.constant(np.array(sizes, np.int64))
        if (name, shape) not in self._shaped:
            self._shaped[name, shape] = self.make("Reshape", name, shape)
        return self._shaped[name, shape]

    def led(self, name: str, sizes: Sizes, axis: int) -> str:
        """The tensor `name` in these sizes behind the batch, which `axis` held too; each sample
        reads the same of what is of no sample.
        """
        if not self.is_from_data(name):
            return self.shaped(name, (1, *sizes))
        if sizes[axis] % self.graph.batch:
            raise Unwritten
        rest = (*sizes[:axis], sizes[axis] // self.graph.batch, *sizes[axis + 1 :])
        return self.shaped(name, (-1, *rest))
