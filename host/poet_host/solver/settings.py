"""Settings of a planning method, and a stopwatch for its time limit."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..work import now_s
from .policy import DEFAULT_POLICY, SearchPolicy

Method = Literal["poet", "poet-paging", "poet-remat"]
Progress = Callable[[float | None, float, float | None, float], object]
"""Called on every change with (value, bound, gap, elapsed_s). None: not known yet."""


@dataclass(frozen=True)
class Settings:
    """The limits and options of a planning method."""

    # After this many seconds, the method returns the best plan that it has found.
    time_limit_s: float = 60.0
    # Stop when (value - bound) / value of the best plan is at most this; 0: prove the optimum.
    gap: float = 0.0
    # Whether each tensor gets a fixed offset. If not, only the sum of bytes in RAM is limited.
    placed: bool = True
    progress: Progress | None = None
    # If set, return a plan only if its value is less than this. If none is, do not say why.
    below: float | None = None
    # Whether the time limit is one of counted work (work.py), instead of the computer's clock.
    counted: bool = False
    policy: SearchPolicy = DEFAULT_POLICY


DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True)
class Stopwatch:
    """The time limit of a method. The time begins when this object is made."""

    limit_s: float
    started_at_s: float = field(default_factory=time.monotonic)
    begin_s: float = field(default_factory=now_s)  # on the clock of searches

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at_s

    @property
    def left_s(self) -> float:
        return max(0.0, self.begin_s + self.limit_s - now_s())
