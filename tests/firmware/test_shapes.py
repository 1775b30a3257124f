"""The board's table of operands, shape.c: for every kernel the sizes that its operands have."""

from math import prod

import pytest
from hypothesis import given, settings, strategies as st
from poet_host import isa
from support.kernel_cases import make
from support.memory_board import library

NONE = isa.constants()["POET_NONE"]
SIZES = ("n", "c", "h", "w", "k")


def operand_bytes(op: str, sink: str, attrs: dict[str, int], count: int, over: int | None) -> list:
    """What the board takes each input, and the output, to be."""
    ffi, lib = library()
    record = ffi.new("struct poet_op *")
    data = isa.pack_op(
        isa.by_name("KERNEL")[op].code,
        isa.by_name("SINK")[sink].code,
        range(count),
        count,
        over,
        attrs,
    )
    ffi.memmove(record, data, len(data))
    return [lib.poet_operand_bytes(record, i) for i in range(count + 1)]


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, int]:
    """Fields that suit every kernel: a window over a padded plane, a part of the channels."""
    a = {name: draw(st.integers(1, 6)) for name in SIZES}
    a |= {"groups": 1, "variant": draw(st.integers(0, 255))}
    for axis in "hw":
        kernel, stride = draw(st.integers(1, a[axis])), draw(st.integers(1, 3))
        pad = draw(st.integers(0, kernel // 2))
        after = draw(st.integers(0, kernel - 1))
        out = (a[axis] + pad + after - kernel) // stride + 1
        a |= {f"kernel_{axis}": kernel, f"stride_{axis}": stride, f"pad_{axis}": pad}
        a[f"o{axis}"] = out
    return a


@pytest.mark.slow
@pytest.mark.parametrize("op", isa.kernels())
@settings(max_examples=25, deadline=None, derandomize=True)
@given(geometries(), st.booleans(), st.sampled_from(["store", "accumulate", "sgd", "momentum"]))
def test_every_kernel_has_the_sizes_that_it_reads(
    op: str, a: dict[str, int], optional: bool, sink: str
) -> None:
    if op.startswith("slice"):
        a |= {"oh": a["oh"] % a["c"]}
        a |= {"k": min(a["k"], a["c"] - a["oh"])}
    if op == "transpose":
        a |= {"variant": 0b01110010}
    if not isa.kernels()[op].has_sink:
        sink = "none"
    case = make(op, a, 1, sink=sink, bias=optional)
    found = operand_bytes(op, sink, case.attrs, len(case.inputs), case.overwrites)
    assert found == [4 * prod(x.shape) for x in (*case.inputs, case)]


@pytest.mark.parametrize(
    "op", [name for name, row in isa.kernels().items() if row.in_place is None]
)
def test_zero_sizes_are_refused(op: str) -> None:
    kernel = isa.kernels()[op]
    sink = "store" if kernel.has_sink else "none"
    assert 0 in operand_bytes(op, sink, {}, len(kernel.letters), None)


@pytest.mark.parametrize("variant", [0, 0b11100101, 0b11111111, 0b00100100])
def test_an_order_that_names_an_axis_twice_is_refused(variant: int) -> None:
    a = {"n": 2, "c": 3, "h": 4, "w": 5, "variant": variant}
    assert operand_bytes("transpose", "none", a, 1, None) == [0, 0]


@pytest.mark.parametrize(("begin", "count"), [(3, 1), (2, 2), (0, 4), (2**32 - 1, 2)])
def test_a_part_that_leaves_its_tensor_is_refused(begin: int, count: int) -> None:
    a = {"n": 2, "c": 3, "h": 4, "w": 5, "oh": begin, "k": count}
    for op in ("slice", "slice_grad"):
        assert operand_bytes(op, "none", a, 1, None) == [0, 0]


def test_an_average_renews_its_state_and_nothing_else() -> None:
    a = {"n": 2, "c": 3, "h": 1, "w": 1}
    for op in ("average", "average_square"):
        assert operand_bytes(op, "none", a, 3, 1) == [24] * 4
        assert operand_bytes(op, "none", a, 2, 1) == [24] * 3
        for wrong in (None, 0, 2):
            assert operand_bytes(op, "none", a, 3, wrong) == [0] * 4
    assert operand_bytes("adam_step", "none", a, 3, 0) == [24] * 4
    assert operand_bytes("adam_step", "none", a, 3, 1) == [0] * 4
