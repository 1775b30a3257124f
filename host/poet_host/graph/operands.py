"""The axes of operands, and those along which an operator can be cut into parts."""

from collections.abc import Mapping
from dataclasses import dataclass

from .. import isa
from .graph import Node

AXES = ("pass", "n", "c", "h", "w", "k", "oh", "groups")
"""The axes along which operators can be cut, as FORMAT.md numbers them: fields of `struct poet_op`,
and the passes over the input."""
PASSES = 2  # of an operator that can be cut along `pass`


@dataclass(frozen=True)
class OperandAxis:
    """One axis of an operand."""

    size: int
    cut_by: str | None  # the operator's axis whose parts are parts of this one; None: never cut
    per: int = 1  # indices of this axis for each index of `cut_by`


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
    def must_overwrite(self) -> bool:
        return self.sink not in ("none", "store") or (
            isa.kernels()[self.kernel].in_place is not None
        )

    @property
    def summed(self) -> tuple[str, ...]:
        """Return the axes that a sum goes over, in the order of its terms."""
        return self._axes[1]

    @property
    def free_axes(self) -> tuple[str, ...]:
        """Return the other axes along which the operator can be cut."""
        return self._axes[0]

    @property
    def _axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        row = isa.kernels()[self.kernel]
        free = [name for name in row.parts if not name.startswith("+")]
        summed = [name[1:] for name in row.parts if name.startswith("+")]
        if self.kernel in ("reduce", "reduce_product"):
            bits = int(self.attrs.get("variant", 0))
            summed = [name for axis, name in enumerate("nchw") if bits >> axis & 1]
            free = [name for name in free if name not in summed]
        if "CONV" in row.rules:
            hidden = "ck" if self.is_grouped else ("groups",)
            free = [name for name in free if name not in hidden]
            summed = [name for name in summed if name not in hidden]
        return tuple(free), tuple(summed)

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
        return tuple(map(self._axis, formulas))

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
        known = name in (*self.free_axes, *self.summed)
        return OperandAxis(size, name if known else None)


def operator_of(node: Node) -> Operator:
    """Return the operator of a computed node of a graph."""
    over = None if node.overwrites is None else node.inputs.index(node.overwrites)
    return Operator(node.op, node.sink, len(node.inputs), node.attrs, over)
