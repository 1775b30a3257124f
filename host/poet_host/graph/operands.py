"""The axes of operands, and those along which an operator can be cut into parts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .. import isa
from .graph import Node

Sizes = NDArray[np.int64]

AXES = ("pass", "n", "c", "h", "w", "k", "oh", "groups")
"""The axes along which operators can be cut, as FORMAT.md numbers them: fields of `struct poet_op`,
and the passes over the input."""
PASSES = 2  # of an operator that can be cut along `pass`


@dataclass(frozen=True)
class Window:
    """How rows of one operand of a convolution or pooling depend on rows of another one."""

    kernel: int
    stride: int
    pad: int
    rows_cut: int  # number of rows of the axis that is cut
    rows: int  # number of rows that depend on them
    back: bool  # the cut axis is `h`, the rows are those of the output
    then: "Window | None" = None  # how the operand's rows depend on `rows`; None: they are these

    def rows_of(self, first: int, end: int) -> tuple[int, int]:
        """Return first and end of the rows that share a window with rows `first` to `end` - 1."""
        if end - first == self.rows_cut:
            begin, after = 0, self.rows
        elif self.back:
            begin = max(0, first + self.pad + 1 - self.kernel) // self.stride
            after = (end - 1 + self.pad) // self.stride + 1
        else:
            begin = max(0, first * self.stride - self.pad)
            after = (end - 1) * self.stride + self.kernel - self.pad
        after = min(self.rows, after)
        return self.then.rows_of(begin, after) if self.then else (begin, after)

    def pieces_of(self, first: int, end: int, piece: int) -> tuple[int, int]:
        """Return the rows of the pieces of `piece` rows in which those rows are: first, end."""
        begin, after = self.rows_of(first, end)
        rows = self.then.rows if self.then else self.rows
        return begin - begin % piece, min(rows, -(-after // piece) * piece)

    def most(self, step: Sizes) -> Sizes:
        """Return the most rows that share a window with `step` rows."""
        if self.back:
            found = -(-(step + self.kernel - 2) // self.stride) + 1
        else:
            found = (step - 1) * self.stride + self.kernel
        most = np.where(step < self.rows_cut, np.minimum(found, self.rows), self.rows)
        return self.then.most(most) if self.then else most


@dataclass(frozen=True)
class OperandAxis:
    """One axis of an operand."""

    size: int
    cut_by: str | None  # the operator's axis whose parts are parts of this one; None: never cut
    per: int = 1  # indices of this axis for each index of `cut_by`
    window: Window | None = None  # how indices depend on those of `cut_by`, instead of `per`

    def extent(self, step: Sizes) -> Sizes:
        """Return the most indices for `step` indices of `cut_by`."""
        return self.window.most(step) if self.window else np.minimum(step * self.per, self.size)

    def cell(self, step: int | None) -> int:
        """Return the extent of a cell, for a step; 0 for rows of which some cells have less."""
        if self.window and step is not None and step < self.window.rows_cut:
            return 0
        return self.size if step is None else int(self.extent(np.array(step)))

    def slab(self, step: Sizes, piece: int) -> Sizes:
        """Return the most indices in pieces that have those of `step` indices of `cut_by`."""
        found = self.extent(step)
        if self.window is None:
            return found
        pieces = -(-(found - 1) // piece) + 1
        return np.where(found < self.size, np.minimum(pieces * piece, self.size), self.size)


@dataclass(frozen=True)
class Operator:
    """An operator with its sizes. `attrs` are fields of `struct poet_op`."""

    kernel: str  # names of rows of isa.def
    sink: str
    input_count: int
    attrs: Mapping[str, int | float]
    overwritten: int | None = None  # index of the input whose memory the output may take over

    @property
    def is_grouped(self) -> bool:
        """Return whether a cut of `groups` cuts the channels."""
        return "CONV" in isa.kernels()[self.kernel].rules and self.size("groups") != 1

    @property
    def has_steps(self) -> bool:
        """Return whether the operator walks along n: each part keeps a state for the next one."""
        return "STEPS" in isa.kernels()[self.kernel].rules

    @property
    def walks_down(self) -> bool:
        """Return whether the operator walks from the last step to the first one."""
        is_back = "BACK" in isa.kernels()[self.kernel].rules
        return self.has_steps and bool(self.size("groups") & 1) != is_back

    def kept_bytes(self, by_rows: bool) -> int:
        """Return the bytes that a part of a walk keeps for the next part.

        `by_rows`: with the sums of a step, to which calls with rows of the weight add.
        """
        c, h, w, k = map(self.size, "chwk")
        columns = k + w if "BACK" in isa.kernels()[self.kernel].rules else (h - 1) * w
        return 4 * c * (columns + by_rows * (k + w))

    @property
    def must_overwrite(self) -> bool:
        return self.sink not in ("none", "store") or (
            isa.kernels()[self.kernel].in_place is not None
        )

    @property
    def may_be_paired(self) -> bool:
        """Return whether a nest of the operator can compute the input gradient, too."""
        is_gradient = self.kernel in ("conv2d_grad_weight", "linear_grad_weight")
        return is_gradient and self.sink == "sgd"

    @property
    def has_rows(self) -> bool:
        """Return whether the kernel reads parts of its second input that are not dense."""
        return self.has_planes or self.kernel == "linear_grad_weight"

    @property
    def has_rows_of_gradients(self) -> bool:
        """Return whether the kernel writes parts of its output that are not dense."""
        return self.kernel == "conv2d_grad_weight" and self.input_count <= 3

    @property
    def has_planes(self) -> bool:
        """Return whether the kernel has its first input and its output in rows of channels."""
        return self.kernel in ("conv2d", "conv2d_grad_input")

    @property
    def has_statistics(self) -> bool:
        """Return whether a nest of the operator can compute the statistics of its output, too."""
        return self.kernel == "conv2d"

    @property
    def statistics_axes(self) -> tuple[OperandAxis, ...]:
        """Return the axes of the statistics of the output, if the operator has them."""
        return tuple(OperandAxis(size, None) for size in (2, self.size("k"), 1, 1))

    @property
    def summed(self) -> tuple[str, ...]:
        """Return the axes that a sum goes over, in the order of its terms."""
        return self._axes[1]

    @property
    def ordered(self) -> tuple[str, ...]:
        """Return the axes that loops visit in this order: of sums, and of a walk before them."""
        return ("n", *self.summed) if self.has_steps else self.summed

    @property
    def free_axes(self) -> tuple[str, ...]:
        """Return the other axes along which the operator can be cut."""
        return self._axes[0]

    @property
    def axes(self) -> tuple[str, ...]:
        """Return all axes along which the operator can be cut."""
        return (*self.free_axes, *self.summed)

    @cached_property
    def _axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        row = isa.kernels()[self.kernel]
        free = [name for name in row.parts if not name.startswith("+")]
        summed = [name[1:] for name in row.parts if name.startswith("+")]
        if self.kernel in ("reduce", "reduce_product"):
            bits = int(self.attrs.get("variant", 0))
            summed = [name for axis, name in enumerate("nchw") if bits >> axis & 1]
            free = [name for name in free if name not in summed]
        if self._has_windows:
            hidden = {*"ck"} if self.is_grouped else {"groups"}
            if not self._has_bands:
                hidden |= {"h", "oh"}
            free = [name for name in free if name not in hidden]
            summed = [name for name in summed if name not in hidden]
        return tuple(free), tuple(summed)

    @property
    def _has_windows(self) -> bool:
        return not {"CONV", "POOL"}.isdisjoint(isa.kernels()[self.kernel].rules)

    @property
    def _has_bands(self) -> bool:
        """Return whether each row of an operand shares a window with rows of the other one."""
        kernel, stride, pad = map(self.size, ("kernel_h", "stride_h", "pad_h"))
        reach = self.size("oh") * stride + kernel
        return pad < kernel and kernel + stride <= 255 and self.size("h") + pad < reach

    def size(self, axis: str) -> int:
        return PASSES if axis == "pass" else int(self.attrs.get(axis, 0))

    def operand(self, index: int) -> tuple[OperandAxis, ...]:
        """Return the four axes of an operand: of an input, or after the inputs of the output."""
        row = isa.kernels()[self.kernel]
        is_output = index == self.input_count
        letter = row.output if is_output else (row.letters + row.output * 2)[index]
        formulas = self._formulas(letter)
        if self.kernel == "transpose" and is_output:
            order = self.size("variant")
            formulas = [formulas[order >> 2 * axis & 3] for axis in range(4)]
        axes = [*map(self._axis, formulas)]
        if self.has_steps and letter != "H":  # only the weight has parts along k
            axes = [replace(axis, cut_by=None) if axis.cut_by == "k" else axis for axis in axes]
        if self.kernel == "maxpool2d_grad" and index == 0 and axes[2].cut_by:
            back, then = self._window("h"), self._window("oh")  # x has all rows of dy's windows
            axes[2] = replace(axes[2], window=back and replace(back, then=then))
        return tuple(axes)

    def _formulas(self, letter: str) -> list[str]:
        """Return a formula for the size of each axis of a shape, in the order of its memory."""
        variant = self.size("variant")
        found = list(isa.axes("X" if letter in "ABR" else letter))
        found += ["1"] * (4 - len(found))
        if letter in "ABR":
            bits = variant >> (4 if letter == "B" else 0)
            found = ["1" if bits >> axis & 1 else name for axis, name in enumerate(found)]
        if letter in "MNO":
            bit = "MNO".index(letter)
            if letter != "O" and variant >> bit & 1:
                found[2], found[3] = found[3], found[2]
            if variant >> (2 + bit) & 1:
                found[1], found[2] = found[2], found[1]
        return found

    def _axis(self, formula: str) -> OperandAxis:
        size = isa.formula_value(formula, self.size)
        if self.is_grouped and formula in ("c", "k"):
            return OperandAxis(size, "groups", size // self.size("groups"))
        name = "c" if formula == "c / groups" and not self.is_grouped else formula
        cut = (*self.free_axes, *self.summed)
        other = {"h": "oh", "oh": "h"}.get(formula, "")
        if self._has_windows and name not in cut and other in cut:
            return OperandAxis(size, other, window=self._window(other))
        return OperandAxis(size, name if name in cut else None)

    def _window(self, cut: str) -> Window | None:
        """Return how rows depend on those along the axis `cut`; None: they are the same."""
        kernel, stride, pad = map(self.size, ("kernel_h", "stride_h", "pad_h"))
        rows = self.size("oh" if cut == "h" else "h")
        window = Window(kernel, stride, pad, self.size(cut), rows, back=cut == "h")
        return None if kernel == stride == 1 else window


def operator_of(node: Node) -> Operator:
    """Return the operator of a computed node of a graph."""
    over = None if node.overwrites is None else node.inputs.index(node.overwrites)
    return Operator(node.op, node.sink, len(node.inputs), node.attrs, over)


def part_of(node: Node, extents: Mapping[str, int]) -> Node:
    """Return the node with the sizes of a part: `extents` along some of its operator's axes."""
    operator, attrs = operator_of(node), dict(node.attrs)
    for axis, extent in extents.items():
        if axis == "groups" and operator.is_grouped:
            for name in "ck":
                attrs[name] = int(attrs[name]) * extent // int(attrs["groups"])
        attrs[axis] = extent
    return replace(node, attrs=attrs)
