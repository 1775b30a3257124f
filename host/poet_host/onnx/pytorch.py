"""Import PyTorch modules through an .onnx file in memory. torch is imported on first use."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.onnx_file import onnx_package
from .model import OnnxModel, read_bytes


def is_module(model: object) -> bool:
    """Return True for a torch.nn.Module. This does not import torch."""
    return any(
        cls.__module__ == "torch.nn.modules.module" and cls.__name__ == "Module"
        for cls in type(model).__mro__
    )


def export_module(module: Any, example: Any) -> OnnxModel:
    """Export a PyTorch module in training mode, so that batchnorm, dropout and names are kept.

    `example` is the module's input: a tensor or array whose first axis is the batch, or a tuple
    that contains only this input. If the older exporter of torch.onnx fails, the newer exporter is
    tried. If both fail, BadInput is raised with the reason of the older exporter.
    """
    onnx_package()
    import torch

    given = example[0] if isinstance(example, tuple | list) and len(example) == 1 else example
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiu":
        given = torch.from_numpy(given.astype(np.float32 if given.dtype.kind == "f" else np.int64))
    if not isinstance(given, torch.Tensor):
        what = f"{type(example).__name__}"
        what += f" of {len(example)}" if isinstance(example, tuple | list) else ""
        raise BadInput(
            f"model {type(module).__name__}: `example` in poet.load(module, example) must be the "
            f"module's input, a torch.Tensor whose first axis is the batch, not {what}"
        )
    given = given.detach().cpu()
    try:
        data = _traced(torch, module, given)
    except Exception as error:  # the export runs the module, which can raise any error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"model {type(module).__name__}: torch.onnx cannot export the module ({reason}): check "
            "that module(example) runs, and that the module uses only operators that ONNX has"
        ) from error
    # In training mode exporters do not merge tensors.
    model = read_bytes(data, f"model {type(module).__name__}", merged=False)
    _as_it_stands(model, module.state_dict())
    weights = dict(module.named_parameters(remove_duplicate=False))
    model.trained = frozenset(name for name, value in weights.items() if value.requires_grad)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    model.frozen = frozenset(weights.keys() - model.trained | buffers.keys())
    return model


@contextmanager
def _quiet_logging() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _traced(torch: Any, module: Any, given: Any) -> bytes:
    """Return the module in training mode as the bytes of an .onnx file.

    The newer exporter of torch.onnx is used only if the older exporter fails.
    """

    def copied() -> Any:
        """Return a copy of the module, because tracing changes the statistics of batchnorms."""
        return copy.deepcopy(module).cpu().train()

    # Exporters print long reports when they fail; BadInput has the reason in one line.
    with (
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        _quiet_logging(),
    ):
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        try:
            torch.onnx.export(
                copied(),
                (given,),
                file,
                dynamo=False,
                training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False,
                opset_version=17,
                input_names=["data"],
                dynamic_axes={"data": {0: "batch"}},
            )
        except Exception as error:  # noqa: BLE001 - the module itself runs here
            try:
                # The newer exporter treats a batch of 1 as a fixed size.
                several = given if len(given) > 1 else torch.cat([given, given])
                program = torch.onnx.export(
                    copied(), (several,), dynamo=True, verbose=False, optimize=False,
                    dynamic_shapes=({0: torch.export.Dim("batch")},),
                )  # fmt: skip
            except Exception:  # noqa: BLE001 - likewise; the older exporter's reason is raised
                raise error from None
            return bytes(program.model_proto.SerializeToString())
    return file.getvalue()


def _as_it_stands(model: OnnxModel, state: Mapping[str, Any]) -> None:
    """Set the model's running statistics to those of the module, because tracing changed them."""
    onnx = onnx_package()
    for tensor in model.proto.graph.initializer:
        if tensor.name in state:
            value = state[tensor.name].detach().cpu().numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
            model.constants[tensor.name] = value
