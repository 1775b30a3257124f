"""Every kernel: C equals the NumPy reference bit for bit, for any geometry and sink."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from poet_host import isa
from poet_host.reference.step import KERNELS, run_kernel
from support import clib
from support.kernel_cases import EXAMPLES, NEEDED, SINKS, WIDTHS, Case, check, make

NAMES = list(isa.kernels())
SINKING = [row.name for row in isa.kernels().values() if row.has_sink]
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)
CHANNELS = st.integers(1, 3) | st.sampled_from([4, 9, 17])  # of a group; the last ones are tiles
common = settings(max_examples=EXAMPLES, deadline=None)


def out_size(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1


@st.composite
def windows(draw: st.DrawFn, pad_below_half: bool) -> dict[str, int]:
    """A window of its own size, stride and padding along each axis, that fits."""
    found: dict[str, int] = {}
    for axis in "hw":
        kernel = draw(st.integers(1, 4))
        pad = draw(st.integers(0, kernel // 2 if pad_below_half else kernel + 1))
        stride = draw(st.integers(1, 3))
        size = draw(st.integers(max(1, kernel - 2 * pad), 8))
        same = out_size(size, kernel, stride, pad)  # with the same padding after the elements
        most = (size + pad - 1) // stride + 1 if pad < kernel else same
        found |= {
            axis: size,
            f"o{axis}": draw(st.just(same) | st.integers(1, most)),
            f"kernel_{axis}": kernel,
            f"stride_{axis}": stride,
            f"pad_{axis}": pad,
        }
    return found


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, int]:
    groups = draw(st.integers(1, 3))
    found = draw(windows(pad_below_half=False))
    return found | {
        "n": draw(st.integers(1, 3)),
        "groups": groups,
        "c": groups * draw(CHANNELS),
        "k": groups * draw(CHANNELS),
    }


@st.composite
def images(draw: st.DrawFn) -> dict[str, int]:
    return {axis: draw(sizes) for axis in "nchw"}


def test_every_row_has_a_function_in_c_and_in_numpy() -> None:
    library = clib.library()
    for row in isa.rows("KERNEL"):
        assert bool(library.poet_kernel(row.code)) == (row.name != "none"), row.name
    known = {row.code for row in isa.rows("KERNEL")}
    assert not any(library.poet_kernel(code) for code in set(range(256)) - known)
    assert set(KERNELS) == set(NAMES)


def test_kernels_call_no_library_and_have_no_state(tmp_path: Path) -> None:
    """They run where there is no C library to speak of, and several at a time."""
    flags = ["-r", "-nostdlib", "-fno-pie", "-fno-stack-protector", "-fno-math-errno"]
    clib.compile_kernels(tmp_path / "all.o", *flags)
    listing = subprocess.run(
        ["nm", "--format=posix", str(tmp_path / "all.o")],
        check=True,
        capture_output=True,
        text=True,
    )
    symbols = [line.split()[:2] for line in listing.stdout.splitlines()]
    assert ["poet_conv2d", "T"] in symbols
    assert {name for name, kind in symbols if kind == "U"} <= {"memset", "memcpy", "sqrtf"}
    assert {kind for _, kind in symbols} <= {"U", "T", "t", "r"}


@common
@given(convolutions(), seeds, st.booleans(), st.sampled_from(SINKS))
def test_convolution(a: dict[str, int], seed: int, bias: bool, sink: tuple[str, float]) -> None:
    check(make("conv2d", a, seed, bias=bias))
    check(make("conv2d_grad_input", a, seed))
    check(make("conv2d_grad_weight", a, seed, sink=sink[0], decay=sink[1]))
    check(make("grad_bias", a, seed, sink=sink[0], decay=sink[1]))


@pytest.mark.parametrize("ow", [8, 9, 10])
@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_input", "conv2d_grad_weight"])
def test_a_depthwise_convolution_may_change_the_width_of_rows(op: str, ow: int) -> None:
    check(make(op, WIDTHS | {"ow": ow}, 1, sink="store" if op in SINKING else "none"))


@common
@given(convolutions(), seeds, st.sampled_from([np.inf, -np.inf, np.nan]))
def test_padding_adds_no_term_to_a_convolution(
    a: dict[str, int], seed: int, special: float
) -> None:
    """Where an operand is not finite, a product with a zero for padding would be NaN."""
    for op in ("conv2d", "conv2d_grad_input", "conv2d_grad_weight"):
        case = make(op, a, seed, sink="store" if op in SINKING else "none")
        for operand in case.inputs[:2]:
            before = operand.flat[seed % operand.size]
            operand.flat[seed % operand.size] = special
            got, wanted = case.c(), case.numpy().reshape(case.shape)
            assert np.array_equal(np.isnan(got), np.isnan(wanted)), op
            assert np.array_equal(got[~np.isnan(got)], wanted[~np.isnan(got)]), op
            operand.flat[seed % operand.size] = before


@pytest.mark.parametrize("stride", [1, 2])
def test_a_large_convolution(stride: int) -> None:
    """More rows and columns than the buffers of vectors hold."""
    a = {"n": 2, "c": 8, "h": 40, "w": 70, "k": 9, "groups": 1}
    for axis, size in (("h", 40), ("w", 70)):
        a |= {f"kernel_{axis}": 3, f"stride_{axis}": stride, f"pad_{axis}": 1}
        a[f"o{axis}"] = out_size(size, 3, stride, 1)
    for op in ("conv2d", "conv2d_grad_input"):
        check(make(op, a, 1))
    check(make("conv2d_grad_weight", a, 1, sink="store"))


@common
@given(images(), sizes, seeds, st.booleans(), st.sampled_from(SINKS))
def test_linear(a: dict[str, int], k: int, seed: int, bias: bool, sink: tuple[str, float]) -> None:
    a = a | {"k": k}
    check(make("linear", a, seed, bias=bias))
    check(make("linear_grad_input", a, seed))
    check(make("linear_grad_weight", a, seed, sink=sink[0], decay=sink[1]))


@common
@given(images(), seeds, st.sampled_from(SINKS), st.integers(0, 1), st.floats(0, 1, width=32))
def test_batchnorm(
    a: dict[str, int], seed: int, sink: tuple[str, float], variant: int, rate: float
) -> None:
    norm = a | {"epsilon": 1e-5}
    check(make("batchnorm_stats", a, seed))
    check(make("batchnorm", norm, seed))
    check(make("batchnorm_running", a | {"update_rate": rate}, seed))
    check(make("batchnorm_sums", norm, seed))
    check(make("batchnorm_grad_input", norm, seed))
    check(make("batchnorm_grad_input_frozen", norm, seed))
    check(make("batchnorm_grad_param", a | {"variant": variant}, seed, sink=sink[0], decay=sink[1]))


@common
@given(windows(pad_below_half=True), st.integers(1, 3), st.integers(1, 3), seeds)
def test_pooling(window: dict[str, int], n: int, c: int, seed: int) -> None:
    a = window | {"n": n, "c": c}
    for op in ("maxpool2d", "maxpool2d_grad", "avgpool2d", "avgpool2d_grad"):
        check(make(op, a, seed))
    plane = {name: a[name] for name in "nchw"}
    check(make("global_avgpool", plane, seed))
    check(make("global_avgpool_grad", plane, seed))


@common
@given(images(), seeds, st.sampled_from(SINKS))
def test_elementwise(a: dict[str, int], seed: int, sink: tuple[str, float]) -> None:
    for op in ("add", "mse"):
        check(make(op, a, seed))
    check(make("apply_gradient", a, seed, sink=sink[0], decay=sink[1]))
    check(make("momentum_step", a | {"learning_rate": 0.03}, seed))


@common
@given(images(), seeds, seeds, seeds, seeds, st.floats(0, 0.96875, width=32))
def test_dropout(
    a: dict[str, int], values: int, seed: int, key: int, step: int, probability: float
) -> None:
    attrs = a | {"probability": probability, "seed": seed, "key": key}
    case = make("dropout", attrs, values)
    check(Case("dropout", attrs, case.inputs, case.shape, step=step))


@common
@given(st.integers(1, 5), st.integers(1, 12), seeds, st.sampled_from([0.01, 1.0, 30.0, 1e20]))
def test_softmax_cross_entropy(n: int, c: int, seed: int, scale: float) -> None:
    shares = {"lower_bound": 0.05, "upper_bound": 0.8}
    for op in ("softmax_xent", "softmax_xent_grad", "weighted_xent", "weighted_xent_grad"):
        case = make(op, {"n": n, "c": c, **shares}, seed)
        logits, *others = case.inputs
        check(Case(op, case.attrs, [logits * np.float32(scale), *others], case.shape))


@pytest.mark.parametrize("op", SINKING)
@pytest.mark.parametrize(("sink", "decay"), SINKS)
def test_sinks_follow_the_stored_gradient(op: str, sink: str, decay: float) -> None:
    """A fused update is the update of the gradient that the same kernel would store."""
    a = {"n": 2, "c": 4, "h": 5, "w": 4, "k": 6, "oh": 3, "ow": 4, "groups": 2, "variant": 1}
    a |= {"kernel_h": 3, "kernel_w": 1, "stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0}
    case = make(op, a, 5, sink=sink, decay=decay)
    own = len(case.inputs) - {"store": 0, "momentum": 1 + (decay != 0)}.get(sink, 1)
    g = Case(op, a, case.inputs[:own], case.shape, "store").c()
    old = case.inputs[own:]
    rate, mu, wd = np.float32(0.03), np.float32(0.9), np.float32(decay)
    wanted = {
        "store": lambda: g,
        "accumulate": lambda: old[0] + g,
        "sgd": lambda: old[0] - rate * (g + wd * old[0] if decay else g),
        "momentum": lambda: mu * old[0] + (g + wd * old[1] if decay else g),
    }[sink]()
    assert clib.same_bits(case.c(), wanted)
    check(case)


def test_sums_take_their_terms_one_by_one() -> None:
    """One accumulator: 2^24 + 1 - 2^24 loses the 1, whatever a faster order would give."""
    big = np.float32(2**24)
    x = np.array([big, 1, -big, 1], np.float32)
    ones = np.ones(4, np.float32)
    a = {"n": 1, "c": 4, "h": 1, "w": 1, "k": 1}
    assert clib.run("linear", "none", a, [x, ones], 0, (1,)) == 1
    pixels = {"n": 1, "c": 1, "h": 2, "w": 2}
    assert clib.run("global_avgpool", "none", pixels, [x], 0, (1,)) == 0.25
    conv = {"n": 4, "c": 1, "h": 1, "w": 1, "k": 1, "oh": 1, "ow": 1, "groups": 1}
    conv |= {"kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": 1}
    assert clib.run("conv2d_grad_weight", "store", conv, [x, ones], 0, (1,)) == 1


def test_not_a_number_passes_up_to_the_loss() -> None:
    a = {"n": 1, "c": 1, "h": 2, "w": 3, "k": 2, "oh": 1, "ow": 1, "epsilon": 1e-5, "groups": 1}
    a |= {"kernel_h": 2, "kernel_w": 3, "stride_h": 1, "stride_w": 1}
    for op in NAMES:
        gates = ("relu_grad", "relu6_grad", "clip_grad", "dropout")
        if isa.kernels()[op].letters[0] not in "XAGYM" or op in gates:
            continue
        sink = "store" if op in SINKING else "none"
        case = make(op, a | NEEDED.get(op, {}), 3, sink=sink)
        case.inputs[0].reshape(-1)[-1] = np.nan
        if op == "maxpool2d_grad":
            assert not np.isnan(case.c()).any()
            continue
        got, wanted = case.c(), case.numpy()
        assert np.isnan(got).any(), op
        assert np.array_equal(np.isnan(got), np.isnan(wanted)), op


@pytest.mark.parametrize("at", range(4))
def test_maxpool_keeps_a_not_a_number_wherever_it_stands(at: int) -> None:
    a = {"n": 1, "c": 1, "h": 2, "w": 2, "oh": 1, "ow": 1, "kernel_h": 2, "kernel_w": 2}
    a |= {"stride_h": 2, "stride_w": 2}
    x = np.array([[[[1, 9, 3, 4]]]], np.float32).reshape(1, 1, 2, 2)
    x.reshape(-1)[at] = np.nan
    assert np.isnan(clib.run("maxpool2d", "none", a, [x], 0, (1,))).all()
    gradient = Case("maxpool2d_grad", a, [x, np.ones((1, 1, 1, 1), np.float32)], x.shape)
    check(gradient)
    assert gradient.c().reshape(-1).argmax() == at


def test_maxpool_prefers_any_element_to_padding_and_the_first_of_equals() -> None:
    a = {"n": 1, "c": 1, "h": 2, "w": 2, "oh": 1, "ow": 1, "kernel_h": 4, "kernel_w": 4}
    a |= {"stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1}
    for value in (-3.0, -np.inf):
        x = np.full((1, 1, 2, 2), value, np.float32)
        assert clib.run("maxpool2d", "none", a, [x], 0, (1,)) == value
        gradient = Case("maxpool2d_grad", a, [x, np.ones((1, 1, 1, 1), np.float32)], x.shape)
        check(gradient)
        assert gradient.c().reshape(-1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_label_out_of_range_gives_no_loss_and_reads_nothing(label: int) -> None:
    case = make("softmax_xent", {"n": 2, "c": 3}, 1)
    case.inputs[1][1] = label
    assert np.isnan(case.c()).all()
    assert np.isnan(case.numpy()).all()
    check(Case("softmax_xent_grad", case.attrs, case.inputs, (2, 3)))


def test_the_reference_refuses_what_does_not_fit() -> None:
    a = {"n": 1, "c": 2, "h": 1, "w": 1}
    with pytest.raises(ValueError, match="reshape"):
        run_kernel("relu", "none", a, [np.zeros(3, np.float32)], 0)
    with pytest.raises(ValueError, match="float64"):
        run_kernel("relu", "none", a, [np.zeros(2)], 0)
    with pytest.raises(ValueError, match="`sink` is none"):
        run_kernel("apply_gradient", "none", a, [np.zeros(2, np.float32)], 0)


def test_the_reference_leaves_its_inputs_alone() -> None:
    a = {"n": 2, "c": 4, "h": 5, "w": 4, "k": 6, "oh": 3, "ow": 4, "groups": 2, "epsilon": 0.1}
    a |= {"kernel_h": 3, "kernel_w": 1, "stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0}
    for op in NAMES:
        case = make(op, a | NEEDED.get(op, {}), 9, sink="store" if op in SINKING else "none")
        before = [array.copy() for array in case.inputs]
        result = case.numpy()
        assert not any(np.shares_memory(result, array) for array in case.inputs), op
        result.fill(0)
        assert all(map(clib.same_bits, before, case.inputs)), op
