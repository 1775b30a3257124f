"""What a board's poet_health says, in words."""

from typing import Any

from .. import isa

UNWANTED = 4  # codes of RESET rows from here on are resets that nobody wanted


def is_unwanted(health: Any) -> bool:
    """Return True if the board was last reset for a reason that needs attention."""
    return bool(health.reset >= UNWANTED)


def reset_text(health: Any) -> str:
    """Say why the board was last reset, where in its program, and what to try."""
    gave_up = isa.by_name("RESET")["gave_up"]
    why, advice = isa.by_code("RESET")[health.reset & ~gave_up.code].columns
    where = [
        *([f"exception {health.exception}"] if health.exception else []),
        *([f"at {health.at:#010x}"] if health.at else []),
        *([f"called from {health.caller:#010x}"] if health.caller else []),
        *([f"statement {health.statement}"] if is_unwanted(health) else []),
    ]
    text = f"the board was reset {why}" + (f" ({', '.join(where)})" if where else "")
    if advice:
        text += f": {advice}"
    return f"{text}. {': '.join(gave_up.columns)}" if health.reset & gave_up.code else text
