"""Graph: one training step as tensors and operators in execution order.

A node is one tensor and how it comes to be: a *stored* node lies on storage when the
step begins (data, parameters, optimiser state), every other node is the one output of
one kernel. The laws of the training graph (exactness under any schedule) are checked by
`Graph.check`, so every Graph obeys them whoever built it.
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

    `op` and `sink` are names of rows in isa.def; `attrs` are fields of `struct poet_op`.
    `overwrites` names an input whose memory the result takes over. `updates` names the
    stored node (parameter or state) of which this node is the value after the step: it
    must be on storage when the step ends, and is computed once.
    `start` says how a parameter or state begins: "zeros", "ones", "running" (row 0 zeros,
    row 1 ones), "normal:DEVIATION", "kaiming:FAN_IN" (uniform within +-1/sqrt(FAN_IN), as
    PyTorch's layers) or, as `source.Source` writes it, which tensors of the model's file.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "value"
    phase: Phase = "stored"
    op: str = "none"
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, int | float] = field(default_factory=dict)
    sink: str = "none"
    overwrites: str | None = None
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
class Graph:
    """A training step. `data`, `label`, `loss` and `logits` name nodes of it.

    Nodes are in execution order: every input of a node stands before it. `origin` is the .onnx
    file, as bytes, of a model that was imported; weights go back into it. `lost` names parameters
    of its module that weights files do not have, `made_up` trained tensors that the module does
    not have (see returning.py).
    """

    name: str
    nodes: tuple[Node, ...]
    data: str
    label: str
    loss: str
    logits: str
    origin: bytes = field(default=b"", repr=False)
    lost: tuple[str, ...] = ()
    made_up: tuple[str, ...] = ()

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
    def trainable(self) -> tuple[Node, ...]:
        """Stored nodes that the step renews: parameters, momentum, running statistics."""
        renewed = {node.updates for node in self.nodes}
        return tuple(node for node in self.nodes if node.name in renewed)

    def check(self) -> None:
        """Raise BadInput naming the node that breaks a law of the training graph."""
        seen: set[str] = set()
        overwritten: dict[str, str] = {}
        last_use: dict[str, str] = {}
        for node in self.nodes:
            where = f"graph {self.name}, node {node.name}"
            if node.name in seen:
                raise BadInput(f"{where}: the name is used twice")
            for name in node.inputs:
                if name not in seen:
                    raise BadInput(f"{where}: input {name} is not computed before it")
                if name in overwritten:
                    raise BadInput(f"{where}: input {name} was overwritten by {overwritten[name]}")
                last_use[name] = node.name
            if node.stored != (node.op == "none"):
                raise BadInput(f"{where}: a node is either stored or computed")
            if node.overwrites is not None:
                if node.overwrites not in node.inputs:
                    raise BadInput(
                        f"{where}: overwrites {node.overwrites}, which is not an input of it"
                    )
                if self.by_name[node.overwrites].size_bytes != node.size_bytes:
                    raise BadInput(f"{where}: overwrites {node.overwrites} of another size")
                overwritten[node.overwrites] = node.name
            if node.updates is not None and node.updates not in node.inputs:
                raise BadInput(f"{where}: updates {node.updates}, which is not an input of it")
            seen.add(node.name)
        for name in (self.data, self.label, self.loss, self.logits):
            if name not in seen:
                raise BadInput(f"graph {self.name}: there is no node {name}")
