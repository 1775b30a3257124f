"""Augmentation: change the samples of a batch at random, so that no epoch repeats another.

What changes depends on the seed and the step alone, so a resumed training makes the same batches.
"""

import re
from dataclasses import dataclass

import numpy as np

from ..errors import BadInput
from ..graph.weights import Array
from .media import time_axis

_HOW = "flip, crop:PIXELS, shift:STEPS and noise:DEVIATION, with commas between them"
_STREAM = 0x41554731  # keeps these random numbers apart from those of other purposes


@dataclass(frozen=True)
class Augmentation:
    """What is done to samples, in this order. They are normalised before.

    `flip`: half of all images are mirrored, left to right. `crop`: images move by up to so many
    pixels in both directions. `shift`: samples move by up to so many steps along time, which is the
    longer of the last two axes. What comes in from outside is 0. `noise`: the standard deviation of
    normal noise that is added to each number.
    """

    flip: bool = False
    crop: int = 0
    shift: int = 0
    noise: float = 0.0

    def check(self, where: str, shape: tuple[int, ...], dtype: str) -> None:
        """Raise BadInput if samples of `shape` cannot be changed like this."""
        if dtype != "float32":
            raise BadInput(f"{where}: tokens cannot be augmented: omit --augment")
        if (self.flip or self.crop) and len(shape) != 3:
            raise BadInput(
                f"{where}: only images of shape (channels, height, width) can be flipped or "
                "cropped: use --augment shift or noise"
            )
        if self.crop >= min(shape[1:], default=1) and self.crop:
            raise BadInput(f"{where}: a crop by {self.crop} pixels leaves nothing of an image")
        if self.shift >= shape[time_axis(shape)] and self.shift:
            raise BadInput(f"{where}: a shift by {self.shift} steps leaves nothing of a sample")

    def apply(self, x: Array, seed: int, step: int) -> Array:
        """Return changed samples. x: (N, ...) float32."""
        rng = np.random.default_rng([_STREAM, seed, step])
        x = x.copy()
        if self.flip:
            mirrored = rng.random(len(x)) < 0.5
            x[mirrored] = x[mirrored][..., ::-1]
        for most, axis in ((self.crop, -2), (self.crop, -1), (self.shift, time_axis(x.shape[1:]))):
            for sample, by in zip(x, rng.integers(-most, most + 1, len(x)), strict=True):
                if by:
                    sample[...] = _moved(sample, axis, int(by))
        if self.noise:
            x += np.float32(self.noise) * rng.standard_normal(x.shape, np.float32)
        return x


def augmentation_of(how: str) -> Augmentation:
    """Return the augmentation of a text such as "flip,crop:4,noise:0.1".

    Raises BadInput for another text.
    """
    given: dict[str, float] = {}
    for part in how.replace(" ", "").split(","):
        found = re.fullmatch(r"(flip)|(crop|shift):(\d{1,4})|(noise):(\d*\.?\d+)", part)
        if not found:
            raise BadInput(f"augmentation {part!r} of {how!r}: use {_HOW}, such as flip,crop:4")
        name = found[1] or found[2] or found[4]
        if name in given:
            raise BadInput(f"augmentation {how!r}: {name} is given twice: give it once")
        given[name] = True if found[1] else int(found[3]) if found[2] else float(found[5])
    return Augmentation(**given)  # type: ignore[arg-type]


def _moved(sample: Array, axis: int, by: int) -> Array:
    """Return the sample moved by `by` steps along an axis. What comes in from outside is 0."""
    moved = np.roll(sample, by, axis)
    np.moveaxis(moved, axis, 0)[slice(0, by) if by > 0 else slice(by, None)] = 0
    return moved
