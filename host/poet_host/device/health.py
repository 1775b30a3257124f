"""What a board's poet_health says, in words."""

from typing import Any

from .. import isa

UNWANTED = 4  # codes of RESET rows from here on are resets that nobody wanted


def is_unwanted(health: Any) -> bool:
    """Return True if the board was last reset for a reason that needs attention."""
    return bool(health.reset >= UNWANTED)


def reset_text(health: Any) -> str:
    """Say why the board was last reset, where in its program, and what to try."""
    row = isa.by_code("RESET").get(health.reset)
    if row is None:
        return f"the board was reset by the unknown cause {health.reset}"
    why, advice = row.columns
    where = [
        *([f"exception {health.exception}"] if health.exception else []),
        *([f"at {health.at:#010x}"] if health.at else []),
        *([f"called from {health.caller:#010x}"] if health.caller else []),
        *([f"statement {health.statement}"] if is_unwanted(health) else []),
    ]
    text = f"the board was reset {why}" + (f" ({', '.join(where)})" if where else "")
    return f"{text}: {advice}" if advice else text
