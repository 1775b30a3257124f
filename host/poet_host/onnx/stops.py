"""Refuse PyTorch modules that stop or change gradients, or change their own tensors in `forward`.

An ONNX file does not state any of this, nor some options of functions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Any

from ..errors import BadInput, reason
from .numbers import IN_PLACE, are_equal

# For functions, an option that exporters leave out: its place and name, and for which values.
_LEFT_OUT: dict[str, tuple[int, str, Callable[[Any], bool]]] = {
    "avg_pool2d": (6, "divisor_override", bool),
    "embedding": (5, "scale_grad_by_freq", bool),
    "softplus": (2, "threshold", lambda value: value < 20),
}


def check_stops(
    module: Any,
    runs: Iterable[tuple[Any, Any]],
    trained: Set[str],
    read: Set[str],
    with_loss: Sequence[int],
    where: str,
) -> None:
    """Raise BadInput if PyTorch trains the module in another way than its ONNX file states.

    `runs`: copies of `module`, each with inputs; the first that works is checked, and changes.
    `trained`: the names of the parameters that are trained. `read`: the names of the tensors that
    the file reads. `with_loss`: the numbers of the outputs that have a loss.
    """
    if hooked := next(_hooked(module, trained), None):
        raise BadInput(
            f"{where}: {hooked} has a hook that can change gradients, which boards do not call: "
            "remove the hook"
        )
    for copied, given in runs:
        named = dict(copied.named_parameters(remove_duplicate=False))
        kept = {id(named[name]) for name in trained}
        for parameter in copied.parameters():
            if id(parameter) not in kept:
                parameter.requires_grad_(False)
        left_out, written = set[str](), set[str]()
        stop, error = _stop(copied, given, left_out, written, with_loss)
        if not error:
            break
    if error and not stop:
        raise BadInput(
            f"{where}: `forward` fails when its gradients are checked ({reason(error)}): correct "
            "the module or the example, so that module(example) works with and without gradients"
        ) from error
    if left_out:
        raise BadInput(
            f"{where}: `forward` calls {min(left_out)}, which an ONNX file does not state: call it "
            "without this option"
        )
    changed = next(_changed(module, copied, read, written), None)
    if changed := changed or (None if error else _carried(copied, given)):
        raise BadInput(
            f"{where}: `forward` changes {changed}, which stays the same on boards: do not change "
            "it in `forward`, or call eval() on its module if that keeps it"
        )
    if stop:
        raise BadInput(
            f"{where}: `forward` {stop}, which an ONNX file does not state: remove this, or call "
            "requires_grad_(False) on the modules before it"
        )


def tensors_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a module, each with every name that it has."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _hooked(module: Any, trained: Set[str]) -> Iterator[str]:
    """Yield what has a hook of gradients: parameters and modules."""
    for name, one in module.named_parameters(remove_duplicate=False):
        if name in trained and (one._backward_hooks or one._post_accumulate_grad_hooks):
            yield name
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"{type(part).__name__} {name}".rstrip()


def _changed(module: Any, copied: Any, read: Set[str], written: Set[str]) -> Iterator[str]:
    """Yield the tensors in `read` that differ or are `written`, except those of batchnorm."""
    from torch.nn.modules.batchnorm import _BatchNorm

    parts, after = dict(module.named_modules(remove_duplicate=False)), dict(tensors_of(copied))
    for name, value in tensors_of(module):
        owner = parts[name.rpartition(".")[0]]
        new = after.get(name)
        is_same = new is not None and new.dtype == value.dtype and value.cpu().equal(new)
        is_same &= name not in written
        if name in read and not isinstance(owner, _BatchNorm) and not is_same:
            yield name


def _carried(module: Any, given: Any) -> str | None:
    """Return a plain attribute whose tensor one call computes and the next one reads, or None."""
    import torch

    def attributes() -> dict[str, Any]:
        return {
            f"{name}.{key}".lstrip("."): value
            for name, part in module.named_modules()
            for key, value in vars(part).items()
            if isinstance(value, torch.Tensor)
        }

    def run() -> tuple[Any, dict[str, Any]]:
        torch.set_rng_state(random)
        outputs = module(*given)
        return outputs, {name: value.clone() for name, value in attributes().items()}

    random = torch.get_rng_state()
    if not attributes():
        return None
    (first, before), (second, after) = run(), run()
    differ = [name for name in before if name in after and not before[name].equal(after[name])]
    return differ[0] if differ and not are_equal(first, second) else None


def _option(name: str, args: Any, kwargs: Any) -> Iterator[str]:
    """Yield the option of a call that no ONNX file states, if it has an effect."""
    place, option, is_left_out = _LEFT_OUT.get(name, (0, "", bool))
    value = kwargs.get(option, (*args, *[None] * 7)[place]) if option else None
    if value is not None and is_left_out(value):
        yield f"{name} with {option}={value}"


def _stop(
    module: Any, given: Any, left_out: set[str], written: set[str], with_loss: Sequence[int]
) -> tuple[str, Exception | None]:
    """Run the module, and return how it stops or changes gradients, or an empty text.

    If the module fails, return its error too. Add options of its calls that no ONNX file states to
    `left_out`, and the names of its parameters and buffers that it writes to `written`.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    tensor = torch.Tensor
    stop = torch.zeros((), requires_grad=True)  # added to each result that has no gradient
    stopped, hooked = "stops gradients (with detach or no_grad)", "calls register_hook"
    found: set[str] = set()
    # The parameters and buffers by their memory, and their copies that depend on `stop`.
    names: dict[int, list[str]] = {}
    for name, one in tensors_of(module):
        names.setdefault(_memory(one), []).append(name)
    copies: list[Any] = []

    def marked(result: Any) -> Any:
        if result.requires_grad or not result.is_floating_point():
            return result
        found.add(stopped)
        with torch.enable_grad():
            copy = result + stop
        if own := names.get(_memory(result)):
            names[_memory(copy)] = own
            copies.append(copy)  # so that no other tensor gets its memory
        return copy

    class Marked(torch.overrides.TorchFunctionMode):
        """Makes each result that has no gradient depend on `stop`."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            call = partial(function, *args, **(kwargs or {}))
            name = getattr(function, "__name__", "")
            left_out.update(_option(name, args, kwargs or {}))
            is_set = function == tensor.data.__set__  # type: ignore[attr-defined]
            if is_set or IN_PLACE.fullmatch(name):
                targets = [it for it in tree_leaves(args[:1]) if isinstance(it, tensor)]
                written.update(*(names.get(_memory(it), ()) for it in targets))
            given = tree_leaves((args, kwargs))
            if not any(isinstance(it, tensor) and it.requires_grad for it in given):
                if name in ("register_hook", "retain_grad"):  # fails without a gradient
                    return function(stop, *args[1:], **(kwargs or {}))
                return call()
            if name in ("numpy", "__array__", "__deepcopy__"):
                return function(args[0].detach(), *args[1:], **(kwargs or {}))
            if name == "register_hook":
                found.add(hooked)
            is_data = function == tensor.data.__get__  # type: ignore[attr-defined]
            if is_data or name in ("detach", "detach_") or not torch.is_grad_enabled():
                return tree_map_only(tensor, marked, call())
            return call()

    try:
        with Marked():
            outputs = module(*given)
    except Exception as error:  # noqa: BLE001 - the module can raise any error
        return min(found, default=""), error
    outputs = [it for it in tree_leaves(outputs) if isinstance(it, tensor)]
    for number in with_loss:
        leaves, functions = _sources(outputs[number])
        if id(stop) in leaves:
            return stopped, None
        if functions:
            own = "a torch.autograd.Function with a backward of its own"
            return f"calls {min(functions)}, {own}", None
    return (hooked if hooked in found else ""), None


def _memory(one: Any) -> int:
    """Return the address of the memory that a tensor shares with its views."""
    address: int = one.untyped_storage().data_ptr()
    return address


def _sources(output: Any) -> tuple[set[int], set[str]]:
    """Return the ids of the leaves from which PyTorch computes an output, and its own Functions."""
    from torch.autograd.function import BackwardCFunction

    leaves, functions = {id(output)} if output.is_leaf else set(), set()
    steps, done = [output.grad_fn], {None}
    while steps:
        step = steps.pop()
        if step in done:
            continue
        done.add(step)
        if isinstance(step, BackwardCFunction):
            kind = step._forward_cls  # type: ignore[attr-defined]
            if not kind.__module__.startswith("torch."):
                functions.add(kind.__name__)
        if hasattr(step, "variable"):
            leaves.add(id(step.variable))
        steps += [before for before, _ in step.next_functions]
    return leaves, functions
