"""The paths of the files that are part of the package: firmware, boards, schedules, examples."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(name: str) -> Path:
    """Return the path of a folder, such as `firmware`, in a wheel or in a checkout."""
    packaged = _PACKAGE / name
    return packaged if packaged.exists() else _PACKAGE.parents[1] / name
