"""exp, log, sigmoids and dropout's generator: judged by float64, scikit-learn and statistics."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from poet_host.reference import floats as exact
from poet_host.reference.step import run_kernel
from sklearn.utils import murmurhash3_32
from support import clib


def floats(begin: float, end: float, count: int) -> np.ndarray:
    """About `count` float32 from `begin` to `end`, evenly spread over the bit patterns.

    Both must have the same sign.
    """
    first, last = (
        int(np.float32(value).view(np.uint32)) for value in sorted((begin, end), key=abs)
    )
    bits = np.arange(first, last + 1, max(1, (last - first) // count), dtype=np.uint32)
    return bits.view(np.float32)


def error_ulp(found: np.ndarray, true: np.ndarray) -> float:
    """Largest distance from float64 `true`, in units in the last place of a float32."""
    spacing = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(found.astype(np.float64) - true) / spacing))


FINITE = {  # for each function its bound, the fewest numbers to try, and where
    "exp": (1.1, 500_000, [
        (-0.0, -103.97), (0.0, 88.722839), (-80.0, -103.9), (-1e-3, -1.0), (0.1, 2.0),
    ]),
    "log": (0.9, 1_000, [
        (1e-45, 3.4028e38), (1e-45, 1.2e-38), (0.5, 2.0), (0.9999, 1.0001), (0.7, 0.71),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", FINITE)
def test_exp_and_log_are_within_their_bounds(name: str) -> None:
    bound, fewest, ranges = FINITE[name]
    for begin, end in ranges:
        x = floats(begin, end, 1_000_000)
        assert len(x) > fewest
        assert error_ulp(getattr(exact, name)(x), getattr(np, name)(x.astype(np.float64))) < bound


JUDGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "tanh": (torch.tanh, 1.4),
    "erf": (torch.erf, 1.6),
    "logistic": (torch.sigmoid, 2.5),
}
EVERYWHERE = [(1e-45, 3.4e38), (1e-3, 10.0), (0.3, 1.2), (0.624, 0.626), (0.874, 0.876), (3.8, 4.0)]


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize(("begin", "end"), EVERYWHERE)
def test_sigmoids_are_within_their_bounds(name: str, begin: float, end: float) -> None:
    judge, bound = JUDGES[name]
    for sign in (1, -1):
        x = floats(sign * begin, sign * end, 500_000)
        true = judge(torch.tensor(x.astype(np.float64))).numpy()
        assert error_ulp(getattr(exact, name)(x), true) < bound


def test_sigmoids_are_odd_and_reach_their_limits() -> None:
    x = floats(1e-45, 3.4e38, 100_000)
    for name in ("tanh", "erf"):
        function = getattr(exact, name)
        assert clib.same_bits(function(-x), -function(x))
        limits = function(np.array([0.0, np.inf, -np.inf, 10.0], np.float32))
        assert limits.tolist() == [0.0, 1.0, -1.0, 1.0]
    limits = exact.logistic(np.array([0.0, np.inf, -np.inf, 100.0, -200.0], np.float32))
    assert limits.tolist() == [0.5, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("variant", [0, 1])
def test_gelu_is_within_its_bound(variant: int) -> None:
    """Where x is far below 0 it is a difference of nearly equal numbers, as in PyTorch."""
    x = np.linspace(-12, 12, 500_001).astype(np.float32)
    attrs = {"n": 1, "c": x.size, "h": 1, "w": 1, "variant": variant}
    y = clib.run("gelu", "none", attrs, [x], 0, x.shape)
    wide = torch.tensor(x.astype(np.float64))
    true = torch.nn.functional.gelu(wide, approximate="tanh" if variant else "none").numpy()
    assert np.max(np.abs(y - true) / np.maximum(np.abs(x), 1)) < 1.5e-7


def test_powers() -> None:
    for base in (0.0, 0.5, 0.9, 0.999, 1.0, 1.5):
        for n in (0, 1, 2, 3, 10, 31, 1000, 2**32 - 1):
            in_c = clib.library().poet_power(base, n)
            assert np.float32(in_c) == exact.power(np.float32(base), n)
            if n <= 31:
                assert in_c == pytest.approx(float(np.float32(base)) ** n, rel=3e-6)


C_NAMES = {"tanh": "tanhf", "erf": "erff"}


@pytest.mark.parametrize("name", ["exp", "log", *JUDGES])
def test_c_has_the_same_bits_as_numpy(name: str) -> None:
    everywhere = np.arange(0, 2**32, 40_009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = [0.0, -0.0, 1.0, np.inf, -np.inf, 88.7228394, 88.72284, -103.972084, -103.97209]
    x = np.concatenate([everywhere, floats(0.5, 2.0, 20_000), np.array(edges, np.float32)])
    function: Callable[[float], float] = getattr(clib.library(), f"poet_{C_NAMES.get(name, name)}")
    in_c = np.array([function(value) for value in x.tolist()], np.float32)
    in_numpy = getattr(exact, name)(x)
    assert np.array_equal(np.isnan(in_c), np.isnan(in_numpy))
    assert np.isnan(in_c).any()
    number = ~np.isnan(in_c)
    assert clib.same_bits(in_c[number], in_numpy[number])


def test_exp_and_log_at_the_edges() -> None:
    def both(name: str, x: float) -> float:
        in_c = getattr(clib.library(), f"poet_{name}")(x)
        in_numpy = float(getattr(exact, name)(np.array([x], np.float32))[0])
        assert in_c == in_numpy or (np.isnan(in_c) and np.isnan(in_numpy))
        return in_numpy

    assert both("exp", 0.0) == 1
    assert both("exp", np.inf) == np.inf
    assert both("exp", 88.72284) == np.inf
    assert both("exp", 88.72283) < np.inf
    assert both("exp", -np.inf) == 0
    assert both("exp", -104.0) == 0
    assert both("exp", -103.9) == 2.0**-149
    assert both("log", 1.0) == 0
    assert both("log", 0.0) == -np.inf
    assert both("log", np.inf) == np.inf
    assert np.isnan(both("log", -1.0))
    assert np.isnan(both("exp", np.nan))
    assert np.isnan(both("log", np.nan))


@pytest.mark.parametrize("words", [(0,), (1, 2), (3, 2**32 - 1, 5), (7, 0, 123_456_789)])
@pytest.mark.parametrize("seed", [0, 1, 0x9747B28C, 2**32 - 1])
def test_random_words_are_murmurhash3(seed: int, words: tuple[int, ...]) -> None:
    message = np.array(words, "<u4").tobytes()
    judge = murmurhash3_32(message, seed=seed, positive=True)
    assert exact.murmur3(seed, *words).tolist() == [judge]


COUNT = 200_000


def dropped(probability: float, seed: int = 1, step: int = 1, key: int = 1) -> np.ndarray:
    """What dropout in C makes of ones."""
    attrs = {"n": 1, "c": COUNT, "h": 1, "w": 1, "probability": probability}
    attrs |= {"seed": seed, "key": key}
    ones = np.ones(COUNT, np.float32)
    return clib.run("dropout", "none", attrs, [ones], step, (COUNT,))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_scales_it(probability: float) -> None:
    y = dropped(probability)
    scale = np.float32(1) / (np.float32(1) - np.float32(probability))
    assert set(np.unique(y)) <= {np.float32(0), scale}
    deviation = np.sqrt(probability * (1 - probability) / COUNT)
    assert abs(np.mean(y > 0) - (1 - probability)) <= 4 * deviation
    both = (y[1:] > 0) & (y[:-1] > 0)  # neighbours are drawn independently
    assert abs(np.mean(both) - (1 - probability) ** 2) <= 8 * deviation


@pytest.mark.parametrize("changed", ["seed", "step", "key"])
def test_dropout_draws_a_new_mask_for_every_seed_step_and_key(changed: str) -> None:
    first = dropped(0.5) > 0
    for value in (2, 3, 2**32 - 1):
        other = dropped(0.5, **{changed: value}) > 0
        agreement = np.mean(first == other)  # half of all, if the masks are independent
        assert abs(agreement - 0.5) < 4 * 0.5 / np.sqrt(COUNT)


def test_dropout_keeps_an_element_whose_number_is_just_the_probability() -> None:
    uniform = float(exact.murmur3(1, 1, 1, 0)[0] >> np.uint32(8)) / 2**24
    assert dropped(uniform)[0] > 0
    assert dropped(float(np.nextafter(np.float32(uniform), np.float32(1))))[0] == 0


ELEMENTARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.abs,
    torch.nn.functional.softplus,
    lambda x: torch.where(x > 0, x, 0.5 * (x.exp() - 1)),
    torch.exp,
    torch.reciprocal,
    torch.log,
    torch.sqrt,
)


WAVES = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)]


@pytest.mark.parametrize("variant", range(4))
def test_sine_is_within_its_bound_and_has_the_same_bits_in_numpy(variant: int) -> None:
    """Also of the largest floats, and of those nearest to a multiple of a quarter turn."""
    ranges = [(1e-45, 3.4e38), (1e-3, 200.0), (0.78, 0.79), (1.57, 1.5709)]
    found = [floats(sign * a, sign * b, 200_000) for a, b in ranges for sign in (1, -1)]
    near = np.float32([9.01279586e29, 1250223.25, np.pi, np.pi / 2])
    x = np.concatenate([*found, near, -near])
    assert error_ulp(exact.sine(x, variant), WAVES[variant](x.astype(np.float64))) < 2.8
    x = np.concatenate([x, np.float32([0, -0.0, np.inf, -np.inf, np.nan])])
    attrs = {"n": 1, "c": x.size, "h": 1, "w": 1, "variant": variant}
    in_c, in_numpy = clib.run("sine", "none", attrs, [x], 0, x.shape), exact.sine(x, variant)
    assert np.isnan(in_c).tolist() == np.isnan(in_numpy).tolist() == (~np.isfinite(x)).tolist()
    assert clib.same_bits(in_c[:-3], in_numpy[:-3])


@pytest.mark.parametrize("variant", range(len(ELEMENTARY)))
def test_elementary_functions_and_their_slopes(variant: int) -> None:
    """C equals NumPy for every kind of float, NaN and infinity too; PyTorch judges both."""
    everywhere = np.arange(0, 2**32, 400_009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-9 if variant < 5 else 0.25, 9, 1000).astype(np.float32)
    x = np.concatenate([near, np.array([0, -0.0, np.nan, np.inf, -np.inf], np.float32), everywhere])
    attrs = {"n": 1, "c": x.size, "h": 1, "w": 1, "variant": variant, "factor": 0.5}
    wide = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = ELEMENTARY[variant](wide)
    y.sum().backward()
    assert wide.grad is not None
    for op, inputs, true in (
        ("elementary", [x], y.detach()),
        ("elementary_grad", [x, np.ones_like(x)], wide.grad),
    ):
        found = clib.run(op, "none", attrs, inputs, 0, x.shape)
        expected = run_kernel(op, "none", attrs, inputs, 0, shape=x.shape)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert clib.same_bits(np.nan_to_num(found), np.nan_to_num(expected))
        assert np.isnan(found[np.isnan(x)]).all() or (op, variant) == ("elementary_grad", 2)
        assert np.allclose(found[: near.size], true.numpy()[: near.size], rtol=2e-6, atol=2e-7)
