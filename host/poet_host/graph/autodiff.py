"""Autodiff: makes the graph of one training step from a forward model.

The backward pass visits the layers in reverse order. A layer has one gradient kernel for each
operand that needs a gradient. If a parameter is used only once, this kernel also updates the
parameter in place, where possible. `conv1:grad` is the gradient of the loss with respect to
`conv1`. `conv1.weight:new` is the weight after the step.
"""

from collections import Counter

from ..errors import BadInput
from ..isa import attributes, kernels
from .builder import Layer, Model
from .clipping import Clipping, clipped_by_norm, clipped_by_value
from .graph import Graph, Node, Phase
from .in_place import in_place
from .operators import OPERATORS
from .optimisers import Adam as Adam, AdamW as AdamW, Optimiser, RmsProp, Sgd as Sgd
from .rules import Fields, Operator, Rule, Shape, sizes_of
from .trained import model_to_train

MOMENTUM = ":momentum"
DECAY, AHEAD = "decay", "ahead"  # suffixes of nodes: weight decay, momentum that looks ahead
ANCHOR, PULL = ":anchor", "pull"  # suffixes of the starting weights and of the pull to them
NO_CLIPPING = Clipping()
AVERAGE, SQUARE = ":exp_avg", ":exp_avg_sq"  # suffixes of Adam's averages, as in PyTorch
ACCUMULATED = ":accumulated"  # suffix of the sums of gradients until the next update


def training_graph(
    model: Model,
    optimiser: Optimiser,
    train: str = "all",
    batchnorm: str = "train",
    proximal: float = 0.0,
    clipping: Clipping = NO_CLIPPING,
    accumulate: int = 1,
) -> Graph:
    """Return the graph of one training step of `model` on one batch.

    `train` selects the parameters to train: see `model_to_train`. A batchnorm whose parameters are
    not trained uses its running statistics and does not change them. If `batchnorm` is "frozen", no
    batchnorm is trained. If `proximal` is above 0, this multiple of (weight - anchor) is added to
    each gradient, as FedProx does (Li et al., 2020). The anchor is the weight before the training.
    `clipping` limits gradients before their use. Each update uses the mean of the gradients of
    `accumulate` steps.
    """
    model, trained = model_to_train(model, train, batchnorm)
    step = _Step(model, optimiser, trained, proximal, clipping, accumulate, batchnorm)
    for layer in model.layers:
        step.forward(layer)
    for layer in reversed(model.layers):
        step.backward(layer)
    step.finish()
    stored = (model.data, model.label, *model.parameters, *step.states)
    return Graph(
        model.name,
        (*stored, *in_place(step.nodes)),
        data=model.data.name,
        label=model.label.name,
        loss=model.layers[-1].name,
        logits=model.logits,
        origin=model.origin,
        criterion=model.layers[-1].criterion,
        inputs=model.inputs,
        targets=model.targets,
    )


class _Step:
    """Collects the operators of a training step, in execution order."""

    def __init__(
        self, model: Model, optimiser: Optimiser, trained: frozenset[str], proximal: float,
        clipping: Clipping, accumulate: int, batchnorm: str,
    ) -> None:  # fmt: skip
        self.nodes: list[Node] = []
        self._names: set[str] = set()  # of `nodes`
        self.states: list[Node] = []  # of the optimiser
        self._stored = {node.name: node for node in model.parameters}
        self._optimiser, self._proximal, self._clipping = optimiser, proximal, clipping
        self._accumulate, self._batchnorm = accumulate, batchnorm
        self._waiting: list[tuple[Node, str]] = []  # gradients until the norm of all is known
        self._trained = trained
        self._shapes = {layer.name: layer.shape for layer in model.layers}
        self._operands: dict[str, dict[str, str]] = {}  # layer -> operand -> name of a node
        self._needed = self._with_gradient(model)
        self._uses = self._gradients_expected(model)
        self._arrived: Counter[str] = Counter()
        self._gradient: dict[str, str] = {}  # tensor -> node with the sum of its gradients so far
        self._sums: set[str] = set()  # gradients to which later ones may be added in place

    def _with_gradient(self, model: Model) -> set[str]:
        """Return the names of the layers through which the loss depends on a trained parameter."""
        influenced: set[str] = set()
        for layer in model.layers_with_gradient:
            if not (influenced | self._trained).isdisjoint(layer.differentiable):
                influenced.add(layer.name)
        reached: set[str] = set()
        for layer in reversed(model.layers_with_gradient):
            if OPERATORS[layer.kind].is_loss or layer.name in reached:
                reached |= {layer.name, *layer.differentiable}
        if influenced.isdisjoint(reached):
            raise BadInput(
                f"model {model.name}: no parameter to train has a gradient: train another one"
            )
        return influenced & reached

    def _gradients_expected(self, model: Model) -> Counter[str]:
        """Return how many gradients must be summed for each tensor that needs a gradient.

        Each use of the tensor as an operand of a layer gives one of these gradients.
        """
        layers = [layer for layer in model.layers if layer.name in self._needed]
        names = [name for layer in layers for name in layer.differentiable]
        return Counter(name for name in names if name in self._needed | self._trained)

    def _row(self, layer: Layer) -> Operator:
        row, nodes = OPERATORS[layer.kind], layer.parameters
        if row.frozen is None or any(node.name in self._trained for node in nodes.values()):
            return row
        has_none = (nodes["weight"].role, nodes["weight"].start) == ("state", "ones")
        return row if has_none and self._batchnorm == "train" else OPERATORS[row.frozen]

    def forward(self, layer: Layer) -> None:
        row = self._row(layer)
        operands = dict(zip(row.inputs, (tensor.name for tensor in layer.inputs), strict=True))
        operands |= {slot: node.name for slot, node in layer.parameters.items()}
        self._operands[layer.name] = operands
        for rule in row.forward:
            if rule.makes in layer.parameters:
                state = layer.parameters[rule.makes]
                self._replace(state, rule.kernel, self._inputs(layer, rule), layer.fields)
            elif rule.makes == "y":
                operands["y"] = self._by_rule(layer.name, layer, rule, "forward", layer.shape)
            else:
                self._make(layer, rule, "forward")

    def backward(self, layer: Layer) -> None:
        """Add the gradients of a layer, and update its parameters as early as possible.

        If several kernels of the layer read a parameter, the last of them runs before the update.
        """
        if layer.name not in self._needed:
            return
        row, operands = self._row(layer), self._operands[layer.name]
        if not row.is_loss:
            operands["dy"] = self._gradient[layer.name]
        wanted = self._needed | self._trained
        rules = [
            rule
            for rule in row.backward
            if operands.get(rule.makes) in wanted and (not rule.when or rule.when(layer.fields))
        ]
        to_inputs = [rule for rule in rules if operands[rule.makes] in self._needed]
        to_parameters = [rule for rule in rules if operands[rule.makes] in self._trained]
        read = {name for rule in to_inputs for name in row.read_for(rule)}
        early = [rule for rule in to_parameters if rule.makes not in read]
        late = [rule for rule in to_parameters if rule.makes in read]
        ordered = (*early, *to_inputs, *late)
        held: list[Node] = []  # parameters that a later rule of this layer still reads
        for i, rule in enumerate(ordered):
            self._make_operands(layer, rule)
            if operands[rule.makes] in self._needed:
                self._gradient_of_input(layer, rule)
                continue
            w = self._stored[operands[rule.makes]]
            later = {operands.get(name) for r in ordered[i + 1 :] for name in r.names}
            if w.name in later and w not in held:
                held.append(w)
            self._gradient_of_parameter(layer, rule, w, fuse=w not in held)
        for w in held:
            if self._arrived[w.name] == self._uses[w.name]:
                self._update(w, "apply_gradient", (self._gradient[w.name],), sizes_of(w.shape))

    def _gradient_of_input(self, layer: Layer, rule: Rule) -> None:
        operands = self._operands[layer.name]
        tensor = operands[rule.makes]
        shape = self._shapes[tensor]
        self._arrived[tensor] += 1
        if rule.kernel:
            whole = self._uses[tensor] == 1
            name = f"{tensor}:grad" if whole else self._free(f"{tensor}:grad:{layer.name}", rule)
            factor = layer.weight / (self._accumulate if self._row(layer).is_loss else 1)
            part = name if factor == 1 else f"{layer.name}:grad"
            gradient = self._by_rule(part, layer, rule, "backward", shape)
            if factor != 1:
                fields = sizes_of(shape) | {"factor": factor, "variant": 0}
                gradient = self._add(name, "scale", (gradient,), fields, "backward", shape)
        else:
            gradient = operands[rule.operands]
        if tensor in self._gradient:
            whole = self._arrived[tensor] == self._uses[tensor]
            name = f"{tensor}:grad" if whole else f"{tensor}:grad{self._arrived[tensor]}"
            both = (self._gradient[tensor], gradient)
            gradient = self._sum(name, both, shape)
        self._gradient[tensor] = gradient

    def _gradient_of_parameter(self, layer: Layer, rule: Rule, w: Node, fuse: bool) -> None:
        """Add the gradient of the parameter `w` from one layer to those from other layers.

        If `fuse` is True and no more gradients of `w` will follow, update `w`.
        """
        sinks = bool(rule.kernel) and kernels()[rule.kernel].has_sink
        apart = rule.apart is not None and rule.apart(layer.fields)
        if self._uses[w.name] == 1 and sinks and fuse and not apart:
            self._update(w, rule.kernel, self._inputs(layer, rule), _fields(layer, rule))
            return
        self._arrived[w.name] += 1
        name = self._free(f"{w.name}:grad:{layer.name}", rule)
        summed = self._gradient.get(w.name)
        if sinks and summed in self._sums:
            gradient = self._add(
                name, rule.kernel, (*self._inputs(layer, rule), summed), _fields(layer, rule),
                "backward", w.shape, sink="accumulate", overwrites=summed,
            )  # fmt: skip
            self._sums.add(gradient)
        else:
            if rule.kernel:
                gradient = self._by_rule(name, layer, rule, "backward", w.shape)
            else:
                gradient = self._operands[layer.name][rule.operands]
            if sinks and not summed:
                self._sums.add(gradient)
            if summed:
                total = self._free(f"{name}:sum", rule)
                gradient = self._sum(total, (summed, gradient), w.shape)
        self._gradient[w.name] = gradient
        if self._arrived[w.name] == self._uses[w.name] and fuse:
            self._update(w, "apply_gradient", (gradient,), sizes_of(w.shape))

    def _free(self, name: str, rule: Rule) -> str:
        """Return `name`, or a longer name if another node has the name `name`.

        If both operands of a layer are the same tensor, the layer computes two gradients for it.
        """
        return f"{name}:{rule.makes}" if name in self._names else name

    def _sum(self, name: str, both: tuple[str, str], shape: Shape) -> str:
        return self._add(name, "add", both, sizes_of(shape) | {"variant": 0}, "backward", shape)

    def _update(self, w: Node, kernel: str, inputs: tuple[str, ...], fields: Fields) -> None:
        """Add the nodes that update the parameter `w` and its optimiser state.

        `kernel` computes the gradient of `w` from `inputs`, or is "apply_gradient", which reads the
        finished gradient.
        """
        if self._accumulate > 1:
            old = self._state(w, ACCUMULATED)
            mean = self._replace(old, kernel, (*inputs, old.name), fields, sink="accumulate")
            kernel, inputs, fields = "apply_gradient", (mean,), sizes_of(w.shape)
        if self._proximal:
            gradient = self._pulled(w, self._whole(w, kernel, inputs, fields))
            kernel, inputs, fields = "apply_gradient", (gradient,), sizes_of(w.shape)
        if self._clipping.norm:
            self._waiting.append((w, self._whole(w, kernel, inputs, fields)))
            return
        if self._clipping.value:
            whole = self._whole(w, kernel, inputs, fields)
            gradient = clipped_by_value(self._add, w, whole, self._clipping.value)
            kernel, inputs, fields = "apply_gradient", (gradient,), sizes_of(w.shape)
        self._renew(w, kernel, inputs, fields)

    def finish(self) -> None:
        """Update the parameters whose gradients wait for the norm of all gradients."""
        if self._waiting:
            clipped = clipped_by_norm(self._add, self._waiting, self._clipping.norm)
            for (w, _), gradient in zip(self._waiting, clipped, strict=True):
                self._renew(w, "apply_gradient", (gradient,), sizes_of(w.shape))

    def _renew(self, w: Node, kernel: str, inputs: tuple[str, ...], fields: Fields) -> None:
        by = self._optimiser
        decayed = (w.name,) if by.weight_decay else ()
        if not isinstance(by, Sgd):
            self._adaptive(by, w, self._whole(w, kernel, inputs, fields))
        elif by.momentum:
            if by.nesterov:
                gradient = self._whole(w, kernel, inputs, fields)
                kernel, inputs, fields = "apply_gradient", (gradient,), sizes_of(w.shape)
            v = self._state(w, MOMENTUM)
            change = self._replace(v, kernel, (*inputs, v.name, *decayed), fields, sink="momentum")
            if by.nesterov:
                gradient = self._plus(gradient, w, DECAY, w.name, by.weight_decay)
                change = self._plus(gradient, w, AHEAD, change, by.momentum)
            rate = {"learning_rate": by.learning_rate}
            self._replace(w, "momentum_step", (w.name, change), sizes_of(w.shape) | rate)
        else:
            self._replace(w, kernel, (*inputs, w.name), fields, sink="sgd")

    def _whole(self, w: Node, kernel: str, inputs: tuple[str, ...], fields: Fields) -> str:
        """Return the node of a gradient that several nodes of the update read."""
        if kernel == "apply_gradient":
            return inputs[0]
        name = f"{w.name}:grad"
        return self._add(name, kernel, inputs, fields, "backward", w.shape, sink="store")

    def _pulled(self, w: Node, gradient: str) -> str:
        """Return the node of the gradient that pulls `w` to its anchor, too."""
        both = (w.name, self._state(w, ANCHOR).name)
        fields = sizes_of(w.shape) | {"variant": 0}
        apart = self._add(f"{w.name}:apart", "sub", both, fields, "backward", w.shape)
        return self._plus(gradient, w, PULL, apart, self._proximal)

    def _plus(self, gradient: str, w: Node, name: str, of: str, factor: float) -> str:
        """Return the node of `gradient` + `factor` * `of`, or `gradient` if the factor is 0."""
        if not factor:
            return gradient
        fields = sizes_of(w.shape) | {"factor": factor, "variant": 0}
        scaled = self._add(f"{w.name}:{name}", "scale", (of,), fields, "backward", w.shape)
        return self._sum(f"{w.name}:{name}:sum", (gradient, scaled), w.shape)

    def _adaptive(self, by: Adam | RmsProp, w: Node, gradient: str) -> None:
        """Add the update of Adam, AdamW or RMSprop."""
        sizes = sizes_of(w.shape)
        decay, late = (0.0, by.weight_decay) if isinstance(by, AdamW) else (by.weight_decay, 0.0)
        first = gradient
        if isinstance(by, RmsProp):
            first = gradient = self._plus(gradient, w, DECAY, w.name, decay)
            decay = 0.0
        decayed = (w.name,) if decay else ()

        def averaged(ending: str, kernel: str, beta: float) -> str:
            old = self._state(w, ending)
            rates = {"beta": beta, "weight_decay": decay, "variant": isinstance(by, RmsProp)}
            return self._replace(old, kernel, (gradient, old.name, *decayed), sizes | rates)

        if isinstance(by, Adam):
            first = averaged(AVERAGE, "average", by.beta1)
        square = averaged(SQUARE, "average_square", by.beta2)
        rates = {"learning_rate": by.learning_rate, "epsilon": by.epsilon, "weight_decay": late}
        self._replace(w, "adam_step", (w.name, first, square), sizes | rates)

    def _state(self, w: Node, ending: str) -> Node:
        self.states.append(Node(f"{w.name}{ending}", w.shape, role="state", start="zeros"))
        return self.states[-1]

    def _replace(
        self, old: Node, kernel: str, inputs: tuple[str, ...], fields: Fields, sink: str = "none"
    ) -> str:
        """Add a node that computes the next value of the stored node `old` and overwrites `old`."""
        return self._add(
            f"{old.name}:new", kernel, inputs, fields, "update", old.shape, sink=sink,
            overwrites=old.name, updates=old.name,
        )  # fmt: skip

    def _make_operands(self, layer: Layer, rule: Rule) -> None:
        """Add the tensors that a rule of the backward pass reads and other rules make."""
        for source in self._row(layer).backward:
            if source.makes in rule.names and source.makes not in self._operands[layer.name]:
                self._make_operands(layer, source)
                self._make(layer, source, "backward")

    def _make(self, layer: Layer, rule: Rule, phase: Phase) -> None:
        """Add a tensor that other kernels of the layer read, such as batchnorm's statistics."""
        assert rule.shape is not None
        name, shape = f"{layer.name}:{rule.makes}", rule.shape(layer.fields)
        self._operands[layer.name][rule.makes] = self._by_rule(name, layer, rule, phase, shape)

    def _by_rule(self, name: str, layer: Layer, rule: Rule, phase: Phase, shape: Shape) -> str:
        sink = "store" if kernels()[rule.kernel].has_sink else "none"
        inputs, fields = self._inputs(layer, rule), _fields(layer, rule)
        return self._add(name, rule.kernel, inputs, fields, phase, shape, sink=sink)

    def _inputs(self, layer: Layer, rule: Rule) -> tuple[str, ...]:
        """Return the names of the nodes that the kernel of `rule` reads.

        An optional operand is left out if the layer does not have it.
        """
        operands = self._operands[layer.name]
        optional = {name for name in rule.names if f"{name}?" in rule.operands.split()}
        return tuple(operands[n] for n in rule.names if n in operands or n not in optional)

    def _add(
        self,
        name: str,
        kernel: str,
        inputs: tuple[str, ...],
        fields: Fields,
        phase: Phase,
        shape: Shape,
        *,
        sink: str = "none",
        overwrites: str | None = None,
        updates: str | None = None,
    ) -> str:
        period = self._accumulate if updates and self._accumulate > 1 else 0
        known = {**vars(self._optimiser), "period": period, **fields}
        attrs = {field: known[field] for field in attributes(kernel, sink)}
        self._names.add(name)
        self.nodes.append(
            Node(
                name, shape, phase=phase, op=kernel, inputs=inputs, attrs=attrs, sink=sink,
                overwrites=overwrites, updates=updates,
            )
        )  # fmt: skip
        return name


def _fields(layer: Layer, rule: Rule) -> Fields:
    return rule.fields(layer.fields) if rule.fields else layer.fields
