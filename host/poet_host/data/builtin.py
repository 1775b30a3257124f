"""Data sets that come with poet-host: handwritten digits, and random samples."""

import re
from math import prod
from pathlib import Path

import numpy as np

from ..errors import BadInput
from ..graph.weights import Array

DIGITS = Path(__file__).with_name("digits.npz")
DIGITS_HELD_OUT = 360
SYNTHETIC_SAMPLES = 512
SYNTHETIC_HELD_OUT = 128
_SIZE = r"\d{1,30}"  # int() refuses numbers with thousands of digits
Halves = tuple[Array, Array, Array, Array]  # x, y, and the held-out x_test, y_test


def digits() -> Halves:
    """Return scikit-learn's 1,797 images of digits in shape (N, 1, 8, 8), with pixels from 0 to 1.

    The last 360 digits are held out.
    """
    with np.load(DIGITS) as arrays:
        x = arrays["images"].astype(np.float32)[:, None] / np.float32(16)
        y = arrays["labels"].astype(np.int32)
    cut = len(x) - DIGITS_HELD_OUT
    return x[:cut], y[:cut], x[cut:], y[cut:]


def synthetic(spec: str) -> Halves:
    """Return random samples. Each sample is the random pattern of its class, plus noise.

    Every call returns the same samples.
    """
    found = re.fullmatch(rf"synthetic:({_SIZE}(?:x{_SIZE}){{0,7}}):({_SIZE})", spec)
    shape = tuple(int(size) for size in found[1].split("x")) if found else ()
    classes = int(found[2]) if found else 0
    if not prod(shape) * classes:
        raise BadInput(
            f"data {spec!r}: write synthetic:SHAPE:CLASSES with numbers of 1 or more, such as "
            "synthetic:3x32x32:10"
        )
    count = SYNTHETIC_SAMPLES + SYNTHETIC_HELD_OUT
    if prod(shape) * (count + classes) > 2**28:
        raise BadInput(
            f"data {spec!r}: {count} samples of this shape, and a pattern of each class, take more "
            "than 1 GiB: choose a smaller shape or fewer classes"
        )
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((classes, *shape), dtype=np.float32)
    y = rng.integers(0, classes, count).astype(np.int32)
    x = patterns[y] + rng.standard_normal((count, *shape), dtype=np.float32)
    cut = SYNTHETIC_SAMPLES
    return x[:cut], y[:cut], x[cut:], y[cut:]


def tokens(spec: str) -> Halves:
    """Return texts of LENGTH tokens about CLASSES topics. Every call returns the same texts.

    A text is token 1, then words, then zeros. Token 1 and the words fill at least a quarter of the
    text. With probability 1/2, a word is drawn from the eight words of the text's topic, otherwise
    from all words.
    """
    found = re.fullmatch(rf"tokens:({_SIZE}):({_SIZE}):({_SIZE})", spec)
    length, words, classes = (int(size) for size in found.groups()) if found else (0, 0, 0)
    if length < 2 or not 12 <= words <= 2**31 or classes < 1:
        raise BadInput(
            f"data {spec!r}: write tokens:LENGTH:WORDS:CLASSES, such as tokens:64:512:10. LENGTH "
            f"must be 2 or more, WORDS 12 to {2**31}, CLASSES 1 or more"
        )
    count = SYNTHETIC_SAMPLES + SYNTHETIC_HELD_OUT
    if length * count + 8 * classes > 2**28:
        raise BadInput(
            f"data {spec!r}: {count} samples of this length, and eight words of each class, take "
            "more than 1 GiB: choose a smaller length or fewer classes"
        )
    rng = np.random.default_rng(0)
    favoured = rng.integers(2, words, (classes, 8))
    y = rng.integers(0, classes, count).astype(np.int32)
    own = favoured[y[:, None], rng.integers(0, 8, (count, length))]
    x = np.where(rng.random((count, length)) < 0.5, own, rng.integers(2, words, (count, length)))
    x[:, 0] = 1
    ends = rng.integers(max(2, length // 4), length + 1, count)
    x = np.where(np.arange(length) < ends[:, None], x, 0).astype(np.int32)
    cut = SYNTHETIC_SAMPLES
    return x[:cut], y[:cut], x[cut:], y[cut:]
