"""Import PyTorch modules through an .onnx file in memory. torch is imported on first use."""

import copy
import inspect
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..errors import BadInput, shortened
from ..graph.graph import Graph
from ..graph.lora import adapters
from ..graph.onnx_file import onnx_package, parse
from ..graph.source import source_of
from ..graph.training_options import DEFAULTS, TrainingOptions
from .importer import check_options, import_model, training_of
from .model import OnnxModel
from .names import PADDED, free_name
from .numbers import has_frozen_number, watch
from .silence import silence
from .stops import check_stops, tensors_of
from .walk import Untrainable

_REASON_CHARACTERS = 200
_ANY = inspect.Parameter.VAR_POSITIONAL


class _FrozenNumber(Exception):
    """A trace of the module holds numbers or branches of the example."""


class _NotExported(BadInput):
    """An exporter of torch.onnx cannot export the module."""


def is_module(model: object) -> bool:
    """Return True for a torch.nn.Module. This does not import torch."""
    return any(
        cls.__module__ == "torch.nn.modules.module" and cls.__name__ == "Module"
        for cls in type(model).__mro__
    )


def load_module(module: Any, example: Any, options: TrainingOptions = DEFAULTS) -> Graph:
    """Return the training graph of a PyTorch module, which does not change.

    `example` is the module's input: a tensor or array whose first axis is the batch. If the module
    has several inputs, it is a tuple of them. Each submodule is exported in its own mode (train or
    eval).

    If the result of torch.onnx's older exporter cannot be imported, its newer exporter is tried,
    which is slower. Raises BadInput if neither works, with the problems of the exporter that has
    the fewest.
    """
    onnx_package()
    name = type(module).__name__
    where = f"model {name}"
    check_options(options, where)
    _check_modules(module, where)
    several = tuple(example) if isinstance(example, tuple | list) else (example,)
    given = tuple(_samples(_input(it, where), options.batch) for it in several)
    refusals: list[Untrainable] = []
    failures: list[_NotExported] = []
    for export in (_by_older_exporter, _by_newer_exporter):
        try:
            model = _exported(export, module, given, where)
            read = {name for node in model.nodes for name in node.inputs}
            outputs = [*model.outputs]
            forward = import_model(model, name, options)
            with_loss = [i for i, output in enumerate(outputs) if output in model.outputs]
        except Untrainable as refusal:
            refusals.append(refusal)
        except _NotExported as failure:
            _check_runs(module, given, where)
            failures.append(failure)
        else:
            graph = training_of(forward, model, options)
            names = _trained_names(graph) if options.train else model.trained
            with _isolated():
                # Of one sample, `_several` makes two: some modules only work with one.
                inputs = (_several(given), tuple(map(_copied, given)))
                runs = ((_copied(module), them) for them in inputs)
                check_stops(module, runs, names & model.trained, read, with_loss, where)
            return graph
    if refusals:
        raise min(refusals, key=lambda refusal: refusal.problems)
    raise failures[0]


def _trained_names(graph: Graph) -> set[str]:
    """Return the names that the trained parameters, and the weights of adapters, have in files."""
    nodes = {node.name for node in graph.trainable} | adapters(graph).keys()
    return {name for node in nodes for name in source_of(graph, graph[node]).names}


def _check_modules(module: Any, where: str) -> None:
    """Raise BadInput for options of modules that no ONNX file would state."""
    from torch import nn

    left_out: tuple[tuple[type[Any], str, Callable[[Any], bool]], ...] = (
        (nn.modules.batchnorm._BatchNorm, "momentum=None", lambda it: it.momentum is None),
        (nn.LSTM, "proj_size", lambda it: it.proj_size > 0),
        (
            nn.modules.instancenorm._InstanceNorm,
            "track_running_stats=True in training mode",
            lambda it: it.track_running_stats and it.training,
        ),
    )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding) and (layer.max_norm or layer.scale_grad_by_freq):
            raise BadInput(
                f"{where}: the embedding {name} has `max_norm` or `scale_grad_by_freq`, which "
                "boards do not support: create the embedding without them"
            )
        for kind, option, is_set in left_out:
            if isinstance(layer, kind) and is_set(layer):
                raise BadInput(
                    f"{where}: {type(layer).__name__} {name} has {option}, which an ONNX file "
                    "does not state: create it without this option"
                )


def _input(given: Any, where: str) -> Any:
    import torch

    if isinstance(given, np.ndarray) and given.dtype.kind in "fiu":
        given = torch.from_numpy(given.astype(np.float32 if given.dtype.kind == "f" else np.int64))
    if not isinstance(given, torch.Tensor) or not given.ndim:
        what = f"{type(given).__name__}"
        what += " without axes" if isinstance(given, torch.Tensor) else ""
        raise BadInput(
            f"{where}: `example` in poet.load(module, example) must be the module's input, a "
            "torch.Tensor whose first axis is the batch, or a tuple of all inputs, but one is "
            f"{what}"
        )
    if given.ndim < 2:
        raise BadInput(
            f"{where}: `example` has shape {tuple(given.shape)}, but its first axis must be the "
            "batch: pass a batch of samples, such as example[None]"
        )
    return given


def _samples(given: Any, batch: int | None) -> Any:
    """Return `batch` samples, as the exporter can write len(x) of `forward` as a number."""
    import torch

    if batch in (None, 1, len(given)) or not len(given):  # one sample has no batch statistics
        return given
    return given[torch.arange(batch) % len(given)]


def _exported(
    export: Callable[[Any, Any, list[str]], bytes], module: Any, given: Any, where: str
) -> OnnxModel:
    """Return the exported module. Its weights and running statistics are those of the module."""
    try:
        with _isolated():
            values = {name: tensor.detach().cpu().numpy() for name, tensor in tensors_of(module)}
            taken = {*values}  # an exporter renames a tensor that has the name of an input
            names = [free_name(name, taken) for name in _input_names(module, len(given))]
            data = export(_copied(module), given, names)
            weights = dict(module.named_parameters(remove_duplicate=False))
    except _FrozenNumber as error:
        raise BadInput(
            f"{where}: `forward` takes a number from a tensor (as float, if or item() do), but "
            "boards would always use that of the example: compute with the tensor itself, such as "
            "in torch.where. If the number is random, call eval()"
        ) from error
    except Exception as error:  # the module itself runs here, and can raise any error
        raise _NotExported(
            f"{where}: torch.onnx cannot export the module ({_reason(error)}): use only operators "
            "that ONNX has"
        ) from error
    onnx = onnx_package()
    model = OnnxModel(_with_output_names(parse(data, where)), where, merged=False)
    for tensor in model.proto.graph.initializer:
        if tensor.name in values:  # tracing changes running statistics
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
            model.constants[tensor.name] = values[tensor.name]
    model.trained = frozenset(name for name, value in weights.items() if value.requires_grad)
    model.frozen = frozenset((values.keys() | model.constants.keys()) - model.trained)
    return model


def _with_output_names(proto: Any) -> Any:
    """Name several outputs output1, output2, ... instead of by the exporter's numbers."""
    if len(proto.graph.output) > 1:
        seen: set[str] = set()
        for i, value in enumerate(proto.graph.output, 1):
            if value.name in seen:  # a tensor that the module returns more than once
                name, value.name = value.name, f"{value.name}/output{i}"
                proto.graph.node.add(op_type="Identity", input=[name], output=[value.name])
            seen.add(value.name)
        names = {value.name: f"output{i}" for i, value in enumerate(proto.graph.output, 1)}
        for value in proto.graph.output:
            value.name = names[value.name]
        for node in proto.graph.node:
            for tensors in (node.input, node.output):
                tensors[:] = [names.get(name, name) for name in tensors]
    return proto


def _check_runs(module: Any, given: Any, where: str) -> None:
    """Raise BadInput if the module cannot be copied, or cannot compute its example."""
    import torch

    call = "copy.deepcopy(module).cpu()"
    try:
        with _isolated():
            lazy = [name for name, one in tensors_of(module) if torch.nn.parameter.is_lazy(one)]
            if not lazy:
                copied = _copied(module)
                call = "module(example)"
                copied(*_several(given))
    except Exception as error:  # the module can raise any error
        raise BadInput(
            f"{where}: {call} fails ({_reason(error)}): correct the module or the example, so that "
            "this call works"
        ) from error
    if lazy:
        raise BadInput(
            f"{where}: the shape of {lazy[0]} is unknown: call module(example) once before "
            "poet.load"
        )


def _copied(given: Any) -> Any:
    """Return a copy of a module or tensor, because running a module can change both."""
    import torch

    if isinstance(given, torch.Tensor):
        return given.detach().cpu().clone()
    # Weights that torch.nn.utils.weight_norm computed before: deepcopy refuses them.
    made = [value for part in given.modules() for value in vars(part).values()]
    memo = {id(it): it.detach() for it in made if isinstance(it, torch.Tensor) and not it.is_leaf}
    return copy.deepcopy(given, memo).cpu()


def _several(given: Any) -> Any:
    """Return a copy of all inputs with at least two samples."""
    import torch

    found = (_copied(it) for it in given)
    return tuple(it if len(it) > 1 else torch.cat([it, it]) for it in found)


def _input_names(module: Any, count: int) -> list[str]:
    """Return names for the inputs: those of the parameters of `forward`, if there are several."""
    if count == 1:
        return ["data"]
    parameters = inspect.signature(module.forward).parameters.values()
    names = [it.name for it in parameters if it.kind is not _ANY]
    return names[:count] if len(names) >= count else [f"input{i}" for i in range(1, count + 1)]


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return shortened(lines[0], _REASON_CHARACTERS) if lines else type(error).__name__


@contextmanager
def _isolated() -> Iterator[None]:
    """Let the module run silently, without effect on the state of PyTorch."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(silence())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.enable_grad())
        # The exporters cannot export the fused kernels of a transformer in eval mode.
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        yield


def _by_older_exporter(module: Any, given: Any, names: list[str]) -> bytes:
    import torch
    from torch.nn.functional import embedding

    class Padded(torch.overrides.TorchFunctionMode):
        """Writes the `padding_idx` of each embedding into the name of its node."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            call, state = partial(function, *args, **(kwargs or {})), torch._C._get_tracing_state()
            with ExitStack() as scope:
                if function is embedding and state:
                    given = inspect.signature(embedding).bind(*args, **call.keywords).arguments
                    if (padding := given.get("padding_idx")) is not None:
                        state.push_scope("::" + PADDED.format(padding % len(given["weight"])))
                        scope.callback(state.pop_scope)
                return call()

    file, forward = io.BytesIO(), module.forward
    numbers = [] if isinstance(module, torch.jit.ScriptModule) else watch(module)
    with Padded():
        torch.onnx.export(
            module,
            tuple(map(_copied, given)),
            file,  # type: ignore[arg-type]
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            # Otherwise the exporter merges equal tensors.
            keep_initializers_as_inputs=True,
            opset_version=17,
            input_names=names,
            dynamic_axes={name: {0: "batch"} for name in names},
        )
    if numbers:
        module.forward = forward  # no longer watched
        if has_frozen_number(module, tuple(map(_copied, given))):
            raise _FrozenNumber
    return file.getvalue()


def _by_newer_exporter(module: Any, given: Any, names: list[str]) -> bytes:
    import torch

    sizes = [{0: torch.export.Dim("batch")} for _ in names]
    kinds = [it.kind for it in inspect.signature(module.forward).parameters.values()]
    # *inputs of `forward` are one entry: a tuple.
    first = kinds.index(_ANY) if _ANY in kinds else len(names)
    rest = (tuple(sizes[first:]),) if _ANY in kinds else ()
    program = torch.onnx.export(
        module,
        _several(given),  # a batch of 1 would be a fixed size
        input_names=names,
        dynamo=True,
        verbose=False,
        optimize=False,
        dynamic_shapes=(*sizes[:first], *rest),
    )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())
