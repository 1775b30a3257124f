"""Settings of a planning method, and the time that it has left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[float | None, float, float | None, float], object]
"""Called on every change with (energy_uj, bound_uj, gap, elapsed_s). None: not known yet."""


@dataclass(frozen=True)
class Settings:
    """The limits and options of a planning method."""

    # After this time, the method returns the best plan that it has found.
    time_limit_s: float = 60.0
    # Relative distance from the energy to the bound at which a search stops. 0 asks for a proof.
    gap: float = 0.0
    # Give each tensor a fixed offset. Otherwise only the sum of bytes in RAM is bounded.
    placed: bool = True
    progress: Progress | None = None
    # For a seed plan: return only a plan with less energy. If there is none, give no reason.
    below_uj: float | None = None


DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True)
class Stopwatch:
    """The time limit of a method. The time runs from the moment at which this object is made."""

    limit_s: float
    started_at_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at_s

    @property
    def left_s(self) -> float:
        return max(0.0, self.limit_s - self.elapsed_s)
