"""Normalisation of samples, which weights keep: the same numbers in training and in use."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadInput
from ..graph.weights import Array

NORMALIZATIONS = ("none", "scale", "standard")


@dataclass(frozen=True)
class Normalization:
    """Subtract `offset` from samples, then divide by `scale`, in float32, rounding each result.

    Both are float32 numbers: one for all values of a sample, one for each channel (the first axis
    of a sample), or one for each value. Raises BadInput if they are not finite, or a scale is not
    above 0.
    """

    offset: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            for name in ("offset", "scale"):
                rounded = np.asarray(getattr(self, name), np.float32)
                object.__setattr__(self, name, tuple(rounded.tolist()))
        finite = np.isfinite(self.offset + self.scale).all() and min(self.scale, default=0) > 0
        if len(self.offset) != len(self.scale) or not finite:
            raise BadInput(
                "a normalisation needs as many offsets as scales, all of them finite in 32-bit "
                "floats, and scales above 0"
            )

    def __repr__(self) -> str:
        return f"<Normalization: {self}>"

    def __str__(self) -> str:
        if self == NONE:
            return "none"
        if len(self.scale) > 1:
            return f"{len(self.scale):,} offsets and scales"
        return f"offset {self.offset[0]:.7g}, scale {self.scale[0]:.7g}"

    def to_json(self) -> dict[str, list[float]]:
        """Return both lists, each number as the shortest that rounds to the same float32."""
        return {"offset": [*map(_short, self.offset)], "scale": [*map(_short, self.scale)]}

    def apply(self, where: str, x: Array) -> Array:
        """Return float32 samples `x` (N, ...) normalised. `where` names them in errors.

        Raises BadInput if the samples do not have the channels, or if a result is not finite.
        """
        if self == NONE:
            return x
        count, size = len(self.scale), x.size // max(len(x), 1)
        if size % count:
            raise BadInput(
                f"{where}: a sample has {size:,} values, but its normalisation has {count:,} "
                "channels. Use data with the shape of the training data"
            )
        offset, scale = (np.array(it, np.float32)[:, None] for it in (self.offset, self.scale))
        with np.errstate(over="ignore", under="ignore"):
            found: Array = ((x.reshape(len(x), count, -1) - offset) / scale).reshape(x.shape)
        if not np.isfinite(found).all():
            raise BadInput(
                f"{where}: after normalisation ({self}), samples are too large for 32-bit floats. "
                "Correct the samples, or choose another --normalize"
            )
        return found


NONE = Normalization((0.0,), (1.0,))


def normalization_of(where: str, x: Array, how: str) -> Normalization:
    """Return the normalisation `how` with the statistics of float32 samples `x` (N, ...).

    `how` is "none", "scale" (the smallest number becomes 0, the largest becomes 1), "standard"
    (each channel gets mean 0 and standard deviation 1), or "MEAN:STD" (subtract MEAN, divide by
    STD). A channel in which all numbers are equal is not divided. Raises BadInput if such a
    normalisation does not exist.
    """
    if how == "none":
        return NONE
    if how not in NORMALIZATIONS:
        return _of_text(how)
    low, high = x.min(), x.max()
    offset: Any = low
    with np.errstate(over="ignore"):
        scale: Any = high - low
    if how == "standard":
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        offset, scale = x.mean(axes, np.float64), x.std(axes, np.float64)
    if not np.isfinite(scale).all():
        raise BadInput(
            f"{where}: the numbers {low:g} to {high:g} are too far apart to normalise them in "
            "32-bit floats: correct the samples"
        )
    scale = np.asarray(scale, np.float32).reshape(-1)
    scale = np.where(scale > 0, scale, 1)
    return Normalization(tuple(np.asarray(offset).reshape(-1).tolist()), tuple(scale.tolist()))


def _short(value: float) -> float:
    short = float(str(np.float32(value)))
    return short if np.float32(short) == value else value


def _of_text(how: str) -> Normalization:
    try:
        mean, deviation = (float(part) for part in str(how).split(":"))
        return Normalization((mean,), (deviation,))
    except (ValueError, BadInput):
        raise BadInput(
            f"normalize {how!r}: choose {', '.join(NORMALIZATIONS)}, or MEAN:STD, such as "
            "0.5:0.25. MEAN must be finite, and STD finite and above 0"
        ) from None
