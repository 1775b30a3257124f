"""A kernel's work, cut into parts in any way that isa.def allows, and computed in any order that
keeps the order of each sum.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from poet_host import isa
from poet_host.graph.operands import PASSES
from support import clib
from support.kernel_cases import Case

INDEXED = {"embedding": "E", "slice": "X"}  # operands that `index` counts, if not the output
WITH_PLANES = ("conv2d", "conv2d_grad_input")  # `in_plane` and `out_plane` of struct poet_call
WITH_ROWS = (*WITH_PLANES, "linear_grad_weight")  # `row` of its second input
Ranges = Mapping[str, range]  # indices of a part, by field
Cut = Callable[[str, int], list[range]]  # of a field of this size


@dataclass(frozen=True)
class Call:
    """One call of a kernel for a part, and what its memory holds before."""

    attrs: Mapping[str, int | float]
    inputs: list[np.ndarray]
    out: np.ndarray
    part: clib.Part


def cuttable(case: Case) -> tuple[list[str], list[str]]:
    """The fields of a case that may be cut: those that no sum goes over, and the others."""
    parts = isa.kernels()[case.op].parts
    summed = [name[1:] for name in parts if name.startswith("+")]
    plain = [name for name in parts if not name.startswith("+")]
    if case.op in ("reduce", "reduce_product"):
        bits = int(case.attrs["variant"])
        summed = [name for axis, name in enumerate("nchw") if bits >> axis & 1]
    if has_windows(case):
        # groups cut c and k
        hidden = {*"ck"} if case.attrs.get("groups", 1) > 1 else {"groups"}
        hidden |= set() if has_bands(case) else {"h", "oh"}
        summed = [name for name in summed if name not in hidden]
        plain = [name for name in plain if name not in hidden]
    return [name for name in plain if name not in summed], summed


def has_windows(case: Case) -> bool:
    return not {"CONV", "POOL"}.isdisjoint(isa.kernels()[case.op].rules)


def has_bands(case: Case) -> bool:
    """Can the rows of a convolution or pooling be cut?"""
    a = case.attrs
    reach = a["oh"] * a["stride_h"] + a["kernel_h"]
    return a["pad_h"] < a["kernel_h"] and a["h"] + a["pad_h"] < reach


def rows_of(case: Case, ranges: Ranges) -> Ranges:
    """`ranges` with the rows of the other operand that share a window with those of a band."""
    if not has_windows(case) or not {"h", "oh"} & {*ranges}:
        return ranges
    here, there = ("h", "oh") if "h" in ranges else ("oh", "h")
    a = {name: int(value) for name, value in case.attrs.items()}
    if len(ranges[here]) == a[here]:
        return {**ranges, there: range(a[there])}
    shared = [
        other
        for other, one, tap in product(range(a[there]), ranges[here], range(a["kernel_h"]))
        if (one if here == "h" else other)
        == (one if here == "oh" else other) * a["stride_h"] - a["pad_h"] + tap
    ]  # fmt: skip
    begin = max(0, min(ranges[here]) + a["pad_h"] + 1 - a["kernel_h"]) // a["stride_h"]
    return {
        **ranges,
        there: range(
            min([begin, *shared]) if here == "h" else min(shared),
            max([begin, *shared]) + 1 if here == "h" else max(shared) + 1,
        ),
    }


def axes(case: Case, letter: str) -> list[str]:
    """The formula of each axis of an operand, in the order of its memory."""
    variant = int(case.attrs.get("variant", 0))
    found = list(isa.axes({"A": "X", "B": "X", "R": "X"}.get(letter, letter)))
    if letter in "ABR":
        bits = variant >> (4 if letter == "B" else 0)
        found = ["1" if bits >> axis & 1 else name for axis, name in enumerate(found)]
    if letter in "MNO":
        bit = "MNO".index(letter)
        if letter != "O" and variant >> bit & 1:
            found[2], found[3] = found[3], found[2]
        if variant >> (2 + bit) & 1:
            found[1], found[2] = found[2], found[1]
    if has_steps(case) and letter != "H":  # only the weight has parts along k
        found = ["k*1" if name == "k" else name for name in found]
    return found


def output_axes(case: Case) -> list[str]:
    found = axes(case, isa.kernels()[case.op].output)
    if case.op == "transpose":
        order = int(case.attrs["variant"])
        found = [found[order >> 2 * axis & 3] for axis in range(4)]
    return found


def box(case: Case, formulas: list[str], ranges: Ranges) -> tuple[slice, ...]:
    """Where a part lies in an operand."""

    def along(formula: str) -> slice:
        if formula in ranges:
            return slice(ranges[formula].start, ranges[formula].stop)
        if "groups" in ranges and formula in ("c", "k"):
            each = int(case.attrs[formula]) // int(case.attrs["groups"])
            return slice(each * ranges["groups"].start, each * ranges["groups"].stop)
        if formula == "c / groups" and "c" in ranges:
            return slice(ranges["c"].start, ranges["c"].stop)
        return slice(None)

    return tuple(map(along, formulas))


def size_of(case: Case, name: str) -> int:
    """How many indices an axis of the case has."""
    return PASSES if name == "pass" else int(case.attrs[name])


def shape(case: Case, formulas: list[str]) -> tuple[int, ...]:
    return tuple(
        isa.formula_value(formula, lambda name: int(case.attrs[name])) for formula in formulas
    )


def attrs_of(case: Case, ranges: Ranges) -> dict[str, int | float]:
    found = dict(case.attrs) | {n: len(part) for n, part in ranges.items() if n != "pass"}
    if has_windows(case) and {"h", "oh"} <= {*ranges}:
        starts = ranges["h"].start - ranges["oh"].start * int(case.attrs["stride_h"])
        found["pad_h"] = int(case.attrs["pad_h"]) + starts
    if "groups" in ranges and "CONV" in isa.kernels()[case.op].rules:
        for name in ("c", "k"):
            each = int(case.attrs[name]) // int(case.attrs["groups"])
            found[name] = each * len(ranges["groups"])
    return found


def whole(_name: str, size: int) -> list[range]:
    return [range(size)]


def random_cuts(rng: np.random.Generator) -> Cut:
    def cut(_name: str, size: int) -> list[range]:
        inner = [at for at in range(1, size) if rng.random() < 0.4]
        return [range(a, b) for a, b in zip([0, *inner], [*inner, size], strict=True)]

    return cut


def parts(case: Case, cut: Cut) -> Iterator[tuple[Ranges, list[Ranges]]]:
    """For each part of the output, its ranges, and those of the terms of its sums in order."""
    plain, summed = cuttable(case)
    cuts = {name: cut(name, int(case.attrs[name])) for name in plain}
    terms: dict[str, list[range]] = {}
    for name in summed:
        terms[name] = cut(name, size_of(case, name))
        if any(len(part) > 1 for part in terms[name]):
            break
    if has_steps(case) and len(terms["k"]) > 1:  # rows of the weight, in each step
        cuts["n"] = [range(at, at + 1) for at in range(int(case.attrs["n"]))]
    orders = [dict(zip(terms, part, strict=True)) for part in product(*terms.values())]
    for ranges in product(*cuts.values()):
        yield dict(zip(cuts, ranges, strict=True)), orders


def has_steps(case: Case) -> bool:
    """Does the kernel walk along n? Then its parts follow each other."""
    return "STEPS" in isa.kernels()[case.op].rules


def walks_down(case: Case) -> bool:
    return bool(int(case.attrs["groups"]) & 1) != ("BACK" in isa.kernels()[case.op].rules)


def call_of(
    case: Case, ranges: Ranges, out: np.ndarray, sums: np.ndarray, last: bool, rows: bool
) -> Call:
    """The call for the terms and elements in these ranges. `rows`: use `row` where possible."""
    kernel = isa.kernels()[case.op]
    terms, ranges = ranges, rows_of(case, ranges)
    letters = [*kernel.letters[: len(case.inputs)]]
    letters += kernel.output * (len(case.inputs) - len(letters))
    inputs = [
        np.array(array.reshape(shape(case, form))[box(case, form, ranges)], order="C")
        for array, form in zip(case.inputs, (axes(case, x) for x in letters), strict=True)
    ]
    if case.op == "maxpool2d_grad" and "h" in ranges:  # x has all rows of dy's windows
        around = rows_of(case, {name: part for name, part in ranges.items() if name != "h"})
        inputs[0] = np.array(case.inputs[0][box(case, axes(case, "X"), around)], order="C")
    first = all(ranges[name].start == 0 for name in cuttable(case)[1] if name in terms)
    row, planes = 0, (0, 0)
    if case.overwrites is not None and last:
        if rows and first and case.op == "conv2d_grad_weight" and len(inputs) == 3:
            form = axes(case, "W")
            whole_of_it = case.inputs[case.overwrites].copy().reshape(shape(case, form))
            inputs[case.overwrites] = whole_of_it[box(case, form, ranges)]
            row = whole_of_it.strides[0] // 4
        out = inputs[case.overwrites]
    place = axes(case, indexed) if (indexed := INDEXED.get(case.op)) else output_axes(case)
    starts = [part.start or 0 for part in box(case, place, ranges)]
    index = int(np.ravel_multi_index(starts, shape(case, place)))
    kept = sums if kernel.has_sink or has_steps(case) else None
    if has_steps(case):
        at_ends = (ranges["n"].start == 0, ranges["n"].stop == case.attrs["n"])
        first, last = at_ends[::-1] if walks_down(case) else at_ends
        row = ranges["k"].start
    number = ranges["pass"].start if "pass" in ranges else 0
    if rows and case.op in WITH_PLANES:
        form = axes(case, letters[0])
        view = case.inputs[0].reshape(shape(case, form))[box(case, form, ranges)]
        if len(view) == 1 or view.shape[1] == case.inputs[0].shape[1]:
            inputs[0] = view
        planes = inputs[0].strides[1] // 4, out.strides[1] // 4
    if rows and case.op in WITH_ROWS and "groups" not in ranges:
        form = axes(case, letters[1])
        inputs[1] = case.inputs[1].reshape(shape(case, form))[box(case, form, ranges)]
        row = inputs[1].strides[0] // 4
    part = clib.Part(case.attrs, first, last, index, kept, number, row, planes)
    return Call(attrs_of(case, ranges), inputs, out, part)


def calls(
    case: Case,
    cut: Cut,
    out: np.ndarray,
    pick: Callable[[int], int] = lambda _: 0,
    *,
    rows: bool = False,
) -> Iterator[Call]:
    """The calls of all parts. The caller runs each; then `out` receives its part of the output.

    `pick(count)` says which of the unfinished parts of the output comes next. `rows`: second inputs
    may be parts of rows (`row` of struct poet_call), and rows of channels need not be dense.
    """
    boxed = output_axes(case)
    all_of_it = out.reshape(shape(case, boxed))
    waiting = []
    kept = clib.unwritten((int(case.attrs.get("c", 1)), 10, int(case.attrs.get("w", 1))))
    for ranges, orders in parts(case, cut):
        target = all_of_it[box(case, boxed, ranges)]
        memory, sums = clib.unwritten(target.shape), clib.unwritten(target.shape)
        whole_channels = target.ndim == 4 and target.shape[1] == all_of_it.shape[1]
        if rows and case.op in WITH_PLANES and (len(target) == 1 or whole_channels):
            memory = target
        sums = kept if has_steps(case) else sums
        waiting.append((ranges, target, [*orders], memory, sums))
    if has_steps(case):
        waiting = waiting[:: -1 if walks_down(case) else 1]
    while waiting:
        at = 0 if has_steps(case) else pick(len(waiting))
        ranges, target, left, memory, sums = waiting[at]
        terms = left.pop(0)
        call = call_of(case, {**ranges, **terms}, memory, sums, not left, rows)
        yield call
        if not left:
            target[...] = call.out.reshape(target.shape)
            del waiting[at]


def run(case: Case, rng: np.random.Generator) -> np.ndarray:
    """The output of the C kernel, computed in random parts in a random order."""
    out = clib.unwritten(case.shape)
    cut, rows = random_cuts(rng), bool(rng.integers(2))
    for call in calls(case, cut, out, lambda count: int(rng.integers(count)), rows=rows):
        clib.call(case.op, case.sink, call.attrs, call.inputs, case.step, call.out, call.part)
    assert clib.is_written(out), f"{case.op} in parts leaves elements unwritten"
    return out
