"""Estimate the energy of a step without a meter, from the time in each power state."""

from collections.abc import Sequence
from statistics import fmean

from ..profile.profile import Power
from .run import Commit, Step, timed


def energy_uj(step: Step, power: Power) -> tuple[float, float]:
    """Return two energies of a whole step in uJ: without and with the sleeping board's energy.

    Each is a sum over the states (processor awake, storage read, storage written): the time
    in the state times the power of the state.
    """
    awake_us = step.time_us - step.asleep_us
    above = _above_uj(power, awake_us, step.reading_us, step.writing_us)
    return above, above + step.time_us * power.base_uw / 1e6


def mean_energy_uj(
    steps: Sequence[Step], commits: Sequence[Commit], power: Power
) -> tuple[float, float]:
    """Return the means over `steps` (at least one with times) of both energies of a whole step.

    `commits` are those to the chip's flash, which are not part of a step. The processor is awake
    meanwhile.
    """
    energies = (energy_uj(step, power) for step in timed(steps))
    above_uj, total_uj = map(fmean, zip(*energies, strict=True))
    awake_us = sum(commit.time_us for commit in commits) / len(steps)
    commit_uj = _above_uj(power, awake_us, 0.0, 0.0)
    return above_uj + commit_uj, total_uj + commit_uj + awake_us * power.base_uw / 1e6


def planned_part(step: Step, power: Power) -> tuple[float, float]:
    """Return the time (us) and the energy (uJ) of a step without its overhead.

    The plan's `time_us` and `energy_uj` predict these two values, because a plan has no overhead.
    The energy of the sleeping board is not included.
    """
    return step.time_us - step.overhead_us, _above_uj(power, *planned_states_us(step))


def planned_states_us(step: Step) -> tuple[float, float, float]:
    """Return the times of the states without overhead: processor awake, storage read, written."""
    time_us = step.time_us - step.overhead_us
    awake_us = time_us - (step.asleep_us - step.overhead_asleep_us)
    reading_us = step.reading_us - step.overhead_reading_us
    return awake_us, reading_us, step.writing_us - step.overhead_writing_us


def _above_uj(power: Power, awake_us: float, reading_us: float, writing_us: float) -> float:
    moved_uj = reading_us * power.page_in_uw + writing_us * power.page_out_uw
    return (awake_us * power.compute_uw + moved_uj) / 1e6
