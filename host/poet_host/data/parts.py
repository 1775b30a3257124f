"""Samples of a model with several inputs or outputs: a record per sample, with a field for each.

A field has the name of an input or output, and the shape of one sample. Records have no gaps: their
bytes are the row that a board gets.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ..errors import BadInput
from ..graph.graph import Graph, Target
from ..graph.losses import parse_loss
from ..graph.weights import Array
from .files import NAMES, Arrays
from .shapes import check_array, parts_of, record_type
from .values import class_labels, finite, indices, labels_of

_Join = Callable[[str, Mapping[str, Array], Graph, str], Array]


def array_names(graph: Graph | None) -> tuple[str, ...]:
    """Return the names of the arrays of a data set for a model: x, y, x_test, y_test, or parts."""
    return tuple(name for half in NAMES for name in fields_of(graph, half) or (half,))


def fields_of(graph: Graph | None, name: str) -> dict[str, str]:
    """Return the names of the arrays that the array `name`, such as x_test, is made of.

    The values are the names of the parts.
    """
    return {f"{part.name}{name[1:]}": part.name for part in parts_of(graph, name)}


def together(
    where: str, arrays: Mapping[str, Array], graph: Graph | None, join: _Join | None = None
) -> Arrays:
    """Return x, y, x_test and y_test, in which `join` joins the arrays of parts.

    Arrays that are missing remain missing, except for x. `join`: `joined` (the default),
    or `blank`.
    """
    found = dict(arrays)
    for name in NAMES:
        if (
            graph
            and (fields := fields_of(graph, name))
            and (name == "x" or fields.keys() & arrays.keys())
        ):
            found[name] = (join or joined)(where, arrays, graph, name)
    if "x" not in found:
        raise BadInput(f"{where}: there is no array x: save the samples under this name")
    return {name: found[name] for name in NAMES if name in found}


def blank(where: str, arrays: Mapping[str, Array], graph: Graph, name: str) -> Array:
    """Return records of zeros, which take no memory, as many as the samples of the arrays (N, ...).

    Raises BadInput if an array is missing, or does not fit its part. Values are not read.
    """
    parts, fields = parts_of(graph, name), fields_of(graph, name)
    for part, field in zip(parts, fields, strict=True):
        if field not in arrays:
            raise BadInput(
                f"{where}: there is no array {field}: {graph.name} needs {', '.join(fields)}"
            )
        check_array(where, field, arrays[field], part.shape, graph)
    counts = {field: len(arrays[field]) for field in fields}
    if len({*counts.values()}) > 1:
        listed = ", ".join(f"{count:,} in {field}" for field, count in counts.items())
        raise BadInput(f"{where}: the arrays must have the same number of samples, not {listed}")
    return np.broadcast_to(np.zeros((), record_type(parts)), len(arrays[next(iter(fields))]))


def joined(where: str, arrays: Mapping[str, Array], graph: Graph, name: str) -> Array:
    """Return the arrays (N, ...) of the parts as records (N,). Raises BadInput as `blank` does.

    Raises BadInput too for values that a part cannot have.
    """
    found = blank(where, arrays, graph, name).copy()
    for part, field in zip(parts_of(graph, name), fields_of(graph, name), strict=True):
        values = arrays[field].astype(np.int32) if arrays[field].dtype == bool else arrays[field]
        if isinstance(part, Target):
            loss = parse_loss(part.criterion)
            if part.dtype == "int32":
                found[part.name] = class_labels(loss, where, field, values, part.limit)
            else:
                found[part.name] = labels_of(loss, where, field, values)
        elif part.dtype == "int32":
            found[part.name] = indices(where, field, "token", values, part.limit, "words")
        else:
            found[part.name] = finite(where, field, values)
    return found
