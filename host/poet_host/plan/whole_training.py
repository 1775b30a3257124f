"""From the plan of one step to a whole training: its hours, its energy and its battery."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BadInput
from ..profile.profile import Profile
from .plan import Plan
from .pricing import commit_costs, longest_commit_us
from .problem import CostGraph

CELL_V = 3.7  # nominal voltage of a lithium-ion cell, which the mAh printed on it refer to
_NUMBER = r"(\d{1,30}(?:\.\d{1,30})?)\s*"
_BATTERY = re.compile(_NUMBER + r"(mah|ah|mwh|wh)(?:\s*@\s*" + _NUMBER + "v)?", re.I)
_WATT_HOURS = {"mah": 1e-3, "ah": 1.0, "mwh": 1e-3, "wh": 1.0}  # the first two: x volts
_DURATION = re.compile(_NUMBER + r"(s|min|h|d)", re.I)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Battery:
    """A full battery, without the losses of a voltage converter."""

    energy_j: float
    voltage_v: float = CELL_V

    def charge_mah(self, energy_j: float) -> float:
        """Return the charge that takes `energy_j` from this battery."""
        return energy_j / self.voltage_v / 3.6


def battery_of(text: str) -> Battery:
    """Read a battery: `2000mAh`, `2Ah@3V` or `7.4Wh`. A charge without volts is at CELL_V.

    Raises BadInput for any other text, and for an empty battery.
    """
    found = _BATTERY.fullmatch(text.strip())
    if not found:
        raise BadInput(
            f"--battery {text!r}: write a charge, such as 2000mAh (at {CELL_V} V) or "
            "2000mAh@3V, or an energy, such as 7.4Wh"
        )
    unit, volts = found[2].lower(), float(found[3]) if found[3] else CELL_V
    energy_j = float(found[1]) * _WATT_HOURS[unit] * 3600 * (volts if unit.endswith("ah") else 1)
    if energy_j <= 0 or volts <= 0:
        raise BadInput(f"--battery {text!r}: charge and voltage must be larger than 0")
    return Battery(energy_j, volts)


def duration_us(text: str) -> float:
    """Read a duration (`45s`, `90min`, `8h` or `2d`) in microseconds. Raises BadInput."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2].lower()] if found else 0.0
    if seconds <= 0:
        raise BadInput(f"--finish-in {text!r}: write a duration, such as 45s, 90min, 8h or 2d")
    return seconds * 1e6


def step_deadline_us(
    finish_us: float, steps: int, costs: CostGraph, profile: Profile, stays: bool
) -> float:
    """Return the deadline of a step, if `steps` steps with their commits take `finish_us` at most.

    Longer steps have dearer commits (FORMAT.md, "Digest"), so the commit of the longest step that
    the deadline allows is an upper bound. `stays`: whether the method lets tensors stay in RAM from
    step to step, which commits write. Raises BadInput if the commits alone take too long.
    """
    share_us = finish_us / steps
    commit_us = longest_commit_us(profile, costs, share_us, stays)
    if share_us <= commit_us:
        raise BadInput(
            f"--finish-in leaves {share_us / 1e3:,.3f} ms for each of {steps:,} steps, but the "
            f"commit of a step takes {commit_us / 1e3:,.3f} ms alone: allow at least "
            f"{duration_text(steps * commit_us)}, plus the time of the steps"
        )
    return share_us - commit_us


def duration_text(time_us: float) -> str:
    """Return a duration with three digits in its largest unit: `45 s`, `12.5 min`, `1,230 d`."""
    seconds = time_us / 1e6
    unit = next((unit for unit in reversed(_SECONDS) if _SECONDS[unit] <= seconds), "s")
    number = seconds / _SECONDS[unit]
    decimals = max(0, 2 - math.floor(math.log10(number))) if number > 0 else 0
    return f"{number:,.{decimals}f} {unit}"


@dataclass(frozen=True)
class WholeTraining:
    """`steps` steps of a plan, with their commits. Energies include the sleeping board's."""

    steps: int
    step_time_us: float
    step_energy_uj: float

    @property
    def time_us(self) -> float:
        return self.steps * self.step_time_us

    @property
    def energy_j(self) -> float:
        return self.steps * self.step_energy_uj / 1e6

    def to_json(self, battery: Battery | None) -> dict[str, Any]:
        """Return all figures; with a battery also the charge and the share of the battery."""
        figures = {**asdict(self), "time_us": self.time_us, "energy_j": self.energy_j}
        if battery is None:
            return figures
        return figures | {
            "charge_mah": battery.charge_mah(self.energy_j),
            "voltage_v": battery.voltage_v,
            "battery_j": battery.energy_j,
            "battery_share": self.energy_j / battery.energy_j,
        }


def whole_training(
    plan: Plan, steps: int, costs: CostGraph, profile: Profile | None
) -> WholeTraining:
    """Return what `steps` steps of `plan` need. Without a profile, commits cost nothing."""
    assert plan.time_us is not None
    assert plan.total_energy_uj is not None
    commit_us, commit_uj = commit_costs(profile, costs, plan) if profile else (0.0, 0.0)
    commit_uj += costs.base_power_uw * commit_us / 1e6
    return WholeTraining(steps, plan.time_us + commit_us, plan.total_energy_uj + commit_uj)
