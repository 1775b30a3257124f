"""Convert the arguments of the Python API to the types of this package.

Tensors and loaders of PyTorch are recognised by their methods, without an import of torch.
"""

import errno
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np

from ..card.weights import SavedWeights, facts_of_weights, load_weights
from ..data.datasets import Dataset, load_data
from ..data.files import NAMES
from ..data.fitted import FittedData, fit
from ..data.parts import array_names, fields_of, joined
from ..data.shapes import learns_samples, no_labels, parts_of, parts_word
from ..device.board import Board, names as board_names
from ..errors import BadInput, listed
from ..files import check_name
from ..graph.graph import Graph
from ..graph.weights import Array, Weights, float_arrays
from ..profile.profile import Profile, estimate_profile
from ..schedule.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")

_SORTED = "SequentialSampler"  # sampler class of a DataLoader that does not shuffle
_MOST_BYTES = 2**31  # of what has no length, so that endless data ends in a message
_ARRAY_BYTES = 128  # of an array's own fields
_HALVES = {"y": "x", "y_test": "x_test"}  # the samples of labels
_GIVES = {
    "Graph": "a Graph, as poet.load returns",
    "CostGraph": "a CostGraph",
    "Card": "a Card, as poet.open_card returns",
    "Connection": "a Connection, as poet.connect returns",
    "Plan": "a Plan, as poet.solve returns",
    "Problem": "a Problem, as poet.problem returns",
    "Schedule": "a Schedule, as poet.encode returns",
    "Profile": "a Profile, as Connection.profile returns",
    "Path": "a path",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "NoneType": "None",
    "Callable": "a function",
    "ndarray": "an array",
    "Mapping": "a mapping",
    "Dataset": "a poet.Dataset",
    "Iterable": "(x, y) or a DataLoader",
    "Samples": "a PyTorch Dataset",
}


@runtime_checkable
class Samples(Protocol):
    """A PyTorch Dataset: `dataset[number]` is a pair (x, y)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


Data = str | Path | Dataset | Mapping[str, Any] | Iterable[Any] | Samples
"""The types that as_dataset accepts."""


def fitted(data: Data, graph: Graph, shuffle: bool | None = None) -> FittedData:
    """Return the data set of `as_dataset` in the types and shapes of `graph`.

    If `shuffle` is not None, it replaces the choice of the data set.
    """
    found = as_dataset(data, graph)
    return fit(found if shuffle is None else replace(found, shuffle=shuffle), graph)


def as_dataset(data: Data, graph: Graph | None = None, labels: bool = True) -> Dataset:
    """Return the data set that `data` names or contains. `graph`, `labels`: see load_data.

    `data` is a name or path (see load_data), arrays, lists or tensors, or a PyTorch DataLoader or
    Dataset. Arrays are in a tuple (x, y) or (x, y, x_test, y_test), or in a mapping with these
    keys. If labels may be missing, so may the keys y and y_test, and one array is the samples. The
    batches of a loader are read once. If the loader does not shuffle, every epoch keeps their
    order. A generator or IterableDataset is read to its end: its items are batches or samples.
    Raises BadInput for anything else, and for one that gives more than 2 GiB.
    """
    if isinstance(data, str | os.PathLike):
        return load_data(os.fspath(data), graph=graph, labels=labels)
    if isinstance(data, FittedData):
        return data
    if isinstance(data, Dataset):
        return replace(data, **_halves(vars(data), graph))
    needed = labels and (graph is None or not learns_samples(graph))
    if isinstance(data, tuple | list):
        if len(data) not in (2, 4):
            raise BadInput(
                f"data: a {type(data).__name__} of {len(data)} values is not (x, y) or (x, y, "
                "x_test, y_test): pass one of these, or a poet.Dataset"
            )
        data = dict(zip(NAMES, data, strict=False))
    elif isinstance(data, Mapping):
        data = _by_half(data, graph)
    elif not needed and (hasattr(data, "detach") or isinstance(data, np.ndarray)):
        data = {"x": data}
    else:
        return _read(data, graph)
    if not {"x", *(("y",) if needed else ())} <= data.keys() <= set(NAMES):
        names = array_names(graph)
        needed_names, others = names[: len(names) // 2], names[len(names) // 2 :]
        raise BadInput(
            f"data: a mapping must have the keys {listed(needed_names)}. Its only other keys can "
            f"be {listed(others)}"
        )
    given = _halves(data, graph)
    if not needed:
        given = {y: no_labels(given[x]) for y, x in _HALVES.items() if x in given} | given
    return Dataset("data", **given)


def _by_half(data: Mapping[str, Any], graph: Graph | None) -> dict[str, Any]:
    """Return a mapping of arrays in which parts of samples are below x, y, x_test and y_test."""
    found = dict(data)
    for name in NAMES:
        fields = fields_of(graph, name)
        is_whole = isinstance(data.get(name), Mapping | tuple)  # a part may be called x, too
        if fields.keys() & data.keys() and not is_whole:
            found[name] = {
                part: found.pop(field) for field, part in fields.items() if field in data
            }
    return found


def _array(value: Any, name: str, graph: Graph | None) -> Array:
    """Convert an array, or the arrays of all parts: a mapping, or a tuple in the model's order."""
    where, parts = f"data: {name}", parts_of(graph, name)
    if not parts or graph is None or isinstance(value, np.ndarray):
        return as_array(value, where)
    if isinstance(value, tuple | list) and len(value) == len(parts):
        value = {part.name: one for part, one in zip(parts, value, strict=True)}
    if not isinstance(value, Mapping):
        names = ", ".join(part.name for part in parts)
        raise BadInput(
            f"{where} must be a mapping with the keys {names}, or a tuple of as many arrays, "
            f"because {graph.name} has several {parts_word(name)}"
        )
    arrays = {
        field: as_array(value[part], f"data: {field}")
        for field, part in fields_of(graph, name).items()
        if value.get(part) is not None
    }
    first = arrays.get(f"{parts[0].name}{name[1:]}")
    if first is None or first.ndim > len(parts[0].shape):
        return joined("data", arrays, graph, name)
    single = {field: array[None] for field, array in arrays.items()}
    return joined("data", single, graph, name)[0]  # type: ignore[no-any-return]


def _halves(given: Mapping[str, Any], graph: Graph | None) -> dict[str, Any]:
    arrays = {
        name: _array(value, name, graph) for name in NAMES if (value := given.get(name)) is not None
    }
    if "x" not in arrays or given.get("y", arrays) is None:
        raise BadInput("data: x or y is None: pass an array for each of them")
    return arrays


def _read(data: Any, graph: Graph | None) -> Dataset:
    """Read the items of a loader, a generator or a PyTorch Dataset, in order."""
    what = type(data).__name__
    loads = hasattr(data, "__iter__") and getattr(data, "ndim", 1) > 0
    if not loads and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise BadInput(
            f"data: a value of type {what} holds no samples, or has no length: pass arrays (x, y), "
            "a DataLoader or a path"
        )
    try:
        count = len(data)
    except (TypeError, NotImplementedError):
        count = None
    pairs: list[list[Array]] = []
    size_bytes = 0
    for pair in islice(data, count) if loads else (data[i] for i in range(count or 0)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput(
                f"data: an item of the {what} is a {type(pair).__name__}, not a pair (x, y): make "
                "each item a pair, or pass arrays (x, y)"
            )
        arrays = [
            np.asarray(_array(one, name, graph)) for one, name in zip(pair, "xy", strict=True)
        ]
        size_bytes += sum(array.nbytes + _ARRAY_BYTES for array in arrays)
        if count is None and size_bytes > _MOST_BYTES:
            raise BadInput(
                f"data: this {what} gave more than {_MOST_BYTES >> 20:,} MiB and may be endless: "
                "pass itertools.islice(data, N), which takes N items of it"
            )
        pairs.append(arrays)
    if not pairs:
        raise BadInput(f"data: the {what} has no samples: add samples")
    x, y = pairs[0]
    rank = 0 if graph is None or graph.inputs else len(graph[graph.data].shape) - 1
    single = y.ndim == 0 if graph is None else x.ndim == rank
    try:
        joined = np.stack if single or not loads else np.concatenate
        x, y = (joined(parts) for parts in zip(*pairs, strict=True))
    except ValueError as error:
        raise BadInput(
            f"data: samples of this {what} differ in shape ({error}): give them all the same shape"
        ) from error
    ordered = type(getattr(data, "sampler", None)).__name__ == _SORTED
    return Dataset(what, x, y, shuffle=not ordered)


def as_array(value: Any, what: str) -> Array:
    """Convert an array, tensor or list to a NumPy array.

    Raises BadInput if this is impossible. The argument `what` names the value in the message.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        elif isinstance(value, list | tuple) and value and hasattr(value[0], "detach"):
            value = np.stack([as_array(item, what) for item in value])
        found: Array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{what}: the value cannot be converted to an array of numbers ({error})"
        ) from error
    if found.dtype == object:
        raise BadInput(
            f"{what}: a {type(value).__name__} is not an array of numbers: pass an array, a tensor "
            "or a list of numbers"
        )
    return found


def rate_of(learning_rate: float | None, lr: float | None) -> float | None:
    """Return the learning rate, which has two names. Raises BadInput if both are given."""
    if lr is not None and learning_rate is not None:
        raise BadInput("`lr` is another name for `learning_rate`: pass only one of them")
    return learning_rate if lr is None else lr


def as_schedule(schedule: Schedule | str | Path) -> Schedule:
    """Return the schedule in a .poet file. A Schedule is returned unchanged."""
    return schedule if isinstance(schedule, Schedule) else Schedule.load(schedule)


def as_profile(profile: Profile | Board | str | Path) -> Profile:
    """Return `profile` if it is a Profile, else load that file, or estimate that board's costs."""
    if isinstance(profile, Profile):
        return profile
    if isinstance(profile, Board):
        return estimate_profile(profile)
    if str(profile) in board_names():
        return estimate_profile(str(profile))
    if not Path(profile).is_file():
        raise BadInput(
            f"profile {profile}: there is no such board or file. Name a board "
            f"({', '.join(board_names())}), or a file that `poet-host profile` wrote"
        )
    return Profile.load(profile)


def as_weights(weights: Weights | str | Path, graph: Graph) -> Weights:
    """Return a map from node names to float32 arrays, with the facts that the weights keep.

    `weights`: a map to arrays of any type of numbers, or a .safetensors file.
    """
    if isinstance(weights, str | os.PathLike):
        return load_weights(weights, graph)
    arrays = {name: as_array(value, f"weights: {name}") for name, value in weights.items()}
    return SavedWeights(float_arrays(graph.name, arrays), facts_of_weights(weights))


def checked(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Decorate a function: raise BadInput for an argument that does not fit its type annotation.

    NumPy scalars become Python numbers. `name`: that in the API (None: the function's own).
    """
    name = f"poet.{name or function.__qualname__}"
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(
                parameter for parameter in signature.parameters if parameter != "self"
            )
            raise BadInput(f"{name}: {error}. The parameters of {name} are {known}") from None
        hints = get_type_hints(function)
        for key, value in bound.arguments.items():
            if isinstance(value, np.generic):
                bound.arguments[key] = value = value.item()
            if key in hints and not _fits(value, hints[key]):
                raise BadInput(
                    f"{name}: `{key}` must be {_words(hints[key])}, not {type(value).__name__}"
                )
            if isinstance(value, str | os.PathLike):
                check_name(os.fspath(value))
        try:
            return function(*bound.args, **bound.kwargs)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise BadInput(
                f"{name}: the name {error.filename} is too long: choose a shorter one"
            ) from error

    return call


def _fits(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(_fits(value, item) for item in get_args(hint))
    if kind is Literal:
        return isinstance(value, str)
    if isinstance(value, bool):
        return kind in (bool, object)
    wider = {int: Integral, float: Real, Path: os.PathLike}
    return isinstance(value, wider.get(kind, kind))


def _words(hint: Any) -> str:
    """Describe a type in words. In a union, None (an omitted argument) is not mentioned."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return " or ".join(map(repr, get_args(hint)))
    parts = get_args(hint) if kind in (Union, UnionType) else (kind,)
    words = [
        _GIVES.get(item.__name__, f"a {item.__name__}")
        for item in (get_origin(part) or part for part in parts)
        if item is not NoneType
    ]
    return " or ".join(dict.fromkeys(words))
