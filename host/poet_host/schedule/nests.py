"""Nests in a schedule: their bits, and the tensors that they use (FORMAT.md, "Nests")."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import isa
from ..graph import operands
from ..graph.operands import AXES
from ..plan.nests import Loop, Nest, NestedOperator, Ring
from ..plan.plan import Statement
from .bits import Bits, width
from .model import Model

_LOOP_BITS = 3  # of the number of loops
_AXIS_BITS = 3


@dataclass(frozen=True)
class Streamed(Statement):
    """A compute that a schedule runs as a nest."""

    nest: Nest = field(default=Nest((), ()), kw_only=True)
    # The second node that the nest computes: the gradient of the weight, if `node` is the input
    # gradient of a pair; the statistics of the output, if `node` is a convolution.
    also: str | None = field(default=None, kw_only=True)

    @property
    def is_pair(self) -> bool:
        return bool(self.nest.also)

    @property
    def own(self) -> str:
        """Return the node that the nest's operator computes; of a pair, the second node."""
        return self.also if self.is_pair and self.also else self.node

    @property
    def other(self) -> str | None:
        """Return the node that the nest computes in addition to `own`; None if there is none."""
        return self.node if self.is_pair else self.also

    @property
    def also_offset(self) -> int | None:
        """Return the offset of the node `also`, unless it streams."""
        return self.also_offsets[0] if self.also_offsets else None

    @property
    def own_offset(self) -> int | None:
        return self.also_offset if self.is_pair else self.offset

    @property
    def other_offset(self) -> int | None:
        return self.offset if self.is_pair else self.also_offset


def with_nests(
    statements: Sequence[Statement],
    nests: Mapping[tuple[str, int], Nest],
    names: Sequence[str],
) -> tuple[Statement, ...]:
    """Return the plan's statements, where computes in a mode with a nest are `Streamed`.

    `nests`: by node and number of the mode. `names`: of the tensors, in the order of their numbers.
    """
    converted: list[Statement] = []
    for statement in statements:
        nest = nests.get((statement.node, statement.mode)) if statement.op == "compute" else None
        if nest is None:
            converted.append(statement)
            continue
        several = nest.also or nest.statistics
        also = names[names.index(statement.node) + 1] if several else None
        converted.append(Streamed(**vars(statement), nest=nest, also=also))
    return tuple(converted)


def operator_of(model: Model, tensor: int) -> operands.Operator:
    """Return the operator that computes the tensor with this number."""
    op = model.operator(tensor)
    over = None if op.overwrites is None else op.inputs.index(op.overwrites)
    kernel, sink = isa.by_code("KERNEL")[op.kernel].name, isa.by_code("SINK")[op.sink].name
    return operands.Operator(kernel, sink, len(op.inputs), op.attrs, over)


def nested(model: Model, tensor: int, nest: Nest) -> NestedOperator:
    """Return a nest with its operator and cuts. Raises LawError if it breaks a law."""
    numbers = [*model.operator(tensor).inputs, tensor, *(tensor - 1 for _ in nest.also)]
    if nest.statistics:
        numbers.append(tensor + 1)
    return NestedOperator(
        operator_of(model, tensor), tuple(model.tensors[i].cut for i in numbers), nest
    )


def made_by(tensor: int, nest: Nest) -> list[tuple[int, Ring | None]]:
    """Return the tensors that a nest computes, with their rings. `tensor`: its operator's."""
    made = [*((tensor - 1, ring) for ring in nest.also), (tensor, nest.operands[-1])]
    return [*made, (tensor + 1, None)] if nest.statistics else made


def code_nest(
    bits: Bits,
    operator: operands.Operator,
    given: Nest | None,
    *,
    paired: bool = False,
    statistics: bool = False,
) -> Nest:
    """Write the bits of a nest that obeys the laws, or read a nest (None), and return it.

    The laws of a nest that is read are not checked. `paired`: it computes two gradients.
    """
    loops: list[Loop] = []
    inner: dict[str, int] = {}
    ours = given.loops[::-1] if given else ()
    for i in range(bits.number(len(ours), _LOOP_BITS)):
        loop = ours[i] if given else Loop(AXES[0], 1)
        number = bits.number(AXES.index(loop.axis), _AXIS_BITS)
        axis = AXES[number] if number < len(AXES) else ""
        before = inner.get(axis, 1)
        inner[axis] = before * (bits.gamma(loop.step // before - 1) + 1)
        loops.insert(0, Loop(axis, inner[axis]))
    in_place, over = True, operator.overwritten
    if over is not None and not operator.must_overwrite:
        in_place = bool(bits.number(given is not None and given.in_place, 1))
    rings: list[Ring | None] = []
    for i in range(operator.input_count + 1 + paired):
        ring = given.rings[i] if given else None
        if in_place and i == over:
            continue
        if bits.number(ring is not None, 1):
            slots = bits.number(ring.slots - 1 if ring else 0, 1) + 1
            ring = Ring(slots, bits.number(ring.depth if ring else 0, width(len(loops) + 1)))
        rings.append(ring)
    also = (rings.pop(),) if paired else ()
    if over is not None and in_place:
        rings.insert(over, rings[-1])
    return Nest(tuple(loops), tuple(rings), in_place, also, statistics)
