"""PyTorch modules, by way of an .onnx file in memory. torch is imported on first use."""

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
    """Is it a torch.nn.Module? Without importing torch: who has one has imported it."""
    return any(
        cls.__module__ == "torch.nn.modules.module" and cls.__name__ == "Module"
        for cls in type(model).__mro__
    )


def export_module(module: Any, example: Any) -> OnnxModel:
    """The module as it trains: batchnorm and dropout stay what they are, names too.

    `example` is the module's input, a tensor or array with the batch in front, perhaps in a tuple
    of one. Where torch.onnx's older exporter fails, the newer one is tried. Raises BadInput
    with the older one's reason if both fail.
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
            f"model {type(module).__name__}: poet.load(module, example) needs the one input of it, "
            f"a torch.Tensor with the batch in front, not {what}"
        )
    given = given.detach().cpu()
    try:
        data = _traced(torch, module, given)
    except Exception as error:  # of many classes: whatever the module does while it is traced
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"model {type(module).__name__}: torch.onnx cannot export it ({reason}): check that "
            "module(example) runs, and uses operators that ONNX has"
        ) from error
    # In training mode, only what is one tensor in the module is one in the file.
    model = read_bytes(data, f"model {type(module).__name__}", merged=False)
    _as_it_stands(model, module.state_dict())
    weights = dict(module.named_parameters(remove_duplicate=False))
    model.learnt = frozenset(name for name, one in weights.items() if one.requires_grad)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    model.fixed = frozenset(weights.keys() - model.learnt | buffers.keys())
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
    """The .onnx file of the module in training mode, by the older exporter or the newer one."""

    def copied() -> Any:
        """Tracing batchnorm in training mode changes its running statistics."""
        return copy.deepcopy(module).cpu().train()

    # Exporters print what they met where they fail; the error says it in a line.
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
        except Exception as error:  # noqa: BLE001 - whatever the module does while it is traced
            try:
                # A batch of 1 would be taken for a size that never changes.
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
    """The module's own running statistics, in place of what they became while it was traced."""
    onnx = onnx_package()
    for one in model.proto.graph.initializer:
        if one.name in state:
            value = state[one.name].detach().cpu().numpy()
            one.CopyFrom(onnx.numpy_helper.from_array(value, one.name))
            model.constants[one.name] = value
