"""The parts of operands: what a cut of a tensor means for an operator that uses the tensor."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from ..errors import BadInput
from ..graph.cuts import Cut
from ..graph.operands import OperandAxis, Operator


class LawError(BadInput):
    """Raised for a nest that breaks a law. `law` is its name in FORMAT.md."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(message)
        self.law = law


def parts_of(axes: tuple[OperandAxis, ...], cut: Cut | None) -> tuple[int, ...]:
    """Return the indices of a part along each axis of an operand.

    Raises LawError if the cut is not along axes of the operand.
    """
    part = [axis.size for axis in axes]
    if cut is None:
        return tuple(part)
    if cut.size_bytes != 4 * prod(part):
        raise LawError("cut", "the cut of an operand is for another size")
    for i, (rest, left) in enumerate(zip(cut.size, cut.part, strict=True)):
        if left == rest:
            continue
        below, after = prod(cut.size[i + 1 :]) * cut.unit_bytes // 4, 1
        for j in reversed(range(len(axes))):
            size = axes[j].size
            if after == below and rest > 1:
                part[j] = min(left, size)
                if rest % size or (rest > size and (size % part[j] or left % part[j])):
                    raise LawError("cut", "an operand is cut between axes of the operator")
                left, rest, below = left // part[j], rest // size, below * size
            after *= size
        if rest > 1:
            raise LawError("cut", "an operand is cut along no axis of the operator")
    return tuple(part)


def in_parts(steps: Mapping[str, tuple[int, int]]) -> Iterator[tuple[dict[str, int], int]]:
    """Yield the extents of parts along some axes, each with the number of these parts.

    `steps`: by axis, its size and that of a part. The last part may be smaller.
    """
    sides = [
        [(axis, step, size // step), *([(axis, size % step, 1)] if size % step else [])]
        for axis, (size, step) in steps.items()
    ]
    for combination in product(*sides):
        extents = {axis: extent for axis, extent, _ in combination}
        yield extents, prod(times for *_, times in combination)


def fit_statistics(operator: Operator, part: tuple[int, ...], cut: Cut | None) -> bool:
    """Return whether a nest of the operator can compute the statistics of its output, too.

    `part`: of the output. `cut`: of the statistics. Their parts have the same channels, and terms
    ascend: samples, then rows.
    """
    if not operator.has_statistics:
        return False
    samples, channels, rows, columns = part
    output = operator.operand(operator.input_count)
    in_order = columns == output[3].size and (samples == 1 or rows == output[2].size)
    return in_order and parts_of(operator.statistics_axes, cut) == (2, channels, 1, 1)
