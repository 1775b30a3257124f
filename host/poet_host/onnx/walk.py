"""Walking through an ONNX model: every node becomes layers, a constant, or a line of complaint.

What an operator becomes is a row in operators.py, a function of an `At`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..graph.builder import Builder, Tensor
from ..graph.graph import Node
from ..graph.operators import Shape
from ..graph.source import Source
from .advice import ADVICE, advice
from .node import At, Moved, Parts, Rule, Unknown, Unsupported, Value, is_scalar
from .fold import Constant, computed, fold, initial_constants
from .fuse import fused
from .model import OnnxModel, OnnxNode, needed_for
from .names import free_name
from .tokens import Hidden, OfTokens, computed_of, follows, sample_texts

Array = NDArray[Any]

_LEGAL = re.compile(r"\w[\w.-]*")
_ENDINGS = re.compile(
    r"[._/](weight|bias|gamma|beta|scale|kernel|embeddings?)(:0)?$|[._/](MatMul|Conv2D)/.*$"
)


class Walk:
    """`values` are the model's tensors so far, by their names in the file.

    `made` are values of parameters that are no initialisers of the file, by name. `file_batch` is
    the batch that sizes in the file are for.
    """

    def __init__(
        self, model: OnnxModel, builder: Builder, rules: Mapping[str, Rule], file_batch: int
    ) -> None:
        self.model = model
        self.builder = builder
        self.file_batch = file_batch
        self.values: dict[str, Value] = dict(initial_constants(model))
        self.values[model.input.name] = builder.data
        self.made: dict[str, Array] = {}
        self.unknown: set[str] = set()  # of these only the shape is known
        self.problems: dict[str, str] = {}
        self._rules = rules
        self._unbuilt = False  # has any node an operator that is no row?
        self._readers = Counter(name for node in model.nodes for name in node.inputs)
        self._parameters: dict[str, Node] = {}
        self._stored: dict[str, Tensor] = {}
        self.texts = sample_texts(builder.data.shape) if self._reads_tokens else ()
        self.hidden: dict[str, Hidden] = {}  # what softmaxes took no notice of, by their tensors
        self.ready: set[str] = set()  # the data, less their mean and so on
        self._names = {"data", "label"}
        self._done: dict[str, str] = {}  # outputs of nodes that did what the node behind them does

    def run(self) -> Tensor:
        """The model's output; BadInput lists every node that stands in the way."""
        for node in self.model.nodes:
            self._constant(node)
        known = {name: v.value for name, v in self.values.items() if isinstance(v, Constant)}
        nodes = fused(self.model.nodes, known, self.model.shapes)
        self.model.nodes = needed_for(self.model.output, nodes)
        self._readers = Counter(name for node in self.model.nodes for name in node.inputs)
        for node in self.model.nodes:
            if node.outputs[0] not in self.values:
                self._node(node)
        if self.problems:
            listed = "".join(f"\n  {line}" for line in self.problems.values())
            if self._unbuilt:
                listed += f"\n  operators that are built: {', '.join(sorted(self._rules))}"
            count, total = len(self.problems), len(self.model.nodes)
            raise BadInput(
                f"{self.model.where}: {count} of {total} nodes cannot be trained here:{listed}"
            )
        found = self.values.get(self.model.output)
        if isinstance(found, Parts):
            raise BadInput(f"{self.model.where}: its output is a sequence: export one tensor of it")
        if found is None or isinstance(found, Constant | OfTokens):
            raise BadInput(f"{self.model.where}: its output does not depend on its input")
        try:
            return self.made_of(found, "output") if isinstance(found, Moved) else found
        except Unsupported as problem:
            raise BadInput(
                f"{self.model.where}: its output {self.model.output}: {problem}"
            ) from None

    def made_of(self, value: Moved, name: str) -> Tensor:
        """The tensor with its factor, in its order, padded."""
        if value.hides:
            raise Unsupported("it reads masked scores: only a softmax may")
        made = value.tensor
        if value.factor != 1:
            scaled = self.free_name(f"{name}.scaled")
            made = self.builder.layer("scale", (made,), value.factor, name=scaled)
        if value.order != tuple(range(len(value.order))):
            moved = self.free_name(f"{name}.moved")
            made = self.builder.layer("transpose", (made,), value.order, name=moved)
        if value.pads and value.filling != 0:
            raise Unsupported("only MaxPool takes padding with the least number: pad with zeros")
        for axis, (before, behind) in enumerate(value.pads):
            if before or behind:
                padded = self.free_name(f"{name}.padded")
                made = self.builder.layer("pad", (made,), axis, before, behind, name=padded)
        return made

    def _constant(self, node: OnnxNode) -> None:
        """What follows from constants alone."""
        inputs = [self.values.get(name) for name in node.inputs]
        known = [one for one in inputs if one is None or isinstance(one, Constant)]
        missing = any(name and name not in self.values for name in node.inputs)
        if missing or len(known) < len(inputs) or "Random" in node.op or self.is_shared(node):
            return
        try:
            self.values |= fold(self.model, node, known)
        except Exception as error:  # noqa: BLE001 - of onnx's reference implementation
            reason = f"it cannot be computed ({error}): simplify the model and export again"
            self._complain(node, ADVICE.get(node.op, reason))

    def is_shared(self, node: OnnxNode) -> bool:
        """Does it repeat what the file holds, to be concatenated with every sample?

        That is trained as it is in the file; the concatenation repeats it.
        """
        first = self.values.get(node.inputs[0]) if node.op == "Expand" else None
        plain = isinstance(first, Constant) and not first.computed and first.value.size > 1
        return plain and {reader.op for reader in self.readers(node.outputs[0])} == {"Concat"}

    def _node(self, node: OnnxNode) -> None:
        """Second pass: shapes are known, so what depends on them alone is constant too."""
        rule = self._rules.get(node.op)
        try:
            self._shape(node)
            self._constant(node)
            self._of_tokens(node)
            if {node.outputs[0]} & (self.values.keys() | self.problems.keys()):
                return
            if rule is None:
                self._unbuilt = True
                raise Unsupported(advice(node.op))
            made = rule(At(self, node))
            self.values |= zip(
                node.outputs, made if isinstance(made, list) else [made], strict=False
            )
            if node.outputs[0] in self._done:
                self.values[self._done[node.outputs[0]]] = self.values[node.outputs[0]]
        except Unknown:
            pass
        except (Unsupported, BadInput) as problem:
            self._complain(node, str(problem))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            self._complain(node, f"it is not as ONNX has it ({reason}): export the model again")

    @property
    def _reads_tokens(self) -> bool:
        return self.model.input.dtype.kind in "iu"

    def _of_tokens(self, node: OnnxNode) -> None:
        """What follows from the tokens, and constants, alone."""
        inputs: list[OfTokens | Constant | None] = []
        read = [self.values.get(name) for name in node.inputs]
        if not self._reads_tokens or node.outputs[0] in self.values:
            return
        for name, value in zip(node.inputs, read, strict=True):
            if isinstance(value, Tensor) and value.name == self.builder.data.name:
                texts = (text.astype(self.model.input.dtype) for text in self.texts)
                inputs.append(OfTokens(tuple(text.reshape(value.shape) for text in texts)))
            elif isinstance(value, OfTokens | Constant) or not name:
                inputs.append(value)  # type: ignore[arg-type]
            else:
                return
        of_data = [one for one in inputs if isinstance(one, OfTokens)]
        if node.op == "Gather" and isinstance(inputs[0], Constant):
            return  # an embedding
        if not of_data or not follows(node, not any(isinstance(one, OfTokens) for one in read)):
            return
        if node.op == "Reshape" and isinstance(shape := inputs[1], Constant):
            sizes = At(self, node).for_batch(of_data[0].shape, shape.value.tolist())
            inputs[1] = computed(node.inputs[1], np.array(sizes, np.int64))
        self.values |= zip(node.outputs, computed_of(self.model, node, inputs), strict=True)

    def _shape(self, node: OnnxNode) -> None:
        """What asks for no more of computed tensors than their shape or type."""
        x = self.values.get(node.inputs[-1]) if node.inputs else None
        if node.op == "Shape" and isinstance(x, Tensor | Moved | OfTokens):
            whole = np.array(x.shape, np.int64)
            part = whole[node.attributes.get("start", 0) : node.attributes.get("end")]
            self.values[node.outputs[0]] = computed(node.outputs[0], part)
        given = self.values.get(node.inputs[0]) if node.inputs else None
        if node.op == "CastLike" and isinstance(x, Tensor | Moved) and isinstance(given, Constant):
            name = x.name if isinstance(x, Tensor) else x.tensor.name
            kind = self.model.input.dtype if name == self.builder.data.name else np.float32
            self.values[node.outputs[0]] = computed(node.outputs[0], given.value.astype(kind))

    def _complain(self, node: OnnxNode, problem: str) -> None:
        text = "".join(one if one.isprintable() else "?" for one in f"{node.name} ({node.op})")
        self.problems.setdefault(node.outputs[0], f"{text}: {problem}")
        for name in node.outputs:
            if name in self.model.shapes:
                self.unknown.add(name)
                self.values[name] = Tensor(self._stand_in, self.model.shapes[name])

    @cached_property
    def _stand_in(self) -> str:
        """A tensor in place of what could not be made, so that problems behind it are found too."""
        return self.builder.layer("parameter", (), (1,), name=self.free_name("unknown")).name

    def parameter(
        self,
        layer: str,
        slot: str,
        given: tuple[Constant, ...],
        shape: Shape,
        role: Literal["parameter", "state"] = "parameter",
    ) -> Node:
        if sum(one.value.size for one in given) != prod(shape):
            raise Unsupported(
                f"{given[0].source.names[0]} has shape {given[0].value.shape}, {slot} needs {shape}"
            )
        source = Source(
            tuple(name for one in given for name in one.source.names),
            given[0].source.shape,
            given[0].source.transposed,
            any(one.computed for one in given),
        )
        if len({(one.source.shape, one.source.transposed) for one in given}) > 1:
            raise Unsupported("its running statistics differ in shape")
        start = source.start()
        role = "state" if any(map(self.is_fixed, given)) else role
        if start not in self._parameters:
            if not all(np.isfinite(one.value).all() for one in given):
                raise Unsupported(
                    f"{source.names[0]} holds NaN or infinity: export a model with finite weights"
                )
            name = source.names[0]
            if role == "state" or not _LEGAL.fullmatch(name) or name in self._names:
                name = f"{layer}.{slot}"
            self._names.add(name)
            self._parameters[start] = Node(name, shape, role=role, start=start)
            for one in given:
                if one.computed:
                    file = one.value.T if one.source.transposed else one.value
                    self.made[one.source.names[0]] = file
        found = self._parameters[start]
        if found.shape != shape:
            raise Unsupported(f"{source.names[0]} is used in two shapes: give each use its own")
        return found

    def layer_name(self, node: OnnxNode, parameters: tuple[Constant | None, ...]) -> str:
        for name in (one.source.names[0] for one in parameters if one):
            if _ENDINGS.search(name) and _plain(_ENDINGS.sub("", name)):
                return self.free_name(_plain(_ENDINGS.sub("", name)))
        return self.free_name(self.plain_name(node))

    def plain_name(self, node: OnnxNode) -> str:
        return _plain(node.module) or node.op

    def free_name(self, name: str) -> str:
        return free_name(name, self._names)

    def is_fixed(self, given: Constant) -> bool:
        """Is it a buffer or a frozen parameter of a module, which PyTorch does not train either?"""
        return given.source.names[0] in self.model.fixed

    def is_learnt(self, given: Constant) -> bool:
        """Is it known to be a parameter, even if it is but a number?"""
        return not given.computed and given.source.names[0] in self.model.learnt

    def stored(self, layer: str, given: Constant, role: Literal["parameter", "state"]) -> Tensor:
        """A constant as a tensor of the model."""
        shape = given.value.shape or (1,)
        node = self.parameter(layer, "value", (given,), shape, role)
        kept = self._stored.get(node.name)
        if kept is None:
            trainable = role == "parameter"
            kept = self.builder.layer(
                "parameter", (), shape, name=layer, trainable=trainable, parameters={"weight": node}
            )
            self._stored[node.name] = kept
        return kept

    def factor_behind(self, node: OnnxNode, rank: int) -> float:
        output = node.outputs[0]
        after = self._only_reader(output)
        if after is None or after.op not in ("Mul", "Div"):
            return 1.0
        other = self.values.get(next((name for name in after.inputs if name != output), ""))
        if (
            other is None
            or not is_scalar(other, rank)
            or self.is_learnt(other)
            or (after.op == "Div" and after.inputs[0] != output)
        ):
            return 1.0
        factor = float(other.value.reshape(-1)[0])
        self._done[output] = after.outputs[0]
        return 1 / factor if after.op == "Div" else factor

    def part_of(self, layer: str, given: Constant) -> Tensor:
        """Part of a tensor of the file, all of which is stored and trained."""
        assert given.part
        whole = Constant(self.model.constants[given.source.names[0]], given.source)
        kept = self.stored(layer, whole, "parameter")
        part = self.builder.layer("slice", (kept,), *given.part, name=self.free_name(layer))
        return Tensor(part.name, given.value.shape)

    def readers(self, name: str) -> list[OnnxNode]:
        return [node for node in self.model.nodes if name in node.inputs]

    def _only_reader(self, name: str) -> OnnxNode | None:
        if self._readers[name] != 1 or name == self.model.output:
            return None
        return self.readers(name)[0]

    def added(self, node: OnnxNode, size: int, axis: int, rank: int) -> Constant | None:
        output = node.outputs[0]
        after = self._only_reader(output)
        if after is None or after.op != "Add":
            return None
        name = next((name for name in after.inputs if name != output), "")
        other = self.values.get(name)
        if not isinstance(other, Constant):
            return None
        other, shape = other.whole(name), other.value.shape
        if not -axis <= len(shape) <= rank or shape[axis] != size or other.value.size != size:
            return None
        self._done[output] = after.outputs[0]
        return other


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_.-")
