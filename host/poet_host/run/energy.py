"""Energy of a step from what the board measured of its states: estimated, not metered."""

from ..profile.profile import Power
from .run import Step


def energy_uj(step: Step, power: Power) -> tuple[float, float]:
    """Microjoules of one step above the sleeping board's, and with it: time in each state (the
    processor awake, storage read, storage written) x the power of that state."""
    above = (
        (step.time_us - step.asleep_us) * power.compute_uw
        + step.reading_us * power.page_in_uw
        + step.writing_us * power.page_out_uw
    ) / 1e6
    return above, above + step.time_us * power.base_uw / 1e6
