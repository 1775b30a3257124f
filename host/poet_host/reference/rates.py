"""The factors of learning rates, as a board computes them: see `struct poet_rate`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import isa
from .floats import f32, half_wave

CONSTANT, LINEAR, COSINE = (
    isa.constants()[f"POET_CURVE_{name}"] for name in ("CONSTANT", "LINEAR", "COSINE")
)
MAX_RATES = 255  # records of a model
FOREVER = 2**32 - 1


@dataclass(frozen=True)
class Rate:
    """The factor of all learning rates for `steps` steps, as in the C record `poet_rate`."""

    steps: int
    start: float
    end: float
    curve: int


def factor_of(rates: Sequence[Rate], step: int) -> np.float32:
    """Return the factor of all learning rates in a step. The first step has the number 1."""
    done = step - 1
    for rate in rates:
        if done < rate.steps:
            break
        done -= rate.steps
    else:
        return f32(1)
    if rate.curve == CONSTANT:
        return f32(rate.start)
    parts = np.array([rate.steps - done, done], f32) / f32(rate.steps)
    parts = half_wave(parts) if rate.curve == COSINE else parts
    factor: np.float32 = f32(rate.start) * parts[0] + f32(rate.end) * parts[1]
    return factor
