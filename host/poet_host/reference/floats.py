"""Float32 functions with exactly defined results: sums, exp, log, tanh, erf, random words.

They perform the operations of firmware/kernels/mathf.c and dropout.c in the same order. np.sum and
np.exp cannot replace these functions, because NumPy's rounding differs between processors.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
f32 = np.float32

_LN2_HIGH, _LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)


def _floats(*values: float) -> tuple[np.float32, ...]:
    return tuple(map(f32, values))


_EXP = _floats(0.001395172, 0.0083695982, 0.0416661872, 0.166665129, 0.5)
_LOG = _floats(0.0674665152, -0.116756546, 0.118881588, -0.124055882, 0.142195527) + _floats(
    -0.166679959, 0.200021186, -0.250000096, 0.333333126
)
_TANH = _floats(-0.0057049785, 0.020639079, -0.05373971, 0.13331442, -0.3333328)
_ERF_SMALL = _floats(-0.00062029896, 0.005032125, -0.02679142, 0.11282454, -0.3761255, 0.12837915)
_ERF_LARGE = _floats(
    -0.00020099733, 0.003092302, -0.022420254, 0.104327574, 0.63673717, 1.1279361, 0.00013356694
)
_WAVE = _floats(0.000151485131, -0.00467376661, 0.0796896789, -0.645963711, 1.57079632)
_SIN = _floats(-0.000195152184, 0.0083321603, -0.166666552)
_COS = _floats(0.000390929315, -0.00555492612, 0.0416666456)
# 4 bytes of 0, then 2 / pi
_TWO_OVER_PI = bytes.fromhex("00000000a2f9836e4e441529fc2757d1f534ddc0db6295993c439041")
_ONE, _SQRT_HALF = 0x3F800000, 0x3F3504F3  # bits of the floats 1 and sqrt(1/2)


def ordered_sum(terms: Array, axes: int = 1) -> Array:
    """Sum over the last `axes` axes. Elements are added in memory order, starting from 0."""
    flat = terms.reshape(*terms.shape[: terms.ndim - axes], -1)
    total: Array = np.add.accumulate(flat, axis=-1)[..., -1] + f32(0)
    return total


def _horner(x: Array, coefficients: tuple[np.float32, ...]) -> Array:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _power_of_two(exponent: NDArray[np.int32]) -> Array:
    return ((exponent + 127) << 23).view(np.float32)


@np.errstate(all="ignore")
def exp(x: Array) -> Array:
    """Return e^x within 1.1 units in the last place, for any float32."""
    high, low = f32(89), f32(-104)
    inside = np.where(np.isnan(x), f32(0), np.clip(x, low, high))
    n = (inside * f32(1.44269504) + np.where(inside < 0, f32(-0.5), f32(0.5))).astype(np.int32)
    whole = n.astype(np.float32)
    r = (inside - whole * _LN2_HIGH) - whole * _LN2_LOW
    value = f32(1) + (r + r * r * _horner(r, _EXP))
    value = value * _power_of_two(n // 2) * _power_of_two(n - n // 2)
    value = np.where(x > high, f32(np.inf), np.where(x < low, f32(0), value))
    return np.where(np.isnan(x), x, value)


@np.errstate(all="ignore")
def log(x: Array) -> Array:
    """Return the natural logarithm within 0.9 units in the last place, for any float32."""
    small = x < f32(2.0**-126)
    bits = np.where(small, x * f32(2.0**23), x).astype(np.float32).view(np.int32)
    bits = bits + np.int32(_ONE - _SQRT_HALF)
    n = ((bits >> 23) - np.where(small, 150, 127)).astype(np.float32)
    f = ((bits & np.int32(0x7FFFFF)) + np.int32(_SQRT_HALF)).view(np.float32) - f32(1)
    tail = f * f * (f * _horner(f, _LOG) - f32(0.5)) + n * _LN2_LOW
    value = n * _LN2_HIGH + (f + tail)
    value = np.where(np.isinf(x), x, value)
    return np.where(x > 0, value, np.where(x == 0, f32(-np.inf), f32(np.nan)))


@np.errstate(all="ignore")
def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent within 1.4 units in the last place, for any float32."""
    magnitude, square = np.abs(x), x * x
    small = x + x * square * _horner(square, _TANH)
    large = f32(1) - f32(2) / (exp(f32(2) * magnitude) + f32(1))
    return np.where(magnitude < f32(0.625), small, np.where(x < 0, -large, large))


@np.errstate(all="ignore")
def erf(x: Array) -> Array:
    """Return the error function within 1.6 units in the last place, for any float32."""
    magnitude, square = np.abs(x), x * x
    small = x + x * _horner(square, _ERF_SMALL)
    large = f32(1) - exp(-_horner(magnitude, _ERF_LARGE))
    large = np.where(magnitude > f32(3.9375), f32(1), large)
    return np.where(magnitude < f32(0.875), small, np.where(x < 0, -large, large))


@np.errstate(all="ignore")
def logistic(x: Array) -> Array:
    """Return 1 / (1 + e^-x) within 2.5 units in the last place, for any float32."""
    e = exp(np.where(x < 0, x, -x))
    result: Array = np.where(x < 0, e, f32(1)) / (f32(1) + e)
    return result


def _quarter_turns(x: Array) -> tuple[NDArray[np.int64], Array]:
    """Return n and f pi / 2 of |x| = (n + f) pi / 2, as quarter_turns of mathf.c does."""
    bits, words = x.view(np.uint32), len(_TWO_OVER_PI) - 3
    place = ((bits >> 23 & 255) - 120).astype(np.intp)
    mantissa = ((bits & 0x7FFFFF | 0x800000) << (place & 7).astype(np.uint32)).astype(np.uint64)
    word = np.array([int.from_bytes(_TWO_OVER_PI[i : i + 4]) for i in range(words)], np.uint64)
    first, second, third = (mantissa * word[(place >> 3) + i] for i in (0, 4, 8))
    turns = (first << 32) + second + (third >> 32)
    n = (turns + np.uint64(1 << 61)) >> 62
    turns -= n << 62
    below = turns >> 63 == 1
    turns = np.where(below, ~turns + np.uint64(1), turns)
    unit = np.full(x.shape, f32(np.pi / 2) * f32(2.0**-30))
    for step in (32, 16, 8, 4, 2, 1):
        small = turns >> (64 - step) == 0
        turns = np.where(small, turns << step, turns)
        unit = np.where(small, unit * f32(2.0**-step), unit)
    size = (turns >> 32).astype(np.uint32).astype(np.float32) * unit
    return n.astype(np.int64), np.where(below, -size, size)


@np.errstate(all="ignore")
def sine(x: Array, quarters: int) -> Array:
    """Return sin(x + quarters * pi / 2) within 2.8 units in the last place, for any float32."""
    large = (np.abs(x) > f32(0.785398163)) & np.isfinite(x)
    turns, rest = _quarter_turns(np.where(large, np.abs(x), f32(1)))
    n = np.where(large, np.where(x < 0, -turns, turns), 0) + quarters
    r = np.where(large, np.where(x < 0, -rest, rest), x)
    square = r * r
    sin = r + r * square * _horner(square, _SIN)
    cos = f32(1) + square * (square * _horner(f32(0.25) * square, _COS) - f32(0.5))
    y = np.where(n & 1, cos, sin)
    return np.where(np.isfinite(x), np.where(n & 2, -y, y), x - x)


def half_wave(x: Array) -> Array:
    """Return (1 - cos(pi x)) / 2 within a relative error of 4e-7, for x from 0 to 1."""
    root: Array = x * _horner(x * x, _WAVE)
    return root * root


def power(x: np.float32, n: int) -> np.float32:
    """Return x^n by repeated squaring, from the lowest bit of n. x^0 is 1."""
    result = f32(1)
    with np.errstate(all="ignore"):
        while n:
            result = result * x if n & 1 else result
            x, n = x * x, n >> 1
    return result


def _rotate_left(word: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)


def murmur3(seed: int, *words: int | NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return MurmurHash3_x86_32 of little-endian 32-bit words.

    If a word is an array, the result has one hash for each of its items.
    """
    hashed: NDArray[np.uint32] = np.array([seed], dtype=np.uint32)
    for word in words:
        mixed = np.atleast_1d(np.asarray(word, dtype=np.uint32)) * np.uint32(0xCC9E2D51)
        hashed = hashed ^ (_rotate_left(mixed, 15) * np.uint32(0x1B873593))
        hashed = _rotate_left(hashed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed = hashed ^ np.uint32(4 * len(words))
    hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashed ^ hashed >> np.uint32(16)
