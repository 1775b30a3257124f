"""Energy of a step from the measured times in each power state: estimated, not metered."""

from ..profile.profile import Power
from .run import Step


def energy_uj(step: Step, power: Power) -> tuple[float, float]:
    """Microjoules of one whole step: above the sleeping board, and with the sleeping board.

    Time in each state (processor awake, storage read, storage written) x the power of that state.
    """
    awake_us = step.time_us - step.asleep_us
    above = _above_uj(power, awake_us, step.reading_us, step.writing_us)
    return above, above + step.time_us * power.base_uw / 1e6


def planned_part(step: Step, power: Power) -> tuple[float, float]:
    """Time, and energy above the sleeping board, of the part of a step that a plan contains.

    In us and uJ. That part is the step without its overhead. The plan's `time_us` and `energy_uj`
    predict it.
    """
    time_us = step.time_us - step.overhead_us
    awake_us = time_us - (step.asleep_us - step.overhead_asleep_us)
    reading_us = step.reading_us - step.overhead_reading_us
    writing_us = step.writing_us - step.overhead_writing_us
    return time_us, _above_uj(power, awake_us, reading_us, writing_us)


def _above_uj(power: Power, awake_us: float, reading_us: float, writing_us: float) -> float:
    moved_uj = reading_us * power.page_in_uw + writing_us * power.page_out_uw
    return (awake_us * power.compute_uw + moved_uj) / 1e6
