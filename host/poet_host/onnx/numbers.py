"""Find numbers that `forward` of a PyTorch module takes from its tensors, as `item()` does.

A trace holds the number of the example instead, and only the branch that the example takes.
"""

import copy
import re
from functools import wraps
from math import inf
from typing import Any

import numpy as np

# Functions that return numbers of a tensor, not only of its shape.
_NUMBERS = {
    *("__bool__", "__contains__", "__float__", "__index__", "__int__", "item", "tolist"),
    *("__array__", "allclose", "equal", "is_nonzero", "numpy"),
}
_RANDOM = {
    *("bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_"),
}
# Functions that read only the shape.
_OF_SHAPE = {
    *("__len__", "dim", "empty_like", "full_like", "new_empty", "new_full", "new_ones"),
    *("new_zeros", "numel", "ones_like", "size", "stride", "zeros_like"),
}
# Names of functions that change their first argument.
IN_PLACE = re.compile(
    r"(?!requires_grad_|detach_)[^_].*[^_]_|__i(?!ndex|nt|nvert)\w+__|__setitem__"
)
_MARK = "poet_host_source"  # an attribute of tensors that are computed from varying ones


def watch(module: Any, place: int = -1, other: Any = None) -> list[Any]:
    """Let `forward` append to the returned list each number that it takes from varying tensors.

    Inputs, parameters and random numbers vary, and so does what is computed from them. `other`
    replaces the number at `place` in the list.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    tensor, found, forward = torch.Tensor, list[Any](), module.forward

    def mark(given: Any, source: Any) -> None:
        for it in tree_leaves(given):
            if isinstance(it, tensor):
                setattr(it, _MARK, source)

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result, name = function(*args, **(kwargs or {})), getattr(function, "__name__", "")
            read = {getattr(it, _MARK, None) for it in tree_leaves((args, kwargs))} - {None}
            if name in _RANDOM and "data" not in read:
                read = {name}
            # rand() < 0 is always False: nothing is dropped at random
            is_certain = name == "lt" and read == {"rand"} and args[1] == 0
            is_shape = name in _OF_SHAPE or function == tensor.shape.__get__  # type: ignore[attr-defined]
            if not read or is_certain or is_shape:
                return result
            if name in _NUMBERS:
                found.append(result)
                return other if len(found) == place + 1 else result
            source = "data" if len(read) > 1 else read.pop()
            mark(result, source)
            if IN_PLACE.fullmatch(name):
                mark(args[:1], source)
            return result

    @wraps(forward)
    def watched(*given: Any) -> Any:
        mark((given, [*module.parameters()]), "data")
        with Watched():
            return forward(*given)

    module.forward = watched
    return found


def has_frozen_number(module: Any, given: Any) -> bool:
    """Return True if `forward` takes a number from varying tensors that changes its outputs.

    A comparison does not count if the module fails with the opposite result: then it is a check.
    """
    import torch

    random = torch.get_rng_state()

    def run(place: int = -1, other: Any = None) -> tuple[Any, list[Any]]:
        copied, inputs = copy.deepcopy((module, given))
        numbers = watch(copied, place, other)
        torch.set_rng_state(random)
        return copied(*inputs), numbers

    expected, numbers = run()
    for place, number in enumerate(numbers):
        is_answer = isinstance(number, bool)
        if not is_answer and not _is_float(number):
            return True
        for other in [not number] if is_answer else [number * 0 + inf, number * 0 - inf]:
            try:
                outputs, _ = run(place, other)
            except Exception:  # noqa: BLE001 - the module can raise any error
                if not is_answer:
                    return True
            else:
                if not are_equal(outputs, expected):
                    return True
    return False


def _is_float(number: Any) -> bool:
    return isinstance(number, float) or getattr(number, "dtype", None) == np.float32


def are_equal(outputs: Any, expected: Any) -> bool:
    from torch.utils._pytree import tree_leaves

    pairs = zip(tree_leaves(outputs), tree_leaves(expected), strict=True)
    return all(np.array_equal(a.detach(), b.detach(), equal_nan=True) for a, b in pairs)
