"""Graph: one training step as tensors and operators in execution order.

A node is one tensor. A *stored* node is on storage when the step begins: data, parameters,
optimiser state. Every other node is the output of one kernel. `Graph.check` checks the rules that
every Graph obeys. These rules ensure that every schedule of a step computes the same result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

from ..errors import BadInput

Role = Literal["data", "parameter", "state", "value"]
Phase = Literal["stored", "forward", "backward", "update"]


@dataclass(frozen=True)
class Node:
    """One tensor and the operator that computes it.

    `start` defines the first value of a parameter or state: "zeros", "ones", "running" (row 0
    zeros, row 1 ones), "normal:DEVIATION", "kaiming:FAN_IN" (uniform within +-1/sqrt(FAN_IN), as
    in PyTorch's layers), "values:NUMBER,...", or the names of tensors in the model's file
    (`source.Source.start`).
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "value"
    phase: Phase = "stored"
    op: str = "none"  # the name of a KERNEL row in isa.def
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, int | float] = field(default_factory=dict)  # fields of `struct poet_op`
    sink: str = "none"  # the name of a SINK row in isa.def
    overwrites: str | None = None  # name of the input whose memory the output reuses
    # Name of the stored node that gets the value of this node.
    # A node with `updates` is computed once, and its value is on storage when the step ends.
    updates: str | None = None
    dtype: Literal["float32", "int32"] = "float32"
    start: str = ""

    @property
    def stored(self) -> bool:
        return self.role != "value"

    @property
    def size_bytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True)
class Part:
    """A named part of the rows of samples, for a model with several inputs or outputs."""

    name: str
    shape: tuple[int, ...]  # of one sample
    dtype: Literal["float32", "int32"]
    limit: int = 2**31  # integers are from 0 to `limit` - 1


@dataclass(frozen=True)
class Target(Part):
    """The labels of one of several outputs. A loss compares the output with them."""

    output: str = ""  # node of the output
    criterion: str = ""  # losses.Loss as text
    weight: float = 1.0  # factor of the loss in the sum of all losses

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output for one sample: labels of classes have logits."""
        return (*self.shape, self.limit) if self.dtype == "int32" else self.shape


@dataclass(frozen=True)
class Graph:
    """A training step."""

    name: str
    nodes: tuple[Node, ...]  # in execution order: the inputs of a node come before it
    data: str  # `data`, `label`, `loss` and `logits` are names of nodes
    label: str
    loss: str
    logits: str
    origin: bytes = field(default=b"", repr=False)  # the .onnx file of an imported model
    # Names of PyTorch parameters that the trained weights will not contain, for example because the
    # exporter computed another tensor from them (see onnx/returning.py).
    lost: tuple[str, ...] = ()
    criterion: str = ""  # losses.Loss as text; "" if the kernel of `loss` names the loss
    # The inputs of a model with several. A sample of the data is a row with one after the other.
    # The nodes that take the inputs out of the rows have their names.
    inputs: tuple[Part, ...] = ()
    targets: tuple[Target, ...] = ()  # of a model with several outputs, the same for `label`
    made_up: tuple[str, ...] = ()  # trained tensors that the PyTorch module does not have

    def __post_init__(self) -> None:
        self.check()

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes, batch {self.batch}>"

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, name: str) -> Node:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def batch(self) -> int:
        return self[self.data].shape[0]

    @property
    def batches_per_update(self) -> int:
        """Return of how many batches each update of the weights accumulates the gradients."""
        return max(int(node.attrs.get("period", 0)) for node in self.nodes) or 1

    @property
    def trainable(self) -> tuple[Node, ...]:
        """Return stored nodes that the step updates: parameters, momentum, running statistics."""
        updated = {node.updates for node in self.nodes}
        return tuple(node for node in self.nodes if node.name in updated)

    @property
    def kernels(self) -> frozenset[str]:
        """Return the names of all kernels that train the model. They suffice for inference."""
        joins = ("concat",) if self.targets else ()  # an inference joins the outputs
        return frozenset((*joins, *(node.op for node in self.nodes if not node.stored)))

    def check(self) -> None:
        """Raise BadInput if a node breaks a rule of graphs. The message names the node."""
        seen: set[str] = set()
        overwritten: dict[str, str] = {}
        for node in self.nodes:
            for problem in self._problems(node, seen, overwritten):
                raise BadInput(f"graph {self.name}, node {node.name}: {problem}")
            if node.overwrites is not None:
                overwritten[node.overwrites] = node.name
            seen.add(node.name)
        for key in ("data", "label", "loss", "logits"):
            name = getattr(self, key)
            if name not in seen:
                raise BadInput(f"graph {self.name}: `{key}` is {name}, which is not a node")

    def _problems(
        self, node: Node, seen: set[str], overwritten: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield the rules that a node breaks. `overwritten`: by earlier nodes."""
        over = node.overwrites
        if node.name in seen:
            yield (
                f"{node.updates} is renewed twice in a step: use each batchnorm of the model once, "
                "or set `batchnorm` to frozen"
                if node.updates
                else "another node has the same name: rename one of them"
            )
        for name in node.inputs:
            if name not in seen:
                yield f"the input {name} must be an earlier node, but is not"
            if name in overwritten:
                yield (
                    f"the node cannot read {name}, because the earlier node {overwritten[name]} "
                    f"overwrites {name}"
                )
        if node.stored and node.op != "none":
            yield (
                f"the node has the role {node.role}, so no operator may compute it, but it has the "
                f"operator {node.op}: remove one of them"
            )
        if not node.stored and node.op == "none":
            yield (
                "the node has neither an operator that computes it, nor the role data, parameter "
                "or state: add one of them"
            )
        if over is not None and over not in node.inputs:
            yield f"the node overwrites {over}, which is not one of its inputs"
        if over is not None and self.by_name[over].size_bytes != node.size_bytes:
            yield f"the node overwrites {over}, so both must have the same size"
        if node.updates is not None and node.updates not in node.inputs:
            yield f"the node updates {node.updates}, which is not one of its inputs"
