"""Import an .onnx model as the graph of its training step. Training starts with the file's weights.

The batch size and the sequence length can be set. The loss replaces a softmax at the end of the
model. Batchnorm layers can be trained or frozen. One error lists all nodes that cannot be trained.
"""

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import BadInput
from ..graph.autodiff import Sgd
from ..graph.builder import Builder, Model, Tensor
from ..graph.graph import Graph, Part
from ..graph.losses import LOSSES, Loss, loss_by_output, parse_loss, parse_losses
from ..graph.onnx_file import onnx_package
from ..graph.training_options import DEFAULTS, TrainingOptions
from .context import Context
from .model import FROZEN, TRAINED, OnnxInput, OnnxModel, OnnxNode, needed_for, read_file
from .names import RESERVED, legal_name
from .operators import RULES
from .recurrent import RECURRENT_RULES
from .returning import with_returning
from .tokens import INTEGERS
from .walk import Untrainable, Walk

DEFAULT_LOSS = "cross-entropy"
DEFAULT_OPTIMISER = Sgd(0.01)
_SOFTMAX = ("Softmax", "LogSoftmax")
_VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def load(path: Path | str, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of the model in an .onnx file.

    Raises BadInput if the model cannot be read or cannot be trained.
    """
    return training(read_file(path), Path(path).stem, options)


def training(model: OnnxModel, name: str, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of a model. Raises BadInput if the model cannot be trained."""
    check_options(options, model.where)
    return training_of(import_model(model, name, options), model, options)


def check_options(options: TrainingOptions, where: str) -> None:
    """Raise BadInput for a loss or a batch size that no model has."""
    parse_losses(options.loss or "")
    options.check_batch(where)


def training_of(forward: Model, model: OnnxModel, options: TrainingOptions) -> Graph:
    """Return the training graph of a forward model, which was imported from `model`."""
    return with_returning(options.training_graph(forward, DEFAULT_OPTIMISER), model)


def import_model(model: OnnxModel, name: str, options: TrainingOptions = DEFAULTS) -> Model:
    """Return the forward model, with a loss after its output.

    `options.batch` is the size of the input's first axis. If it is None, the batch size of the file
    is used, or 1 if this axis is dynamic in the file. `options.sequence_length` is the size of the
    input's second axis. In the file, this axis must be dynamic or have the same size. If
    `options.loss` has no loss for an output, it is cross-entropy, and BadInput is raised if the
    output does not have the shape of classes. Untrainable is raised if another export of the model
    may work.
    """
    chosen = loss_by_output(options.loss or "", list(model.outputs))
    model.outputs = {name: model.outputs[name] for name in chosen}
    losses = {name: (loss or parse_loss(DEFAULT_LOSS)) for name, (loss, _) in chosen.items()}
    shapes = [_shape(model, given, options) for given in model.inputs]
    before, batch = model.inputs[0].shape[0], shapes[0][0]
    _check_steps(model)
    file_batch = before if isinstance(before, int) else batch
    model.set_shapes([(file_batch, *shape[1:]) for shape in shapes])  # as reshapes in the file
    dropped = {name: _drop_activation(model, name, loss) for name, loss in losses.items()}
    file_shapes = model.shapes if file_batch != batch else {}
    model.set_shapes(shapes)
    model.nodes = needed_for(model.outputs.values(), model.nodes)
    taken = {*RESERVED, "y"}
    parts = tuple(
        _part(model, given, taken, shape) for given, shape in zip(model.inputs, shapes, strict=True)
    )
    name = re.sub(r"[^\w.-]+", "-", name)
    if len(parts) == 1:
        builder = Builder(name, (batch, *parts[0].shape), parts[0].dtype)
        inputs = [builder.data]
    else:
        builder = Builder(name, (batch, sum(prod(part.shape) for part in parts)))
        inputs = builder.take_inputs(parts)
    context = Context(model, builder, inputs, file_batch, file_shapes)
    compared: dict[str, tuple[Tensor, Loss, float]] = {}
    outputs = Walk(context, RULES).run()
    model.kept = frozenset(context.derived & context.computed.keys())
    builder.drop_unused({it.name for it in (*outputs, *inputs)})
    for (key, loss), output in zip(losses.items(), outputs, strict=True):
        given, weight = chosen[key]
        if given is None and not dropped[key]:
            _check_classes(builder, output, model.where, key if len(chosen) > 1 else "")
        compared[key] = _logits(builder, context, output, loss), loss, weight
    name = context.free_name("loss")
    if len(compared) > 1:
        total = builder.total_loss(compared, name)
    else:
        total = builder.layer(loss.row, compared[key][:1], name=name, **loss.layer_options)
    found = builder.model(total)
    return replace(found, origin=_origin(model, context))


# Operators whose result has the axes of what they read. `Gather` reads an embedding.
_KEEP_AXES = frozenset(
    (
        *("Add", "Cast", "Clip", "Div", "Dropout", "Elu", "Gather", "Gelu", "Gemm", "Identity"),
        *("LayerNormalization", "LeakyRelu", "MatMul", "Mul", "Relu", "Sigmoid", "Sub", "Tanh"),
    )
)


def _check_steps(model: OnnxModel) -> None:
    """Raise BadInput if a layer along time takes the samples of an input for its steps."""
    of_samples = {given.name for given in model.inputs}  # tensors whose first axis is theirs
    for node in model.nodes:
        read = node.inputs[1:] if node.op == "Gather" else node.inputs
        if node.op in _KEEP_AXES and not of_samples.isdisjoint(read):
            of_samples |= {*node.outputs}
        name = node.inputs[0] if node.op in RECURRENT_RULES else ""
        if name in of_samples:
            raise BadInput(
                f"{model.where}: the layer {node.op} walks along the first axis of {name}, but "
                "this must be the axis of the samples: exchange the axes before the layer "
                "(PyTorch: batch_first=True)"
            )


def _part(model: OnnxModel, given: OnnxInput, taken: set[str], shape: tuple[int, ...]) -> Part:
    if given.dtype.kind not in INTEGERS and given.dtype != np.float32:
        raise BadInput(
            f"{model.where}: the model's input {given.name} has the type {given.dtype}: export "
            "the model in float32"
        )
    first = model.inputs[0]
    if given.shape[0] != first.shape[0]:
        raise BadInput(
            f"{model.where}: the inputs {first.name} of shape {_text(first.shape)} and "
            f"{given.name} of shape {_text(given.shape)} have different batch sizes: export the "
            "model with one batch size for all inputs"
        )
    dtype: Literal["float32", "int32"] = "int32" if given.dtype.kind in INTEGERS else "float32"
    return Part(legal_name(given.name, "input", taken), shape[1:], dtype)


def _shape(model: OnnxModel, given: OnnxInput, options: TrainingOptions) -> tuple[int, ...]:
    batch, where = options.batch, model.where
    sizes, own = list(given.shape), f"the input {given.name} of shape {_text(given.shape)}"
    fixed = [isinstance(size, int) for it in model.inputs for size in it.shape[1:2]]
    is_fixed = len(sizes) > 1 and isinstance(sizes[1], int) and not all(fixed)
    sequence_length = None if is_fixed else options.sequence_length
    if not sizes:
        raise BadInput(
            f"{where}: the model gives no shape for the input {given.name}: export the model with "
            "an example input"
        )
    sizes[0] = batch or (sizes[0] if isinstance(sizes[0], int) else 1)
    if sequence_length is not None:
        if len(sizes) < 2 or (isinstance(sizes[1], int) and sizes[1] != sequence_length):
            raise BadInput(
                f"{where}: --sequence-length {sequence_length} does not fit {own}: export the "
                "model with a dynamic axis for the sequence length"
            )
        sizes[1] = sequence_length
    if not isinstance(sizes[1] if len(sizes) > 1 else 1, int) and len(sizes) <= 3:
        raise BadInput(
            f"{where}: {own} has a dynamic axis for the sequence length: set the length with "
            "--sequence-length"
        )
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise BadInput(
            f"{where}: {own} has dynamic axes or axes of size 0: export the model with fixed sizes "
            "for all axes except the batch"
        )
    return tuple(size for size in sizes if isinstance(size, int))


def _text(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


def _check_classes(builder: Builder, output: Tensor, where: str, name: str) -> None:
    """Raise BadInput if the output is not (batch, classes), or has the same shape as the input."""
    classes = output.shape[1:2] if prod(output.shape[2:]) == 1 else ()
    if output.shape == builder.data.shape or not classes or classes[0] < 2:
        raise BadInput(
            f"{where}: the loss cannot be chosen from the shapes of the input, "
            f"{builder.data.shape}, and the output{name and ' '}{name}, {output.shape}: set --loss "
            f"to {name}{name and '='}LOSS, where LOSS is one of {', '.join(LOSSES)}"
        )


def _drop_activation(model: OnnxModel, name: str, loss: Loss) -> bool:
    """Let an output leave out a final softmax or sigmoid that the loss contains.

    Return True if a node was left out. After this node, the output may only have nodes that change
    the shape, the order of the axes or the type.
    """
    output, views = model.outputs[name], list[OnnxNode]()
    makers = {name: node for node in model.nodes for name in node.outputs}
    while output in makers and makers[output].op in _VIEWS:
        views.insert(0, makers[output])
        output = makers[output].inputs[0]
    last = makers.get(output)
    if last is None or not _is_contained(model, last, views, loss):
        return False
    output = last.inputs[0]
    for view in views:
        made = f"{view.outputs[0]}:before {last.outputs[0]}"
        model.nodes += (replace(view, inputs=(output, *view.inputs[1:]), outputs=(made,)),)
        output = made
    model.outputs[name] = output
    return True


def _is_contained(model: OnnxModel, node: OnnxNode, views: list[OnnxNode], loss: Loss) -> bool:
    """Return True for the sigmoid of bce, and for the sigmoid or softmax of cross-entropy.

    That sigmoid is of one number per sample. The softmax is over the classes, whose axis is not the
    batch axis, and has size 2 or more. After the `views`, it is the axis of the loss.
    """
    if loss.name != "cross-entropy":
        return loss.name == "bce" and node.op == "Sigmoid"
    shape = model.shapes.get(node.outputs[0], ())
    if node.op == "Sigmoid":
        return len(shape) > 0 and prod(shape[1:]) == 1
    axis = node.attributes.get("axis", -1 if model.opsets[""] >= 13 else 1)
    if node.op not in _SOFTMAX or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return node.op in _SOFTMAX and not shape
    axis %= len(shape)
    if model.opsets[""] < 13 and prod(shape[axis + 1 :]) > 1:  # over all these axes
        return False
    if not axis or shape[axis] < 2:
        return False
    for view in views:
        axis, shape = _axis_after(model, view, axis, shape)
    return 0 < axis == _class_axis(shape[:2] if prod(shape[2:]) == 1 else shape, loss)


def _axis_after(
    model: OnnxModel, view: OnnxNode, axis: int, shape: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return which axis the `axis` of size 2 or more becomes in a view, or 0, and the shape."""
    if view.op == "Transpose":
        order = view.attributes.get("perm", [*range(len(shape))][::-1])
        return order.index(axis), tuple(shape[i] for i in order)
    seen = model.shapes.get(view.outputs[0], shape)
    before = prod(shape[:axis]), shape[axis]
    found = [i for i, size in enumerate(seen) if (prod(seen[:i]), size) == before]
    return (found or [0])[0], seen


def _class_axis(shape: tuple[int, ...], loss: Loss) -> int:
    """Return the axis of the classes in an output: by default, axis 1 of 4 axes or more."""
    axis: int = loss.options.get("axis", 1 if len(shape) > 3 else -1)
    return axis % len(shape) if -len(shape) <= axis < len(shape) else 0


def _logits(builder: Builder, context: Context, output: Tensor, loss: Loss) -> Tensor:
    """Return the output in the shape that the loss needs.

    For cross-entropy, the classes become the last axis, without axes of size 1 after them. An
    output of one number per sample becomes the logit of the second of two classes. The logit of the
    first class is 0, so the loss is binary cross-entropy.
    """
    batch, where = builder.data.shape[0], context.model.where
    if output.shape[0] != batch:
        raise Untrainable(
            f"{where}: the output has shape {output.shape}, but its first axis must have the batch "
            f"size, {batch}: export the model with a dynamic axis for the batch"
        )
    if loss.name != "cross-entropy":
        return output
    if len(output.shape) > 2 and prod(output.shape[2:]) == 1:
        output = Tensor(output.name, output.shape[:2])
    if output.shape in ((batch,), (batch, 1)):
        name = context.free_name("first_class")
        zeros = builder.layer(
            "parameter", (), (batch, 1), start="zeros", trainable=False, name=name
        )
        both = (zeros, Tensor(output.name, (batch, 1)))
        return builder.layer("concat", both, 1, name=context.free_name("classes"))
    axis = _class_axis(output.shape, loss)
    if not axis or output.shape[axis] < 2:
        raise BadInput(
            f"{where}: the output has shape {output.shape}, but cross-entropy needs the shape "
            "(batch, classes), (batch, length, classes) or (batch, classes, height, width), with "
            "at least 2 classes. Choose another axis of classes (cross-entropy:axis=1), another "
            "loss (bce, mse), or export the part of the model that outputs one number for each "
            "class"
        )
    order = (*(i for i in range(len(output.shape)) if i != axis), axis)
    if order == tuple(range(len(order))):
        return output
    return builder.layer("transpose", (output,), order, name=context.free_name("classes_last"))


def _origin(model: OnnxModel, context: Context) -> bytes:
    """Return the imported model as an .onnx file for inference.

    If nodes of the file compute a parameter, the parameter becomes an initialiser. The metadata
    names the initialisers that are parameters of a PyTorch module, and its others.
    """
    onnx = onnx_package()
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = {entry.key for entry in proto.metadata_props}
    for key, names in ((TRAINED, model.trained), (FROZEN, model.frozen)):
        if names and key not in known:
            text = "\n".join(sorted(names & model.constants.keys()))
            proto.metadata_props.add(key=key, value=text)
    graph = proto.graph
    for name, value in context.computed.items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    needed, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if (needed - context.computed.keys()).isdisjoint(node.output):
            continue
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in [a for a in node.attribute if a.name == "training_mode"]:
                node.attribute.remove(attribute)
        if node.op_type == "Dropout":
            del node.input[2:]
        needed |= set(node.input)
        kept.append(node)
    needed |= context.computed.keys()
    initializers = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, values in ((graph.node, kept[::-1]), (graph.initializer, initializers)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:
        raise BadInput(
            f"{model.where}: the model is too large ({error}). Use a model smaller than 2 GiB, "
            "because the schedule contains the whole model"
        ) from error
