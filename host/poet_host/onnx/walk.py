"""Walk through an ONNX model: every node becomes layers, a constant, or a reported problem.

Each supported operator has a rule in operators.py: a function that takes an ImportedNode.
"""

from collections.abc import Mapping
from functools import cached_property
from math import prod

import numpy as np

from ..errors import BadInput
from ..graph.builder import Tensor
from .advice import ADVICE, OF_SIZES, advice
from .context import Context, Deferred, Parts, Unknown, Unsupported, Value
from .fold import Constant, computed, fold
from .fuse import fused
from .model import OnnxNode, needed_for
from .node import ImportedNode, Rule
from .tokens import TokenValues, evaluate_for_texts, is_evaluable, is_uniform

# What rules raise for a node that violates the ONNX standard.
_VIOLATIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Untrainable(BadInput):
    """The model cannot be trained as an exporter wrote it. `problems` is the number of reasons."""

    def __init__(self, message: str, problems: int = 1) -> None:
        super().__init__(message)
        self.problems = problems


def _seen(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a computed value in the shape that it has in the file."""
    shape = shape or (1,)
    if isinstance(value, Tensor) and prod(value.shape) == prod(shape):
        return Tensor(value.name, shape)
    assert isinstance(value, Constant | Parts) or np.broadcast_shapes(value.shape, shape) == shape
    return value


class Walk:
    """Builds the layers of the ONNX model that `context` imports, node by node."""

    def __init__(self, context: Context, rules: Mapping[str, Rule]) -> None:
        self.context, self.rules = context, rules
        self.model, self.values, self.problems = context.model, context.values, context.problems
        context.unfold = self._unfold
        self._is_operator_missing = False  # True if any node has an operator without a rule

    def run(self) -> list[Tensor]:
        """Build all layers and return the model's outputs.

        Raises Untrainable, which lists every node that cannot be trained.
        """
        model, values = self.model, self.values
        for node in model.nodes:
            self._fold(node)
        constants = {name: v for name, v in values.items() if isinstance(v, Constant)}
        known = {name: v.value for name, v in constants.items()}
        trained = {name for name, v in constants.items() if self.context.may_be_trained(v)}
        trained |= model.trained | self.context.derived
        model.nodes = needed_for(
            model.outputs.values(), fused(model.nodes, known, model.shapes, trained)
        )
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
        if missing or len(known) < len(inputs) or self._is_random(node):
            return
        try:
            made = fold(self.model, node, known)
        except Exception as error:  # noqa: BLE001 - of onnx's reference implementation
            reason = (
                f"the node cannot be computed ({error}): simplify the model and export it again"
            )
            self._report(node, ADVICE.get(node.op, reason))
            return
        self.values |= made
        context, is_module = self.context, bool(self.model.trained)
        # In a file, a table of frequencies looks like a parameter
        if node.op in ("Cos", "Sin") and not is_module:
            return
        read = node.inputs[:1] if node.op == "CastLike" else node.inputs
        values = (value for value in known[: len(read)] if value)
        if any(map(context.may_be_trained, values)) or not context.derived.isdisjoint(read):
            kinds = "fb" if is_module else "f"
            context.derived |= {
                name for name, it in made.items() if it.computed and it.value.dtype.kind in kinds
            }

    def _is_random(self, node: OnnxNode) -> bool:
        """Return True if each step draws other numbers."""
        if node.op != "Dropout":
            return "Random" in node.op or node.op in ("Bernoulli", "Multinomial")
        given, training = (self.values.get(node.input(number)) for number in (0, 2))
        is_active = isinstance(training, Constant) and training.value.any()
        of_parameters = isinstance(given, Constant) and (
            self.context.may_be_trained(given) or node.input(0) in self.context.derived
        )
        return bool(is_active and not of_parameters)

    def _unfold(self, name: str) -> Value:
        """Return the tensor `name`, which the file computes from parameters, as layers compute it.

        If they cannot, it stays a constant.
        """
        context, given = self.context, self.values[name]
        assert isinstance(given, Constant)
        if name in context.unfolded:
            return context.unfolded[name]
        context.unfolded[name] = given
        node, file_batch = self._makers[name], context.file_batch
        context.file_batch = context.builder.data.shape[0]  # parameters have no axis of samples
        try:
            is_fixed = given.source.names[0] in context.computed or node.op not in self.rules
            if not is_fixed:  # in the order of the inputs, so that equal models give equal graphs
                made = [self._unfold(it) for it in node.inputs if it in context.derived]
                is_fixed = any(isinstance(it, Constant) and it.computed for it in made)
            if is_fixed:
                raise Unsupported(f"{name} is trained itself, or not at all")
            if context.unfolded[name] is given:  # not yet computed by the layer of an input
                self._apply(node, context.unfolded)
                context.unfolded[name] = _seen(context.unfolded[name], given.value.shape)
        except (Unsupported, BadInput, *_VIOLATIONS):
            context.unfolded[name] = given
            context.keep(given)
        finally:
            context.file_batch = file_batch
        return context.unfolded[name]

    @cached_property
    def _makers(self) -> dict[str, OnnxNode]:
        return {name: node for node in self.model.nodes for name in node.outputs}

    def _apply(self, node: OnnxNode, values: dict[str, Value]) -> None:
        """Apply the rule of a node, and write its outputs to `values`."""
        made = self.rules[node.op](ImportedNode(self.context, node))
        values |= zip(node.outputs, made if isinstance(made, list) else [made], strict=False)
        if node.outputs[0] in self.context.fused:
            values[self.context.fused[node.outputs[0]]] = values[node.outputs[0]]

    def _build(self, node: OnnxNode) -> None:
        """Add the layers of a node. If it depends on shapes alone, its outputs become constants."""
        output = node.outputs[0]
        try:
            self._fold_shape(node)
            self._fold(node)
            self._evaluate_tokens(node)
            if output in self.values or output in self.problems:
                return
            if node.op not in self.rules:
                self._check_known(node)
                self._is_operator_missing = True
                raise Unsupported(advice(node.op))
            self._apply(node, self.values)
        except Unknown:
            pass
        except (Unsupported, BadInput) as problem:
            self._report(node, str(problem))
        except _VIOLATIONS as error:
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
            shape = self.model.shapes.get(name, (0,))
            if 0 < 4 * prod(shape) < 2**32:
                self.context.unknown.add(name)
                self.values[name] = self._placeholder(shape)

    def _placeholder(self, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor that replaces an output of a node with problems.

        With this tensor, the later nodes can be checked, so that one error lists all problems.
        """
        name = self.context.free_name("unknown")
        made = self.context.builder.layer("parameter", (), (prod(shape),), name=name)
        return Tensor(made.name, shape)
