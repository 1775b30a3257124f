"""Walk through an ONNX model: every node becomes layers, a constant, or a reported problem.

Each supported operator has a rule in operators.py: a function that takes an ImportedNode.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..errors import BadInput
from ..graph.builder import Tensor
from .advice import ADVICE, OF_SIZES, advice
from .context import Context, Deferred, Parts, Unknown, Unsupported
from .fold import Constant, computed, fold
from .fuse import fused
from .gates import TO_PYTORCH as RECURRENT
from .model import OnnxNode, needed_for
from .node import ImportedNode, Rule
from .tokens import TokenValues, evaluate_for_texts, is_evaluable, is_uniform


class Untrainable(BadInput):
    """The model cannot be trained as an exporter wrote it. `problems` is the number of reasons."""

    def __init__(self, message: str, problems: int = 1) -> None:
        super().__init__(message)
        self.problems = problems


def _is_linear_of_zeros(node: OnnxNode, inputs: Sequence[object]) -> bool:
    """Return True for a linear layer of zeros, as of the state before the first GRUCell.

    It stays a layer, so that its bias is trained.
    """
    first, weight = [*inputs, None, None][:2]
    return (
        node.op in ("Gemm", "MatMul")
        and isinstance(first, Constant)
        and isinstance(weight, Constant)
        and not first.value.any()
        and not weight.computed
        and weight.value.dtype == np.float32
    )


class Walk:
    """Builds the layers of the ONNX model that `context` imports, node by node."""

    def __init__(self, context: Context, rules: Mapping[str, Rule]) -> None:
        self.context, self.rules = context, rules
        self.model, self.values, self.problems = context.model, context.values, context.problems
        self._is_operator_missing = False  # True if any node has an operator without a rule

    def run(self) -> list[Tensor]:
        """Build all layers and return the model's outputs.

        Raises Untrainable, which lists every node that cannot be trained.
        """
        model, values = self.model, self.values
        for node in model.nodes:
            self._fold(node)
        known = {name: v.value for name, v in values.items() if isinstance(v, Constant)}
        model.nodes = needed_for(model.outputs.values(), fused(model.nodes, known, model.shapes))
        for node in model.nodes:
            if node.outputs[0] not in values:
                self._build(node)
        if self.problems:
            listed = "".join(f"\n  {line}" for line in self.problems.values())
            if self._is_operator_missing:
                listed += f"\n  supported operators: {', '.join(sorted(self.rules))}"
            count = f"{len(self.problems)} of {len(model.nodes)}"
            text = f"{model.where}: {count} nodes cannot be trained:{listed}"
            raise Untrainable(text, len(self.problems))
        return [self._output(name) for name in model.outputs.values()]

    def _output(self, name: str) -> Tensor:
        found, model = self.values.get(name), self.model
        if isinstance(found, Parts):
            raise Untrainable(
                f"{model.where}: the output {name} of the model is a sequence of tensors: export "
                "the model with tensors as outputs"
            )
        if found is None or isinstance(found, Constant | TokenValues):
            raise Untrainable(
                f"{model.where}: no layer computes the output {name} of the model from its input: "
                "export the output of a layer"
            )
        if isinstance(found, Tensor):
            return found
        try:
            return self.context.materialise(found, "output")
        except Unsupported as problem:
            raise Untrainable(f"{model.where}: the output {name} of the model: {problem}") from None

    def _fold(self, node: OnnxNode) -> None:
        """Compute the outputs of a node if all its inputs are constants."""
        inputs = [self.values.get(name) for name in node.inputs]
        known = [value for value in inputs if value is None or isinstance(value, Constant)]
        missing = any(name and name not in self.values for name in node.inputs)
        is_kept = "Random" in node.op or _is_linear_of_zeros(node, inputs)
        is_kept |= self._is_repeated_for_samples(node)
        if missing or len(known) < len(inputs) or is_kept:
            return
        try:
            self.values |= fold(self.model, node, known)
        except Exception as error:  # noqa: BLE001 - of onnx's reference implementation
            reason = (
                f"the node cannot be computed ({error}): simplify the model and export it again"
            )
            self._report(node, ADVICE.get(node.op, reason))

    def _is_repeated_for_samples(self, node: OnnxNode) -> bool:
        """Return True if a node repeats a tensor of the file for each sample.

        The tensor is trained without the repetition. The rule of what reads it repeats it instead:
        of Concat, or of a recurrent layer.
        """
        first = self.values.get(node.inputs[0]) if node.op == "Expand" else None
        plain = isinstance(first, Constant) and not first.computed and first.value.size > 1
        readers = self.context.readers(node.outputs[0])
        ops = {reader.op for reader in readers}
        if ops == {"Slice"}:  # of the states of several layers
            names = (reader.outputs[0] for reader in readers)
            ops = {reader.op for name in names for reader in self.context.readers(name)}
        return plain and (ops == {"Concat"} or (bool(ops) and ops <= RECURRENT.keys()))

    def _build(self, node: OnnxNode) -> None:
        """Add the layers of a node. If it depends on shapes alone, its outputs become constants."""
        rule, output = self.rules.get(node.op), node.outputs[0]
        try:
            self._fold_shape(node)
            self._fold(node)
            self._evaluate_tokens(node)
            if output in self.values or output in self.problems:
                return
            if rule is None:
                self._check_known(node)
                self._is_operator_missing = True
                raise Unsupported(advice(node.op))
            made = rule(ImportedNode(self.context, node))
            outputs = made if isinstance(made, list) else [made]
            self.values |= zip(node.outputs, outputs, strict=False)
            if output in self.context.fused:
                self.values[self.context.fused[output]] = self.values[output]
        except Unknown:
            pass
        except (Unsupported, BadInput) as problem:
            self._report(node, str(problem))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            self._report(
                node, f"the node violates the ONNX standard ({reason}): export the model again"
            )

    def _check_known(self, node: OnnxNode) -> None:
        """Raise Unknown if the node may become a constant, but the problem of an input hides it."""
        is_known = all(name in self.values for name in node.inputs if name)
        if self.problems and not is_known and node.op in OF_SIZES:
            raise Unknown

    def _evaluate_tokens(self, node: OnnxNode) -> None:
        """Evaluate a node for the sample texts, if it depends on tokens and constants alone."""
        context = self.context
        inputs: list[TokenValues | Constant | None] = []
        values = [self.values.get(name) for name in node.inputs]
        if not context.texts or node.outputs[0] in self.values:
            return
        for name, value in zip(node.inputs, values, strict=True):
            if isinstance(value, Tensor) and value.name in context.texts:
                dtype = context.inputs[value.name].dtype
                texts = (text.astype(dtype) for text in context.texts[value.name])
                inputs.append(TokenValues(tuple(text.reshape(value.shape) for text in texts)))
            elif isinstance(value, TokenValues | Constant) or not name:
                inputs.append(value)  # type: ignore[arg-type]
            else:
                return
        of_tokens = [value for value in inputs if isinstance(value, TokenValues)]
        if node.op == "Gather" and isinstance(inputs[0], Constant):
            return  # an embedding
        is_data_alone = not any(isinstance(value, TokenValues) for value in values)
        if not of_tokens or not is_evaluable(node, is_data_alone):
            return
        if node.op == "Reshape" and isinstance(shape := inputs[1], Constant):
            sizes = context.with_batch(of_tokens[0].shape, shape.value.tolist())
            inputs[1] = computed(node.inputs[1], np.array(sizes, np.int64))
        found = evaluate_for_texts(self.model, node, inputs)
        first = inputs[0]
        if node.op == "GatherElements" and isinstance(first, Constant) and is_uniform(first.value):
            # It selects the same integer, whatever the tokens are.
            self.values[node.outputs[0]] = computed(node.outputs[0], found[0].values[0])
            return
        self.values |= zip(node.outputs, found, strict=True)

    def _fold_shape(self, node: OnnxNode) -> None:
        """Compute a node if it needs only the shape or type of a tensor, not its values."""
        x = self.values.get(node.inputs[-1]) if node.inputs else None
        output = node.outputs[0]
        if node.op == "Shape" and isinstance(x, Tensor | Deferred | TokenValues):
            whole = np.array(x.shape, np.int64)
            part = whole[node.attributes.get("start", 0) : node.attributes.get("end")]
            self.values[output] = computed(output, part)
        given = self.values.get(node.inputs[0]) if node.inputs else None
        if node.op != "CastLike" or not isinstance(given, Constant):
            return
        if isinstance(x, Tensor | Deferred):
            name = x.name if isinstance(x, Tensor) else x.tensor.name
            given_as = self.context.inputs.get(name)
            kind = given_as.dtype if given_as else np.float32
            self.values[output] = computed(output, given.value.astype(kind))

    def _report(self, node: OnnxNode, problem: str) -> None:
        text = f"{node.name} ({node.op})"
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        self.problems.setdefault(node.outputs[0], f"{text}: {problem}")
        for name in node.outputs:
            if name in self.model.shapes:
                self.context.unknown.add(name)
                self.values[name] = Tensor(self._placeholder, self.model.shapes[name])

    @cached_property
    def _placeholder(self) -> str:
        """Return the name of a tensor that replaces the outputs of nodes with problems.

        With this tensor, the later nodes can be checked, so that one error lists all problems.
        """
        name = self.context.free_name("unknown")
        return self.context.builder.layer("parameter", (), (1,), name=name).name
